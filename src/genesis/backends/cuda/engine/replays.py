"""Compare candidates as they run in practice: in CUDA graphs of launches one after the other, replayed turn by turn.

Two events around a lone launch also time the gaps before and after it. For a kernel of a few microseconds these vary by
as much as candidates differ, and caches that were overwritten have to be written back meanwhile. In a graph of twenty
launches hardly a gap is left; the launches take turns with several sets of operands, which are more than the L2 cache
holds, so that operands still come from memory.

A capture breaks if anybody waits for the whole device, so it holds capturing.lock, and allocates nothing: who holds a
pool's lock may be waiting for that one.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import ExecutableGraph, KernelError
from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.runtime import memory, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.capture import captured
from genesis.backends.cuda.runtime.memory import Storage
from genesis.errors import CaptureError, OutOfMemoryError

Addresses: TypeAlias = tuple[int, int, int, int, int]  # in the order of Launch

_MOST_LAUNCHES, _LONG_ENOUGH = 20, 1.0  # of a graph, and milliseconds
_ROUNDS = 7  # replays of each graph, after one that does not count
_MOST_SETS, _MOST_BYTES = 16, 512 << 20  # of operands, and of the copies' memory
_CACHES, _FEWEST_CACHES = 3, 2  # times the L2 cache that the sets fill, or must fill where memory is short
_ALIGNMENT, _GRANULE = 512, 64 << 20  # of a copy; of their memory, so that few sizes of it remain in the pool


class Operand(NamedTuple):
    """A result or operand in memory."""

    array: DeviceArray | None  # None: the problem has none
    start: int = 0  # bytes in front of its first element

    @property
    def address(self) -> int:
        return 0 if self.array is None else self.array.data_pointer + self.start

    @property
    def num_bytes(self) -> int:
        return 0 if self.array is None else -(-self.array.layout.num_bytes // _ALIGNMENT) * _ALIGNMENT


def addresses_of(operands: Sequence[Operand]) -> Addresses:
    """Addresses of the operands, 0 where there is none."""
    return _five([each.address for each in operands])


class Contender(NamedTuple):
    """A launch, and the bytes of scratch memory that it wants."""

    launch: Launch
    workspace: int


class Sets(NamedTuple):
    """Operands, and copies of them; memory keeps the copies alive."""

    addresses: list[Addresses]
    memory: Storage | None


def num_launches(milliseconds: float) -> int:
    """Return how many launches a graph has of candidates that take so long; fewer than 2: they need no graph."""
    return int(min(_MOST_LAUNCHES, _LONG_ENOUGH / max(milliseconds, 1e-6)))


def num_sets(set_bytes: int, traffic: int, cache: int, launches: int, free: int) -> int:
    """Return how many sets of operands the launches take turns with; 0: they do not fit into memory.

    Args:
        set_bytes: of memory that a set takes.
        traffic: bytes of it that a launch moves at least.
        cache: bytes of the L2 cache.
        free: bytes of memory that copies may take.
    """
    wanted = max(1, min(-(-_CACHES * cache // max(traffic, 1)), _MOST_SETS, launches))
    affordable = 1 + min(_MOST_BYTES, free) // max(set_bytes, 1)
    if affordable >= wanted:
        return wanted
    return affordable if affordable * traffic >= _FEWEST_CACHES * cache else 0


def copies(operands: Sequence[Operand], traffic: int, launches: int, device: int) -> Sets | None:
    """Sets of operands, in the order of the current stream. None: memory is short."""
    here, stream = driver.get(), streams.current_handle(device)
    sizes, spare = [each.num_bytes for each in operands], _spare(device)
    number = num_sets(sum(sizes), traffic, here.properties(device).l2_cache, launches, spare)
    if number == 0:
        return None
    found = [addresses_of(operands)]
    if number == 1 or sum(sizes) == 0:
        return Sets(found, None)
    num_bytes = (number - 1) * sum(sizes)
    rounded = -(-num_bytes // _GRANULE) * _GRANULE
    try:
        room = memory.allocate(rounded if rounded <= spare else num_bytes, device, stream)
    except OutOfMemoryError:
        return None
    place = room.pointer
    for _ in range(number - 1):
        copied: list[int] = []
        for operand, size in zip(operands, sizes, strict=True):
            if operand.array is not None:
                here.copy(device, place, operand.array.data_pointer, operand.array.layout.num_bytes, stream)
            copied.append(0 if operand.array is None else place + operand.start)
            place += size
        found.append(_five(copied))
    return Sets(found, room)


def _spare(device: int) -> int:
    """Bytes that copies may take: they are no reason to give back what the pool has cached."""
    pool = memory.pool(device)
    free = driver.get().memory_info(device)[0]
    if pool.limit is not None:
        free = max(0, min(free, pool.limit - pool.statistics().reserved))
    return free // 2


def _five(addresses: Sequence[int]) -> Addresses:
    first, second, third, fourth, fifth = addresses
    return first, second, third, fourth, fifth


def milliseconds(contenders: Sequence[Contender], sets: Sets, launches: int, device: int) -> list[float | None]:
    """The time of one launch of each: the median over replays, in which they take turns, each first now and then.

    None: it cannot be captured, or the device refuses it.
    Raises: OutOfMemoryError: there is none for the scratch memory; KernelError: the device is at fault.
    """
    here, stream = driver.get(), streams.current_handle(device)
    most = max(each.workspace for each in contenders)
    workspace = memory.allocate(most, device, stream) if most else None
    here.synchronize_stream(device, stream)  # the copies
    side = streams.Stream(device)  # the default stream cannot be captured; candidates are told where to launch
    taking_turns = [sets.addresses[i % len(sets.addresses)] for i in range(_whole_turns(launches, len(sets.addresses)))]
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(here.synchronize_stream, device, side.handle)  # last, before any memory goes
        start, end = here.create_event(device, True), here.create_event(device, True)
        cleanup.callback(here.destroy_event, start)
        cleanup.callback(here.destroy_event, end)
        graphs: dict[int, ExecutableGraph] = {}
        times: dict[int, list[float]] = {}
        for index, contender in enumerate(contenders):
            pointer = workspace.pointer if workspace is not None and contender.workspace else 0
            graph = _graph(contender.launch, taking_turns, pointer, side)
            if graph is not None:
                cleanup.callback(graph.destroy)
                graphs[index], times[index] = graph, []
        for turn in range(1 + _ROUNDS):
            order = list(graphs)
            first = turn % max(1, len(order))
            for index in order[first:] + order[:first]:
                try:
                    here.record_event(device, start, side.handle)
                    graphs[index].launch(side.handle)
                    here.record_event(device, end, side.handle)
                    here.synchronize_event(device, end)
                    times[index].append(here.elapsed_ms(device, start, end) / len(taking_turns))
                except KernelError:
                    del graphs[index]
    return [statistics.median(times[i][1:]) if i in graphs else None for i in range(len(contenders))]


def _whole_turns(launches: int, number: int) -> int:
    """Return about as many: a replay ends with the last set, so that the next one's first has left the cache."""
    return max(1, launches // number) * number


def _graph(
    launch: Launch, taking_turns: Sequence[Addresses], workspace: int, side: streams.Stream
) -> ExecutableGraph | None:
    """A graph of these launches. None: there can be none."""
    here = driver.get()

    def launch_all(stream: int) -> None:
        for addresses in taking_turns:
            launch(stream, *addresses, workspace)

    try:
        # A library may do at the first launch what no graph can hold.
        launch(side.handle, *taking_turns[0], workspace)
        here.synchronize_stream(side.device_index, side.handle)
        graph = captured(side, launch_all)
        if graph.num_nodes < len(taking_turns):  # it launched elsewhere
            graph.destroy()
            return None
        with here.unrestricted():  # others may be capturing
            return graph.instantiate()
    except (KernelError, CaptureError, OutOfMemoryError):
        return None
