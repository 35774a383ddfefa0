"""The memory of CUDA graphs: what is allocated while they are captured.

A graph's addresses must stay valid, and belong to nobody else, as long as it may be replayed. So captures allocate from
pools of their own, which share figures, lock and limit with the device's pool. What is freed during a capture is reused
in it, and what is freed later by the next capture that shares the pool. All of it goes back to the device when the last
graph of the pool is gone; memory that tensors still hold then, when they are.
"""

from __future__ import annotations

import itertools
import threading

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import capturing, memory
from genesis.backends.cuda.runtime.memory import Block, Pool, Shelf
from genesis.backends.cuda.runtime.streams import Stream
from genesis.errors import CaptureError, describe

PoolHandle = tuple[int, int]
_MOST_TIMES = 4  # a block is as large as what lies in it


class GraphPool(Pool):
    """The memory that captures allocate on one device."""

    def __init__(self, parent: Pool) -> None:
        super().__init__(parent._driver, parent._device)
        self._parent = parent
        self._lock, self._statistics, self._allocations = parent._lock, parent._statistics, parent._allocations
        self._side = Stream(parent._device)  # memory comes in its order: that of a captured stream is a graph's
        self._sizes: dict[int, int] = {}  # pointer → the most bytes that an array had there
        self._num_blocks = self.num_bytes = 0
        self._is_retired = False
        self.is_capturing = False
        if self._note is not None:
            self._note = self._note_use
        with self._lock:
            parent.graph_pools.append(self)

    def retire(self) -> None:
        """No graph needs it any more. Called from a __del__ too, which may interrupt whoever holds the lock."""
        self._is_retired = True
        if self._lock.acquire(blocking=False):
            try:
                with capturing.lock:
                    if not capturing.underway:  # else with the next memory that the device's pool gives back
                        self._driver.synchronize(self._device)
                        self._parent._collect()
                        self._release_free()
                        self._driver.trim(self._device)
            finally:
                self._lock.release()

    def _note_use(self, pointer: int, num_bytes: int) -> None:
        """A graph goes on using what its arrays have freed."""
        if num_bytes:
            self._sizes[pointer] = num_bytes = max(num_bytes, self._sizes.get(pointer, 0))
            self._driver.note_use(pointer, num_bytes)

    def _collect_shared(self) -> None:
        """Other streams of the capture use the memory, and nobody knows when: it waits for the end.

        Graphs that share a pool run one after the other, so that the next one may have it at once.
        """
        while self.returned_shared and not self.is_capturing:
            block = self.returned_shared.popleft()
            block.others = ()
            self._statistics.allocated -= block.shelf.size
            block.shelf.blocks.append(block)

    def _obtain(self, num_bytes: int, shelf: Shelf) -> Block:
        """Memory from the device. Its cache was emptied when the capture began, and cannot be while it goes on."""
        size, statistics, limit = shelf.size, self._statistics, self._parent.limit
        larger = self._larger(shelf)
        if larger is not None:
            statistics.allocated += larger.shelf.size - size
            return larger
        pointer = 0
        if limit is None or statistics.reserved + size <= limit:
            with self._driver.unrestricted():
                pointer = self._driver.allocate(self._device, size, self._side.handle)
                self._driver.synchronize_stream(self._device, self._side.handle)
        if not pointer:
            raise self._parent.no_room(num_bytes)
        self._num_blocks += 1
        self.num_bytes += size
        statistics.num_driver_allocations += 1
        statistics.reserved += size
        statistics.peak_reserved = max(statistics.peak_reserved, statistics.reserved)
        return Block(pointer, shelf)

    def _larger(self, shelf: Shelf) -> Block | None:
        """A free block of another size class, which no array needs while this graph runs: of those that are not much
        larger, the smallest. So graphs of several batch sizes compute in the same memory."""
        fitting = [
            other for other in self._shelves.values()
            if other.blocks and other.stream == shelf.stream and shelf.size < other.size <= _MOST_TIMES * shelf.size
        ]  # fmt: skip
        return min(fitting, key=lambda other: other.size).blocks.pop() if fitting else None

    def _release_free(self) -> None:
        if not self._is_retired:
            return
        for shelf in self._shelves.values():
            self._num_blocks -= len(shelf.blocks)
            self.num_bytes -= len(shelf.blocks) * shelf.size
            for block in shelf.blocks:
                self._sizes.pop(block.pointer, None)
                if self._driver.watches_memory:
                    self._driver.note_use(block.pointer, 0)
        super()._release_free()
        if not self._num_blocks:
            self._parent.graph_pools.remove(self)


class GraphMemory:
    """The pools of one handle, one per device, and how many graphs use them."""

    def __init__(self, handle: PoolHandle) -> None:
        self.handle = handle
        self.num_graphs = 0
        self._pools: dict[int, GraphPool] = {}
        self._is_capturing = False

    def begin(self) -> None:
        """Raises: CaptureError: another capture allocates from it."""
        if self._is_capturing:
            raise CaptureError(describe("graph", "pool", "one that no other capture is using", self.handle))
        self._is_capturing = True

    def end(self) -> None:
        self._is_capturing = False
        for pool in self._pools.values():
            pool.is_capturing = False

    def on(self, device: int) -> GraphPool:
        """The pool of a device, for a capture that has begun."""
        pool = self._pools.get(device)
        if pool is None:
            pool = self._pools[device] = GraphPool(memory.pool(device))
        pool.is_capturing = True
        return pool

    @property
    def num_bytes(self) -> int:
        """Taken from the devices."""
        return sum(pool.num_bytes for pool in self._pools.values())

    def retire(self) -> None:
        for pool in self._pools.values():
            pool.retire()


_numbers = itertools.count(1)
_known: dict[PoolHandle, GraphMemory] = {}
_lock = threading.RLock()  # a graph's __del__ comes at any moment, also to the thread that holds it
driver.forget_on_switch(_known.clear)


def new_handle() -> PoolHandle:
    """A name for a pool that graphs can share; memory comes with the first capture."""
    return (0, next(_numbers))


def num_bytes(handle: PoolHandle) -> int:
    """The memory of a handle."""
    found = _known.get(handle)
    return 0 if found is None else found.num_bytes


def acquire(handle: PoolHandle | None) -> GraphMemory:
    """The memory of a handle, a new one by default; release() it once."""
    with _lock:
        handle = new_handle() if handle is None else handle
        found = _known.setdefault(handle, GraphMemory(handle))
        found.num_graphs += 1
        return found


def release(found: GraphMemory) -> None:
    with _lock:
        found.num_graphs -= 1
        if not found.num_graphs:
            _known.pop(found.handle, None)
            found.retire()
