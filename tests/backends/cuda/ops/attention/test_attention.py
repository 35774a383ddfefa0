"""Attention and its gradients against the CPU backend in float64: masks, strides, sizes, dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.attention import tiles
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.errors import OutOfMemoryError
from genesis.records import SavedAttention

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def cpu() -> Backend:
    return backends.get("cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def close(result: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    assert result.shape == expected.shape
    scale = expected.abs().max().item() if expected.numel() else 0.0
    # Products of order 1 are summed, also where the sum is 0, as the gradient of a single key's score.
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[dtype] * max(scale, 1.0))


def check(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False,
) -> None:  # fmt: skip
    dtype, scale = query.dtype, min(0.3, query.shape[-1] ** -0.5)  # a score's rounding is an error of its exponential
    wide = [x.double().contiguous() for x in (query, key, value)]
    wide_mask = mask if mask is None or mask.dtype is torch.bool else mask.double()
    expected, probabilities = cpu.attention(*wide, wide_mask, is_causal, scale)
    arrays = [put(x) for x in (query, key, value, mask)]
    y, saved = cuda.attention(*arrays, is_causal, scale)
    close(get(y), expected, dtype)
    grad = torch.randn_like(expected).to(dtype)
    gradients = cpu.attention_backward(
        grad.double(), SavedAttention(*wide, wide_mask, expected, probabilities), is_causal, scale
    )
    results = cuda.attention_backward(put(grad), SavedAttention(*arrays, y, saved), is_causal, scale)
    for result, wanted in zip(results, gradients, strict=True):
        close(get(result), wanted, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(cuda: Backend, cpu: Backend, put: Put, get: Get, dtype: torch.dtype, is_causal: bool) -> None:
    query, key, value = random(2, 70, 16, dtype=dtype), random(2, 70, 16, dtype=dtype), random(2, 70, 16, dtype=dtype)
    check(cuda, cpu, put, get, query, key, value, None, is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "head", "value_size"),
    [(1, 1, 8, 8), (5, 40, 8, 24), (40, 5, 20, 8), (150, 33, 16, 16), (3, 150, 64, 64), (20, 20, 96, 130)],
)
def test_attention_sizes(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    num_queries: int, num_keys: int, head: int, value_size: int, is_causal: bool,
) -> None:  # fmt: skip
    query, key, value = random(1, num_queries, head), random(1, num_keys, head), random(1, num_keys, value_size)
    check(cuda, cpu, put, get, query, key, value, None, is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["bool", "additive", "infinite", "blind rows", "per head"])
def test_attention_masks(cuda: Backend, cpu: Backend, put: Put, get: Get, kind: str, is_causal: bool) -> None:
    query, key, value = random(2, 3, 20, 16), random(2, 3, 37, 16), random(2, 3, 37, 16)
    mask = torch.rand(20, 37) < 0.7
    mask[:, 0] = True
    if kind == "blind rows":
        mask[3:5] = False
    if kind == "additive":
        mask = random(20, 37)
    if kind == "infinite":
        mask = torch.where(mask, 0.0, -torch.inf)
    mask = mask.expand(2, 3, 20, 37)
    if kind == "per head":
        mask = (torch.rand(3, 37, 20) < 0.7).transpose(1, 2).expand(2, 3, 20, 37)
    check(cuda, cpu, put, get, query, key, value, mask, is_causal)


def test_attention_of_any_strides(cuda: Backend, cpu: Backend, put: Put, get: Get) -> None:
    query = random(2, 20, 3, 16).transpose(1, 2)
    key = random(2, 3, 16, 40)[..., ::2].transpose(2, 3)
    value = random(2, 1, 20, 16).expand(2, 3, 20, 16)
    check(cuda, cpu, put, get, query, key, value)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2), (0,)], ids=str)
def test_attention_leading_dimensions(cuda: Backend, cpu: Backend, put: Put, get: Get, lead: tuple[int, ...]) -> None:
    check(cuda, cpu, put, get, random(*lead, 6, 8), random(*lead, 7, 8), random(*lead, 7, 8))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "head", "value_size"),
    [(200, 200, 64, 64), (130, 261, 128, 128), (261, 130, 72, 40), (3, 150, 16, 128), (130, 1, 64, 64)],
)
def test_attention_by_the_copy_engine(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    num_queries: int, num_keys: int, head: int, value_size: int, dtype: torch.dtype, is_causal: bool,
) -> None:  # fmt: skip
    query, key = random(2, num_queries, head, dtype=dtype), random(2, num_keys, head, dtype=dtype)
    value = random(2, num_keys, value_size, dtype=dtype)
    arrays = [put(x) for x in (query, key, value)]
    assert tiles.is_fetchable(*[x.layout for x in arrays]) == (driver.get().properties(0).compute_capability >= 90)
    check(cuda, cpu, put, get, query, key, value, None, is_causal)


def test_what_the_copy_engine_cannot_fetch(cuda: Backend, put: Put) -> None:
    fine = random(4, 20, 24, dtype=torch.float16)
    for x in (
        fine.float(),
        fine[..., 1:],
        fine[..., ::2],
        fine[..., :20].contiguous(),
        fine[:0],
        fine[:, :1].expand(4, 5, 24),
    ):
        assert not tiles.is_fetchable(put(x).layout)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "room", "slab"),
    [
        (torch.bfloat16, 2**19, (3, 320, 256)),
        (torch.bfloat16, 2**17, (1, 320, 256)),
        (torch.bfloat16, 2**16, (1, 128, 256)),
        (torch.bfloat16, 2**14, (1, 64, 256)),
        (torch.float64, 2**14, (1, 64, 192)),
    ],
)
def test_attention_backward_in_slabs(
    cuda: Backend, cpu: Backend, put: Put, get: Get, monkeypatch: pytest.MonkeyPatch,
    room: int, slab: tuple[int, int, int], dtype: torch.dtype, is_causal: bool,
) -> None:  # fmt: skip
    """As much of the gradients of scores as there is memory for."""
    shapes, empty = [], array.empty

    def scarce(shape: tuple[int, ...], *rest: Any) -> DeviceArray:
        if math.prod(shape) > room:
            raise OutOfMemoryError("no room")
        shapes.append(shape)
        return empty(shape, *rest)

    monkeypatch.setattr(array, "empty", scarce)
    query, key, value = (random(3, size, 16, dtype=dtype) for size in (170, 300, 300))
    check(cuda, cpu, put, get, query, key, value, None, is_causal)
    assert slab in shapes


def test_no_memory_for_any_slab(cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(random(1, 40, 16))
    y, saved = cuda.attention(x, x, x, None, False, 1.0)
    empty = array.empty

    def scarce(shape: tuple[int, ...], *rest: Any) -> DeviceArray:
        if shape == (1, 64, 64):
            raise OutOfMemoryError("no room")
        return empty(shape, *rest)

    monkeypatch.setattr(array, "empty", scarce)
    with pytest.raises(OutOfMemoryError, match="no room"):
        cuda.attention_backward(y, SavedAttention(x, x, x, None, y, saved), False, 1.0)


@pytest.mark.parametrize("scale", [-0.4, 0.0])
def test_attention_of_any_scale(cuda: Backend, cpu: Backend, put: Put, get: Get, scale: float) -> None:
    query, key, value = random(1, 9, 16), random(1, 40, 16), random(1, 40, 16)
    wide = [x.double() for x in (query, key, value)]
    expected, probabilities = cpu.attention(*wide, None, False, scale)
    arrays = [put(x) for x in (query, key, value)]
    y, saved = cuda.attention(*arrays, None, False, scale)
    close(get(y), expected, torch.float32)
    gradients = cpu.attention_backward(expected, SavedAttention(*wide, None, expected, probabilities), False, scale)
    results = cuda.attention_backward(put(expected.float()), SavedAttention(*arrays, None, y, saved), False, scale)
    for result, wanted in zip(results, gradients, strict=True):
        close(get(result), wanted, torch.float32)


def test_attention_of_large_scores(cuda: Backend, cpu: Backend, put: Put, get: Get) -> None:
    query, key, value = random(1, 8, 16) * 30, random(1, 50, 16) * 30, random(1, 50, 16)
    y, _ = cuda.attention(put(query), put(key), put(value), None, False, 1.0)
    expected, _ = cpu.attention(query.double(), key.double(), value.double(), None, False, 1.0)
    torch.testing.assert_close(get(y).double(), expected, rtol=1e-3, atol=1e-3)  # scores of 10⁴ in float32


def test_attention_refuses_large_heads(cuda: Backend, put: Put) -> None:
    x = put(torch.zeros(1, 2, 257))
    with pytest.raises(NotImplementedError, match="attention has no cuda implementation for float32 heads above 256"):
        cuda.attention(x, x, x, None, False, 1.0)
