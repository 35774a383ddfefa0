"""Random draws: distributions, reproducibility, independence of the launch grid, the generator's state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.random import launch as random_module

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

FLOATS = [dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16]
DRAWS: dict[str, Callable[[Backend], Any]] = {
    "rand": lambda cuda: cuda.rand((100,), None, dtypes.float32),
    "rand float64": lambda cuda: cuda.rand((100,), None, dtypes.float64),
    "randn": lambda cuda: cuda.randn((100,), None, dtypes.float32),
    "randint": lambda cuda: cuda.randint(-5, 1000, (100,), dtypes.int64),
    "randperm": lambda cuda: cuda.randperm(100, dtypes.int64),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rand(cuda: Backend, get: Get, dtype: dtypes.DType) -> None:
    cuda.manual_seed(0)
    x = get(cuda.rand((50, 401), None, dtype)).double()
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.02
    assert abs(x.var() - 1 / 12) < 0.005
    counts = torch.histc(x, 10, 0, 1)
    assert (counts - 2005).abs().max() < 250  # within 6 standard deviations


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_randn(cuda: Backend, get: Get, dtype: dtypes.DType) -> None:
    cuda.manual_seed(0)
    x = get(cuda.randn((20001,), None, dtype)).double()
    moments = torch.stack([x.mean(), x.var(), (x**3).mean(), (x**4).mean()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 0.0, 3.0]).double(), rtol=0, atol=0.15)
    assert abs((x[:-1] * x[1:]).mean()) < 0.03  # neighbours share a counter, and nothing else
    assert x.isfinite().all()


@pytest.mark.parametrize("dtype", [dtypes.int64, dtypes.int32, dtypes.uint8, dtypes.float32, dtypes.bfloat16], ids=str)
def test_randint(cuda: Backend, get: Get, dtype: dtypes.DType) -> None:
    cuda.manual_seed(0)
    x = get(cuda.randint(3, 10, (7000,), dtype)).long()
    assert x.unique().tolist() == list(range(3, 10))
    assert (torch.bincount(x)[3:] - 1000).abs().max() < 180


def test_randint_of_a_wide_range(cuda: Backend, get: Get) -> None:
    cuda.manual_seed(0)
    x = get(cuda.randint(-(2**62), 2**62, (500,), dtypes.int64))
    assert x.min() < -(2**61)
    assert x.max() > 2**61
    assert x.unique().numel() == 500
    x = get(cuda.randint(-(2**63), 2**63 - 1, (500,), dtypes.int64))
    assert x.min() < -(2**62)
    assert x.max() > 2**62
    x = get(cuda.randint(0, 2**31, (500,), dtypes.int64))
    assert 2**30 < x.max() < 2**31


@pytest.mark.parametrize("n", [0, 1, 5, 250])
@pytest.mark.parametrize("ranked", [True, False])
def test_randperm(cuda: Backend, get: Get, monkeypatch: pytest.MonkeyPatch, n: int, ranked: bool) -> None:
    if not ranked:
        if n < 5:
            pytest.skip("so few are always ranked")
        monkeypatch.setattr(random_module, "_RANKED", 1)
    for dtype in (dtypes.int64, dtypes.int32):
        x = get(cuda.randperm(n, dtype))
        assert x.dtype == getattr(torch, dtype.name)
        assert x.sort().values.tolist() == list(range(n))
    if n == 250:
        assert (x == torch.arange(n)).sum() < 10
        assert abs(torch.corrcoef(torch.stack([x.double(), torch.arange(n).double()]))[0, 1]) < 0.2


def test_every_permutation_is_drawn(cuda: Backend, get: Get) -> None:
    cuda.manual_seed(0)
    drawn = {tuple(get(cuda.randperm(3, dtypes.int64)).tolist()) for _ in range(60)}
    assert drawn == set(itertools.permutations(range(3)))


@pytest.mark.parametrize("draw", DRAWS)
def test_seed_and_state(cuda: Backend, get: Get, draw: str) -> None:
    cuda.manual_seed(1)
    first = get(DRAWS[draw](cuda))
    state = cuda.get_rng_state()
    second = get(DRAWS[draw](cuda))
    assert not torch.equal(first, second)
    cuda.manual_seed(1)
    assert torch.equal(get(DRAWS[draw](cuda)), first)
    cuda.set_rng_state(state)
    assert torch.equal(get(DRAWS[draw](cuda)), second)
    cuda.manual_seed(-1)
    assert not torch.equal(get(DRAWS[draw](cuda)), first)


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_do_not_depend_on_the_grid(cuda: Backend, get: Get, monkeypatch: pytest.MonkeyPatch, draw: str) -> None:
    cuda.manual_seed(1)
    expected = get(DRAWS[draw](cuda))
    monkeypatch.setattr(random_module, "_BLOCK", 16)
    cuda.manual_seed(1)
    assert torch.equal(get(DRAWS[draw](cuda)), expected)


def test_known_draws(cuda: Backend, get: Get) -> None:
    """Philox 4x32-10 of key 0, counter 0, from Random123's known answers; so these draws never change."""
    cuda.manual_seed(0)
    words = torch.tensor([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    assert torch.equal(get(cuda.rand((4,), None, dtypes.float32)), (words >> 8).float() / 2**24)


def test_set_rng_state_refuses_another_generators(cuda: Backend) -> None:
    with pytest.raises(
        ValueError, match="set_rng_state: argument 'state': expected 16 bytes of a cuda generator, got 3"
    ):
        cuda.set_rng_state(b"abc")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dropout(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    cuda.manual_seed(0)
    x = torch.randn(100, 60, generator=torch.manual_seed(0)).to(dtype)
    y, mask = (get(result) for result in cuda.dropout(put(x), 0.25))
    assert abs(mask.double().mean() - 0.75) < 0.03
    expected = (x.double() * mask / 0.75).to(dtype)
    torch.testing.assert_close(y, expected, rtol=1e-2 if x.itemsize == 2 else 1e-6, atol=0)


def test_dropout_of_any_order_of_memory(cuda: Backend, put: Put, get: Get) -> None:
    x = torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    y, mask = cuda.dropout(put(x), 0.5)
    assert y.strides == mask.strides == x.stride()
    assert torch.equal(get(y), get(mask) * 2.0)
    y, mask = cuda.dropout(put(torch.ones(6, 6)[:, ::2]), 0.5)
    assert torch.equal(get(y), get(mask) * 2.0)
    assert get(cuda.dropout(put(torch.ones(())), 0.5)[0]).item() in (0, 2)
    assert cuda.dropout(put(torch.ones(0, 3)), 0.5)[0].shape == (0, 3)


@pytest.mark.parametrize("op", ["rand", "randn"])
def test_integers_have_none(cuda: Backend, op: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{op} has no cuda implementation for int64"):
        getattr(cuda, op)((3,), None, dtypes.int64)
