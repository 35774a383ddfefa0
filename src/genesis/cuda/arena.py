"""Arena: memory that the CUDA graphs of one compiled target share, and the order of their replays."""

from __future__ import annotations

import threading

from genesis.backends.cuda.driver.current import current_handle
from genesis.backends.cuda.runtime import graph_pool, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import allocate_own
from genesis.cuda.graphs import graph_pool_handle
from genesis.cuda.streams import Stream
from genesis.ndarray import Device


class Arena:
    """A pool that all recordings of a target on one device capture into, one at a time.

    Graphs that share memory must not run at the same time: replays on different streams wait for each other.

    Attributes:
        lock: held by who captures or replays.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.pool, self.stream = device, graph_pool_handle(), Stream(device)
        self.lock = threading.RLock()
        self._latest: int | None = None  # the stream of the latest replay

    @property
    def num_shared_bytes(self) -> int:
        return graph_pool.num_bytes(self.pool)

    def follow(self) -> int:
        """The current stream, which what is launched on it next may share memory with earlier replays."""
        index = self.device.index
        stream = current_handle(index)
        latest = self._latest
        if latest != stream:
            if latest is not None:
                event = streams.Stream(index, handle=latest).record_event()
                event.wait(streams.Stream(index, handle=stream))
            self._latest = stream
        return stream

    def copy_of(self, handle: DeviceArray) -> tuple[DeviceArray, int]:
        """Memory for an array like this one, aligned alike, and the bytes that its elements span."""
        num_bytes, itemsize = span(handle), handle.dtype.itemsize
        shift = (handle.data_pointer & 15) // itemsize
        storage = allocate_own(num_bytes + shift * itemsize, self.device.index, self.stream.handle)
        return DeviceArray(storage, handle.shape, handle.strides, shift, handle.dtype), num_bytes


def span(handle: DeviceArray) -> int:
    """Bytes from the first element of an array to the end of its last one."""
    if 0 in handle.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(handle.shape, handle.strides, strict=True))
    return (last + 1) * handle.dtype.itemsize
