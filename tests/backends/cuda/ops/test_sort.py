"""sort and topk beside torch: every dtype, ties, NaN, zeros, short and long rows, any dimension."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from genesis.backends.backend import Backend

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """With ties, and for integers with the ends of their range."""
    x = (torch.randn(shape, generator=torch.manual_seed(sum(shape))) * 5).round()
    if dtype is torch.bool:
        return x > 0
    if dtype.is_floating_point:
        return x.to(dtype)
    ends = torch.iinfo(dtype)
    x = x.abs().to(dtype)
    flat = x.view(-1)
    flat[::7], flat[3::11] = ends.min, ends.max
    return x


def check(result: Any, expected: Any, get: Any) -> None:
    for mine, other in zip(result, expected, strict=True):
        assert torch.equal(get(mine).nan_to_num(12345.0), other.nan_to_num(12345.0))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort(cuda: Backend, put: Any, get: Any, dtype: torch.dtype, descending: bool) -> None:
    x = sample(4, 40, 3, dtype=dtype)
    for dim in (0, 1, 2):
        check(cuda.sort(put(x), dim, descending, True), torch.sort(x, dim=dim, descending=descending, stable=True), get)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sort_of_special_values(cuda: Backend, put: Any, get: Any, dtype: torch.dtype, descending: bool) -> None:
    x = torch.tensor([0.0, -0.0, math.nan, 1e-40, -math.inf, -math.nan, math.inf, -1e-40, 0.0, -0.0], dtype=dtype)
    result = cuda.sort(put(x), 0, descending, True)
    check(result, torch.sort(x, descending=descending, stable=True), get)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 257, 1100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_rows_of_any_length(cuda: Backend, put: Any, get: Any, length: int, dtype: torch.dtype) -> None:
    x = sample(2, length, dtype=dtype)
    check(cuda.sort(put(x), 1, False, True), torch.sort(x, dim=1, stable=True), get)


def test_large_integers_are_told_apart(cuda: Backend, put: Any, get: Any) -> None:
    base = torch.tensor([2**62, -(2**62), 2**33, 5, -5])[:, None]
    x = (base + torch.tensor([3, -1, 2**32, 0, 1])).flatten()
    check(cuda.sort(put(x), 0, False, True), torch.sort(x, stable=True), get)


def test_sort_of_0d_and_empty_and_strided(cuda: Backend, put: Any, get: Any) -> None:
    for x, dim in ((torch.tensor(3.0), 0), (torch.empty(0, 3), 0), (torch.empty(3, 0), 1), (sample(6, 8).t()[::2], 1)):
        check(cuda.sort(put(x), dim, False, False), torch.sort(x, dim=dim, stable=True), get)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_topk(cuda: Backend, put: Any, get: Any, dtype: torch.dtype, largest: bool) -> None:
    x = torch.stack([torch.randperm(100, generator=torch.manual_seed(i)) for i in range(3)]).to(dtype)
    for k in (1, 5, 100):
        check(cuda.topk(put(x), k, 1, largest), torch.topk(x, k, 1, largest), get)
    check(cuda.topk(put(x.t()), 2, 0, largest), torch.topk(x.t(), 2, 0, largest), get)


def test_topk_of_nothing_and_of_nan(cuda: Backend, put: Any, get: Any) -> None:
    check(cuda.topk(put(sample(3, 4)), 0, 1, True), torch.topk(sample(3, 4), 0, 1), get)
    x = torch.tensor([1.0, math.nan, 3.0])
    for largest in (True, False):
        check(cuda.topk(put(x), 2, 0, largest), torch.topk(x, 2, 0, largest), get)
    check(cuda.topk(put(torch.tensor(2.0)), 1, 0, True), torch.topk(torch.tensor(2.0), 1), get)
