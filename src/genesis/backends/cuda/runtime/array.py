"""DeviceArray: the handle of the CUDA backend. A storage and how to read it; views share the storage."""

from __future__ import annotations

from genesis.backends.contract import SupportsDLPack
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import dlpack as interop
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.memory import OwnedStorage as OwnedStorage
from genesis.backends.cuda.runtime.memory import PoolStorage, Shelf, lending, pool
from genesis.backends.cuda.runtime.memory import Storage as Storage
from genesis.dtypes import DType, bool_
from genesis.errors import DTypeError
from genesis.shapes import Shape, contiguous_strides, numel


class Layout:
    """One combination of shape, strides, dtype, alignment and device: a key of plans, and what new arrays are made by.

    Equal layouts are one object.
    """

    __slots__ = ("_shelf", "aligned", "device_index", "dtype", "num_bytes", "shape", "strides")

    def __init__(self, shape: Shape, strides: Shape, dtype: DType, aligned: bool, device_index: int) -> None:
        if dtype.is_complex:  # here, as all memory of new arrays is that of a layout, and layouts are made once
            raise DTypeError(f"{dtype.name} has no cuda implementation: keep complex tensors on the CPU, with .cpu()")
        self.shape, self.strides, self.dtype, self.device_index = shape, strides, dtype, device_index
        self.aligned = aligned  # the first element's address is divisible by 16
        self.num_bytes = numel(shape) * dtype.itemsize
        self._shelf: Shelf | None = None  # where the last new array's memory came from

    @property
    def size(self) -> int:
        return numel(self.shape)

    def forget_shelf(self) -> None:
        """It belongs to a driver's pool."""
        self._shelf = None

    def new(self, stream: int) -> DeviceArray:
        """A new array of this layout, whose strides are dense and which is aligned; in the order of a stream."""
        lender = lending.lender
        if lender is not None:
            return lender.array(self)
        # memory.allocate_own() without what the layout knows already: this is on the way of every op.
        num_bytes, device, shelf = self.num_bytes, self.device_index, self._shelf
        if shelf is None or shelf.stream != stream:
            shelf = self._shelf = pool(device).shelf(num_bytes, stream)
        storage = PoolStorage(shelf.pool.take(shelf, num_bytes), device)
        return DeviceArray(storage, self.shape, self.strides, 0, self.dtype, self)

    def on(self, storage: Storage) -> DeviceArray:
        """The array of this layout at the start of a storage."""
        return DeviceArray(storage, self.shape, self.strides, 0, self.dtype, self)


_layouts: dict[tuple[object, ...], Layout] = {}  # strides None: row-major


def forget_shelves() -> None:
    """Look up anew where memory for new arrays comes from."""
    for layout in tuple(_layouts.values()):
        layout.forget_shelf()


driver.forget_on_switch(forget_shelves)


def layout_of(
    shape: Shape, dtype: DType, device_index: int = 0, strides: Shape | None = None, aligned: bool = True
) -> Layout:
    """The layout of arrays of this shape; row-major unless given other strides."""
    asked = (shape, strides, dtype, aligned, device_index)
    found = _layouts.get(asked)
    if found is None:
        key = (shape, contiguous_strides(shape) if strides is None else strides, dtype, aligned, device_index)
        found = _layouts[asked] = _layouts.setdefault(key, Layout(*key))
    return found


class DeviceArray:
    """Elements of one dtype in device memory; strides and offset count elements.

    data_pointer is the address of the first element.
    """

    __slots__ = ("__weakref__", "_layout", "data_pointer", "dtype", "offset", "shape", "storage", "strides")

    def __init__(
        self, storage: Storage, shape: Shape, strides: Shape, offset: int, dtype: DType, layout: Layout | None = None
    ) -> None:
        """layout: if it is known already; else it is looked up when somebody asks."""
        self.storage, self.shape, self.strides, self.offset, self.dtype = storage, shape, strides, offset, dtype
        self.data_pointer = storage.pointer + offset * dtype.itemsize if offset else storage.pointer
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """All that decides how a kernel is launched on this array; equal layouts are one object."""
        layout = self._layout
        if layout is None:
            key = (self.shape, self.strides, self.dtype, self.data_pointer & 15 == 0, self.storage.device_index)
            layout = self._layout = _layouts.get(key) or _layouts.setdefault(key, Layout(*key))
        return layout

    @property
    def device_index(self) -> int:
        return self.storage.device_index

    @property
    def size(self) -> int:
        return numel(self.shape)

    def data_ptr(self) -> int:
        """Address, under the name that Triton's own launch asks for."""
        return self.data_pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.device_of(self.device_index)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("__dlpack__: only this memory itself can be shown, not a copy elsewhere")
        return interop.export(self._region(), stream, max_version)

    @property
    def __cuda_array_interface__(self) -> interop.ArrayInterface:
        return interop.array_interface(self._region())

    def _region(self) -> interop.Region:
        return interop.Region(self.storage, self.shape, self.strides, self.offset, self.dtype)

    def view(self, shape: Shape, strides: Shape, offset: int) -> DeviceArray:
        """The same storage, read otherwise; offset counts from the storage's start."""
        return DeviceArray(self.storage, shape, strides, offset, self.dtype)

    def __repr__(self) -> str:
        return f"<{self.dtype.name}{list(self.shape)} strides {list(self.strides)} on cuda:{self.device_index}>"


def empty(shape: Shape, dtype: DType, device_index: int = 0, strides: Shape | None = None) -> DeviceArray:
    """A new array, in the order of the current stream; row-major unless given other dense strides."""
    return layout_of(shape, dtype, device_index, strides).new(streams.current_handle(device_index))


def from_dlpack(source: SupportsDLPack) -> DeviceArray:
    """An array on the memory of anything with __dlpack__."""
    return DeviceArray(*interop.region_from_dlpack(source))


def from_array_interface(source: interop.SupportsArrayInterface) -> DeviceArray:
    """An array on the memory of anything with __cuda_array_interface__."""
    return DeviceArray(*interop.region_from_array_interface(source))


def require_float(op: str, dtype: DType) -> None:
    """Raises: NotImplementedError: the op has a kernel for floating-point numbers only."""
    if not dtype.is_floating_point:
        raise NotImplementedError(f"{op} has no cuda implementation for {dtype.name}")


def require_numbers(op: str, x: DeviceArray) -> DeviceArray:
    if x.dtype is bool_:
        raise NotImplementedError(f"{op} has no cuda implementation for bool")
    return x
