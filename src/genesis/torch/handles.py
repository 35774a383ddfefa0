"""PyTorch's tensors as the CUDA backend's arrays, and back: what a call costs beside its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from genesis.backends.cuda import driver, streams
from genesis.backends.cuda.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.memory import LentBy, Storage
from genesis.torch.bridge import TYPES, backend_of
from genesis.torch.tensors import TORCH

_TORCH_TYPES = {dtype: torch_dtype for torch_dtype, dtype in TYPES.items()}
_layouts: dict[tuple[Any, ...], Layout] = {}  # by what PyTorch says of a tensor
_lenders: dict[torch.device, Callable[[int, Layout | None], tuple[int, torch.Tensor]]] = {}


def call(op: str, first: torch.Tensor, *args: Any) -> Any:
    """backend.op(first, *args), on PyTorch's current stream and in its memory."""
    where = first.device
    device, stream = 0, 0
    if first.is_cuda:
        device = first.get_device()
        stream = TORCH.current_stream(device)
    watched = driver.get().watches_memory
    handles = [
        _to_handle(arg, device, stream, watched) if isinstance(arg, torch.Tensor) else arg for arg in (first, *args)
    ]
    with LentBy(_lenders.get(where) or _lender(where)):
        if stream == streams.current_handle(device):
            result = getattr(backend_of("cuda"), op)(*handles)
        else:
            with streams.use(streams.Stream(device, handle=stream)):
                result = getattr(backend_of("cuda"), op)(*handles)
    return tuple([_to_tensor(each) for each in result]) if isinstance(result, tuple) else _to_tensor(result)


def _lender(where: torch.device) -> Callable[[int, Layout | None], tuple[int, torch.Tensor]]:
    """PyTorch's allocator on a device. What is to be an array is made as the tensor that the caller will get."""
    empty = _empty_strided(where)

    def allocate(num_bytes: int, layout: Layout | None) -> tuple[int, torch.Tensor]:
        if layout is None:
            block = empty((num_bytes,), (1,), torch.uint8)
        else:
            block = empty(layout.shape, layout.strides, _TORCH_TYPES[layout.dtype])
        return block.data_ptr(), block

    return _lenders.setdefault(where, allocate)


def _empty_strided(where: torch.device) -> Callable[..., torch.Tensor]:
    """empty(shape, strides, dtype) on a device: where there is only one, by the short way of PyTorch's own compiler."""
    short: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    if where.type == "cuda" and torch.cuda.device_count() == 1 and hasattr(short, "_empty_strided_cuda"):
        return short._empty_strided_cuda  # on the current device
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=where)


def _to_handle(tensor: torch.Tensor, device: int, stream: int, watched: bool) -> DeviceArray:
    pointer = tensor.data_ptr()
    key = (tensor.shape, tensor.stride(), tensor.dtype, pointer & 15, device)
    layout = _layouts.get(key)
    if layout is None:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        layout = _layouts[key] = layout_of(shape, TYPES[tensor.dtype], device, strides, pointer & 15 == 0)
    num_bytes = 0  # unless somebody looks: to the end of PyTorch's block, whatever the strides
    if watched:
        num_bytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    storage = Storage(pointer, num_bytes, device, stream, tensor)
    return DeviceArray(storage, layout.shape, layout.strides, 0, layout.dtype, layout)


def _to_tensor(handle: Any) -> Any:
    if type(handle) is not DeviceArray:
        return handle
    owner: Any = handle.storage.owner
    if handle.storage.lent_as is handle.layout and handle.offset == 0:
        return owner
    dtype = _TORCH_TYPES[handle.dtype]
    if owner.dtype is not dtype:  # a block of bytes
        owner = owner.view(dtype)
    return torch.as_strided(owner, handle.shape, handle.strides, owner.storage_offset() + handle.offset)
