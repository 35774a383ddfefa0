"""softmax and log_softmax, forward and backward, against torch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.softmax import launch as softmax_module

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # one unit in 16 bits
OPS = ["softmax", "log_softmax"]
CPU = backends.get("cpu")


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.manual_seed(seed)) * 3).to(dtype)


def check(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype], equal_nan=True)


def check_both_ways(cuda: Backend, put: Put, get: Get, op: str, x: torch.Tensor, dim: int) -> None:
    y = getattr(CPU, op)(x.double(), dim)
    check(get(getattr(cuda, op)(put(x), dim)), y, x.dtype)
    grad, y = torch.empty_like(x).copy_(randn(*x.shape, seed=1)), torch.empty_like(x).copy_(y)
    expected = getattr(CPU, f"{op}_backward")(grad.double(), y.double(), dim)
    check(get(getattr(cuda, f"{op}_backward")(put(grad), put(y), dim)), expected, x.dtype)


LAYOUTS = {
    "contiguous": randn(2, 5, 3, 4),
    "channels last": randn(2, 5, 3, 4).contiguous(memory_format=torch.channels_last),
    "steps": randn(2, 10, 3, 8)[:, ::2, :, 1::2],
    "expanded": randn(2, 1, 3, 1).expand(2, 5, 3, 4),
    "vector": randn(33),
    "many rows": randn(300, 9),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_every_dim_and_layout(cuda: Backend, put: Put, get: Get, op: str, layout: str) -> None:
    x = LAYOUTS[layout]
    for dim in range(x.ndim):
        check_both_ways(cuda, put, get, op, x, dim)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_dtypes(cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype) -> None:
    check_both_ways(cuda, put, get, op, randn(3, 100, dtype=dtype), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_rows_too_long_for_registers(
    cuda: Backend, put: Put, get: Get, op: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax_module, "_LONGEST", 64)
    check_both_ways(cuda, put, get, op, randn(2, 65, 3, dtype=dtype), 1)


@pytest.mark.parametrize("op", OPS)
def test_large_values_and_infinities(cuda: Backend, put: Put, get: Get, op: str) -> None:
    inf = math.inf
    x = torch.tensor([[1e4, 1e4 + 1, -1e4], [-inf, 0, 1], [-inf, -inf, -inf], [inf, 0, 1], [math.nan, 0, 1]])
    check(get(getattr(cuda, op)(put(x), 1)), getattr(CPU, op)(x.double(), 1), torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_empty_and_scalar(cuda: Backend, put: Put, get: Get, op: str) -> None:
    for x in (torch.empty(0, 3), torch.empty(3, 0), torch.tensor(2.5)):
        check_both_ways(cuda, put, get, op, x, 0)


@pytest.mark.parametrize("op", OPS)
def test_order_of_memory(cuda: Backend, put: Put, op: str) -> None:
    """A result is row-major, so that what views it in PyTorch does here; a gradient has the result's order."""
    x = put(LAYOUTS["channels last"])
    assert getattr(cuda, op)(x, 1).strides == (60, 12, 4, 1)
    long = put(torch.randn(3, softmax_module._LONGEST + 1).t())
    assert getattr(cuda, op)(long, 0).strides == (3, 1)
    assert getattr(cuda, f"{op}_backward")(x, x, 1).strides == x.strides


@pytest.mark.parametrize("op", OPS)
def test_integers_have_none(cuda: Backend, put: Put, op: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{op} has no cuda implementation for int32"):
        getattr(cuda, op)(put(torch.ones(3, dtype=torch.int32)), 0)
