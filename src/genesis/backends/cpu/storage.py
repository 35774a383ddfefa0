"""Arrays as torch tensors: creation, views, copies, the way to numpy and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from genesis import dtypes
from genesis.backends.contract import Number, Operand, Shape, SupportsDLPack
from genesis.callsite import no_complex
from genesis.dtypes import DType, HostArray
from genesis.errors import DTypeError, describe
from genesis.shapes import contiguous_strides

TORCH_DTYPES: dict[DType, torch.dtype] = {dtype: getattr(torch, dtype.name) for dtype in dtypes.WITH_COMPLEX}
_GENESIS_DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}
dtypes.OF_LIBRARIES.update(_GENESIS_DTYPES)


def dtype(x: Tensor) -> DType:
    return _GENESIS_DTYPES[x.dtype]


def strides(x: Tensor) -> Shape:
    return x.stride()


def offset(x: Tensor) -> int:
    return x.storage_offset()


def data_pointer(x: Tensor) -> int:
    return x.data_ptr()


def empty(shape: Shape, strides: Shape | None = None, dtype: DType = dtypes.float32, device_index: int = 0) -> Tensor:
    strides = contiguous_strides(shape) if strides is None else strides
    return torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[dtype])


def full(shape: Shape, value: Number, dtype: DType, device_index: int = 0) -> Tensor:
    return torch.full(shape, value, dtype=TORCH_DTYPES[dtype])


def arange(start: Number, step: Number, length: int, dtype: DType, device_index: int = 0) -> Tensor:
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.arange(length, dtype=wide).mul_(step).add_(start).to(TORCH_DTYPES[dtype])


def view(x: Tensor, shape: Shape, strides: Shape, offset: int) -> Tensor:
    return x.as_strided(shape, strides, offset)


def view_dtype(x: Tensor, dtype: DType, shape: Shape, strides: Shape, offset: int) -> Tensor:
    kind = TORCH_DTYPES[dtype]
    if x.is_complex() and x.dtype.to_real() is kind:
        seen = torch.view_as_real(x)
    elif dtype.is_complex and x.dtype is kind.to_real():
        seen = torch.view_as_complex(x)
    else:
        seen = x.view(kind)
    return seen.as_strided(shape, strides, offset)


def copy(x: Tensor, strides: Shape) -> Tensor:
    return torch.empty_strided(x.shape, strides, dtype=x.dtype).copy_(x)


def copies(arrays: Sequence[Tensor], strides: Sequence[Shape]) -> tuple[Tensor, ...]:
    return tuple(map(copy, arrays, strides))


def copy_into(target: Tensor, source: Operand) -> None:
    if isinstance(source, Tensor):
        target.copy_(source)
    else:
        try:
            target.fill_(source)
        except RuntimeError:  # what is infinite in 16 bits
            target.copy_(torch.tensor(source, dtype=target.dtype))


def add_into(target: Tensor, source: Operand) -> None:
    target.add_(source)


def cast(x: Tensor, dtype: DType) -> Tensor:
    if dtype.category < dtypes.COMPLEX and x.is_complex() and dtype is not dtypes.bool_:
        raise no_complex(_GENESIS_DTYPES[x.dtype])
    return x.to(TORCH_DTYPES[dtype])


def from_cpu(array: HostArray, dtype: DType | None = None, device_index: int = 0, non_blocking: bool = False) -> Tensor:
    dtype = dtypes.of_array("from_cpu", array) if dtype is None else dtype
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype is dtypes.bfloat16 else tensor


def to_cpu(x: Tensor) -> HostArray:
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()


def from_dlpack(source: SupportsDLPack) -> Tensor:
    tensor = torch.from_dlpack(source)
    if tensor.dtype not in _GENESIS_DTYPES:
        known = ", ".join(dtype.name for dtype in dtypes.WITH_COMPLEX)
        raise DTypeError(describe("from_dlpack", "source", f"one of {known}", tensor.dtype))
    return tensor


def empty_pinned(shape: Shape, dtype: DType) -> HostArray:
    return np.empty(shape, "uint16" if dtype is dtypes.bfloat16 else dtype.name)


def share_memory(x: Tensor) -> None:
    x.share_memory_()


def is_shared(x: Tensor) -> bool:
    return x.is_shared()


def is_pinned(array: HostArray) -> bool:
    return False  # pinning is done for a GPU; its backend knows
