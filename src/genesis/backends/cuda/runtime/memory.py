"""Device memory: a caching pool per device, in stream order.

A freed block goes to the shelf of its stream and size class, and the next array of that class on that stream takes it
at once: whatever still reads the old array was launched earlier on the same stream, so it is done before the new one is
written. A block that other streams used (record_stream) waits for them first. Only a miss speaks to the driver.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import Driver
from genesis.backends.cuda.runtime import capturing
from genesis.backends.cuda.runtime.sizes import Statistics as Statistics
from genesis.backends.cuda.runtime.sizes import readable
from genesis.backends.cuda.runtime.sizes import size_class as size_class
from genesis.backends.cuda.runtime.streams import Event
from genesis.dtypes import HostArray
from genesis.errors import OutOfMemoryError

if TYPE_CHECKING:
    from genesis.backends.cuda.runtime.array import DeviceArray, Layout


class Shelf:
    """The free blocks of one size class on one stream."""

    __slots__ = ("blocks", "pool", "size", "stream")

    def __init__(self, pool: Pool, size: int, stream: int) -> None:
        self.pool, self.size, self.stream = pool, size, stream
        self.blocks: list[Block] = []


class Block:
    """Memory taken from the device, the shelf that it returns to, and the other streams that use it until then."""

    __slots__ = ("others", "pointer", "shelf")

    def __init__(self, pointer: int, shelf: Shelf) -> None:
        self.pointer, self.shelf = pointer, shelf
        self.others: tuple[int, ...] = ()


class Pool:
    """The memory of one device."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.limit: int | None = None
        # What arrays have freed. A __del__ may only append here: it runs at any moment, so it can take no lock.
        self.returned: deque[Block] = deque()
        self.returned_shared: deque[Block] = deque()  # those that other streams used
        self._driver, self._device = driver, device
        self._note: Callable[[int, int], None] | None = driver.note_use if driver.watches_memory else None
        self._lock = threading.Lock()
        self._shelves: dict[tuple[int, int], Shelf] = {}  # (stream, size class) → its free blocks
        self._asked: dict[tuple[int, int], Shelf] = {}  # the same by (stream, bytes asked for), to skip size_class
        self._waiting: deque[tuple[list[object], Block]] = deque()  # events of other streams, block
        self._routes: dict[int, Pool] = {}  # stream that is being captured → its graph's pool
        self.graph_pools: list[Pool] = []
        self._statistics = Statistics()
        self._allocations = itertools.count()  # next() counts one more, in whatever thread, and without a lock
        self._times_counted = 0  # how often next() was called for the figure itself

    def allocate(self, num_bytes: int, stream: int) -> Block:
        """Memory to use in the order of the stream. Raises: OutOfMemoryError."""
        shelf = self.shelf(num_bytes, stream)
        return shelf.pool.take(shelf, num_bytes)

    def take(self, shelf: Shelf, num_bytes: int) -> Block:
        """allocate(), where the shelf for so many bytes is known."""
        next(self._allocations)
        # Mostly an array of the same kind was freed just before. Then one comes for one that went, and no sum of bytes
        # changes: what else has been freed is counted as allocated until it is collected, before and after.
        note, returned = self._note, self.returned
        if returned:
            try:
                block = returned.pop()
            except IndexError:  # another thread was faster
                pass
            else:
                if block.shelf is shelf:
                    if note is not None:
                        note(block.pointer, 0)
                        note(block.pointer, num_bytes)
                    return block
                returned.append(block)
        statistics, lock = self._statistics, self._lock
        lock.acquire()  # half of what the with statement costs, up to twenty times in a fused layer's step
        try:
            self._collect_returned()
            if self.returned_shared or self._waiting:
                self._collect_shared()
            block = shelf.blocks.pop() if shelf.blocks else self._obtain(num_bytes, shelf)
            statistics.allocated = allocated = statistics.allocated + shelf.size
            if allocated > statistics.peak_allocated:
                statistics.peak_allocated = allocated
        finally:
            lock.release()
        if note is not None:
            note(block.pointer, num_bytes)
        return block

    def shelf(self, num_bytes: int, stream: int) -> Shelf:
        """The free list for so many bytes, until redirect()."""
        asked = (stream, num_bytes)
        shelf = self._asked.get(asked)
        if shelf is None:
            size = size_class(num_bytes)
            with self._lock:
                if len(self._asked) > 65536:
                    self._asked.clear()
                home = self._routes.get(stream, self)
                shelf = self._asked[asked] = home._shelves.setdefault((stream, size), Shelf(home, size, stream))
        return shelf

    def redirect(self, stream: int, other: Pool | None) -> None:
        """Let allocations on the stream come from another pool, which shares this one's lock; None: from here."""
        with self._lock:
            self._routes.pop(stream, None)
            if other is not None:
                self._routes[stream] = other
            self._asked = {asked: shelf for asked, shelf in self._asked.items() if asked[0] != stream}

    def statistics(self) -> Statistics:
        """A copy of the figures as they are now."""
        with self._lock:
            self._collect()
            num_allocations = next(self._allocations) - self._times_counted
            self._times_counted += 1
            return dataclasses.replace(self._statistics, num_allocations=num_allocations)

    def reset_peaks(self) -> None:
        with self._lock:
            self._collect()
            self._statistics.peak_allocated = self._statistics.allocated
            self._statistics.peak_reserved = self._statistics.reserved

    def empty_cache(self) -> None:
        """Give all memory that no array holds back to the device."""
        with self._lock:
            self._collect()
            self._give_back()

    def _collect(self) -> None:
        """Take in what arrays have freed."""
        for pool in (self, *self.graph_pools):
            pool._collect_returned()
            pool._collect_shared()

    def _collect_returned(self) -> None:
        returned, statistics, note = self.returned, self._statistics, self._note
        while returned:
            try:
                block = returned.popleft()
            except IndexError:  # another thread took it to allocate
                return
            shelf = block.shelf
            statistics.allocated -= shelf.size
            if note is not None:
                note(block.pointer, 0)
            shelf.blocks.append(block)

    def _collect_shared(self) -> None:
        """Blocks that other streams used go to their shelves when those streams are past that use."""
        if capturing.underway:  # nobody may ask for events, and those of a captured stream are a graph's
            return
        while self.returned_shared:
            block = self.returned_shared.popleft()
            others, block.others = block.others, ()
            self._statistics.allocated -= block.shelf.size
            if self._note is not None:
                self._note(block.pointer, 0)
            events = []
            for other in others:
                event = self._driver.create_event(self._device, False)
                self._driver.record_event(self._device, event, other)
                events.append(event)
            self._waiting.append((events, block))
        for _ in range(len(self._waiting)):
            events, block = self._waiting.popleft()
            if all(self._driver.event_done(self._device, event) for event in events):
                for event in events:
                    self._driver.destroy_event(event)
                block.shelf.blocks.append(block)
            else:
                self._waiting.append((events, block))

    def _obtain(self, num_bytes: int, shelf: Shelf) -> Block:
        """Memory from the device; if it has none, once more after giving back what is cached, and once more after what
        Python's collector finds: a network that has grown, say, holds itself in a cycle."""
        size = shelf.size
        for attempt in range(3):
            if attempt == 2:
                self._collect_garbage()
            if attempt:
                self._give_back()
            if self.limit is not None and self._statistics.reserved + size > self.limit:
                continue
            pointer = self._driver.allocate(self._device, size, shelf.stream)
            if pointer:
                self._statistics.num_driver_allocations += 1
                self._statistics.reserved += size
                self._statistics.peak_reserved = max(self._statistics.peak_reserved, self._statistics.reserved)
                return Block(pointer, shelf)
        raise self.no_room(num_bytes)

    def no_room(self, num_bytes: int) -> OutOfMemoryError:
        free, total = self._driver.memory_info(self._device)
        limit = "" if self.limit is None else f"; the limit is {readable(self.limit)}"
        return OutOfMemoryError(
            f"cuda:{self._device}: out of memory: asked for {readable(num_bytes)}, arrays hold "
            f"{readable(self._statistics.allocated)}, {readable(free)} of {readable(total)} are free{limit}"
        )

    def _collect_garbage(self) -> None:
        self._lock.release()  # what is collected may allocate on its way
        try:
            gc.collect()
        finally:
            self._lock.acquire()

    def _give_back(self) -> None:
        with capturing.lock:
            if capturing.underway:  # the device cannot be waited for
                return
            self._driver.synchronize(self._device)
            self._collect()
            for pool in (self, *self.graph_pools):
                pool._release_free()
            self._driver.trim(self._device)

    def _release_free(self) -> None:
        for shelf in self._shelves.values():
            for block in shelf.blocks:
                self._driver.release(self._device, block.pointer, shelf.stream)
                self._statistics.reserved -= shelf.size
            shelf.blocks.clear()


_pools: dict[tuple[str, int], Pool] = {}
_active: dict[int, Pool] = {}  # those of the driver in force
_pools_lock = threading.Lock()
driver.forget_on_switch(_active.clear)


def pool(device: int = 0) -> Pool:
    """The pool of a device."""
    found = _active.get(device)
    if found is None:
        with _pools_lock:
            key = (driver.get().name, device)
            if key not in _pools:
                driver.get().properties(device)  # an error if there is no such device
                _pools[key] = Pool(driver.get(), device)
            found = _active[device] = _pools[key]
    return found


class Lender(Protocol):
    """Another library's allocator, for the current device.

    What it gives must be usable in the order of the current stream at once, and after the object that keeps it alive is
    gone the library must reuse it only in that order.
    """

    def array(self, layout: Layout) -> DeviceArray:
        """A new DeviceArray of this layout."""

    def memory(self, num_bytes: int) -> tuple[int, object]:
        """The address of new memory, and what keeps it alive."""


class _Lending(threading.local):
    lender: Lender | None = None


lending = _Lending()


class LentBy:
    """New arrays of this thread take their memory from another library's allocator, or (None) from their device's pool,
    inside the with block."""

    __slots__ = ("_before", "_lender")

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender

    def __enter__(self) -> None:
        self._before, lending.lender = lending.lender, self._lender

    def __exit__(self, *error: object) -> None:
        lending.lender = self._before


class Storage:
    """A stretch of device memory, which lives as long as any array that shows a part of it."""

    __slots__ = ()
    pointer: int
    device_index: int
    stream: int
    owner: object  # what keeps the memory alive; None: the storage itself

    def record_stream(self, stream: int) -> None:
        """This stream uses the memory too."""
        raise NotImplementedError


class OwnedStorage(Storage):
    """Memory of somebody else, who is kept alive; when it is reused is the owner's affair."""

    __slots__ = ("device_index", "nbytes", "owner", "pointer", "stream")

    def __init__(self, pointer: int, nbytes: int, device_index: int, stream: int, owner: object) -> None:
        """nbytes may be 0 where nobody will ask for it."""
        self.pointer, self.nbytes, self.device_index, self.stream = pointer, nbytes, device_index, stream
        self.owner = owner
        here = driver.get() if nbytes else None
        if here is not None and here.watches_memory:
            here.note_use(pointer, nbytes, fresh=False)

    def record_stream(self, stream: int) -> None:
        pass


class PoolStorage(Storage):
    """A block of the device's pool, and the one who gives it back: an object that costs little to make."""

    __slots__ = ("block", "device_index", "pointer")
    owner = None

    def __init__(self, block: Block, device_index: int) -> None:
        self.block, self.pointer, self.device_index = block, block.pointer, device_index

    def __del__(self) -> None:
        block = self.block
        pool = block.shelf.pool
        (pool.returned_shared if block.others else pool.returned).append(block)

    @property
    def stream(self) -> int:  # type: ignore[override]
        return self.block.shelf.stream

    def record_stream(self, stream: int) -> None:
        """It is reused only after what the stream has been given by the time it is freed."""
        block = self.block
        if stream != self.stream and stream not in block.others:
            block.others = (*block.others, stream)


def allocate(nbytes: int, device_index: int, stream: int) -> Storage:
    """New memory, in the order of a stream. Raises: OutOfMemoryError."""
    lender = lending.lender
    if lender is None:
        return allocate_own(nbytes, device_index, stream)
    pointer, owner = lender.memory(nbytes)
    return OwnedStorage(pointer, nbytes, device_index, stream, owner)


def allocate_own(nbytes: int, device_index: int, stream: int) -> PoolStorage:
    """allocate() where no other library lends: from the device's pool."""
    return PoolStorage((_active.get(device_index) or pool(device_index)).allocate(nbytes, stream), device_index)


# --- page-locked host memory ------------------------------------------------------------------------------------------
class _PinnedBlock:
    """Host memory from which the device copies by itself; freed blocks are kept for the next array of their size."""

    __slots__ = ("_home", "pointer", "size")

    def __init__(self, num_bytes: int) -> None:
        self.size = 1 << max(num_bytes - 1, 4095).bit_length()
        self.pointer = 0
        self._home = _pinned.setdefault((driver.get().name, self.size), deque())
        try:
            self.pointer = self._home.popleft()
        except IndexError:
            self.pointer = driver.get().allocate_pinned(self.size)

    def __del__(self) -> None:
        if self.pointer:
            self._home.append(self.pointer)

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}


_pinned: dict[tuple[str, int], deque[int]] = {}  # driver, size → free blocks
_copied_from: deque[tuple[Event, HostArray]] = deque()  # pinned arrays that the device may still be reading


def pinned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> HostArray:
    """A numpy array in page-locked memory, which copies to the device without the host waiting."""
    _forget_copied()
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.asarray(_PinnedBlock(nbytes))[:nbytes].view(dtype).reshape(shape)


def release_pinned() -> None:
    """Give the page-locked memory that no array holds back to the host."""
    _forget_copied()
    name = driver.get().name
    for (owner, _), blocks in list(_pinned.items()):
        while owner == name and blocks:
            try:
                pointer = blocks.popleft()
            except IndexError:  # another thread was faster
                break
            driver.get().release_pinned(pointer)


def keep_until(event: Event, array: HostArray) -> None:
    """Hold an array that the device copies from, whoever pinned it, until the event after the copy is passed."""
    _forget_copied()
    _copied_from.append((event, array))


def _forget_copied() -> None:
    if capturing.underway:  # nobody may ask for events
        return
    for _ in range(len(_copied_from)):
        try:
            event, array = _copied_from.popleft()
        except IndexError:  # another thread was faster
            return
        if not event.query():
            _copied_from.append((event, array))
