"""Which of cuDNN's plans are candidates, without cuDNN: what it is asked for, and what is made of its answer."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.ops.conv import accuracy, bench
from genesis.backends.cuda.ops.conv.candidates import cudnn as conv_cudnn
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.elementwise import launch as elementwise

SPLIT = "eng47_k0=19_k2=5_k5=3_k14=6"
OTHERS = ["eng47_k0=1_k2=5_k5=3_k14=6", "eng46_k2=10_k12=-1_k13=2_k17=21", "eng62_k25=2", "eng1_k2=0_k10=19", "eng0"]
UNSURE = "eng63"  # cuDNN notes that its sums may be in less than float32
PROBLEM = ConvProblem(WEIGHT_GRAD, (3, 200, 8, 11), (264, 200, 1, 1), (2, 1), (2, 1), dtype=dtypes.bfloat16)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    conv_cudnn._names.cache_clear()
    yield
    conv_cudnn._names.cache_clear()


@pytest.fixture
def suggests(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN were there, with these plans for everything."""
    monkeypatch.setattr(cudnn, "is_available", lambda: True)
    monkeypatch.setattr(
        conv_cudnn, "_planned", lambda problem, checked: (None, [*([UNSURE] if checked else []), SPLIT, *OTHERS])
    )


def from_cudnn(problem: ConvProblem) -> list[str]:
    names = [candidate.name.partition("/") for candidate in CONV.candidates(problem)]
    return [plan for family, _, plan in names if family == "cudnn"]


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_no_sums_in_16_bits(direction: str, dtype: dtypes.DType) -> None:
    problem = dataclasses.replace(PROBLEM, direction=direction, dtype=dtype)
    assert from_cudnn(problem) == OTHERS
    assert CONV.named(problem, f"cudnn/{SPLIT}") is None  # also where an earlier version stored it
    assert CONV.named(problem, f"cudnn/{OTHERS[0]}") is not None


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_float32_may_be_added_up_in_the_result(precision: str) -> None:
    problem = dataclasses.replace(PROBLEM, dtype=dtypes.float32, precision=precision)
    assert from_cudnn(problem) == [SPLIT, *OTHERS]


@pytest.mark.parametrize(("precision", "offered"), [("highest", ["eng1", "eng170_k2=1"]), ("high", None)])
def test_an_engine_that_is_farther_off_than_a_chain(
    simulated: Backend, monkeypatch: pytest.MonkeyPatch, precision: str, offered: list[str] | None
) -> None:
    plans = ["eng17", "eng1", "eng17_k25=0", "eng170_k2=1"]
    monkeypatch.setattr(cudnn, "is_available", lambda: True)
    monkeypatch.setattr(conv_cudnn, "_planned", lambda problem, checked: (None, plans))
    assert from_cudnn(dataclasses.replace(PROBLEM, dtype=dtypes.float32, precision=precision)) == (offered or plans)


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_where_all_bits_count_nobody_guesses_cudnn(direction: str) -> None:
    """Its sums may be off by more than 3e-7, which only the tuner finds out."""
    first_layer = ConvProblem(direction, (8, 3, 96, 96), (64, 3, 7, 7), (2, 2), (3, 3), dtype=dtypes.float32)
    order = [candidate.name.partition("/")[0] for candidate in CONV.candidates(first_layer)]
    assert order.index("cudnn") > order.index("implicit_gemm")
    assert order[-1] == "cudnn"
    high = dataclasses.replace(first_layer, precision="high")
    first = next(CONV.candidates(high)).name
    assert first == (f"sub_pixel_dgrad/cudnn/{SPLIT}" if direction == INPUT_GRAD else f"cudnn/{SPLIT}")


@pytest.mark.usefixtures("suggests")
def test_where_all_bits_count_nobody_guesses_it_inside_another_family() -> None:
    problem = ConvProblem(INPUT_GRAD, (8, 3, 32, 32), (64, 3, 3, 3), padding=(1, 1), dtype=dtypes.float32)
    assert not [each for each in CONV.candidates(problem) if each.name.startswith("sub_pixel_dgrad/cudnn")]
    assert [each for each in CONV.in_turns(problem) if each.name.startswith("sub_pixel_dgrad/cudnn")]


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (PROBLEM, f"cudnn/{UNSURE}"),
        (dataclasses.replace(PROBLEM, direction=FORWARD, statistics=True), f"with_statistics_pass/cudnn/{UNSURE}"),
        (ConvProblem(INPUT_GRAD, (8, 3, 32, 32), (64, 3, 7, 7), (2, 2), (3, 3), dtype=dtypes.float16),
         f"sub_pixel_dgrad/cudnn/{UNSURE}"),
    ], ids=["alone", "followed by a pass", "inside"],
)  # fmt: skip
def test_what_may_add_up_in_16_bits_is_measured_and_never_guessed(problem: ConvProblem, name: str) -> None:
    assert name in [candidate.name for candidate in CONV.in_turns(problem)]
    assert not [candidate for candidate in CONV.candidates(problem) if UNSURE in candidate.name]
    assert CONV.named(problem, name) is not None  # from the store: it has been checked


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 16, 147])
def test_a_check_tells_sums_in_16_bits_from_those_in_float32(dtype: torch.dtype, num_parts: int) -> None:
    """However few parts of a sum are rounded before they are added up in float32; here exactly."""
    torch.manual_seed(0)
    parts = torch.randn(conv_cudnn._ENOUGH_RESULTS, num_parts).double()
    expected = parts.sum(1)

    def error(found: torch.Tensor) -> float:
        return float((found.to(dtype).double() - expected).norm() / expected.norm())

    bound = accuracy.error_bound(dataclasses.replace(PROBLEM, dtype=dtypes.BY_NAME[str(dtype).removeprefix("torch.")]))
    assert error(expected) <= bound
    if num_parts > 1:
        assert error(parts.to(dtype).double().sum(1)) > bound


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "shapes",
    [((1, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3)), ((2, 64, 56, 56), (256, 64, 1, 1), (1, 1), (0, 0))],
    ids=["stem", "1x1"],
)  # fmt: skip
def test_what_passes_the_check_has_no_sums_in_16_bits(
    monkeypatch: pytest.MonkeyPatch, direction: str, dtype: dtypes.DType, shapes: Any
) -> None:
    """With operands that are all positive such sums only grow, and each addition loses more than the one before."""
    problem = ConvProblem(direction, *shapes, dtype=dtype)
    sure = {candidate.name for candidate in conv_cudnn.CudnnFamily().variants(problem) if _builds(candidate, problem)}
    unsure = [each for each in conv_cudnn.CudnnFamily().trials(problem) if each.name not in sure]
    mixed, bound = bench.ConvBench(problem), accuracy.error_bound(problem)
    plain = bench._random
    # The root of the number of terms keeps the sums about as large; float16 would overflow.
    shrunk = 1 / math.sqrt(problem.num_terms) if direction == WEIGHT_GRAD else 1.0

    def positive(*given: Any) -> Any:
        return elementwise.abs(elementwise.mul(plain(*given), shrunk))

    monkeypatch.setattr(bench, "_random", positive)
    grown = bench.ConvBench(problem)
    passed = []
    for candidate in filter(lambda each: each.supports(problem), unsure):
        built = build(candidate, problem, 1 << 30)
        if built is not None and mixed.error(built) <= bound:
            passed.append(candidate.name)
            # All results may lie just above a power of two, where rounding alone comes to 2 / √12 of the unit roundoff.
            assert grown.error(built) <= 1.2 * bound, candidate.name
    print(problem, "unsure:", len(unsure), "right:", passed)


def _builds(candidate: Any, problem: ConvProblem) -> bool:
    return build(candidate, problem, 1 << 30) is not None


class Operations:
    """A graph of the frontend that notes which numerical notes are deselected."""

    def __init__(self, **ignored: Any) -> None:
        self.unwanted: list[str] = []
        self.only = ""  # plan, asked for by its name

    def validate(self) -> None: ...

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def create_execution_plan(self, engine: int, knobs: dict[str, int]) -> None:
        self.only = f"eng{engine}"

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.unwanted += notes

    def get_execution_plan_count(self) -> int:
        return 2

    def get_plan_name_at_index(self, index: int) -> str:
        return self.only or f"eng{index}"


class Names:
    def __getattr__(self, name: str) -> str:
        return name


@pytest.mark.parametrize(
    ("dtype", "precision", "deterministic", "expected"),
    [
        (dtypes.bfloat16, "highest", False, set()),
        (dtypes.float32, "high", True, {"NONDETERMINISTIC"}),
        (dtypes.float32, "highest", False, {"TENSOR_CORE", "DOWN_CONVERT_INPUTS", "WINOGRAD", "FFT"}),
    ],
)
def test_engines_that_round_more_than_asked_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, dtype: dtypes.DType, precision: str, deterministic: bool, expected: set[str]
) -> None:
    module = SimpleNamespace(
        data_type=Names(), heur_mode=Names(), numerical_note=Names(), backend_graph=lambda **given: Operations(**given)
    )
    monkeypatch.setattr(cudnn, "_module", lambda: module)
    monkeypatch.setattr(cudnn, "_take_handle", lambda *ignored: 0)
    monkeypatch.setattr(cudnn, "_idle", {})
    monkeypatch.setattr(conv_cudnn, "_graph", lambda problem: cudnn.Graph(problem.device, problem.dtype))
    problem = dataclasses.replace(PROBLEM, dtype=dtype, precision=precision, deterministic=deterministic)
    graph, names = conv_cudnn._planned(problem, checked=False)
    assert names == ["eng0", "eng1"]
    assert set(graph.ops.unwanted) == {"REDUCED_PRECISION_REDUCTION"} | expected
    unchecked = expected if dtype is dtypes.bfloat16 else {"REDUCED_PRECISION_REDUCTION"} | expected
    assert set(conv_cudnn._planned(problem, checked=True)[0].ops.unwanted) == unchecked
    for checked, unwanted in ((False, set(graph.ops.unwanted)), (True, unchecked)):
        named = cudnn.Graph(problem.device, problem.dtype)
        assert named.plan_named("eng3", conv_cudnn._sums(problem, checked))
        assert set(named.ops.unwanted) == unwanted
        assert not named.plan_named("eng4_k999=1", conv_cudnn._sums(problem, checked)), "no such knob"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dtype": dtypes.float16, "direction": FORWARD}, True),
        ({"dtype": dtypes.float32, "precision": "high"}, False),  # a bound that leaves room
        ({"direction": FORWARD, "residual": True}, False),  # operands that are in no sum
        ({"direction": FORWARD, "bias": True}, False),
        ({"direction": FORWARD, "activation": "relu"}, False),
        ({"weight_shape": (5, 200, 1, 1)}, False),  # few results
    ],
)
def test_where_a_check_can_tell(changes: dict[str, Any], expected: bool) -> None:
    assert conv_cudnn._shows_rounded_sums(dataclasses.replace(PROBLEM, **changes)) == expected


@pytest.mark.parametrize("fails", [True, False])
def test_a_handle_serves_the_next_graph_once_a_plan_is_built(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(index: int) -> None:
        if fails:
            raise RuntimeError("this plan")

    ops = SimpleNamespace(build_plan_at_index=build)
    handles = [7, 8]
    here = SimpleNamespace(activate=lambda device: None, unrestricted=nullcontext)
    monkeypatch.setattr(cudnn, "_module", lambda: SimpleNamespace(data_type=Names(), backend_graph=lambda **_: ops))
    monkeypatch.setattr(cudnn, "_idle", {(0, 0): handles})
    monkeypatch.setattr(cudnn.driver, "gpu", lambda: here)
    graph = cudnn.Graph(0, dtypes.bfloat16)
    with pytest.raises(KernelError, match="this plan") if fails else nullcontext():
        graph.build(0)
    assert handles == ([7] if fails else [7, 8])
    del graph
    assert handles == [7, 8]


ENDING = """
import builtins, os
from types import SimpleNamespace

from genesis import dtypes
from genesis.backends.cuda.driver import cudnn

class Names:
    def __getattr__(self, name):
        return name

class Operations:
    def __del__(self):
        builtins.given_up = True

module = SimpleNamespace(data_type=Names(), backend_graph=lambda **given: Operations())
cudnn._module = lambda: module
cudnn._idle[0, 0] = handles = [7, 8]
graph = cudnn.Graph(0, dtypes.float32)
assert handles == [7]
del graph
assert handles == [7, 8] and builtins.given_up
os.kept = cudnn, [cudnn.Graph(0, dtypes.float32) for _ in range(2)]  # a module from before outlives cudnn's names
"""


def test_a_graph_gives_its_handle_back_and_says_nothing_when_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
