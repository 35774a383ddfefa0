"""Streams and events, as in torch.cuda.

A stream is a queue of work that a device does in order. Each thread has a current stream per device, at first the
default one, which PyTorch's work goes to as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from genesis.autograd.modes import unrecordable
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import streams
from genesis.cuda.device import DeviceLike, index_of
from genesis.cuda.device import device as device_context
from genesis.errors import describe
from genesis.ndarray import Device

_ORDERS = "puts streams or events in order"
_ASKS = "waits for a stream or event, or asks for its state"


class Stream(streams.Stream):
    """A stream: a queue of work that a device runs in order.

    Work launched inside `with genesis.cuda.stream(s)` goes to s. Streams are not synchronized with each other unless
    asked to: call `s.wait_stream(other)` before s reads what other computes.

    Args:
        device: the current one by default.
        priority: lower numbers run first: −1 before 0.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     side, x = genesis.cuda.Stream(), genesis.ones(2, device="cuda")
        ...     side.wait_stream(genesis.cuda.current_stream())
        ...     with genesis.cuda.stream(side):
        ...         y = x * 2
        ...     event = side.record_event()
        ...     genesis.cuda.current_stream().wait_event(event)
        ...     side.synchronize()
        ...     y.tolist(), side.query(), side.device, side.cuda_stream != 0
        ([2.0, 2.0], True, device(type='cuda', index=0), True)
    """

    def __init__(self, device: DeviceLike = None, priority: int = 0) -> None:
        super().__init__(index_of("Stream", device), priority)

    @property
    def device(self) -> Device:
        """The device whose queue it is."""
        return Device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle, as other libraries take it; 0 is the default stream."""
        return self.handle

    def query(self) -> bool:
        """Whether all work on the stream is done."""
        unrecordable(_ASKS)
        return super().record_event().query()

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        unrecordable(_ASKS)
        super().synchronize()

    def record_event(self, event: streams.Event | None = None) -> streams.Event:
        """Record an event at the present end of the stream.

        Args:
            event: the event to record; a new one if None.
        Returns: the event.
        """
        return super().record_event(Event() if event is None else event)

    def wait_event(self, event: streams.Event) -> None:
        """Let work launched on this stream from now on start after the event.

        Args:
            event: of any stream of the device, recorded.
        """
        event.wait(self)

    def __repr__(self) -> str:
        return f"<genesis.cuda.Stream device={self.device} cuda_stream={self.handle:#x}>"


class ExternalStream(Stream):
    """A stream that another library created, by its handle. Its owner keeps it alive.

    Args:
        stream_ptr: the driver's handle.
        device: the device it belongs to; the current one by default.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     theirs = genesis.cuda.Stream()
        ...     genesis.cuda.ExternalStream(theirs.cuda_stream).cuda_stream == theirs.cuda_stream
        True
    """

    def __init__(self, stream_ptr: int, device: DeviceLike = None) -> None:
        streams.Stream.__init__(self, index_of("ExternalStream", device), handle=stream_ptr)


class Event(streams.Event):
    """An event: a point in a stream's order. It belongs to the device of the stream on which it is first recorded.

    Args:
        enable_timing: record the time, for elapsed_time().
        blocking: accepted for compatibility with PyTorch; the driver decides how the host waits.
        interprocess: False; events are not shared between processes.
    Raises: ValueError: interprocess is set.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     start, end = genesis.cuda.Event(enable_timing=True), genesis.cuda.Event(enable_timing=True)
        ...     start.record()
        ...     x = genesis.ones(4, device="cuda") * 2
        ...     end.record()
        ...     end.wait()  # what the current stream is given from here on comes after it
        ...     end.synchronize()
        ...     start.elapsed_time(end) >= 0, end.query()
        (True, True)
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.handle = None  # until it is recorded
        if interprocess:
            raise ValueError(describe("Event", "interprocess", "False", interprocess))
        self._enable_timing = enable_timing
        self._driver = driver.get()

    def record(self, stream: streams.Stream | None = None) -> None:
        """Record the event at the present end of a stream.

        Args:
            stream: the current one of the current device by default.
        """
        unrecordable(_ORDERS)
        stream = current_stream() if stream is None else stream
        if self.handle is None:
            super().__init__(stream.device_index, self._enable_timing)
        super().record(stream)

    def wait(self, stream: streams.Stream | None = None) -> None:
        """Let work launched from now on on a stream start after this event.

        Args:
            stream: the current one by default.
        """
        unrecordable(_ORDERS)
        if self.handle is not None:
            super().wait(current_stream() if stream is None else stream)

    def query(self) -> bool:
        """Whether all work before the event is done; True if it was never recorded."""
        unrecordable(_ASKS)
        return self.handle is None or super().query()

    def synchronize(self) -> None:
        """Wait until all work before the event is done."""
        unrecordable(_ASKS)
        if self.handle is not None:
            super().synchronize()

    def elapsed_time(self, end_event: streams.Event) -> float:
        """Milliseconds from this event to another; both have enable_timing, are recorded and done.

        Args:
            end_event: the later one.
        Raises: ValueError: an event lacks enable_timing, or was not recorded.
        """
        for name, event in (("self", self), ("end_event", end_event)):
            if event.handle is None or not getattr(event, "_enable_timing", True):
                raise ValueError(describe("elapsed_time", name, "an event with enable_timing that was recorded", event))
        return super().elapsed_time(end_event)

    def __repr__(self) -> str:
        state = "not recorded" if self.handle is None else f"on cuda:{self.device_index}"
        return f"<genesis.cuda.Event {state}{', timing' if self._enable_timing else ''}>"


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream to which this thread launches work on a device.

    Args:
        device: as in `genesis.cuda.get_device_properties`.
    Returns: the stream; the default one outside of genesis.cuda.stream().

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"), genesis.cuda.stream(genesis.cuda.Stream()):
        ...     genesis.cuda.current_stream() == genesis.cuda.default_stream()
        False
    """
    found = streams.current(index_of("current_stream", device))
    return found if isinstance(found, Stream) else ExternalStream(found.handle, found.device_index)


def default_stream(device: DeviceLike = None) -> Stream:
    """The default stream of a device, which is also PyTorch's. See `genesis.cuda.current_stream`."""
    return ExternalStream(0, index_of("default_stream", device))


@contextmanager
def stream(stream: Stream | None) -> Iterator[Stream | None]:
    """Launch on this stream, and make its device the current one, inside a with block; None changes nothing.

    Args:
        stream: of any device, or None.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     side = genesis.cuda.Stream()
        ...     with genesis.cuda.stream(side):
        ...         x = genesis.ones(3, device="cuda")
        ...     genesis.cuda.current_stream().wait_stream(side)
        ...     (x * 2).tolist()
        [2.0, 2.0, 2.0]
    """
    if stream is None:
        yield None
        return
    unrecordable(_ORDERS)
    with device_context(stream.device_index), streams.use(stream):
        yield stream
