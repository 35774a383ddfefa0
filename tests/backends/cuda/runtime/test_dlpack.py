"""DLPack both ways, against torch and NumPy; the simulated device's memory is the host's."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.runtime import array, memory, streams
from genesis.errors import DeviceError, DTypeError


class Old:
    """A producer from before DLPack 1.0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self._tensor.__dlpack__(stream=stream)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_to_torch_shares_memory(cuda: Backend, put: Any, get: Any, dtype: dtypes.DType) -> None:
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype.name)).t()
    handle = put(x)
    shared = torch.from_dlpack(handle)
    assert (shared.dtype, shared.stride(), shared.data_ptr()) == (x.dtype, x.stride(), handle.data_pointer)
    assert torch.equal(shared.cpu(), x)
    shared.zero_()
    assert not get(handle).any()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_from_torch_shares_memory(cuda: Backend, get: Any, dtype: dtypes.DType) -> None:
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype.name))
    if memory.driver.get().name == "cuda":
        x = x.cuda()
    for source in (x[:, 1:], Old(x[:, 1:])):
        handle = array.from_dlpack(source)
        assert (handle.dtype, handle.strides, handle.data_pointer) == (dtype, (4, 1), x[:, 1:].data_ptr())
        assert torch.equal(get(handle), x[:, 1:].cpu())
    assert torch.equal(get(cuda.add(handle, handle)), (x[:, 1:] + x[:, 1:]).cpu())


def test_shapes_without_elements_or_dimensions(cuda: Backend, put: Any, get: Any) -> None:
    for x in (torch.tensor(3.0), torch.zeros(0, 3)):
        shared = torch.from_dlpack(put(x))
        assert torch.equal(shared.cpu(), x)
        assert torch.equal(get(array.from_dlpack(shared)), x)


def test_consumer_keeps_the_memory_alive(cuda: Backend, put: Any) -> None:
    gc.collect()
    before = memory.pool(0).statistics().allocated
    shared = torch.from_dlpack(put(torch.ones(1000)))
    assert memory.pool(0).statistics().allocated == before + 4096
    assert shared.sum() == 1000
    del shared
    assert memory.pool(0).statistics().allocated == before


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_capsule_that_nobody_takes(cuda: Backend, version: tuple[int, int] | None) -> None:
    gc.collect()
    before = memory.pool(0).statistics().allocated
    capsule = array.empty((1000,), dtypes.float32).__dlpack__(max_version=version)
    assert memory.pool(0).statistics().allocated == before + 4096
    del capsule
    assert memory.pool(0).statistics().allocated == before


def test_producer_gets_its_memory_back(simulated: Backend) -> None:
    x = np.ones(10)
    view = array.from_dlpack(x)
    part = view.view((5,), (2,), 0)
    del view
    gc.collect()
    assert simulated.to_cpu(part).tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="referenced"):
        x.resize(20)
    del part
    x.resize(20)


def test_consumer_on_another_stream_waits(cuda: Backend) -> None:
    consumer = streams.Stream()
    x = cuda.full((10,), 1.0, dtypes.float32)
    capsule = x.__dlpack__(stream=consumer.handle)
    assert x.storage.block.others == (consumer.handle,)
    x.__dlpack__(stream=-1)
    x.__dlpack__(stream=1)
    assert x.storage.block.others == (consumer.handle,)
    del capsule


def test_what_cannot_be_shared(simulated: Backend) -> None:
    class OnGpu:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(DeviceError, match="from_dlpack: argument 'source': expected device type 1, got device type 2"):
        array.from_dlpack(OnGpu())
    with pytest.raises(DTypeError, match="expected a dtype that Genesis has, got DLPack type code 5 of 64 bits"):
        array.from_dlpack(torch.zeros(2, dtype=torch.complex64))
    x = array.empty((2,), dtypes.float32)
    with pytest.raises(BufferError, match="only this memory itself"):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="only this memory itself"):
        x.__dlpack__(dl_device=(2, 0))
