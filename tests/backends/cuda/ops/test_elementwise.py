"""Element-wise ops against torch on the CPU: dtypes, broadcasting, memory order, numbers, the corner cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.elementwise import kernels
from genesis.backends.cuda.ops.elementwise import launch as elementwise
from genesis.backends.cuda.ops.pointwise import launch as pointwise

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # one unit in 16 bits
CORNERS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, 30.0, -30.0, math.inf, -math.inf, math.nan]
INTEGER_CORNERS = [0, 1, 2, 3, 7, 100, 127, -1, -2, -7, -100, -128]


def sample(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True, False])
    if dtype.is_floating_point:
        return torch.tensor(CORNERS, dtype=dtype)
    return torch.tensor([v for v in INTEGER_CORNERS if v >= 0 or dtype is not torch.uint8], dtype=dtype)


def check(result: torch.Tensor, expected: torch.Tensor, signed_zeros: bool = True) -> None:
    assert result.dtype == expected.dtype
    relative = RELATIVE.get(expected.dtype, 0.0)
    torch.testing.assert_close(result, expected, rtol=relative, atol=relative * 1e-2, equal_nan=True)
    if expected.is_floating_point() and signed_zeros:
        zeros = expected == 0
        assert torch.equal(torch.signbit(result[zeros]), torch.signbit(expected[zeros])), "signs of zeros differ"


UNARY_FLOAT = ["exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "erf"]
UNARY_ANY = ["neg", "abs", "sign", "floor", "ceil", "round", "isnan", "isinf", "isfinite", "logical_not"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY_FLOAT + UNARY_ANY)
def test_unary_of_floats(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = torch.cat([sample(dtype), torch.randn(50, generator=torch.manual_seed(0)).to(dtype)])
    check(get(getattr(cuda, op)(put(x))), getattr(torch, op)(x))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", [*UNARY_ANY, "bitwise_not"])
def test_unary_of_integers(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    check(get(getattr(cuda, op)(put(x))), getattr(torch, op)(x))


@pytest.mark.parametrize("op", ["sign", "logical_not", "bitwise_not", "isnan"])
def test_unary_of_bool(cuda: Backend, put: Put, get: Get, op: str) -> None:
    check(get(getattr(cuda, op)(put(sample(torch.bool)))), getattr(torch, op)(sample(torch.bool)))


@pytest.mark.parametrize("decimals", [2, 1, -1])
def test_round_decimals(cuda: Backend, put: Put, get: Get, decimals: int) -> None:
    x = torch.tensor([1.005, 2.675, -15.0, 25.0, 1234.5678])
    check(get(cuda.round(put(x), decimals)), torch.round(x, decimals=decimals))


ARITHMETIC = ["add", "sub", "mul", "floor_divide", "remainder", "maximum", "minimum"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [*ARITHMETIC, "div", "pow", *COMPARISONS])
def test_binary_of_floats(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    one_zero = op in ("maximum", "minimum")  # which of 0 and -0 is the greater is nobody's promise
    check(get(getattr(cuda, op)(put(x[:, None]), put(x))), getattr(torch, op)(x[:, None], x), not one_zero)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", [*ARITHMETIC, "pow", *COMPARISONS, *BITS])
def test_binary_of_integers(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x, y = sample(dtype), sample(dtype)
    if op in ("floor_divide", "remainder"):
        y = y[y != 0]
    if op == "pow":
        y = y[y >= 0]
    check(get(getattr(cuda, op)(put(x[:, None]), put(y))), getattr(torch, op)(x[:, None], y))


@pytest.mark.parametrize("op", ["add", "mul", "maximum", *COMPARISONS, *BITS])
def test_binary_of_bool(cuda: Backend, put: Put, get: Get, op: str) -> None:
    x = sample(torch.bool)
    check(get(getattr(cuda, op)(put(x[:, None]), put(x))), getattr(torch, op)(x[:, None], x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "remainder", "lt"])
def test_number_on_either_side(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = sample(dtype)
    x = x[x != 0]
    function = getattr(torch, op)
    check(get(getattr(cuda, op)(put(x), 3)), function(x, 3))
    check(get(getattr(cuda, op)(3, put(x))), function(torch.full_like(x, 3), x))


def test_float_number_keeps_float64(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    check(get(cuda.mul(put(x), 0.1)), x * 0.1)


def test_number_beyond_float32_is_infinite(cuda: Backend, put: Put, get: Get) -> None:
    assert get(cuda.minimum(put(torch.ones(2)), -1e300)).tolist() == [-math.inf, -math.inf]


def test_large_integers_are_exact(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.tensor([2**62 + 1, -(2**61) - 1])
    check(get(cuda.add(put(x), 2**40 + 1)), x + (2**40 + 1))


@pytest.mark.parametrize("exponent", [2, 2.0, 3.0, 0.5, -0.5, -1, -1.5, 0.0])
def test_pow_of_number(cuda: Backend, put: Put, get: Get, exponent: float) -> None:
    x = sample(torch.float32)
    check(get(cuda.pow(put(x), exponent)), x**exponent)


def test_negative_power_of_integers(cuda: Backend, put: Put, get: Get) -> None:
    x, y = torch.tensor([1, -1, -1, 2, 5]), torch.tensor([-3, -3, -2, -1, -2])
    check(get(cuda.pow(put(x), put(y))), torch.pow(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_where(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x = sample(dtype)
    condition = torch.arange(len(x))[:, None] % 2 == 0
    check(get(cuda.where(put(condition), put(x), put(x.flip(0)))), torch.where(condition, x, x.flip(0)))


def test_where_with_numbers(cuda: Backend, put: Put, get: Get) -> None:
    condition, x = torch.tensor([True, False]), torch.tensor([3.0, 4.0])
    check(get(cuda.where(put(condition), put(x), 0.5)), torch.where(condition, x, 0.5))
    check(get(cuda.where(put(condition), 1.0, 0.0)), torch.where(condition, 1.0, 0.0))


@pytest.mark.parametrize(("low", "high"), [(-0.5, 1.0), (None, 1.0), (-0.5, None), (2.0, 1.0)])
def test_clamp(cuda: Backend, put: Put, get: Get, low: float | None, high: float | None) -> None:
    x = sample(torch.float32)
    check(get(cuda.clamp(put(x), low, high)), torch.clamp(x, low, high))


LAYOUTS = {
    "scalar": lambda: (torch.randn(()), torch.randn(3, 2)),
    "two scalars": lambda: (torch.randn(()), torch.randn(())),
    "rows": lambda: (torch.randn(5, 1, 7), torch.randn(4, 1)),
    "steps": lambda: (torch.randn(6, 8)[::2, ::3], torch.randn(3, 3)),
    "transposed": lambda: (torch.randn(40, 70).t(), torch.randn(70, 40)),
    "expanded": lambda: (torch.randn(3, 1).expand(3, 4), torch.randn(4)),
    "empty": lambda: (torch.randn(0, 3), torch.randn(1, 3)),
    "misaligned": lambda: (torch.randn(101)[1:], torch.randn(100)),
    "longer than a block": lambda: (torch.randn(2500), torch.randn(2500)),
    "many dimensions": lambda: (torch.randn(2, 3, 2, 2, 2, 2, 2, 3).permute(7, 1, 3, 0, 2, 6, 5, 4), torch.randn(1, 2)),
    "diagonal": lambda: (torch.randn(5, 5).diagonal(), torch.randn(5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(cuda: Backend, put: Put, get: Get, layout: str) -> None:
    x, y = LAYOUTS[layout]()
    check(get(cuda.sub(put(x), put(y))), x - y)


def test_memory_order_is_kept(cuda: Backend, put: Put, get: Get) -> None:
    nhwc = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    bias = torch.randn(3, 1, 1)
    for result, expected in [
        (cuda.exp(put(nhwc)), nhwc.exp()),
        (cuda.add(put(nhwc), put(bias)), nhwc + bias),
        (cuda.add(put(bias), put(nhwc)), bias + nhwc),
        (cuda.mul(put(nhwc), 2.0), nhwc * 2),
    ]:
        assert result.strides == nhwc.stride()
        check(get(result), expected)


def test_operands_are_unchanged(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.randn(10)
    handle = put(x)
    cuda.mul(cuda.add(handle, 1.0), handle)
    check(get(handle), x)


@pytest.mark.parametrize("op", ["exp", "sqrt", "reciprocal"])
def test_float_op_on_integers_says_so(cuda: Backend, put: Put, op: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{op} has no cuda implementation for int64"):
        getattr(cuda, op)(put(torch.arange(3)))


def test_bits_of_floats_say_so(cuda: Backend, put: Put) -> None:
    with pytest.raises(NotImplementedError, match="bitwise_and has no cuda implementation for float32"):
        cuda.bitwise_and(put(torch.ones(2)), 1)


# --- two operands, which have a shorter way to their plan -------------------------------------------------------------
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "lt", "eq"])
def test_the_short_way_agrees_with_apply(cuda: Backend, put: Put, get: Get, op: str) -> None:
    kernel = getattr(kernels, f"_{op}_kernel")
    options = {"dtype": dtypes.bool_} if op in ("lt", "eq") else {}
    x, y = torch.randn(6, 4, generator=torch.manual_seed(0)), torch.arange(1, 5)
    pairs = [(x, x), (x[:, ::2], x[:, 1::2]), (x, x[0]), (x, y), (y, 2.5), (x, 2.5), (x, 2), (2.5, x), (x[:0], x[0])]
    for a, b in pairs:
        for _ in range(2):  # with a plan that is made, and with one that is found
            result = getattr(cuda, op)(put(a), put(b))
            expected = pointwise.apply(kernel, put(a), put(b), **options)
            assert (result.dtype, result.shape, result.strides) == (expected.dtype, expected.shape, expected.strides)
            assert torch.equal(get(result), get(expected))


def test_an_op_made_by_binary_is_its_modules() -> None:
    assert (elementwise.add.__name__, elementwise.add.__module__) == ("add", elementwise.__name__)
