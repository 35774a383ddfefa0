"""Device memory: a caching pool per device, in stream order.

A freed block goes to the list of its stream and size class, and the next array of that class on that stream takes it at
once: whatever still reads the old array was launched earlier on the same stream, so it is done before the new one is
written. A block that other streams used (record_stream) waits for them first. Only a miss speaks to the driver.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import deque
from typing import Any

import numpy as np

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import Driver
from genesis.errors import OutOfMemoryError


@dataclasses.dataclass
class Statistics:
    """Bytes and counts since the start (peaks: since reset_peaks)."""

    allocated: int = 0  # held by arrays, rounded up to their size class
    reserved: int = 0  # taken from the device: allocated and cached
    peak_allocated: int = 0
    peak_reserved: int = 0
    num_allocations: int = 0
    num_driver_allocations: int = 0  # those that the cache could not serve

    @property
    def cached(self) -> int:
        return self.reserved - self.allocated


@functools.lru_cache(maxsize=65536)
def size_class(num_bytes: int) -> int:
    """Rounded up to 512 bytes, or to an eighth of the power of two below: at most 12.5 % are lost.

    Example:
        >>> size_class(1), size_class(4096), size_class(1_000_000)
        (512, 4096, 1048576)
    """
    step = max(512, 1 << max((num_bytes - 1).bit_length() - 4, 0))
    return max(-(-num_bytes // step) * step, 512)


Returned = tuple[int, int, int, tuple[int, ...]]  # pointer, size, stream, other streams that used it


class Pool:
    """The memory of one device."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.limit: int | None = None
        self.returned: deque[Returned] = deque()  # what arrays freed; __del__ may only append here, it takes no lock
        self._driver, self._device = driver, device
        self._note = driver.note_use if driver.watches_memory else None
        self._lock = threading.Lock()
        self._cached: dict[tuple[int, int], list[int]] = {}  # (stream, size) → pointers
        self._waiting: deque[tuple[list[Any], int, int, int]] = deque()  # events, pointer, size, stream
        self._statistics = Statistics()

    def allocate(self, num_bytes: int, stream: int) -> tuple[int, int]:
        """(pointer, size class) of memory to use in the order of the stream. Raises: OutOfMemoryError."""
        size = size_class(num_bytes)
        statistics = self._statistics
        with self._lock:
            if self.returned or self._waiting:
                self._collect()
            blocks = self._cached.get((stream, size))
            pointer = blocks.pop() if blocks else self._obtain(num_bytes, size, stream)
            statistics.num_allocations += 1
            statistics.allocated += size
            if statistics.allocated > statistics.peak_allocated:
                statistics.peak_allocated = statistics.allocated
        if self._note is not None:
            self._note(pointer, num_bytes)
        return pointer, size

    def statistics(self) -> Statistics:
        """A copy of the figures as they are now."""
        with self._lock:
            self._collect()
            return dataclasses.replace(self._statistics)

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
        while self.returned:
            pointer, size, stream, others = self.returned.popleft()
            self._statistics.allocated -= size
            if self._note is not None:
                self._note(pointer, 0)
            if others:
                events = []
                for other in others:
                    event = self._driver.create_event(self._device, False)
                    self._driver.record_event(self._device, event, other)
                    events.append(event)
                self._waiting.append((events, pointer, size, stream))
            else:
                self._cached.setdefault((stream, size), []).append(pointer)
        for _ in range(len(self._waiting)):
            events, pointer, size, stream = self._waiting.popleft()
            if all(self._driver.event_done(self._device, event) for event in events):
                for event in events:
                    self._driver.destroy_event(event)
                self._cached.setdefault((stream, size), []).append(pointer)
            else:
                self._waiting.append((events, pointer, size, stream))

    def _obtain(self, num_bytes: int, size: int, stream: int) -> int:
        """Memory from the device; if it has none, once more after giving back what is cached."""
        for attempt in range(2):
            if attempt:
                self._give_back()
            if self.limit is not None and self._statistics.reserved + size > self.limit:
                continue
            pointer = self._driver.allocate(self._device, size, stream)
            if pointer:
                self._statistics.num_driver_allocations += 1
                self._statistics.reserved += size
                self._statistics.peak_reserved = max(self._statistics.peak_reserved, self._statistics.reserved)
                return pointer
        free, total = self._driver.memory_info(self._device)
        limit = "" if self.limit is None else f"; the limit is {_readable(self.limit)}"
        raise OutOfMemoryError(
            f"cuda:{self._device}: out of memory: asked for {_readable(num_bytes)}, arrays hold "
            f"{_readable(self._statistics.allocated)}, {_readable(free)} of {_readable(total)} are free{limit}"
        )

    def _give_back(self) -> None:
        self._driver.synchronize(self._device)
        self._collect()
        for (stream, size), pointers in self._cached.items():
            for pointer in pointers:
                self._driver.release(self._device, pointer, stream)
                self._statistics.reserved -= size
        self._cached.clear()
        self._driver.trim(self._device)


def _readable(num_bytes: int) -> str:
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


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


class Storage:
    """One block of device memory; it lives as long as any array that shows a part of it."""

    __slots__ = ("_others", "_owner", "_pool", "_size", "device_index", "nbytes", "pointer", "stream")
    _owner: object

    def __init__(self, nbytes: int, device_index: int, stream: int) -> None:
        self.nbytes, self.device_index, self.stream = nbytes, device_index, stream
        self._others: tuple[int, ...] = ()
        self._pool = pool(device_index)
        self.pointer, self._size = self._pool.allocate(nbytes, stream)

    @classmethod
    def foreign(cls, pointer: int, nbytes: int, device_index: int, stream: int, owner: object) -> Storage:
        """Memory that someone else allocated and that owner keeps alive."""
        storage = cls.__new__(cls)
        storage.nbytes, storage.device_index, storage.stream, storage.pointer = nbytes, device_index, stream, pointer
        storage._others, storage._owner, storage._size = (), owner, 0
        if driver.get().watches_memory:
            driver.get().note_use(pointer, nbytes, fresh=False)
        return storage

    def __del__(self) -> None:
        if getattr(self, "_size", 0):
            self._pool.returned.append((self.pointer, self._size, self.stream, self._others))

    def record_stream(self, stream: int) -> None:
        """This stream uses the memory too: it is reused only after what the stream has been given by then."""
        if stream != self.stream and stream not in self._others:
            self._others = (*self._others, stream)


class _PinnedBlock:
    """Page-locked host memory. A copy from it can be under way when it is freed, so it keeps the copies' events."""

    __slots__ = ("_home", "events", "pointer", "size")

    def __init__(self, num_bytes: int) -> None:
        self.size = 1 << max(num_bytes - 1, 4095).bit_length()
        self.events: list[Any] = []
        self.pointer = 0
        self._home = _pinned.setdefault((driver.get().name, self.size), deque())
        for _ in range(len(self._home)):
            pointer, events = self._home.popleft()
            if all(event.query() for event in events):
                self.pointer = pointer
                return
            self._home.append((pointer, events))
        self.pointer = driver.get().allocate_pinned(self.size)

    def __del__(self) -> None:
        if self.pointer:
            self._home.append((self.pointer, self.events))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}


_pinned: dict[tuple[str, int], deque[tuple[int, list[Any]]]] = {}  # driver, size → (pointer, events of its last copies)


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A numpy array in page-locked memory, which copies to the device without the host waiting."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.asarray(_PinnedBlock(nbytes))[:nbytes].view(dtype).reshape(shape)


def pinned_block(array: np.ndarray) -> _PinnedBlock | None:
    """The page-locked block that an array shows, if it shows one."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, _PinnedBlock) else None
