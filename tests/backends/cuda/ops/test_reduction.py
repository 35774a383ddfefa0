"""Reductions against torch: every group of dimensions, orders of memory, dtypes, NaN, empty arrays, and splits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # one unit in 16 bits
VALUES = ["sum", "mean", "prod", "amax", "amin", "all", "any", "logsumexp"]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.manual_seed(0)).to(dtype)


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    relative = RELATIVE.get(expected.dtype, 0.0)
    torch.testing.assert_close(result, expected, rtol=relative, atol=relative, equal_nan=True)


def reference(op: str, x: torch.Tensor, *args: Any) -> torch.Tensor:
    """torch's result, computed in float64 for floats."""
    if not x.is_floating_point():
        return getattr(backends.get("cpu"), op)(x, *args)
    result = getattr(backends.get("cpu"), op)(x.double(), *args)
    return result.to(x.dtype) if result.is_floating_point() else result


LAYOUTS = {
    "contiguous": randn(3, 5, 7, 4),
    "channels last": randn(3, 5, 7, 4).contiguous(memory_format=torch.channels_last),
    "transposed": randn(4, 7, 5, 3).permute(3, 2, 1, 0),
    "steps": randn(3, 10, 7, 8)[:, ::2, :, 1::2],
    "expanded": randn(3, 1, 7, 1).expand(3, 5, 7, 4),
    "sizes of 1": randn(3, 1, 7, 1),
}


@pytest.mark.parametrize("dims", [(0,), (1,), (3,), (0, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dims_in_every_layout(cuda: Backend, put: Put, get: Get, layout: str, dims: tuple[int, ...]) -> None:
    x = LAYOUTS[layout]
    for keepdim in (False, True):
        for op in ("sum", "amax", "logsumexp"):
            check(get(getattr(cuda, op)(put(x), dims, keepdim)), reference(op, x, dims, keepdim))
        check(get(cuda.var(put(x), dims, 0.0, keepdim)), reference("var", x, dims, 0.0, keepdim))


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("op", VALUES)
def test_floats(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = randn(6, 11, dtype=dtype)
    check(get(getattr(cuda, op)(put(x), (1,), False)), reference(op, x, (1,), False))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin", "all", "any"])
def test_integers(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = torch.randint(0 if dtype in (torch.uint8, torch.bool) else -5, 6, (6, 9), generator=torch.manual_seed(0)).to(
        dtype
    )
    x[3] = 0
    check(get(getattr(cuda, op)(put(x), (1,), False)), reference(op, x, (1,), False))


def test_integer_limits(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.tensor([[-(2**63), -(2**63)], [2**63 - 1, 2**63 - 1]])
    assert torch.equal(get(cuda.amax(put(x), (1,), False)), x.amax(1))
    assert torch.equal(get(cuda.amin(put(x), (1,), False)), x.amin(1))
    assert get(cuda.argmin(put(x), 0, False)).tolist() == [0, 0]
    assert get(cuda.argmax(put(x), 0, False)).tolist() == [1, 1]


@pytest.mark.parametrize("op", [*VALUES, "argmax", "argmin"])
def test_nan_and_infinity(cuda: Backend, put: Put, get: Get, op: str) -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor(
        [
            [1, nan, 3, nan],
            [inf, 2, inf, 0],
            [-inf, -inf, -inf, -inf],
            [-inf, inf, 0, 1],
            [nan, inf, 0, 1],
            [0, 0, 0, 0],
        ]
    )
    dims = 1 if op.startswith("arg") else (1,)
    check(get(getattr(cuda, op)(put(x), dims, False)), reference(op, x, dims, False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_arg_takes_the_first(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (5, 40, 3), generator=torch.manual_seed(0))
    for dim in range(3):
        for keepdim in (False, True):
            extreme = x.amax(dim, True) if op == "argmax" else x.amin(dim, True)
            first = (x == extreme).int().argmax(dim, keepdim)  # torch's own argmax promises no order for integers
            result = get(getattr(cuda, op)(put(x.bool() if dtype is torch.bool else x.to(dtype)), dim, keepdim))
            if dtype is torch.bool:
                extreme = x.bool().int().amax(dim, True) if op == "argmax" else x.bool().int().amin(dim, True)
                first = (x.bool().int() == extreme).int().argmax(dim, keepdim)
            assert torch.equal(result, first)


SPLIT = {
    "one row": (randn(40000), (0,)),
    "columns": (randn(3000, 12), (0,)),
    "channels": (randn(7, 3, 40, 41), (0, 2, 3)),
    "channels last": (randn(7, 3, 40, 41).contiguous(memory_format=torch.channels_last), (0, 2, 3)),
    "small inner dimension": (randn(3000, 2, 3).permute(0, 2, 1)[:, :, :], (0, 2)),
}


@pytest.mark.parametrize("case", SPLIT)
def test_splits(cuda: Backend, put: Put, get: Get, case: str) -> None:
    x, dims = SPLIT[case]
    for op in ("sum", "mean", "amin", "any", "logsumexp"):
        check(get(getattr(cuda, op)(put(x), dims, False)), reference(op, x, dims, False))
    check(get(cuda.var(put(x), dims, 1.0, False)), reference("var", x, dims, 1.0, False))
    if len(dims) == 1:
        for op in ("argmax", "argmin"):
            assert torch.equal(get(getattr(cuda, op)(put(x), dims[0], False)), reference(op, x, dims[0], False))
        check(get(cuda.cumsum(put(x.double()), dims[0])), x.double().cumsum(dims[0]))
        check(get(cuda.cumsum(put((x * 9).int()), dims[0])), (x * 9).int().cumsum(dims[0]))


def test_sums_repeat_bit_for_bit(cuda: Backend, put: Put, get: Get) -> None:
    x = put(randn(50000))
    assert torch.equal(get(cuda.sum(x, (0,), False)), get(cuda.sum(x, (0,), False)))


def test_var_far_from_zero(cuda: Backend, put: Put, get: Get) -> None:
    x = randn(3, 5000, dtype=torch.float64) + 1e4
    torch.testing.assert_close(
        get(cuda.var(put(x.float()), (1,), 1.0, False)), x.float().double().var(1).float(), rtol=1e-5, atol=0
    )


def test_long_half_sums_accumulate_in_float32(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.ones(30000, dtype=torch.float16)
    assert get(cuda.sum(put(x), (0,), False)).item() == 30000
    assert get(cuda.mean(put(x * 4), (0,), False)).item() == 4


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "all", "any", "logsumexp"])
def test_empty(cuda: Backend, put: Put, get: Get, op: str) -> None:
    check(get(getattr(cuda, op)(put(torch.empty(0, 3)), (0,), False)), reference(op, torch.empty(0, 3), (0,), False))
    assert get(getattr(cuda, op)(put(torch.empty(0, 3)), (1,), True)).shape == (0, 1)


def test_var_of_too_few(cuda: Backend, put: Put, get: Get) -> None:
    assert get(cuda.var(put(torch.empty(2, 0)), (1,), 1.0, False)).isnan().all()
    assert get(cuda.var(put(torch.ones(2, 1)), (1,), 1.0, False)).isnan().all()
    assert get(cuda.var(put(torch.ones(2, 1)), (1,), 0.0, False)).tolist() == [0, 0]


@pytest.mark.parametrize("op", VALUES)
def test_scalar(cuda: Backend, put: Put, get: Get, op: str) -> None:
    x = torch.tensor(2.5)
    check(get(getattr(cuda, op)(put(x), (), False)), reference(op, x, (), False))


def test_scalar_arg_and_cumsum(cuda: Backend, put: Put, get: Get) -> None:
    assert get(cuda.argmax(put(torch.tensor(2.5)), 0, False)).item() == 0
    assert get(cuda.cumsum(put(torch.tensor(2.5)), 0)).item() == 2.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cumsum(cuda: Backend, put: Put, get: Get, layout: str) -> None:
    x = LAYOUTS[layout]
    for dim in range(4):
        result = cuda.cumsum(put(x), dim)
        check(get(result), x.double().cumsum(dim).float())
        if layout in ("contiguous", "channels last"):
            assert result.strides == x.stride()
    check(get(cuda.cumsum(put(x > 0), 1)), (x > 0).cumsum(1))
    assert get(cuda.cumsum(put(torch.empty(0, 3)), 0)).shape == (0, 3)


def test_kept_order_of_memory(cuda: Backend, put: Put) -> None:
    x = put(LAYOUTS["channels last"])
    assert cuda.sum(x, (2,), False).strides == (20, 1, 5)
    assert cuda.sum(x, (0,), True).strides[1:] == (1, 20, 5)


@pytest.mark.parametrize("op", ["mean", "logsumexp", "var"])
def test_integers_have_none(cuda: Backend, put: Put, op: str) -> None:
    args = (1.0, False) if op == "var" else (False,)
    with pytest.raises(NotImplementedError, match=f"{op} has no cuda implementation for int64"):
        getattr(cuda, op)(put(torch.ones(3, dtype=torch.int64)), (0,), *args)
