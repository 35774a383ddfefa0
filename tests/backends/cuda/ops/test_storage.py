"""Creation, views, copies, casts, the way to the host and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import memory
from genesis.shapes import channels_last_strides, contiguous_strides

TORCH = {dtype: getattr(torch, dtype.name) for dtype in dtypes.ALL}


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_full(cuda: Backend, get: Any, dtype: dtypes.DType) -> None:
    for value in (0, 1, 3.0, True, *(() if dtype in (dtypes.uint8, dtypes.bool_) else (-2,))):
        same(get(cuda.full((3, 2), value, dtype)), torch.full((3, 2), value, dtype=TORCH[dtype]))


def test_full_keeps_the_sign_of_zero(cuda: Backend, get: Any) -> None:
    assert torch.signbit(get(cuda.full((2,), -0.0, dtypes.float32))).all()


def test_full_of_special_values(cuda: Backend, get: Any) -> None:
    for value in (float("inf"), float("-inf"), float("nan"), 1e-30):
        same(get(cuda.full((), value, dtypes.float32)), torch.tensor(value))
    same(get(cuda.full((2,), 2**62 + 1, dtypes.int64)), torch.full((2,), 2**62 + 1))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not dtypes.bool_], ids=lambda dtype: dtype.name)
def test_arange(cuda: Backend, get: Any, dtype: dtypes.DType) -> None:
    same(get(cuda.arange(1, 2, 10, dtype)), torch.arange(1, 21, 2).to(TORCH[dtype]))
    assert get(cuda.arange(0, 1, 0, dtype)).shape == (0,)


def test_arange_rounds_once(cuda: Backend, get: Any) -> None:
    expected = (0.1 + torch.arange(3000, dtype=torch.float64) * 0.1).float()
    same(get(cuda.arange(0.1, 0.1, 3000, dtypes.float32)), expected)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_host_and_back(cuda: Backend, put: Any, get: Any, dtype: dtypes.DType) -> None:
    x = torch.arange(12).reshape(3, 4).to(TORCH[dtype])
    handle = put(x)
    assert handle.dtype is dtype
    same(get(handle), x)
    same(get(cuda.view(handle, (4, 2), (1, 8), 0)), x.as_strided((4, 2), (1, 8)))


def test_from_cpu_of_strided_and_0d_and_empty(cuda: Backend) -> None:
    for array in (np.arange(12.0).reshape(3, 4).T, np.array(3.0), np.zeros((0, 2))):
        np.testing.assert_array_equal(cuda.to_cpu(cuda.from_cpu(array, dtypes.float64)), array)


def test_from_cpu_does_not_follow_later_changes(cuda: Backend) -> None:
    for array in (np.ones(1000, np.float32), memory.pinned_empty((1000,), np.float32)):
        array[:] = 1
        handle = cuda.from_cpu(array, dtypes.float32)
        array[:] = 2
        assert (cuda.to_cpu(handle) == 1).all()


def test_views_share_memory_and_keep_it_alive(cuda: Backend, put: Any, get: Any) -> None:
    x = torch.randn(4, 5)
    whole = put(x)
    column = cuda.view(whole, (4,), (5,), 2)
    assert cuda.data_pointer(column) == cuda.data_pointer(whole) + 8
    assert (cuda.strides(column), cuda.offset(column), cuda.dtype(column)) == ((5,), 2, dtypes.float32)
    cuda.copy_into(column, 7)
    x[:, 2] = 7
    same(get(whole), x)
    del whole
    others = [put(torch.zeros(4, 5)) for _ in range(3)]
    same(get(column), x[:, 2])
    assert len(others) == 3


STRIDES = {
    "transposed": (torch.randn(3, 40, 50).transpose(1, 2), contiguous_strides((3, 50, 40))),
    "to channels last": (torch.randn(2, 3, 4, 5), channels_last_strides((2, 3, 4, 5))),
    "same": (torch.randn(6, 7), (7, 1)),
    "permuted": (torch.randn(2, 3, 4, 5, 2, 2, 2, 2).permute(3, 1, 7, 0, 5, 2, 4, 6), (384, 128, 64, 32, 16, 4, 2, 1)),
    "repeated": (torch.randn(5, 1).expand(5, 6), (6, 1)),
    "0-d": (torch.randn(()), ()),
    "empty": (torch.randn(0, 3), (3, 1)),
}


@pytest.mark.parametrize("case", STRIDES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_copy(cuda: Backend, put: Any, get: Any, case: str, dtype: torch.dtype) -> None:
    x, strides = STRIDES[case]
    x = (x * 10).to(dtype) if case != "repeated" else (x[:, :1] * 10).to(dtype).expand(x.shape)
    result = cuda.copy(put(x), strides)
    assert result.strides == strides
    same(get(result), x)


def test_copy_keeps_every_bit(cuda: Backend, put: Any, get: Any) -> None:
    bits = torch.tensor([0x7F81, 0xFFC1, 0x0001, 0x8000], dtype=torch.int32).to(torch.uint16)
    x = bits.view(torch.bfloat16)[:, None].expand(4, 2)
    assert torch.equal(get(cuda.copy(put(x), (2, 1))).view(torch.uint16), bits[:, None].expand(4, 2))


def test_copies(cuda: Backend, put: Any, get: Any) -> None:
    """Of each dtype and order of memory, cut off and crooked ones, nothing at all, and some of several chunks."""
    tensors = [torch.arange(-3, 9).reshape(3, 4).to(TORCH[dtype]) for dtype in dtypes.ALL]
    tensors += [x for x, _ in STRIDES.values()] + [torch.tensor(7), torch.zeros(0, 3), torch.randn(40)[1:6]]
    tensors += [torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.randn(16384)]
    tensors += [torch.randn(40000), torch.arange(65537).to(torch.int8)]
    handles = [put(x.clone() if x.numel() > 1000 else x) for x in tensors]
    strides = [x.contiguous().stride() for x in tensors]
    strides[-4] = tensors[-4].stride()
    made = cuda.copies(handles, strides)
    assert [x.strides for x in made] == strides
    for handle, kept, expected in zip(handles, made, tensors, strict=True):
        same(get(kept), expected)
        if handle.size:
            cuda.copy_into(handle, 0)  # the copy is no view
            same(get(kept), expected)
    assert cuda.copies([], []) == ()


@pytest.mark.parametrize("target", dtypes.ALL, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("source", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_cast(cuda: Backend, put: Any, get: Any, source: dtypes.DType, target: dtypes.DType) -> None:
    x = torch.tensor([0.0, 1.0, 2.7, 3.5, 100.6, 0.3] + ([-1.9, -100.0] if target is not dtypes.uint8 else []))
    if source is dtypes.uint8:
        x = x.abs()
    x = x.to(TORCH[source])
    same(get(cuda.cast(put(x), target)), x.to(TORCH[target]))


def test_cast_rounds_to_nearest_even(cuda: Backend, put: Any, get: Any) -> None:
    x = torch.randn(2000, generator=torch.manual_seed(0)) * torch.logspace(-30, 30, 2000)
    x[:4] = torch.tensor([1.00390625, 1.01171875, float("nan"), 3.3961775e38])
    same(get(cuda.cast(put(x), dtypes.bfloat16)), x.bfloat16())
    same(get(cuda.cast(put(x), dtypes.float16)), x.half())


def test_cast_keeps_memory_order(cuda: Backend, put: Any) -> None:
    assert cuda.cast(put(torch.randn(4, 6).t()), dtypes.float64).strides == (1, 6)


def test_copy_into_broadcasts_and_casts(cuda: Backend, put: Any, get: Any) -> None:
    target, source = torch.zeros(3, 4, dtype=torch.int32), torch.tensor([1.9, -2.9, 3.0, 4.0])
    handle = put(target)
    cuda.copy_into(handle, put(source))
    same(get(handle), source.to(torch.int32).expand(3, 4))
    cuda.copy_into(cuda.view(handle, (3, 2), (4, 2), 1), 5)
    assert get(handle).tolist() == [[1, 5, 3, 5]] * 3


def test_add_into(cuda: Backend, put: Any, get: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x, y = torch.arange(6).reshape(2, 3).to(dtype), torch.arange(6).reshape(3, 2).t().to(dtype)
        handle = put(x)
        cuda.add_into(handle, put(y))
        same(get(handle), x + y)


def test_between_devices(simulated: Backend) -> None:
    there = simulated.from_cpu(np.arange(6.0).reshape(2, 3), dtypes.float64, 1)
    here = simulated.empty((3, 2), (2, 1), dtypes.float32, 0)
    simulated.copy_into(here, simulated.view(there, (3, 2), (1, 3), 0))
    assert (here.device_index, there.device_index) == (0, 1)
    np.testing.assert_array_equal(simulated.to_cpu(here), np.arange(6.0).reshape(2, 3).T)


def test_pinned_memory_is_reused(cuda: Backend) -> None:
    memory._pinned.clear()
    first = memory.pinned_empty((100,), np.float32)
    first[:] = 3
    address = first.ctypes.data
    handle = cuda.from_cpu(first, dtypes.float32, non_blocking=True)
    part = first[10:20]
    assert cuda.is_pinned(part)
    assert not cuda.is_pinned(np.empty(10))
    del first
    cuda.synchronize()
    other = memory.pinned_empty((100,), np.float32).ctypes.data
    assert other != address, "part still shows the first"
    del part
    blocks = [memory.pinned_empty((100,), np.float32) for _ in range(2)]
    assert {block.ctypes.data for block in blocks} == {address, other}
    assert (cuda.to_cpu(handle) == 3).all()


def test_pinned_memory_that_nobody_holds_goes_back_to_the_host(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.release_pinned()
    active, released = driver.get(), []
    release = active.release_pinned
    monkeypatch.setattr(active, "release_pinned", lambda pointer: (released.append(pointer), release(pointer)))
    held, dropped = (memory.pinned_empty((100,), np.float32) for _ in range(2))
    address = dropped.ctypes.data
    del dropped
    memory.release_pinned()
    assert released == [address]
    assert cuda.is_pinned(held)
