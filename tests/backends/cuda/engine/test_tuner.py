"""In which order the candidates of a problem are measured, and what a short time finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Family
from genesis.backends.cuda.engine.tuner import Contest, Outcome
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.engine.fake_tuner import PROBLEM, Bench, Fake, FakeFamily, cudnn, install, ours, share_out

Tune = Callable[[list[Family], float], Outcome | None]


@pytest.fixture
def tune(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tune]:
    """What a contest of these families finds in so many seconds."""
    install(monkeypatch)

    def run(given: list[Family], seconds: float) -> Outcome:
        monkeypatch.setattr(families, "FAMILIES", tuple(given))
        Bench.start()
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
    assert sorted(names) == ["_conv_kernel", "_conv_weight_grad_kernel", "_sum_splits_kernel"]
