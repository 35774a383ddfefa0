"""How a launch is made: the only place that calls cuLaunchKernelEx.

The driver is handed three addresses: of a function, of a configuration (grid, block, shared memory, stream, attributes)
and of a table that says where each argument lies. All of that stands packed in a Block; a launch writes into it what
has changed since the last one, and calls the driver through ctypes, which for four ready arguments is the least that
Python can do. What the driver itself takes, which is most of it, cannot be helped.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver.interface import Function, GpuDriver, RawLaunch, Value

if TYPE_CHECKING:
    from _ctypes import _CArgObject

    Argument: TypeAlias = ctypes.c_void_p | _CArgObject  # what ctypes hands to a function

# CUlaunchConfig and CUlaunchAttribute as cuda.h declares them.
_CONFIG = struct.Struct("<7I4xQQI4x")  # grid, block, bytes of shared memory, stream, attributes, how many
_STREAM_PLACE = 32
_ATTRIBUTE = "<I4x3I52x"  # which, and its value: a union, of which no attribute here takes more than three numbers
_NO_CONTEXT = int(cu.CUresult.CUDA_ERROR_INVALID_CONTEXT)

FORMATS = {  # of slots of 8 bytes, by the types of arguments
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


@functools.cache
def driver_call() -> Callable[[Argument, Argument, Argument, None], int]:
    """cuLaunchKernelEx(configuration, function, table, None): 0, or the number of an error."""
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


def argument(address: int) -> Argument:
    """An address as ctypes hands it to a function: made once, it is not converted at each call."""
    return ctypes.c_void_p.from_param(address)


def attribute(name: str, *values: int) -> bytes:
    """A launch attribute, by its name in CUlaunchAttributeID."""
    which = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return struct.pack(_ATTRIBUTE, int(which), *(*values, 0, 0)[:3])


class Configuration:
    """The part that launches of one kernel share: all but the stream and the arguments."""

    def __init__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int = 0, attributes: Sequence[bytes] = ()
    ) -> None:
        self.grid = grid
        self._dimensions = (*grid, *block, shared)
        self._attributes = ctypes.create_string_buffer(b"".join(attributes))
        self._num_attributes = len(attributes)

    def packed(self, stream: int) -> bytes:
        place = ctypes.addressof(self._attributes) if self._num_attributes else 0
        return _CONFIG.pack(*self._dimensions, stream, place, self._num_attributes)


class Block:
    """The memory of one launch: the configuration, then the arguments; and the table of their addresses."""

    __slots__ = ("_memory", "_shared", "_table", "arguments", "configuration", "grid", "stream", "table")

    def __init__(self, configuration: Configuration, places: Sequence[int], num_bytes: int, alignment: int = 8) -> None:
        """places: where each argument begins, among num_bytes of them."""
        self._memory = ctypes.create_string_buffer(_CONFIG.size + num_bytes + alignment)
        start = ctypes.addressof(self._memory)
        first = -(-(start + _CONFIG.size) // alignment) * alignment
        self._table = (ctypes.c_void_p * max(len(places), 1))(*[first + place for place in places])
        self.arguments = (ctypes.c_char * num_bytes).from_address(first)
        self.configuration, self.table = argument(start), argument(ctypes.addressof(self._table))
        self.grid, self.stream = configuration.grid, 0
        self._shared = configuration  # whose attributes what is packed here points to
        ctypes.memmove(start, configuration.packed(0), _CONFIG.size)

    def change_stream(self, stream: int) -> None:
        struct.pack_into("<Q", self._memory, _STREAM_PLACE, stream)
        self.stream = stream


class Launcher:
    """A function on a device, and what belongs to each launch of it: its context, its status, its name in messages."""

    def __init__(self, driver: GpuDriver, device: int, function: Function, name: str) -> None:
        self.driver, self.device, self._function, self._name = driver, device, argument(int(function)), name
        self._note = driver.recorder(device)

    def launch(self, block: Block, stream: int, values: Sequence[Value]) -> None:
        """Launch what is packed in a block; values are for those who watch."""
        if self.driver.device_count() > 1:
            self.driver.activate(self.device)
        status = driver_call()(block.configuration, self._function, block.table, None)
        if status:
            self._failed(status, block)
        self._note(self._name)
        if self.driver.watch_launches:
            self.driver.launched(self.device, self._name, block.grid, stream, values)

    def prepare(
        self, configuration: Configuration, slots: Sequence[str], other_slots: Sequence[str] = (),
        rest: Sequence[Value] = (), skipped: Collection[int] = (),
    ) -> RawLaunch:  # fmt: skip
        """run(stream, *values): launch with these values, packed as the slots say, and the rest in the other slots.

        What does not change is packed once. skipped: places of values that the function does not take. They are packed
        like the others, which is quicker than to leave them out, but no argument refers to them.
        """
        driver, device, name, function = self.driver, self.device, self._name, self._function
        launch, note, grid = driver_call(), self._note, configuration.grid
        given, others = struct.Struct("<" + "".join(slots)), struct.Struct("<" + "".join(other_slots))
        pack_into, num_bytes = given.pack_into, given.size + others.size
        places = [8 * i for i in range(num_bytes // 8) if i not in skipped]
        activate = driver.activate if driver.device_count() > 1 else None
        idle: list[Block] = []  # those that no thread is launching with

        def fresh() -> Block:
            block = Block(configuration, places, num_bytes)
            _pack(others, block.arguments, given.size, rest)
            return block

        def run(stream: int, /, *values: Value) -> None:
            # With what launch() does written out: this is on the way of every op.
            if activate is not None:
                activate(device)
            try:
                block = idle.pop()
            except IndexError:
                block = fresh()
            if block.stream != stream:
                block.change_stream(stream)
            try:
                pack_into(block.arguments, 0, *values)
            except (OverflowError, struct.error):  # the latter of what a skipped place was given: None, say
                _pack(given, block.arguments, 0, [0 if i in skipped else value for i, value in enumerate(values)])
            status = launch(block.configuration, function, block.table, None)
            if status:
                self._failed(status, block)
            idle.append(block)
            note(name)
            if driver.watch_launches:
                taken = [value for i, value in enumerate(values) if i not in skipped]
                driver.launched(device, name, grid, stream, (*taken, *rest))

        return run

    def _failed(self, status: int, block: Block) -> None:
        """Once more, where this thread had no context, not yet or no longer; else the error."""
        if status == _NO_CONTEXT:
            self.driver.activate(self.device, anew=True)
            status = driver_call()(block.configuration, self._function, block.table, None)
        if status:
            self.driver.check(self.device, (cu.CUresult(status),), f"launch {self._name}")


def _pack(packer: struct.Struct, memory: ctypes.Array[ctypes.c_char], place: int, values: Sequence[Value]) -> None:
    try:
        packer.pack_into(memory, place, *values)
    except OverflowError:  # a float beyond float32
        packer.pack_into(memory, place, *map(_within_float32, values))


def _within_float32(value: Value) -> Value:
    """A float that float32 can only hold as infinity, so; all else as it is."""
    return ctypes.c_float(value).value if type(value) is float else value
