"""NDArray: the device-neutral array. Shapes, views and copies are worked out here; the computing is the backend's."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from genesis import dtypes, shapes
from genesis.backends import contract as ops
from genesis.dtypes import DType, HostArray
from genesis.errors import DeviceError, ShapeError
from genesis.ndarray.arithmetic import Arithmetic
from genesis.ndarray.array import backend_of
from genesis.ndarray.device import CPU, CUDA, Device
from genesis.shapes import Shape


class NDArray(Arithmetic):
    """An n-dimensional array on one device, without a graph.

    Views (permute, slices, expand, most reshapes) share memory; everything else is new.
    """

    __slots__ = ()

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def offset(self) -> int:
        return ops.offset(self)

    @property
    def data_pointer(self) -> int:
        return ops.data_pointer(self)

    @property
    def numel(self) -> int:
        return shapes.numel(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return shapes.is_contiguous(self.shape, self.strides)

    @property
    def is_expanded(self) -> bool:
        """Whether elements share memory, as after expand()."""
        strides = self.strides
        if 0 not in strides or 0 in self.shape:
            return False
        return any(size > 1 and step == 0 for size, step in zip(self.shape, strides, strict=True))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"NDArray({self.numpy_values()!r}, dtype={self.dtype}, device={self.device})"

    # --- creation ---------------------------------------------------------------------------------------------------

    @classmethod
    def empty(cls, shape: Shape, dtype: DType, device: Device, strides: Shape | None = None) -> NDArray:
        strides = shapes.contiguous_strides(shape) if strides is None else strides
        return cls(backend_of(device).empty(shape, strides, dtype, device.index), device)

    @classmethod
    def arange(cls, start: int | float, step: int | float, length: int, dtype: DType, device: Device) -> NDArray:
        return cls(backend_of(device).arange(start, step, length, dtype, device.index), device)

    @classmethod
    def from_numpy(cls, array: HostArray, dtype: DType, device: Device = CPU) -> NDArray:
        """dtype must be the array's own (bfloat16: its bits as uint16). On the CPU the memory is shared."""
        return cls(backend_of(device).from_cpu(array, dtype, device.index), device)

    @classmethod
    def from_dlpack(cls, source: object, device: Device) -> NDArray:
        """Share the memory of anything with __dlpack__ that lives on device."""
        return cls(backend_of(device).from_dlpack(source), device)

    @classmethod
    def random(cls, op: str, device: Device, *args: object) -> NDArray:
        """One of the contract's random ops: rand, randn, randint, randperm."""
        return cls(getattr(backend_of(device), op)(*args, device.index), device)

    # --- to Python and to other places ------------------------------------------------------------------------------

    def numpy(self) -> HostArray:
        """The values as a numpy array; shares memory on the CPU."""
        if self.dtype is dtypes.bfloat16:
            raise TypeError(
                "numpy: argument 'self': expected a dtype that numpy has, got bfloat16; convert with .float()"
            )
        return ops.to_cpu(self)

    def numpy_values(self) -> HostArray:
        """The values for printing and Python lists; bfloat16 as float32."""
        return (self.to(dtypes.float32) if self.dtype is dtypes.bfloat16 else self).numpy()

    def bits(self) -> HostArray:
        """The values as numpy holds them in a file; bfloat16 as uint16."""
        return np.ascontiguousarray(ops.to_cpu(self))

    def item(self) -> bool | int | float:
        if self.numel != 1:
            raise ValueError(f"item: argument 'self': expected one element, got {self.numel} (shape {self.shape})")
        value = self.numpy_values().reshape(()).item()
        return value  # type: ignore[return-value]  # complex too, where nobody reckons with it: as in PyTorch

    def tolist(self) -> Any:
        return self.numpy_values().tolist()

    def to_device(self, device: Device, non_blocking: bool = False) -> NDArray:
        """The values on device, in the same order of memory. non_blocking: the host goes on while pinned memory is
        copied."""
        if device is self.device:
            return self
        backend, strides = backend_of(device), self.dense_strides()
        if device.type == self.device.type:
            moved = NDArray.empty(self.shape, self.dtype, device, strides)
            backend.copy_into(moved.handle, self.handle)
            return moved
        rows = self.permute(self._memory_order())
        host = ops.to_cpu(rows)
        moved = NDArray(backend.from_cpu(host, self.dtype, device.index, non_blocking), device)
        return moved.view(self.shape, strides)

    def pin_memory(self) -> NDArray:
        """A copy in memory that CUDA devices copy from by themselves."""
        rows = self.permute(self._memory_order())
        copied = NDArray.from_numpy(backend_of(CUDA).empty_pinned(rows.shape, self.dtype), self.dtype)
        copied.copy_into(rows)
        return copied.view(self.shape, self.dense_strides())

    def share_memory(self) -> None:
        """In place: the storage moves, with all its views, to memory that other processes may share."""
        backend_of(self.device).share_memory(self.handle)

    def is_shared(self) -> bool:
        return bool(backend_of(self.device).is_shared(self.handle))

    def is_pinned(self) -> bool:
        try:
            return self.device.type == "cpu" and backend_of(CUDA).is_pinned(ops.to_cpu(self))
        except DeviceError:  # no CUDA device to pin for
            return False

    def record_stream(self, stream: int) -> None:
        """Reuse the memory only after what this stream has been given by the time it is freed."""
        ops.record_stream(self, stream)

    # --- copies and changes in place --------------------------------------------------------------------------------

    def clone(self) -> NDArray:
        """A copy that keeps the memory order of a dense array."""
        return ops.copy(self, self.dense_strides())

    def contiguous(self, channels_last: bool = False) -> NDArray:
        """This array if its memory is in that order already, else a copy that is."""
        strides = _ordered_strides(self.shape, channels_last)
        if shapes.equivalent(self.shape, self.strides, strides):
            return self
        return ops.copy(self, strides)

    def make_contiguous(self) -> None:
        """In place: move the elements to row-major memory, where all that hold this very array then find them.

        Arrays that show the old memory keep it: ask is_alone first.
        """
        moved = self.contiguous()
        self.handle, self._strides = moved.handle, moved.strides

    def copy_into(self, source: NDArray | bool | int | float) -> None:
        """In place: self takes source's values, broadcast and cast."""
        if isinstance(source, NDArray):
            shapes.broadcast_strides("copy", source.shape, (0,) * source.ndim, self.shape)
        self.require_writable()
        ops.copy_into(self, source)

    def require_writable(self) -> None:
        if self.is_expanded:
            raise ShapeError(
                f"in place: elements of this expanded tensor of shape {self.shape} share memory; change a .clone()"
            )

    def add_into(self, source: NDArray | int | float) -> None:
        """In place: self += source, a number or an array of equal shape and dtype."""
        ops.add_into(self, source)

    def dense_strides(self) -> Shape:
        """This array's own strides if they are dense, else row-major ones in the order of its dimensions in memory."""
        return _dense_strides(self.shape, self.strides)

    def _memory_order(self) -> list[int]:
        """The dimensions, that with the largest steps in memory first."""
        return _memory_order(self.shape, self.strides)

    # --- views ------------------------------------------------------------------------------------------------------

    def view(self, shape: Shape, strides: Shape, offset: int | None = None) -> NDArray:
        """The storage seen through another shape, other strides and another offset (counted from its start)."""
        offset = self.offset if offset is None else offset
        handle = backend_of(self.device).view(self.handle, shape, strides, offset)
        return NDArray(handle, self.device, self.changes)

    def view_dtype(self, dtype: DType, shape: Shape, strides: Shape, offset: int) -> NDArray:
        """The storage seen as elements of another dtype, which shape, strides and offset count."""
        handle = backend_of(self.device).view_dtype(self.handle, dtype, shape, strides, offset)
        return NDArray(handle, self.device, self.changes)

    def pairs(self) -> NDArray:
        """Complex numbers as pairs of real ones, along a last dimension."""
        strides = (*(2 * step for step in self.strides), 1)
        return self.view_dtype(self.dtype.to_real(), (*self.shape, 2), strides, 2 * self.offset)

    def part(self, place: int) -> NDArray:
        """The real parts (0) of complex numbers, or the imaginary ones (1)."""
        return self.pairs().select(self.ndim, place)

    def reshape(self, shape: Iterable[int]) -> NDArray:
        """A view where the strides allow one, else a copy."""
        target = shapes.infer_reshape("reshape", self.shape, tuple(shape))
        if target == self.shape:
            return self.view(target, self.strides)
        strides = shapes.view_strides(self.shape, self.strides, target)
        if strides is None:
            return self.contiguous().view(target, shapes.contiguous_strides(target))
        return self.view(target, strides)

    def permute(self, dims: Sequence[int]) -> NDArray:
        strides = self.strides
        return self.view(tuple(self.shape[dim] for dim in dims), tuple(strides[dim] for dim in dims))

    def transpose(self, dim0: int, dim1: int) -> NDArray:
        dims = list(range(self.ndim))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self.permute(dims)

    def expand(self, shape: Shape) -> NDArray:
        if shape == self.shape:
            return self
        return self.view(shape, shapes.broadcast_strides("expand", self.shape, self.strides, shape))

    def unsqueeze(self, dim: int) -> NDArray:
        """A new dimension of size 1 before dim (0 ≤ dim ≤ ndim)."""
        shape, strides = self.shape, self.strides
        step = shape[dim] * strides[dim] if dim < len(shape) else 1
        return self.view((*shape[:dim], 1, *shape[dim:]), (*strides[:dim], step, *strides[dim:]))

    def squeeze(self, dims: Sequence[int]) -> NDArray:
        """Without those of dims that have size 1."""
        keep = [i for i in range(self.ndim) if i not in dims or self.shape[i] != 1]
        return self.permute(keep)

    def narrow(self, dim: int, start: int, length: int) -> NDArray:
        return self.slice(dim, start, 1, length)

    def slice(self, dim: int, start: int, step: int, length: int) -> NDArray:
        """Elements start, start + step, … of dim."""
        strides = list(self.strides)
        shape = list(self.shape)
        offset = self.offset + (start * strides[dim] if length else 0)
        shape[dim], strides[dim] = length, strides[dim] * step
        return self.view(tuple(shape), tuple(strides), offset)

    def select(self, dim: int, index: int) -> NDArray:
        """One element of dim, which goes away."""
        shape, strides = self.shape, self.strides
        offset = self.offset + index * strides[dim]
        return self.view(shape[:dim] + shape[dim + 1 :], strides[:dim] + strides[dim + 1 :], offset)

    def diagonal(self, dim0: int, dim1: int, offset: int = 0) -> NDArray:
        """The diagonal of the plane (dim0, dim1) as a last dimension."""
        shape, strides = self.shape, self.strides
        rows, columns = (shape[dim0], shape[dim1] - offset) if offset >= 0 else (shape[dim0] + offset, shape[dim1])
        length = max(0, min(rows, columns))
        start = self.offset + (offset * strides[dim1] if offset >= 0 else -offset * strides[dim0]) * (length > 0)
        rest = [i for i in range(len(shape)) if i not in (dim0, dim1)]
        view_shape = (*(shape[i] for i in rest), length)
        return self.view(view_shape, (*(strides[i] for i in rest), strides[dim0] + strides[dim1]), start)

    # --- the shape of another ---------------------------------------------------------------------------------------

    def sum_to(self, shape: Shape) -> NDArray:
        """Undo a broadcast from shape: sum what was repeated. This is broadcasting's gradient."""
        if self.shape == shape:
            return self
        lead = self.ndim - len(shape)
        repeated = [i for i in range(self.ndim) if i < lead or (shape[i - lead] == 1 and self.shape[i] != 1)]
        return ops.sum(self, tuple(repeated), True).reshape(shape) if repeated else self.reshape(shape)


@functools.lru_cache(maxsize=4096)
def _ordered_strides(shape: Shape, channels_last: bool) -> Shape:
    return shapes.channels_last_strides(shape) if channels_last else shapes.contiguous_strides(shape)


@functools.lru_cache(maxsize=4096)
def _dense_strides(shape: Shape, strides: Shape) -> Shape:
    dense = shapes.strides_in_order(shape, _memory_order(shape, strides))
    # Those of dimensions of size 1 say nothing of the memory, but libraries tell channels-last order by them.
    return strides if shapes.equivalent(shape, strides, dense) else dense


def _memory_order(shape: Shape, strides: Shape) -> list[int]:
    if 0 not in strides:
        return sorted(range(len(strides)), key=lambda dim: -strides[dim])
    # As in PyTorch, repeated dimensions keep their places: from the last on, each is moved inward past those of larger
    # steps, and past repeated ones to get there.
    order = list(reversed(range(len(strides))))
    for start in range(1, len(order)):
        place = start
        for before in reversed(range(start)):
            inner, outer = order[before], order[place]
            if not (strides[inner] and strides[outer]):
                continue
            if (strides[inner], shape[inner]) > (strides[outer], shape[outer]):
                order[before], order[place], place = outer, inner, before
            elif strides[inner] < strides[outer]:
                break
    return order[::-1]
