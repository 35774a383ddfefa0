"""All-reduce by the GPUs' copy engines, which leaves every processor to the kernels of backward.

NCCL's kernels occupy processors while they send and wait. A kernel beside them that needs all of a GPU, as most of
cuDNN's do, then takes a multiple of its time: 17 µs became 88. Between GPUs of one host that reach each other's memory,
NCCL copies instead, for all-to-all and all-gather, where arrays lie in symmetric windows and the communicator's policy
is "zero CTAs". So a mean is three steps: each rank sends a part of its array to each other, averages the parts that it
has received, in the order of the ranks, and sends the result to all. That takes longer than NCCL's kernels do (24 MiB
on four H200: 222 µs, and 131), which nobody notices while backward goes on.

Nothing ends a copy that waits for a rank that is gone, not even the communicator's end: see Nccl.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, OwnedStorage
from genesis.backends.cuda.runtime.capture import Graph
from genesis.dtypes import DType
from genesis.errors import CaptureError
from genesis.ndarray import Device, NDArray, ops
from genesis.ndarray.capturing import capture_of

if TYPE_CHECKING:
    from cuda.core import Buffer
    from nccl.core import Communicator, RegisteredWindowHandle

_VERSION = (2, 28)  # of NCCL: the first with such calls
_ALIGNMENT = 16  # bytes: a rank's part begins at such an address
_TRIAL = 24 << 20  # bytes that are reduced both ways to see whether copies are slower than they should be
_CALLS, _REPLAYS = 3, 5  # of a trial
_SLOWEST = 3.0  # times what NCCL's kernels take: 1.7 on four H200 with NVLink
_DTYPES = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)


class _Held:
    """Kept alive by the arrays in a window: when it is gone, nobody has one.

    Attributes:
        size: bytes of the window.
        buffer: its memory, once the window itself is no more.
    """

    __slots__ = ("__weakref__", "buffer", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.buffer: Buffer | None = None


class _Window(NamedTuple):
    """Memory that is registered with all ranks."""

    held: weakref.ref[_Held]
    buffer: Buffer
    handle: RegisteredWindowHandle


def config(core: ModuleType, hosts: Sequence[str]) -> object | None:
    """NCCL's configuration of a communicator that can use copy engines; None: it cannot, or the user says otherwise."""
    is_new = core.get_version().libnccl.version.release >= _VERSION
    if len(hosts) < 2 or len(set(hosts)) > 1 or not is_new or "NCCL_CTA_POLICY" in os.environ:
        return None
    made: object = core.NCCLConfig(cta_policy=core.CTAPolicy.ZERO)
    return made


class CopyEngines:
    """The windows of a communicator, and means of arrays that lie in them.

    Args:
        alike: whether all ranks say so; for each of several values.

    Attributes:
        are_used: a copy may be on its way.
    """

    def __init__(
        self, core: ModuleType, communicator: Communicator, device: Device, rank: int, size: int,
        alike: Callable[[Sequence[bool]], Sequence[bool]],
    ) -> None:  # fmt: skip
        self._core, self._communicator, self._device = core, communicator, device
        self._rank, self._size, self._alike = rank, size, alike
        self._windows: list[_Window] = []
        self._staging: NDArray | None = None  # what the others have sent, as bytes
        self._is_fast: bool | None = None  # not tried yet
        self.are_used = False

    def empty(self, num_elements: int, dtype: DType, stream: streams.Stream) -> NDArray | None:
        """Zeros: at least so many elements, or None if NCCL's kernels are to be used. All ranks ask alike.

        Args:
            stream: the communicator's.
        """
        if dtype not in _DTYPES:
            return None
        is_free = [window.held() is None for window in self._windows]
        is_possible, *are_free = self._alike([capture_of(self._device) is None, *is_free])
        if not is_possible:
            return None
        self._give_back(are_free)
        if self._is_fast is None:
            self._is_fast = self._try(stream)
        return self._memory(num_elements * dtype.itemsize, dtype) if self._is_fast else None

    def has(self, array: NDArray) -> bool:
        """Does this array fill a window?"""
        handle = array.handle
        if not isinstance(handle, DeviceArray) or not isinstance(handle.storage.owner, _Held):
            return False
        held = handle.storage.owner
        is_whole = handle.offset == 0 and array.numel * array.dtype.itemsize == held.size
        return is_whole and any(window.held() is held for window in self._windows)

    def mean(self, array: NDArray, stream: int) -> None:
        """In place: the mean over the ranks of an array in a window; on this stream, which is the current one."""
        assert self._staging is not None
        self.are_used = True
        part = array.numel // self._size
        received = self._staging.view_dtype(array.dtype, (self._size, part), (part, 1), 0)
        own = array.narrow(0, self._rank * part, part)
        self._communicator.alltoall(array.handle, received.handle, stream=stream)
        own.copy_into(ops.mean(received, (0,)))
        self._communicator.allgather(own.handle, array.handle, stream=stream)

    def close(self) -> None:
        """Give back all windows, after their last use; arrays in them keep their memory."""
        for window in self._windows:
            window.handle.close()
            held = window.held()
            if held is not None:
                held.buffer = window.buffer
        self._windows, self._staging = [], None

    def _memory(self, num_bytes: int, dtype: DType) -> NDArray | None:
        """A new window, and room for what the others send to it; None where some rank has no memory for them."""
        step = self._size * _ALIGNMENT
        num_bytes = -(-num_bytes // step) * step
        array = self._window(num_bytes)
        if array is not None and (self._staging is None or self._staging.numel < num_bytes):
            staging = self._window(num_bytes)
            if staging is None:
                return None
            self._staging = staging
        return None if array is None else array.view_dtype(dtype, (num_bytes // dtype.itemsize,), (1,), 0)

    def _window(self, num_bytes: int) -> NDArray | None:
        index = self._device.index
        try:
            buffer = self._core.mem_alloc(num_bytes, index)
        except Exception:  # the binding's errors have no base of their own
            buffer = None
        if not all(self._alike([buffer is not None])):
            return None
        held = _Held(num_bytes)
        storage = OwnedStorage(int(buffer.handle), num_bytes, index, streams.current_handle(index), held)
        array = NDArray(DeviceArray(storage, (num_bytes,), (1,), 0, dtypes.uint8), self._device)
        array.copy_into(0)
        handle = self._communicator.register_window(array.handle, self._core.WindowFlag.COLL_SYMMETRIC)
        if not all(self._alike([handle.is_valid])):  # some GPU does not reach another's memory
            handle.close()
            held.buffer = buffer  # which goes with the array
            return None
        self._windows.append(_Window(weakref.ref(held), buffer, handle))
        return array

    def _give_back(self, are_free: Sequence[bool]) -> None:
        """Give back windows that no rank uses: on all ranks in the same order, or windows to come would differ."""
        if any(are_free):
            driver.get().synchronize(self._device.index)
        for window, is_free in zip(self._windows, are_free, strict=True):
            if is_free:
                window.handle.close()
                self._core.mem_free(window.buffer)
        self._windows = [window for window, is_free in zip(self._windows, are_free, strict=True) if not is_free]

    def _try(self, stream: streams.Stream) -> bool:
        """Reduce an array both ways. Returns: whether copies are as fast as they are between GPUs with direct links."""
        array = self._memory(_TRIAL, dtypes.float32)
        if array is None:
            return False
        ways = (
            lambda: self._communicator.allreduce(array.handle, array.handle, self._core.AVG, stream=stream.handle),
            lambda: self.mean(array, stream.handle),
        )
        stream.wait_stream(streams.current(self._device.index))
        with streams.use(stream):
            try:
                kernels, copies = (_milliseconds(way, stream) for way in ways)
                is_fast = copies <= _SLOWEST * kernels
            except CaptureError:  # a driver that has no such graphs
                is_fast = False
        self.are_used = all(self._alike([is_fast]))
        return self.are_used


def _milliseconds(call: Callable[[], None], stream: streams.Stream) -> float:
    """Time a call on the device, in a CUDA graph as in a recorded step: by itself, a copy waits for the host.

    Returns: the least of several times, as other programs may use the GPUs.
    """
    call()  # makes connections
    stream.synchronize()
    graph = Graph()
    graph.begin(stream, None, "relaxed", lambda: None)
    try:
        for _ in range(_CALLS):
            call()
    except BaseException:
        graph.abandon()
        raise
    graph.end()
    times: list[float] = []
    for _ in range(_REPLAYS):
        start, end = (streams.Event(stream.device_index, enable_timing=True) for _ in range(2))
        stream.record_event(start)
        graph.replay()
        stream.record_event(end)
        end.synchronize()
        times.append(start.elapsed_time(end) / _CALLS)
    graph.reset()
    return min(times)
