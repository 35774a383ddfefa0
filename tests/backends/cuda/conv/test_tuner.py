"""In which order the tuner measures, and what a short time finds; by a clock that only building and running move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.conv import families, tuner
from genesis.backends.cuda.conv.bench import Built
from genesis.backends.cuda.conv.candidate import Candidate, Family, Launch
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.conv.tuner import Contest, Outcome

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
    has_reference = False

    def __init__(self, problem: ConvProblem) -> None: ...

    def milliseconds(self, built: Built, best: float) -> float:
        assert isinstance(built.candidate, Fake)
        if built.candidate not in Bench.measured:
            Bench.measured.append(built.candidate)
        Bench.now += 12e-3 * built.candidate.milliseconds
        return built.candidate.milliseconds

    def error(self, built: Built) -> float:
        assert isinstance(built.candidate, Fake)
        Bench.compile_reference(PROBLEM)
        return 0.0 if built.candidate.is_right else 1.0

    @staticmethod
    def compile_reference(problem: ConvProblem) -> None:
        Bench.now += 0.0 if Bench.has_reference else REFERENCE
        Bench.has_reference = True

    @staticmethod
    def build(candidate: Fake, problem: ConvProblem, limit: int) -> Built:
        Bench.now += candidate.seconds
        return Built(candidate, lambda *_: None, 0)


Tune = Callable[[list[Family], float], Outcome]


@pytest.fixture
def tune(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tune]:
    """What a contest of these families finds in so many seconds."""
    monkeypatch.setattr(tuner, "Bench", Bench)
    monkeypatch.setattr(tuner, "build", Bench.build)
    monkeypatch.setattr(tuner, "prepare_reference", Bench.compile_reference)
    monkeypatch.setattr(tuner.time, "monotonic", lambda: Bench.now)
    monkeypatch.setattr(tuner.os, "cpu_count", lambda: 1)

    def run(given: list[Family], seconds: float) -> Outcome:
        monkeypatch.setattr(families, "FAMILIES", tuple(given))
        Bench.now, Bench.measured, Bench.has_reference = 0.0, [], False
        contest = Contest(PROBLEM, 1 << 20)
        contest.visit(seconds)
        assert contest.outcome is not None
        return contest.outcome

    yield run
    Bench.measured = []


def cudnn(*milliseconds: float) -> FakeFamily:
    return FakeFamily("cudnn", 4, [Fake(f"cudnn/{i}", 0.01, each) for i, each in enumerate(milliseconds)])


def ours(prefix: str, *milliseconds: float) -> FakeFamily:
    return FakeFamily(prefix, 1, [Fake(f"{prefix}/{i}", 1.0, each) for i, each in enumerate(milliseconds)])


def random_families(seed: int) -> list[Family]:
    draw = random.Random(seed)

    def times(most: int, typical: float) -> list[float]:
        return [typical * math.exp(draw.gauss(0, 0.7)) for _ in range(draw.randint(1, most))]

    return [
        ours("few_channels", *times(5, 1.0)), cudnn(*times(30, 1.0)), ours("wgmma", *times(10, 1.0)),
        ours("triton_direct", *times(3, 7.0)),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_more_time_never_finds_worse_and_the_least_finds_what_heuristics_say(tune: Tune, seed: int) -> None:
    given = random_families(seed)
    found = [tune(given, seconds) for seconds in (1e-9, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 8, 13, 20, 40)]
    times = [outcome.milliseconds for outcome in found]
    assert times == sorted(times, reverse=True)
    assert times[0] <= given[1].candidates[0].milliseconds  # type: ignore[attr-defined]
    assert found[-1].complete
    assert times[-1] == min(each.milliseconds for family in given for each in family.variants(PROBLEM))  # type: ignore[attr-defined]


def test_those_that_need_no_compiler_come_before_the_first_that_does(tune: Tune) -> None:
    """As a stem's input gradient was: the plain kernel in 7 ms, since the time was spent on compiling."""
    outcome = tune([ours("triton_direct", 6.8, 7.0), cudnn(1.3, 1.2, 0.97, 1.1, 0.96)], 0.5)
    assert (outcome.candidate.name, outcome.complete) == ("cudnn/2", False)


def test_turns(tune: Tune) -> None:
    tune([ours("wgmma", 1, 1, 1), cudnn(*[1] * 10), ours("triton_direct", 1)], 100)
    names = [candidate.name.replace("/", " ").split() for candidate in Bench.measured]
    assert [family for family, _ in names] == [
        *["cudnn"] * 4, "wgmma", "triton_direct", *["cudnn"] * 4, "wgmma", "cudnn", "cudnn", "wgmma",
    ]  # fmt: skip


def test_families_that_are_far_behind_wait(tune: Tune) -> None:
    outcome = tune([cudnn(*[4.0] * 8), ours("wgmma", 1.0, 1.2, 1.4), ours("triton_direct", 3.5, 0.5)], 100)
    order = [candidate.name for candidate in Bench.measured]
    assert order[4:9] == ["wgmma/0", "triton_direct/0", "wgmma/1", "wgmma/2", "triton_direct/1"]
    assert order[9:] == [f"cudnn/{i}" for i in range(4, 8)]
    assert outcome.candidate.name == "triton_direct/1"  # left out they are not


def test_fast_ones_that_are_wrong_are_no_measure(tune: Tune) -> None:
    """Neither of what is far behind, nor of what is kept, also while nothing has been checked yet."""
    wrong = FakeFamily("cudnn", 4, [Fake(f"cudnn/{i}", 0.01, 0.1, is_right=False) for i in range(7)])
    outcome = tune([wrong, ours("wgmma", 1.0, 0.9), ours("triton_direct", 2.0)], 100)
    assert outcome.candidate.name == "wgmma/1"
    late = FakeFamily("cudnn", 4, [*wrong.candidates, Fake("cudnn/right", 0.01, 0.5)])
    assert tune([late, ours("wgmma", 1.0)], 100).candidate.name == "cudnn/right"
    assert tune([late], 100).candidate.name == "cudnn/right"


def test_the_reference_is_compiled_with_the_first_candidates(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while a result waits to be checked."""
    monkeypatch.setattr(Bench, "error", lambda self, built: 0.0 if Bench.has_reference else math.nan)
    assert tune([cudnn(1.0, 2.0), ours("wgmma", 0.5)], 100).candidate.name == "wgmma/0"


@pytest.mark.parametrize(("processors", "expected"), [(1, 8), (8, 16), (64, 20)])
def test_compilers_work_ahead_as_far_as_there_are_processors(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, processors: int, expected: int
) -> None:
    monkeypatch.setattr(tuner.os, "cpu_count", lambda: processors)
    built: list[Candidate] = []
    ahead: list[int] = []

    def build(candidate: Fake, problem: ConvProblem, limit: int) -> Built:
        built.append(candidate)
        return Built(candidate, lambda *_: None, 0)

    def measure(self: Bench, given: Built, best: float) -> float:
        ahead.append(len(built))
        return 1.0

    monkeypatch.setattr(tuner, "build", build)
    monkeypatch.setattr(Bench, "milliseconds", measure)
    tune([ours("wgmma", *[1] * 20)], 100)
    assert ahead[0] == expected
