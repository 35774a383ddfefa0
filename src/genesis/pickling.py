"""Copying and pickling of tensors: each piece of memory once, and each tensor as a view of it.

Shapes, strides and dtypes are preserved. Tensors that share memory share it afterwards if the first one met covers the
others: a tensor before its views, tied weights, two views of the whole. Memory that no tensor covers is left out.
"""

from __future__ import annotations

import weakref

from genesis.dtypes import DType, HostArray
from genesis.ndarray import Device, NDArray
from genesis.shapes import Shape


class Memory:
    """The elements of an array's storage that it covers, from `start` to `end`, as a row."""

    def __init__(self, array: NDArray) -> None:
        self.start, self.end = _reach(array)
        self.row = array.view((self.end - self.start,), (1,), self.start)

    @classmethod
    def of(cls, array: NDArray) -> Memory:
        """The memory of array; one in use that covers it is reused, as the pickler holds it until the end."""
        key = id(array.changes), array.dtype  # views of one storage have the same
        found, (start, end) = _in_use.get(key), _reach(array)
        if found is None or not found.start <= start <= end <= found.end:
            found = _in_use[key] = cls(array)
        return found

    def place_of(self, array: NDArray) -> tuple[Shape, Shape, int]:
        """The shape, strides and offset of array as a view of the row."""
        return array.shape, array.strides, array.offset - self.start if array.numel else 0

    def clone(self) -> NDArray:
        return self.row.clone()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.row.bits(), self.row.dtype, str(self.row.device))


_in_use: weakref.WeakValueDictionary[tuple[int, DType], Memory] = weakref.WeakValueDictionary()


def _restored(bits: HostArray, dtype: DType, device: str) -> Memory:
    return Memory(NDArray.from_numpy(bits, dtype).to_device(Device(device)))


def _reach(array: NDArray) -> tuple[int, int]:
    """The range of an array's storage that it covers: the first element, and the one after the last."""
    if array.numel == 0:
        return 0, 0
    steps = zip(array.shape, array.strides, strict=True)
    return array.offset, array.offset + sum((size - 1) * stride for size, stride in steps) + 1


class Clones:
    """The copies that one deepcopy() has made, kept in its memo."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, DType], tuple[Memory, NDArray]] = {}

    @classmethod
    def of(cls, memo: dict[int, object]) -> Clones:
        made = memo.setdefault(id(cls), cls())
        assert isinstance(made, cls)
        return made

    def of_array(self, array: NDArray) -> NDArray:
        """Copy array; copies of arrays that share memory share memory too."""
        key, (start, end) = (id(array.changes), array.dtype), _reach(array)
        known = self._made.get(key)
        if known is None or not known[0].start <= start <= end <= known[0].end:
            memory = Memory(array)
            known = self._made[key] = memory, memory.clone()
        return known[1].view(*known[0].place_of(array))
