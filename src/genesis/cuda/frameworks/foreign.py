"""Arrays of other libraries as arguments of kernels, by DLPack or __cuda_array_interface__."""

from __future__ import annotations

from typing import Any, TypeAlias

from genesis.backends.contract import SupportsDLPack
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.dlpack import SupportsArrayInterface
from genesis.cuda.frameworks.interface import HOST, Operand
from genesis.shapes import is_contiguous

Foreign: TypeAlias = "SupportsDLPack | SupportsArrayInterface"


class ForeignArrays:
    """Arrays of other libraries: shown to Genesis at each launch, and used on its current stream."""

    current_stream = staticmethod(streams.current_handle)

    def read(self, tensor: Foreign) -> tuple[object, int]:
        found = array_on(tensor)
        return (HOST, 0) if found is None else ((self, found.layout), found.data_pointer)

    def describe(self, tensor: Foreign) -> Operand:
        found = array_on(tensor)
        if found is None:
            return Operand(self, "unknown", None, True, (), 0, 0)
        dense = is_contiguous(found.shape, found.strides)
        where = (found.dtype.name, found.device_index, dense, found.strides)
        return Operand(self, *where, found.size, found.data_pointer)

    def device_of(self, tensor: Foreign) -> int | None:
        return self.describe(tensor).device

    def use_on(self, tensor: Foreign, stream: int) -> None:
        """Its owner cannot be told; the caller keeps it until the stream is done."""

    def note_write(self, tensor: Foreign) -> None:
        """Other libraries' arrays have no graph."""


def array_on(source: Any) -> DeviceArray | None:
    """An array on the memory of source; None where that is the host's."""
    if hasattr(source, "__dlpack__"):
        return array.from_dlpack(source) if source.__dlpack_device__()[0] == driver.get().dlpack_device_type else None
    return array.from_array_interface(source)


FOREIGN = ForeignArrays()
