"""Ops of the backends on PyTorch's tensors: their memory, their stream, no copies."""

from __future__ import annotations

from typing import Any

import torch

from genesis import backends, dtypes
from genesis.errors import DeviceError, describe

_TYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.ALL}
_TORCH_TYPES = {dtype: torch_dtype for torch_dtype, dtype in _TYPES.items()}


def call(op: str, first: torch.Tensor, *args: Any) -> Any:
    """backend.op(first, *args) of the backend of first's device; tensors in, tensors out.

    On the CPU these are the backend's own arrays. On CUDA the op runs on PyTorch's current stream, and all memory that
    it takes comes from PyTorch's allocator. What is no array (a packed weight) is handed on as it is.
    """
    if first.device.type == "cpu":
        return getattr(_backend("cpu"), op)(first, *args)
    if first.device.type == "cuda":
        return call_cuda(op, first, *args)
    raise DeviceError(describe(op, "input", "a tensor on cpu or cuda", first.device))


def call_cuda(op: str, first: torch.Tensor, *args: Any) -> Any:
    """call() for the CUDA backend; on a simulated device with tensors in host memory."""
    from genesis.backends.cuda import memory, streams

    device = first.device.index or 0
    backend = _backend("cuda")
    stream = torch.cuda.current_stream(device).cuda_stream if first.is_cuda else 0
    handles = [_to_handle(arg, device, stream) if isinstance(arg, torch.Tensor) else arg for arg in (first, *args)]
    memory_of = torch.device("cuda", device) if first.is_cuda else torch.device("cpu")

    def allocate(num_bytes: int, _: int) -> tuple[int, torch.Tensor]:
        block = torch.empty(num_bytes, dtype=torch.uint8, device=memory_of)
        return block.data_ptr(), block

    with memory.lent_by(allocate):
        if stream == streams.current_handle(device):
            result = getattr(backend, op)(*handles)
        else:
            with streams.use(streams.Stream(device, handle=stream)):
                result = getattr(backend, op)(*handles)
    return tuple(map(_to_tensor, result)) if isinstance(result, tuple) else _to_tensor(result)


def dtype_of(tensor: torch.Tensor) -> dtypes.DType:
    return _TYPES[tensor.dtype]


def _backend(device_type: str) -> backends.Backend:
    """With the tools in front of it that are switched on."""
    if device_type not in backends.active:
        backends.get(device_type)
    return backends.active[device_type]


def _to_handle(tensor: torch.Tensor, device: int, stream: int) -> Any:
    from genesis.backends.cuda.array import DeviceArray, Storage

    shape, pointer = tuple(tensor.shape), tensor.data_ptr()
    # To the end of PyTorch's block: how far its strides reach is not worth the time.
    num_bytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    storage = Storage.foreign(pointer, num_bytes, device, stream, tensor)
    return DeviceArray(storage, shape, tensor.stride(), 0, _TYPES[tensor.dtype])


def _to_tensor(handle: Any) -> Any:
    if not hasattr(handle, "storage"):
        return handle
    owner, dtype = handle.storage.owner, _TORCH_TYPES[handle.dtype]
    if owner.dtype is not dtype:  # a block of bytes
        owner = owner.view(dtype)
    return torch.as_strided(owner, handle.shape, handle.strides, owner.storage_offset() + handle.offset)
