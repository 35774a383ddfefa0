"""Python numbers that are written into tensors: one rule for all dtypes and both devices, which is PyTorch's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import dtypes
from genesis.errors import DTypeError

NUMBERS = (0, -1, 300, 1 << 40, True, 0.5, -0.5, 255.5, 1e10, 1e39, math.nan, -0.0)
DTYPES = ("bool", "uint8", "int8", "int64", "float16", "float32")


def _assigned(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


# Functions of a library, a tensor of three elements there, and a number.
WRITERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fill_": lambda lib, x, v: x.fill_(v),
    "full": lambda lib, x, v: lib.full((2,), v, dtype=x.dtype, device=x.device),
    "full_like": lambda lib, x, v: lib.full_like(x, v),
    "an element": lambda lib, x, v: _assigned(x, 1, v),
    "a slice": lambda lib, x, v: _assigned(x, slice(0, 3, 2), v),
    "a mask": lambda lib, x, v: _assigned(x, x == x, v),
    "a list": lambda lib, x, v: _assigned(x, [0, 2], v),
    "masked_fill": lambda lib, x, v: x.masked_fill(x == 1, v),
    "masked_fill_": lambda lib, x, v: x.masked_fill_(x == 1, v),
    "scatter": lambda lib, x, v: x.scatter(0, lib.tensor([0, 1], device=x.device), v),
    "scatter_": lambda lib, x, v: x.scatter_(0, lib.tensor([0, 1], device=x.device), v),
    "pad": lambda lib, x, v: lib.nn.functional.pad(x, (1, 2), value=v),
    "where": lambda lib, x, v: lib.where(x == 1, x, v),
    "where, reversed": lambda lib, x, v: lib.where(x == 1, v, x),
    "clamp from below": lambda lib, x, v: x.clamp(min=v),
    "clamp from above": lambda lib, x, v: x.clamp(max=v),
    "tensor": lambda lib, x, v: lib.tensor([v, 1], dtype=x.dtype),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("writer", WRITERS)
def test_numbers_are_written_as_pytorch_does(writer: str, dtype: str, device: str) -> None:
    for number in NUMBERS:
        theirs = torch.tensor([0, 1, 1] if dtype == "bool" else [0, 1, 5], dtype=getattr(torch, dtype))
        mine = genesis.from_torch(theirs.clone()).to(device)
        try:
            expected = WRITERS[writer](torch, theirs, number)
        except (RuntimeError, OverflowError):
            with pytest.raises((OverflowError, DTypeError), match=r"^\w+: argument '\w+': expected .*number"):
                WRITERS[writer](genesis, mine, number)
        else:
            actual = WRITERS[writer](genesis, mine, number)
            if "clamp" in writer and math.isnan(number):
                expected = torch.full_like(expected, math.nan)  # older releases leave some values, by the processor
            torch.testing.assert_close(actual.cpu().to_torch(), expected, rtol=0, atol=0, equal_nan=True)


def test_what_is_no_number_is_named() -> None:
    with pytest.raises(DTypeError, match="fill_: argument 'value': expected a number, got str"):
        genesis.zeros(2).fill_("a")
    with pytest.raises(genesis.errors.ShapeError, match=r"fill_: argument 'value': .* got shape \(2,\)"):
        genesis.zeros(2).fill_(genesis.zeros(2))
    with pytest.raises(DTypeError, match="scatter: argument 'src': expected a tensor or a number, got str"):
        genesis.zeros(2).scatter(0, genesis.tensor([0]), "a")


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_the_ends_of_each_dtype_are_held(dtype: dtypes.DType) -> None:
    theirs = getattr(torch, dtype.name)
    limits = (0, 1) if dtype is dtypes.bool_ else (torch.finfo if dtype.is_floating_point else torch.iinfo)(theirs)
    for end in limits if isinstance(limits, tuple) else (limits.min, limits.max):
        assert genesis.full((1,), end, dtype=dtype).item() == end


# --- arithmetic -------------------------------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "-": lambda x, v: x - v,
    "reversed -": lambda x, v: v - x,
    "//": lambda x, v: x // v,
    "%": lambda x, v: x % v,
    "**": lambda x, v: x**v,
    "reversed **": lambda x, v: v**x,
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_that_pytorch_refuses_in_arithmetic_are_refused(operator: str, device: str) -> None:
    for dtype in ("bool", "uint8", "int64", "float32"):
        for number in (0, 3, -1, True, False, 0.5):
            theirs = torch.tensor([1, 1, 1] if dtype == "bool" else [1, 2, 5], dtype=getattr(torch, dtype))
            mine = genesis.from_torch(theirs.clone()).to(device)
            try:
                expected = OPERATORS[operator](theirs, number)
            except (RuntimeError, NotImplementedError):
                with pytest.raises((TypeError, ValueError, ZeroDivisionError), match="expected"):
                    OPERATORS[operator](mine, number)
            else:
                actual = OPERATORS[operator](mine, number).cpu().to_torch()
                torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "trunc", "add alpha", "multiply"])
def test_two_numbers_make_a_tensor_as_in_pytorch(name: str) -> None:
    options = {"trunc": {"rounding_mode": "trunc"}, "add alpha": {"alpha": 2.5}}.get(name, {})
    function = {"trunc": "div", "add alpha": "add"}.get(name, name)
    for operands in itertools.product((7, -7.5, True), (2, 2.5, 0, True)):
        try:
            expected = getattr(torch, function)(*operands, **options)
        except (RuntimeError, NotImplementedError):
            with pytest.raises((TypeError, ZeroDivisionError, NotImplementedError), match=r"expected|has no cpu"):
                getattr(genesis, function)(*operands, **options)
        else:
            actual = getattr(genesis, function)(*operands, **options)
            torch.testing.assert_close(actual.to_torch(), expected, equal_nan=True)


def test_two_numbers_where_pytorch_wants_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"Remainder: expected a Tensor among the arguments, got \(int, int\)"):
        genesis.remainder(7, 2)
    with pytest.raises(TypeError, match=r"Add: expected a Tensor among the arguments, got \(int, str\)"):
        genesis.add(7, "2")
