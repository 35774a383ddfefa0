"""Which of cuDNN's plans are candidates, without cuDNN: what it is asked for, and what is made of its answer."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.conv import cudnn as conv_cudnn
from genesis.backends.cuda.conv import families
from genesis.backends.cuda.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.driver import cudnn

SPLIT = "eng47_k0=19_k2=5_k5=3_k14=6"
OTHERS = ["eng47_k0=1_k2=5_k5=3_k14=6", "eng46_k2=10_k12=-1_k13=2_k17=21", "eng62_k25=2", "eng1_k2=0_k10=19", "eng0"]
PROBLEM = ConvProblem(WEIGHT_GRAD, (3, 200, 8, 11), (264, 200, 1, 1), (2, 1), (2, 1), dtype=dtypes.bfloat16)


@pytest.fixture
def suggests(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN were there, with these plans for everything."""
    monkeypatch.setattr(cudnn, "is_available", lambda: True)
    monkeypatch.setattr(conv_cudnn, "_planned", lambda problem: (None, [SPLIT, *OTHERS]))


def from_cudnn(problem: ConvProblem) -> list[str]:
    names = [candidate.name.partition("/") for candidate in families.candidates(problem)]
    return [plan for family, _, plan in names if family == "cudnn"]


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_no_sums_in_16_bits(direction: str, dtype: dtypes.DType) -> None:
    problem = dataclasses.replace(PROBLEM, direction=direction, dtype=dtype)
    assert from_cudnn(problem) == OTHERS
    assert families.named(problem, f"cudnn/{SPLIT}") is None  # also where an earlier version stored it
    assert families.named(problem, f"cudnn/{OTHERS[0]}") is not None


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
    monkeypatch.setattr(conv_cudnn, "_planned", lambda problem: (None, plans))
    assert from_cudnn(dataclasses.replace(PROBLEM, dtype=dtypes.float32, precision=precision)) == (offered or plans)


@pytest.mark.usefixtures("suggests")
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_where_all_bits_count_nobody_guesses_cudnn(direction: str) -> None:
    """Its sums may be off by more than 3e-7, which only the tuner finds out."""
    first_layer = ConvProblem(direction, (8, 3, 32, 32), (64, 3, 7, 7), (2, 2), (3, 3), dtype=dtypes.float32)
    order = [candidate.name.partition("/")[0] for candidate in families.candidates(first_layer)]
    assert order.index("cudnn") > order.index("triton_direct")
    assert order[-1] == "cudnn"
    high = dataclasses.replace(first_layer, precision="high")
    assert next(families.candidates(high)).name == f"cudnn/{SPLIT}"


class Operations:
    """A graph of the frontend that notes which numerical notes are deselected."""

    def __init__(self, **ignored: Any) -> None:
        self.unwanted: list[str] = []

    def validate(self) -> None: ...

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.unwanted += notes

    def get_execution_plan_count(self) -> int:
        return 2

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{index}"


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
    graph, names = conv_cudnn._planned(problem)
    assert names == ["eng0", "eng1"]
    assert set(graph.ops.unwanted) == {"REDUCED_PRECISION_REDUCTION"} | expected
