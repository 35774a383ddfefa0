"""In which order the candidates of a problem are measured, and what a short time finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import genesis
from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import rounds
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Family
from genesis.backends.cuda.engine.tuner import Contest, Outcome
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import capturing
from tests.backends.cuda.engine import fake_tuner
from tests.backends.cuda.engine.fake_tuner import (
    PROBLEM,
    Bench,
    Fake,
    FakeFamily,
    cudnn,
    install,
    ours,
    share_out,
    within,
)

Tune = Callable[..., Outcome | None]


@pytest.fixture
def tune(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tune]:
    """What a contest of these families finds in so many seconds."""
    install(monkeypatch)

    def run(given: list[Family], seconds: float, has_graphs: bool = False) -> Outcome:
        monkeypatch.setattr(families, "FAMILIES", tuple(given))
        Bench.start()
        Bench.has_graphs = has_graphs
        return share_out([Contest(CONV, PROBLEM, 1 << 20)], seconds).get(PROBLEM)

    yield run
    Bench.start()


def name_of(outcome: Outcome | None) -> str:
    assert outcome is not None
    return outcome.candidate.name


def random_families(seed: int) -> list[Family]:
    draw = random.Random(seed)

    def times(most: int, typical: float) -> list[float]:
        return [typical * math.exp(draw.gauss(0, 0.7)) for _ in range(draw.randint(1, most))]

    return [
        ours("small_c", *times(5, 1.0)), cudnn(*times(30, 1.0)), ours("wgmma", *times(10, 1.0)),
        ours("implicit_gemm", *times(3, 7.0)),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_more_time_never_finds_worse_and_the_least_finds_what_heuristics_say(tune: Tune, seed: int) -> None:
    given = random_families(seed)
    found = [tune(given, seconds) for seconds in (1e-9, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 8, 13, 20, 40)]
    guess = given[0].candidates[0].milliseconds  # type: ignore[attr-defined]
    times = [guess if outcome is None else outcome.milliseconds for outcome in found]
    assert times == sorted(times, reverse=True)
    assert found[7] is not None, "its reference and the guess take 2.5 seconds to compile"
    assert found[-1] is not None
    assert found[-1].complete
    assert times[-1] == min(each.milliseconds for family in given for each in family.variants(PROBLEM))  # type: ignore[attr-defined]


def test_those_that_need_no_compiler_come_before_the_first_that_does(tune: Tune) -> None:
    """As a stem's input gradient was: the plain kernel in 7 ms, since the time was spent on compiling."""
    outcome = tune([ours("implicit_gemm", 6.8), cudnn(1.3, 1.2, 0.97, 1.1, 0.96, 0.95)], 2.8)
    assert outcome is not None
    assert outcome.num_measured == 7, "all those while the first is compiled"
    assert (outcome.candidate.name, outcome.complete) == ("cudnn/5", True)


def test_turns(tune: Tune) -> None:
    """What needs no compiler is measured meanwhile; the best guess is compiled first, then each family's best."""
    tune([ours("wgmma", 1, 1, 1), cudnn(*[1] * 10), ours("implicit_gemm", 1)], 100)
    names = [candidate.name for candidate in Bench.measured]
    assert names == [*[f"cudnn/{i}" for i in range(10)], "wgmma/0", "implicit_gemm/0", "wgmma/1", "wgmma/2"]


def test_families_that_are_far_behind_wait(tune: Tune) -> None:
    outcome = tune([cudnn(4.0), ours("wgmma", 1.0, 1.2, 1.4), ours("implicit_gemm", 3.5, 0.5)], 100)
    order = [candidate.name for candidate in Bench.measured]
    assert order == ["cudnn/0", "wgmma/0", "implicit_gemm/0", "wgmma/1", "wgmma/2", "implicit_gemm/1"]
    assert outcome is not None
    assert outcome.candidate.name == "implicit_gemm/1"  # left out they are not


def test_fast_ones_that_are_wrong_are_no_measure(tune: Tune) -> None:
    """Neither of what is far behind, nor of what is kept, also while nothing has been checked yet."""
    wrong = FakeFamily("cudnn", 4, [Fake(f"cudnn/{i}", 0.01, 0.1, is_right=False) for i in range(7)])
    outcome = tune([wrong, ours("wgmma", 1.0, 0.9), ours("implicit_gemm", 2.0)], 100)
    assert name_of(outcome) == "wgmma/1"
    late = FakeFamily("cudnn", 4, [*wrong.candidates, Fake("cudnn/right", 0.01, 0.5)])
    assert name_of(tune([late, ours("wgmma", 1.0)], 100)) == "cudnn/right"
    assert name_of(tune([late], 100)) == "cudnn/right"


def test_the_reference_is_compiled_with_the_first_candidates(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while a result waits to be checked."""
    monkeypatch.setattr(Bench, "error", lambda self, built: 0.0 if Bench.references else math.nan)
    assert name_of(tune([cudnn(1.0, 2.0), ours("wgmma", 0.5)], 100)) == "wgmma/0"


@pytest.mark.parametrize(("processors", "expected"), [(1, 2), (4, 8), (64, 16)])
def test_compilers_work_ahead_as_far_as_there_are_processors(
    simulated: Backend, monkeypatch: pytest.MonkeyPatch, processors: int, expected: int
) -> None:
    install(monkeypatch, processors)
    monkeypatch.setattr(families, "FAMILIES", (ours("wgmma", *[1] * 20),))
    ahead: list[int] = []
    contest = Contest(CONV, PROBLEM, 1 << 20)

    def measure(self: Bench, given: Built, best: float) -> float:
        ahead.append(contest.num_ahead)
        return 1.0

    monkeypatch.setattr(Bench, "milliseconds", measure)
    assert share_out([contest], 100)[PROBLEM].complete
    assert max(ahead) == expected
    assert len(ahead) >= 20


def test_references_of_all_sizes_are_compiled_once(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network's problems would want dozens of kernels otherwise, each a second of the time that there is."""
    compiled: set[object] = set()
    load = launch.load

    def count(kernel: Any, device: int, kinds: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        compiled.add((kernel.fn.__name__, kinds, tuple(constants.items())))
        return load(kernel, device, kinds, constants)

    monkeypatch.setattr(launch, "load", count)
    for size, channels, taps, stride in itertools.product((5, 7, 16, 32), (16, 24, 64), (1, 3), (1, 2)):
        problem = ConvProblem(
            "forward", (1, channels, size, size), (2 * channels, channels, taps, taps), (stride, stride),
            (taps // 2, taps // 2), dtype=dtypes.bfloat16,
        )  # fmt: skip
        for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
            CONV.prepare_reference(dataclasses.replace(problem, direction=direction))
    names = [name for name, *_ in compiled]  # type: ignore[misc]
    assert sorted(names) == ["_conv_kernel", "_conv_weight_grad_kernel", "_finish_splits_kernel"]


class Decision(NamedTuple):
    """Milliseconds of each candidate, alone and in a graph; who wins, with which figure, and who was compared."""

    times: list[tuple[float, float | None]]
    winner: int
    milliseconds: float
    compared: list[list[int]]
    again: list[int] = []  # measured alone once more, and then again
    wrong: tuple[int, ...] = ()


DECISIONS = {
    "a graph against a lone run": Decision([(0.010, 0.009), (0.012, 0.008)], 1, 0.010 * 8 / 9, [[0, 1]]),
    "of the same opinion": Decision([(0.012, 0.009), (0.010, 0.008)], 1, 0.010, [[1, 0]]),
    "too far behind": Decision([(0.010, 0.009), (0.0126, 0.001)], 0, 0.010, []),
    "alone": Decision([(0.010, 0.009)], 0, 0.010, []),
    "long": Decision([(1.0, 0.9), (1.09, 0.8)], 1, 1.0 * 8 / 9, [[0, 1]]),
    "long, and too far behind": Decision([(1.0, 0.9), (1.11, 0.1)], 0, 1.0, []),
    "no graph can hold it": Decision(
        [(0.010, 0.009), (0.0105, None), (0.011, 0.008)], 2, 0.010 * 8 / 9, [[0, 1, 2]], [0, 1]
    ),
    "no graph can hold the best": Decision([(0.010, None), (0.011, 0.005)], 0, 0.010, [[0, 1]], [0, 1]),
    "wrong": Decision([(0.010, 0.009), (0.011, 0.001), (0.012, 0.008)], 2, 0.010 * 8 / 9, [[0, 1, 2]], [], (1,)),
    "wrong, and the fastest alone": Decision([(0.001, 0.001), (0.010, 0.009)], 1, 0.010, [], [], (0,)),
    "eight at most": Decision(
        [(0.010 + i * 1e-4, 0.009 - i * 1e-4) for i in range(9)], 7, 0.010 * 83 / 90, [[*range(8)]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECISIONS)
def test_graphs_decide_between_those_that_are_close(tune: Tune, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    times, winner, milliseconds, compared, again, wrong = DECISIONS[name]
    monkeypatch.setattr(rounds, "_AT_A_TIME", len(times))
    given = [
        Fake(f"cudnn/{i}", 0.01, alone, in_graph=in_graph, is_right=i not in wrong)
        for i, (alone, in_graph) in enumerate(times)
    ]
    outcome = tune([FakeFamily("cudnn", len(times), given)], 100, has_graphs=True)
    assert name_of(outcome) == f"cudnn/{winner}"
    assert outcome is not None
    assert outcome.milliseconds == pytest.approx(milliseconds, rel=1e-12)
    assert Bench.compared == [[f"cudnn/{i}" for i in each] for each in compared]
    assert Bench.again == [f"cudnn/{i}" for i in again] * 2, "turn by turn"


# Worth compilers, which make the reference at once and not at the end.
TO_COMPILE = FakeFamily("wgmma", 1, [Fake(f"wgmma/{i}", 0.1, 9.0) for i in range(4)])


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_compared_twice_but_the_best(tune: Tune, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """And figures of several visits are one order, though the device is slower in each."""
    monkeypatch.setattr(fake_tuner, "REFERENCE", 0.0)
    monkeypatch.setattr(rounds, "_AT_A_TIME", 4)
    draw = random.Random(seed)
    given = [
        Fake(f"cudnn/{i}", 0.09, draw.uniform(0.0100, 0.0124), in_graph=draw.uniform(0.005, 0.010)) for i in range(30)
    ]
    outcome = tune([FakeFamily("cudnn", 4, given), TO_COMPILE], 100, has_graphs=True)
    known = {each.name: each.in_graph for each in given}
    met: set[str] = set()
    assert len(Bench.compared) >= 3
    for names in Bench.compared:
        first, *fresh = names if met else ("", *names)
        if met:
            assert first == min(met, key=known.__getitem__)
        assert met.isdisjoint(fresh)
        met.update(fresh)
    assert met == set(known)
    assert name_of(outcome) == min(known, key=known.__getitem__)
    assert Bench.again == []
    assert outcome is not None
    assert outcome.milliseconds <= min(each.milliseconds for each in given)


def test_one_that_is_far_faster_needs_no_comparison(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tuner, "REFERENCE", 0.0)
    monkeypatch.setattr(rounds, "_AT_A_TIME", 3)
    times = [(0.010, 0.009), (0.011, 0.008), *[(1.0, 1.0)] * 3, (0.004, 0.003), (0.0045, 0.002)]
    given = [Fake(f"cudnn/{i}", 0.09, alone, in_graph=in_graph) for i, (alone, in_graph) in enumerate(times)]
    assert name_of(tune([FakeFamily("cudnn", 4, given), TO_COMPILE], 100, has_graphs=True)) == "cudnn/6"
    assert Bench.compared == [["cudnn/0", "cudnn/1"], ["cudnn/5", "cudnn/6"]]


def test_long_ones_are_timed_again_only_if_the_fastest_is_another(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tuner, "REFERENCE", 0.0)
    monkeypatch.setattr(rounds, "_AT_A_TIME", 3)
    alone = [1.0, 1.05, 3.0, 3.0, 3.0, 1.04, 1.02, 3.0, 0.98, 3.0]
    given = [Fake(f"cudnn/{i}", 0.09, each) for i, each in enumerate(alone)]
    assert name_of(tune([FakeFamily("cudnn", 4, given), TO_COMPILE], 100)) == "cudnn/8"
    first, last = ["cudnn/0", "cudnn/1"], ["cudnn/0", "cudnn/8", "cudnn/6", "cudnn/5"]
    assert Bench.again == [*first * 2, *last * 2]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_graphs_decide_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[float | None]] = []
    replayed = ConvBench.replayed

    def told_of(self: ConvBench, builts: list[Built], milliseconds: float) -> list[float | None] | None:
        found = replayed(self, builts, milliseconds)
        assert found is not None, "there is memory, and nobody is capturing"
        told.append(found)
        return found

    monkeypatch.setattr(ConvBench, "replayed", told_of)
    problem = ConvProblem("forward", (8, 64, 28, 28), (128, 64, 1, 1), dtype=dtypes.bfloat16)
    contest = Contest(CONV, problem, 64 << 20)
    rounds.share_out([contest], within(20), lambda contest: None)
    assert contest.outcome is not None
    times = [each for found in told for each in found]
    assert len(times) >= 2
    assert all(each is not None and 0.0005 < each < 0.1 for each in times), "a graph can hold each of them"
    assert not capturing.underway
    genesis.cuda.synchronize()
