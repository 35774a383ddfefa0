"""How tensors are copied and pickled: a piece of memory once, and each tensor as a way to look at it.

So shapes, strides and dtypes come back as they were, and tensors that share memory share it afterwards, if the first of
them that is met covers the others: a tensor before its views, tied weights, two views of all of it. What of a larger
memory no tensor shows, is not taken along.
"""

from __future__ import annotations

import weakref

import numpy as np

from genesis.dtypes import DType
from genesis.ndarray import Device, NDArray
from genesis.shapes import Shape


class Memory:
    """The elements from `start` to `end` of the storage that an array shows, as a row."""

    def __init__(self, array: NDArray) -> None:
        self.start, self.end = _reach(array)
        self.row = array.view((self.end - self.start,), (1,), self.start)

    @classmethod
    def of(cls, array: NDArray) -> Memory:
        """That of the array, or one that is in use and has it too: while pickling goes on, the pickler holds it."""
        key = id(array.changes), array.dtype  # views of one storage have the same
        found, (start, end) = _in_use.get(key), _reach(array)
        if found is None or not found.start <= start <= end <= found.end:
            found = _in_use[key] = cls(array)
        return found

    def place_of(self, array: NDArray) -> tuple[Shape, Shape, int]:
        """How array looks at the row: its shape, strides and offset in it."""
        return array.shape, array.strides, array.offset - self.start if array.numel else 0

    def clone(self) -> NDArray:
        return self.row.clone()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.row.bits(), self.row.dtype, str(self.row.device))


_in_use: weakref.WeakValueDictionary[tuple[int, DType], Memory] = weakref.WeakValueDictionary()


def _restored(bits: np.ndarray, dtype: DType, device: str) -> Memory:
    return Memory(NDArray.from_numpy(bits, dtype).to_device(Device(device)))


def _reach(array: NDArray) -> tuple[int, int]:
    """Of its storage, the first element that an array shows, and the one behind the last."""
    if array.numel == 0:
        return 0, 0
    steps = zip(array.shape, array.strides, strict=True)
    return array.offset, array.offset + sum((size - 1) * stride for size, stride in steps) + 1


class Clones:
    """The copies of memories that one deepcopy() has made; it is kept in its memo."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, DType], tuple[Memory, NDArray]] = {}

    @classmethod
    def of(cls, memo: dict[int, object]) -> Clones:
        made = memo.setdefault(id(cls), cls())
        assert isinstance(made, cls)
        return made

    def of_array(self, array: NDArray) -> NDArray:
        """A copy that shares its memory with those of arrays that share array's."""
        key, (start, end) = (id(array.changes), array.dtype), _reach(array)
        known = self._made.get(key)
        if known is None or not known[0].start <= start <= end <= known[0].end:
            memory = Memory(array)
            known = self._made[key] = memory, memory.clone()
        return known[1].view(*known[0].place_of(array))
