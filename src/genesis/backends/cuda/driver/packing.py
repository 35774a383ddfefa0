"""The arguments of a launch as the driver reads them: packed numbers, and a table of their addresses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any


class Arguments:
    """Slots of 8 bytes for the arguments, and the table of their addresses that a launch takes."""

    __slots__ = ("_table", "address", "memory")

    def __init__(self, num_slots: int) -> None:
        self.memory = ctypes.create_string_buffer(8 * num_slots)
        start = ctypes.addressof(self.memory)
        self._table = (ctypes.c_void_p * num_slots)(*range(start, start + 8 * num_slots, 8))
        self.address = ctypes.addressof(self._table)


FORMATS = {
    "*": "Q",
    "i1": "b7x",
    "i8": "b7x",
    "i16": "h6x",
    "i32": "i4x",
    "i64": "q",
    "u1": "B7x",
    "u8": "B7x",
    "u16": "H6x",
    "u32": "I4x",
    "u64": "Q",
    "fp32": "f4x",
    "fp64": "d",
}


def pack_arguments(packer: struct.Struct, memory: Any, values: Sequence[Any]) -> None:
    try:
        packer.pack_into(memory, 0, *values)
    except OverflowError:  # a float beyond float32
        packer.pack_into(memory, 0, *map(_within_float32, values))


def _within_float32(value: Any) -> Any:
    """A float that float32 can only hold as infinity, so; all else as it is."""
    return ctypes.c_float(value).value if type(value) is float else value
