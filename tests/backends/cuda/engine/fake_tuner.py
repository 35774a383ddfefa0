"""Candidates, and a bench that times them, by a clock that only building and running move."""

from __future__ import annotations

import pytest

from genesis import dtypes
from genesis.backends.cuda.engine import tuner
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem

PROBLEM = ConvProblem("forward", (1, 4, 5, 5), (3, 4, 1, 1), dtype=dtypes.float16)
REFERENCE = 1.5  # seconds, to compile it


class Fake(Candidate):
    """Takes so many seconds to build, and so many milliseconds to run."""

    def __init__(self, name: str, seconds: float, milliseconds: float, *, is_right: bool = True) -> None:
        self.name, self.seconds, self.milliseconds, self.is_right = name, seconds, milliseconds, is_right
        self.is_ready_made = seconds < 0.1

    def supports(self, problem: ConvProblem) -> bool:
        return True

    def prepare(self, problem: ConvProblem) -> Launch:
        raise NotImplementedError


class FakeFamily(Family):
    def __init__(self, prefix: str, per_turn: int, candidates: list[Fake]) -> None:
        self.prefix, self.per_turn, self.candidates = prefix, per_turn, candidates

    def variants(self, problem: ConvProblem) -> list[Fake]:
        return self.candidates


class Bench:
    """In the place of the one on a device: each measurement takes twelve runs."""

    now = 0.0
    measured: list[Candidate]
    references: set[str]  # compiled, one for each direction

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem

    @classmethod
    def start(cls) -> None:
        cls.now, cls.measured, cls.references = 0.0, [], set()

    def milliseconds(self, built: Built, best: float) -> float:
        assert isinstance(built.candidate, Fake)
        if built.candidate not in Bench.measured:
            Bench.measured.append(built.candidate)
        Bench.now += 12e-3 * built.candidate.milliseconds
        return built.candidate.milliseconds

    def error(self, built: Built) -> float:
        assert isinstance(built.candidate, Fake)
        Bench.compile_reference(self.problem)
        return 0.0 if built.candidate.is_right else 1.0

    @staticmethod
    def compile_reference(problem: ConvProblem) -> None:
        Bench.now += 0.0 if problem.direction in Bench.references else REFERENCE
        Bench.references.add(problem.direction)

    @staticmethod
    def build(candidate: Fake, problem: ConvProblem, limit: int) -> Built:
        Bench.now += candidate.seconds
        return Built(candidate, lambda *_: None, 0)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the tuner's bench, compilers and clock, on one processor."""
    monkeypatch.setattr(CONV, "bench", Bench)
    monkeypatch.setattr(tuner, "build", Bench.build)
    monkeypatch.setattr(CONV, "prepare_reference", Bench.compile_reference)
    monkeypatch.setattr(tuner.time, "monotonic", lambda: Bench.now)
    monkeypatch.setattr(tuner.os, "cpu_count", lambda: 1)
    Bench.start()


def cudnn(*milliseconds: float) -> FakeFamily:
    return FakeFamily("cudnn", 4, [Fake(f"cudnn/{i}", 0.01, each) for i, each in enumerate(milliseconds)])


def ours(prefix: str, *milliseconds: float) -> FakeFamily:
    return FakeFamily(prefix, 1, [Fake(f"{prefix}/{i}", 1.0, each) for i, each in enumerate(milliseconds)])
