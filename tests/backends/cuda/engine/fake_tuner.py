"""Candidates, compilers, and a bench that times them, by a clock that only building and running move."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from genesis import dtypes
from genesis.backends.cuda.driver import deferred
from genesis.backends.cuda.driver.deferred import Request, Ticket
from genesis.backends.cuda.engine import builders, rounds, tuner
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.engine.tuner import Contest
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem

PROBLEM = ConvProblem("forward", (1, 4, 5, 5), (3, 4, 1, 1), dtype=dtypes.float16)
REFERENCE = 1.5  # seconds, to compile it


class Fake(Candidate):
    """Takes so many seconds to build, and so many milliseconds to run: alone, and in a graph if one can hold it."""

    def __init__(
        self, name: str, seconds: float, milliseconds: float, *, is_right: bool = True, in_graph: float | None = None
    ) -> None:
        self.name, self.seconds, self.milliseconds, self.is_right = name, seconds, milliseconds, is_right
        self.in_graph = in_graph
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
    has_graphs = False  # are they possible?
    compared: list[list[str]]  # by graphs, in each comparison
    again: list[str]  # measured once more, alone
    references: set[str]  # compiled, one for each direction
    on_disk: set[object]

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem

    @classmethod
    def start(cls) -> None:
        cls.now, cls.measured, cls.references, cls.on_disk = 0.0, [], set(), set()
        cls.has_graphs, cls.compared, cls.again = False, [], []

    def milliseconds(self, built: Built, best: float) -> float:
        assert isinstance(built.candidate, Fake)
        if built.candidate not in Bench.measured:
            Bench.measured.append(built.candidate)
        else:
            Bench.again.append(built.candidate.name)
        Bench.now += 12e-3 * built.candidate.milliseconds
        return built.candidate.milliseconds

    def replayed(self, builts: Sequence[Built], milliseconds: float) -> list[float | None] | None:
        """The device is slower each time, as after a pause."""
        if not Bench.has_graphs:
            return None
        names, found = [], []
        for built in builts:
            assert isinstance(built.candidate, Fake)
            names.append(built.candidate.name)
            found.append(built.candidate.in_graph)
        Bench.compared.append(names)
        return [None if each is None else each * (1 + len(Bench.compared)) for each in found]

    def error(self, built: Built) -> float:
        assert isinstance(built.candidate, Fake)
        Bench.compile_reference(self.problem)
        return 0.0 if built.candidate.is_right else 1.0

    @staticmethod
    def compile_reference(problem: ConvProblem) -> None:
        compiled(("reference", problem.direction), REFERENCE)
        Bench.references.add(problem.direction)

    @staticmethod
    def build(candidate: Fake, problem: ConvProblem, limit: int) -> Built:
        if candidate.is_ready_made:
            Bench.now += candidate.seconds
        else:
            compiled(candidate, candidate.seconds)
        return Built(candidate, lambda *_: None, 0)


def compiled(key: object, seconds: float) -> None:
    """Take so long, here or elsewhere; the second time it is on the disk."""
    if key in Bench.on_disk:
        return
    if deferred.is_deferring():
        deferred.require(Request(key, "compiled", seconds, lambda: Bench.on_disk.add(key)))
    else:
        Bench.now += seconds
    Bench.on_disk.add(key)


class Compilers:
    """As many as there are processors; each takes the next request when it is free and somebody looks."""

    is_broken = False

    def __init__(self, number: int, apart: bool = True) -> None:
        self.number, self.apart = number, apart
        self.queue: list[Ticket] = []
        self.running: list[tuple[float, Ticket]] = []  # when it is done

    def submit(self, request: Request) -> Ticket:
        ticket = Ticket(request)
        self.queue.append(ticket)
        self._look()
        return ticket

    def wait(self, seconds: float) -> None:
        ends = min((end for end, _ in self.running), default=Bench.now)
        Bench.now = max(Bench.now, min(ends, Bench.now + seconds))
        self._look()

    def drop(self) -> None:
        self.queue.clear()

    def close(self) -> None:
        self.drop()

    def _look(self) -> None:
        for end, ticket in self.running.copy():
            if end <= Bench.now:
                self.running.remove((end, ticket))
                ticket.done = True
        while self.queue and len(self.running) < self.number:
            ticket = self.queue.pop(0)
            seconds = ticket.request.subject
            assert isinstance(seconds, float)
            self.running.append((Bench.now + seconds, ticket))


def install(monkeypatch: pytest.MonkeyPatch, processors: int = 1, apart: bool = True) -> None:
    """In the place of the tuner's bench, compilers and clock."""
    monkeypatch.setattr(CONV, "bench", Bench)
    monkeypatch.setattr(tuner, "build", Bench.build)
    monkeypatch.setattr(CONV, "prepare_reference", Bench.compile_reference)
    monkeypatch.setattr(CONV, "rehearsals", lambda problem: {})
    monkeypatch.setattr(rounds.time, "monotonic", lambda: Bench.now)
    monkeypatch.setattr(builders, "compilers", lambda: Compilers(processors, apart))
    Bench.start()


def within(seconds: float) -> tuner.Deadline:
    end = time.monotonic() + seconds
    return lambda: end


def share_out(contests: Sequence[Contest], deadline: float) -> dict[ConvProblem, tuner.Outcome]:
    """What is kept."""
    kept: dict[ConvProblem, tuner.Outcome] = {}

    def told(contest: Contest) -> None:
        if contest.outcome is not None:
            kept[contest.problem] = contest.outcome

    rounds.share_out(contests, lambda: deadline, told)
    return kept


def cudnn(*milliseconds: float) -> FakeFamily:
    return FakeFamily("cudnn", 4, [Fake(f"cudnn/{i}", 0.01, each) for i, each in enumerate(milliseconds)])


def ours(prefix: str, *milliseconds: float) -> FakeFamily:
    return FakeFamily(prefix, 1, [Fake(f"{prefix}/{i}", 1.0, each) for i, each in enumerate(milliseconds)])
