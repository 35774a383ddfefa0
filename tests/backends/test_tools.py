"""The NaN checker and the timer: what they say, about which line, and that they cost nothing when they are off."""

from __future__ import annotations

import re
import sys

import pytest

import genesis
from genesis import backends
from genesis.backends.contract import TRAITS
from genesis.backends.tools import operands, timer
from genesis.ndarray import ops
from genesis.ndarray.array import backend_of
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm
from genesis.settings import override

CPU = genesis.device("cpu")


def line_above() -> str:
    """file:line of the line before the caller's, as the tools write it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno - 1}"


# --- the NaN checker -------------------------------------------------------------------------------------------------


def test_the_op_that_made_a_nan_is_named_with_shapes_and_line() -> None:
    zeros = genesis.zeros(2, 3)
    with override(check="nan"):
        with pytest.raises(FloatingPointError) as error:
            zeros / zeros
        line = line_above()
    message = str(error.value)
    assert message.startswith("div made the first NaN, from float32 (2, 3), float32 (2, 3), which had none")
    assert message.endswith(f"called at {line}")


def test_a_nan_that_came_in_is_not_the_ops_fault() -> None:
    with override(check="nan"):
        given = genesis.tensor([1.0, float("nan")])
        assert (given * 2 + 1).isnan().tolist() == [False, True]
        assert genesis.full((2,), float("nan")).isnan().tolist() == [True, True]
        assert (genesis.ones(2) * float("nan")).isnan().tolist() == [True, True]
        genesis.empty(1000)


def test_integers_and_infinities_pass() -> None:
    with override(check="nan"):
        assert (genesis.arange(3) + 1).tolist() == [1, 2, 3]
        assert (1 / genesis.zeros(1)).tolist() == [float("inf")]


def test_a_change_in_place_that_makes_a_nan_is_named() -> None:
    infinite = genesis.full((2,), float("inf"))
    with override(check="nan"), pytest.raises(FloatingPointError, match=r"^add_into made the first NaN"):
        infinite.array.add_into((-infinite).array)
    assert infinite.isnan().tolist() == [True, True]
    with override(check="nan"):
        infinite.array.add_into(genesis.ones(2).array)  # the NaNs were there before


def test_a_nan_in_a_backward_pass_names_the_forward_line() -> None:
    x = genesis.zeros(2, requires_grad=True)
    with override(check="nan"):
        y = x.sqrt() * 0
        line = line_above()
        with pytest.raises(FloatingPointError, match="made the first NaN") as error:
            y.backward(genesis.ones(2))  # d√x/dx is infinite at 0, and 0 · ∞ is no number
    assert str(error.value).endswith(f"called at {line} (its backward)")


# --- the timer -------------------------------------------------------------------------------------------------------


def test_a_line_per_op(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = genesis.ones(64, 32), genesis.ones(64, 32)
    with override(debug=2):
        x + y
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    number = r"\s+[\d.]+"
    arrays = re.escape("float32 (64, 32), float32 (64, 32) → float32 (64, 32)")
    assert re.fullmatch(rf"add{number} µs{number} GB/s\s+{arrays}", line)


def test_gflops_of_a_matrix_product(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1e-6])
    x, y = genesis.ones(10, 20).array, genesis.ones(20, 30).array
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(ticks))
    with override(debug=2):
        ops.matmul(x, y)
    (line,) = capsys.readouterr().err.splitlines()
    assert "1.0 µs" in line
    assert f"{(200 + 600 + 300) * 4 / 1e3:.2f} GB/s" in line
    assert f"{2 * 10 * 20 * 30 / 1e3:.1f} GFLOP/s" in line


GEOMETRY, OPTIONS = ConvGeometry((2, 2), (1, 1), (1, 1), 2), NormOptions(True, 0.1, 1e-5)


@pytest.mark.parametrize(
    ("op", "shapes", "rest", "expected"),
    [
        ("matmul", [(7, 2, 3), (3, 5)], (), 2 * 7 * 2 * 3 * 5),
        ("linear", [(4, 2, 3), (5, 3), (5,)], (), 2 * 8 * 3 * 5),
        ("conv_forward", [(2, 4, 9, 9), (6, 2, 3, 3), None], (GEOMETRY,), 2 * 2 * 6 * 25 * 2 * 9),
        ("conv_input_grad", [(2, 6, 5, 5), (6, 2, 3, 3)], ((2, 4, 9, 9), GEOMETRY), 2 * 2 * 25 * 108),
        ("conv_weight_grad", [(2, 6, 5, 5), (2, 4, 9, 9)], ((6, 2, 3, 3), GEOMETRY), 2 * 2 * 25 * 108),
        (
            "conv_bn_relu",
            [(2, 4, 9, 9), (6, 4, 3, 3), None],
            (NormState(None, None, None, None), None, OPTIONS, ConvGeometry((1, 1), (1, 1), (1, 1), 1), "relu"),
            2 * 2 * 6 * 81 * 4 * 9,
        ),
    ],
)
def test_counted_operations(op: str, shapes: list, rest: tuple, expected: int) -> None:
    arrays = [None if shape is None else genesis.ones(shape).array.handle for shape in shapes]
    assert TRAITS[op].flops(*arrays, *rest) == expected
    getattr(backends.get("cpu"), op)(*arrays, *rest)  # the arguments are those of the contract


def test_the_backward_of_a_fused_convolution_counts_the_gradients_that_are_asked_for() -> None:
    grad, input, weight = (genesis.ones(shape).array.handle for shape in [(2, 6, 9, 9), (2, 4, 9, 9), (6, 4, 3, 3)])
    saved = SavedConvNorm(input, weight, *[None] * 7)
    one = 2 * 2 * 6 * 81 * 4 * 9
    for needs, expected in [((True, True, False), 2 * one), ((False, True, True), one)]:
        assert TRAITS["conv_bn_relu_backward"].flops(grad, saved, *[None] * 3, needs) == expected


def test_a_long_list_is_shown_by_its_first() -> None:
    cpu = backends.get("cpu")
    handles = [cpu.full((n,), 0.0, genesis.float32) for n in range(6)]
    shown = operands.describe(cpu, operands.arguments("cat", (handles, 0)))
    assert shown == "float32 (0,), float32 (1,), float32 (2,), float32 (3,), … 6 in all"


# --- both, and neither -----------------------------------------------------------------------------------------------


def test_both_tools_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    x = genesis.zeros(3)
    with override(debug=2, check="nan"), pytest.raises(FloatingPointError, match=r"^log made the first NaN"):
        (x - 1).log()
    names = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert names == ["sub", "log"], "the checker's own questions are not timed"


def test_nested_settings_add_and_take_away_tools(capsys: pytest.CaptureFixture[str]) -> None:
    x = genesis.zeros(3)
    with override(debug=2):
        with override(check="nan"):
            x + 1
        with override(debug=0):
            x - 1
        x / x  # no longer watched
    x * 2
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["add", "div"]


def test_tools_stand_in_front_of_a_backend_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    called = []

    def recorded(op: str, function: backends.backend.Op) -> backends.backend.Op:
        def record(*args: object, **kwargs: object) -> object:
            called.append(op)
            return function(*args, **kwargs)

        return record

    x = genesis.zeros(3)
    with backends.use("cpu", backends.get("cpu").wrapped(recorded)):
        with override(debug=2):
            x.exp()
        x.neg()
    x.abs()
    assert [op for op in called if op in ("exp", "neg", "abs")] == ["exp", "neg"]
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["exp"]


def test_without_tools_the_plain_backend_is_called() -> None:
    plain = backends.get("cpu")
    assert backend_of(CPU) is plain
    with override(debug=1):
        assert backend_of(CPU) is plain
    with override(debug=2):
        assert backend_of(CPU) is not plain
        assert backends.get("cpu") is plain
    assert backend_of(CPU) is plain
