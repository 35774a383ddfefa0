"""PyTorch's tensors as the CUDA backend's arrays, and back: what a call costs beside its launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import capturing, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.memory import OwnedStorage, Storage, lending
from genesis.cuda.frameworks.torch import TORCH
from genesis.records import (
    BegunConvNorm,
    ConvGeometry,
    NormOptions,
    NormState,
    SavedConvNorm,
    SavedGroupNorm,
    Windows,
    record,
)
from genesis.shapes import Shape
from genesis.torch.backend import TYPES, backend_of

_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))  # by type: isinstance() takes its time with parameters
_PLAIN = frozenset((type(None), bool, int, float, str, tuple, ConvGeometry, NormOptions, Windows))  # of arguments
_RECORDS = frozenset((NormState, BegunConvNorm, SavedConvNorm, SavedGroupNorm))  # of tensors
TORCH_TYPES = {dtype: torch_dtype for torch_dtype, dtype in TYPES.items()}
_layouts: dict[tuple[object, ...], Layout] = {}  # by shape, strides, dtype, alignment and device index
_devices: dict[int, Device] = {}  # by PyTorch's index, -1 for host memory
driver.forget_on_switch(_devices.clear)


def call(op: str, first: torch.Tensor, args: Sequence[object]) -> object:
    """Return backend.op(first, *args), on PyTorch's current stream and in its memory; tensors in, tensors out."""
    result = call_arrays(op, first, args)
    if type(result) is tuple:
        return tuple([each.tensor if type(each) is TensorArray else _to_tensor(each) for each in result])
    return result.tensor if type(result) is TensorArray else _to_tensor(result)


def call_arrays(op: str, first: torch.Tensor, args: Sequence[object]) -> object:
    """call() whose results are the backend's own arrays, which the next call takes as arguments."""
    device = device_of(first)
    handle, device_index, stream = device.handle, device.index, device.current_stream()
    arrays: list[object] = [handle(first)]
    for arg in args:
        kind = type(arg)
        if kind in _RECORDS:
            assert isinstance(arg, tuple)
            items = [each if each is None or type(each) is TensorArray else handle(each) for each in arg]
            arrays.append(record(type(arg), items))
            continue
        is_tensor = kind in _TENSORS or (
            kind not in _PLAIN and kind is not TensorArray and isinstance(arg, torch.Tensor)
        )
        arrays.append(handle(arg) if is_tensor else arg)
    run = getattr(backend_of("cuda"), op)
    outside, lending.lender = lending.lender, device  # LentBy(device), inlined, as every call comes here
    try:
        if stream == streams.current_handle(device_index):
            return run(*arrays)
        with streams.use(streams.Stream(device_index, handle=stream)):
            return run(*arrays)
    finally:
        lending.lender = outside


def device_of(tensor: torch.Tensor) -> Device:
    """The device of a tensor."""
    index = tensor.get_device()
    return _devices.get(index) or _devices.setdefault(index, Device(tensor.device))


class TensorArray(DeviceArray):
    """A tensor as a DeviceArray. Its storage is made on demand: most ops need the address only."""

    __slots__ = ("_made", "tensor")

    def __init__(self, tensor: torch.Tensor, pointer: int, layout: Layout) -> None:
        self.tensor, self.data_pointer, self._layout, self.offset = tensor, pointer, layout, 0
        self.shape, self.strides, self.dtype = layout.shape, layout.strides, layout.dtype
        self._made: Storage | None = None

    @property
    def storage(self) -> Storage:  # type: ignore[override]
        """From the first element to the end of PyTorch's block, whatever the strides."""
        return self._made or self.make_storage()

    def make_storage(self) -> Storage:
        tensor, device = self.tensor, self.device_index
        num_bytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
        made = self._made = OwnedStorage(self.data_pointer, num_bytes, device, streams.current_handle(device), tensor)
        return made

    @property
    def device_index(self) -> int:
        return self.layout.device_index


class Device:
    """A device of PyTorch: its tensors as arrays, and its allocator. With a simulated device, it is the host."""

    def __init__(self, where: torch.device) -> None:
        self.index = where.index or 0
        self.current_stream = functools.partial(TORCH.current_stream, self.index) if where.type == "cuda" else int
        self._empty = _empty_strided(where)
        self.watched = driver.get().watches_memory

    def handle(self, tensor: torch.Tensor) -> TensorArray:
        pointer = tensor.data_ptr()
        key = (tensor.shape, tensor.stride(), tensor.dtype, pointer & 15, self.index)
        layout = _layouts.get(key)
        if layout is None:
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            layout = _layouts[key] = layout_of(shape, TYPES[tensor.dtype], self.index, strides, pointer & 15 == 0)
        array = TensorArray(tensor, pointer, layout)
        if self.watched:  # by a driver to which storages report their memory
            array.make_storage()
        return array

    def array(self, layout: Layout) -> TensorArray:
        """A new array, allocated as the tensor that the caller will get."""
        if capturing.underway:
            self._refuse_to_lend()
        tensor = self._empty(layout.shape, layout.strides, TORCH_TYPES[layout.dtype])
        array = TensorArray(tensor, tensor.data_ptr(), layout)
        if self.watched:  # by a driver to which storages report their memory
            array.make_storage()
        return array

    def maker(self, layout: Layout) -> Callable[[], torch.Tensor]:
        """Return a function that allocates tensors of a layout."""
        if self.watched:
            return lambda: self.array(layout).tensor
        return functools.partial(self._empty, layout.shape, layout.strides, TORCH_TYPES[layout.dtype])

    def watch(self, *tensors: torch.Tensor | None) -> None:
        """Register tensors with a driver that checks memory accesses, before a launch gets their addresses."""
        for tensor in tensors:
            if tensor is not None:
                self.handle(tensor)

    def memory(self, num_bytes: int) -> tuple[int, torch.Tensor]:
        if capturing.underway:
            self._refuse_to_lend()
        block = self._empty((num_bytes,), (1,), torch.uint8)
        return block.data_ptr(), block

    def _refuse_to_lend(self) -> None:
        capturing.refuse(self.index, "takes PyTorch's memory", "use torch.cuda.graph for ops on PyTorch's tensors")


class _EmptyStrided(Protocol):
    def __call__(self, shape: Shape, strides: Shape, dtype: torch.dtype, /) -> torch.Tensor: ...


def _empty_strided(where: torch.device) -> _EmptyStrided:
    """empty(shape, strides, dtype) on a device: if there is only one, the fast path of PyTorch's own compiler."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    on_current_device: _EmptyStrided | None = getattr(guards, "_empty_strided_cuda", None)
    if where.type == "cuda" and torch.cuda.device_count() == 1 and on_current_device is not None:
        return on_current_device
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=where)


def _to_tensor(handle: object) -> object:
    """The tensor on the memory of an array; a value that is no array unchanged."""
    if not isinstance(handle, DeviceArray):
        return handle
    dtype, owner = TORCH_TYPES[handle.dtype], handle.storage.owner  # a view
    assert isinstance(owner, torch.Tensor)
    if owner.dtype is not dtype:  # a block of bytes
        owner = owner.view(dtype)
    return torch.as_strided(owner, handle.shape, handle.strides, owner.storage_offset() + handle.offset)
