"""CUDA graphs: capturing what is launched, and launching it again without Python."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import CaptureMode, ExecutableGraph, KernelError
from genesis.backends.cuda.driver.current import current_handle
from genesis.backends.cuda.runtime import array, capturing, faults, fills, graph_pool, memory, streams
from genesis.backends.cuda.runtime.capturing import Capture
from genesis.backends.cuda.runtime.graph_pool import GraphMemory, PoolHandle
from genesis.callsite import user_line
from genesis.errors import CaptureError


class Graph:
    """Launches that were captured on a stream, ready to be launched again."""

    def __init__(self) -> None:
        self._capture: Capture | None = None
        self._executable: ExecutableGraph | None = None
        self._memory: GraphMemory | None = None
        self._own_memory: GraphMemory | None = None  # see apart()
        self._driver: driver.Driver | None = None  # of the capture; another one may be in force when the graph goes
        self._device, self._stream = 0, 0
        self._replayed_on: int | None = None  # the stream of the latest replay
        self._lock = threading.Lock()  # of replays: what precedes a launch belongs to it

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing() or self._memory is None:
            return
        if self._is_capturing:
            self.abandon()
        else:
            self.reset()

    @property
    def _is_capturing(self) -> bool:
        return self._capture is not None and not self._capture.is_over

    @property
    def handle(self) -> PoolHandle:
        """The name of its memory. Raises: CaptureError: nothing was captured."""
        if self._memory is None:
            raise CaptureError("pool: expected a graph that has been captured")
        return self._memory.handle

    def begin(
        self, stream: streams.Stream, handle: PoolHandle | None, mode: CaptureMode, on_end: Callable[[], None]
    ) -> None:
        """Capture what is launched on the stream until end() or abandon().

        Args:
            on_end: called once when the capture is over, however it ended.
        Raises: CaptureError: it holds a capture; the stream is the default one, or is being captured.
        """
        if self._memory is not None:
            raise CaptureError(f"{user_line()}: graph: expected a graph that holds no capture; reset() it first")
        if stream.handle == 0:
            raise CaptureError(f"{user_line()}: graph: the default stream cannot be captured: choose another stream")
        if stream.handle in capturing.underway:
            raise CaptureError(f"{user_line()}: graph: the stream is already being captured")
        taken = graph_pool.acquire(handle)
        try:
            taken.begin()
        except BaseException:
            graph_pool.release(taken)
            raise
        capture = Capture(mode, lambda device, joining: _redirect(device, joining, taken), on_end, outside)
        capture.forget = functools.partial(_forget, weakref.ref(self))
        try:
            with capturing.lock:
                self._driver = driver.get()
                self._driver.begin_capture(stream.device_index, stream.handle, mode)
                capturing.underway[stream.handle] = capture
        except BaseException:
            taken.end()
            graph_pool.release(taken)
            raise
        self._memory, self._device, self._stream, self._capture = taken, stream.device_index, stream.handle, capture
        capture.join(self._device, self._stream)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, what this capture allocates lies apart from the memory that it shares with other graphs.

        For results that must outlive replays of graphs that were captured before.
        """
        self._require_capture()
        assert self._memory is not None
        if self._own_memory is None:
            self._own_memory = graph_pool.acquire(None)
            self._own_memory.begin()
        _redirect(self._device, self._stream, self._own_memory)
        try:
            yield
        finally:
            _redirect(self._device, self._stream, self._memory)

    def end(self) -> None:
        """Make the graph of what was captured. Raises: CaptureError, OutOfMemoryError: there is none, nor memory."""
        self._require_capture()
        try:
            captured = self._end_capture()
            with self._unrestricted():  # others may be capturing
                fills.replace_memsets(captured, self._device)
                self._executable = captured.instantiate()
            if not captured.num_nodes:
                warnings.warn("graph: nothing was captured: was it launched on other streams?", stacklevel=4)
        except KernelError as error:
            self.reset()
            raise CaptureError(f"{user_line()}: graph: {error}") from error
        except BaseException:
            self.reset()
            raise

    def abandon(self) -> None:
        """End the capture, and forget it."""
        self._require_capture()
        try:
            self._end_capture().destroy()
        except KernelError:  # it was broken before
            pass
        finally:
            self.reset()

    def _require_capture(self) -> None:
        capture = self._capture
        if capture is None or capture.is_over:
            raise CaptureError(f"{user_line()}: capture_end: expected a capture to be underway")
        if capture.mode != "relaxed" and capture.thread != threading.get_ident():
            raise CaptureError(f"{user_line()}: capture_end: expected the thread in which the capture began")

    def _end_capture(self) -> driver.CapturedGraph:
        capture, taken = self._capture, self._memory
        assert capture is not None
        assert taken is not None
        assert self._driver is not None
        try:
            return self._driver.end_capture(self._device, self._stream)
        finally:
            capture.leave()
            for stream, device in capture.streams.items():
                _redirect(device, stream, None)
            taken.end()
            if self._own_memory is not None:
                self._own_memory.end()

    def _unrestricted(self) -> AbstractContextManager[None]:
        assert self._driver is not None
        return self._driver.unrestricted()

    def replay(self) -> None:
        """Launch all of it on the current stream. Raises: CaptureError: nothing was captured."""
        executable, capture, device = self._executable, self._capture, self._device
        if executable is None or capture is None:
            raise CaptureError("replay: expected a graph that has been captured")
        if capturing.underway:
            capturing.refuse(device, "launches a graph", "replay it outside of the capture")
        with self._lock:
            stream = current_handle(device)
            if capture.before_replay:
                if self._replayed_on != stream:
                    self._wait_for_latest(stream)
                for prepare in capture.before_replay:
                    prepare(stream)
            self._replayed_on = stream
            executable.launch(stream)
            for note in capture.after_replay:
                note(stream)
        faults.check(device)

    def _wait_for_latest(self, stream: int) -> None:
        """Replays of a graph follow each other, on whatever streams; what is done before one must do so too."""
        latest = self._replayed_on
        if latest is not None and latest not in capturing.underway:
            event = streams.Stream(self._device, handle=latest).record_event()
            event.wait(streams.Stream(self._device, handle=stream))

    def reset(self) -> None:
        """Forget what was captured, and give its memory back. Raises: CaptureError: the capture goes on."""
        if self._is_capturing:
            raise CaptureError(f"{user_line()}: reset: expected the capture to have ended")
        capture, executable, taken, own = self._capture, self._executable, self._memory, self._own_memory
        self._executable = self._capture = self._memory = self._own_memory = self._replayed_on = None
        if executable is not None:
            with self._unrestricted():
                executable.destroy()
        if taken is not None:
            graph_pool.release(taken)  # waits for replays
        if own is not None:
            graph_pool.release(own)
        del capture  # and what it keeps for them


def _forget(graph: weakref.ref[Graph]) -> None:
    present = graph()
    if present is not None:
        present.reset()


def _redirect(device: int, stream: int, taken: GraphMemory | None) -> None:
    """Let allocations on the stream come from a graph's memory from now on; None: no longer."""
    memory.pool(device).redirect(stream, None if taken is None else taken.on(device))
    array.forget_shelves()


@contextmanager
def outside(device: int) -> Iterator[None]:
    """Run what is launched inside the block now, even within a capture; it has been done when the block ends.

    For what depends on nothing that is captured, such as tables; keep() what the graph reads of it. Its memory is not
    another library's: PyTorch's CUDA graphs would take what stays in theirs for a leak.
    """
    with memory.LentBy(None):
        if capturing.here(device) is None:
            yield
            return
        side = streams.Stream(device)
        with driver.get().unrestricted(), streams.use(side):
            yield
            driver.get().synchronize_stream(device, side.handle)


def captured(stream: streams.Stream, work: Callable[[int], None]) -> driver.CapturedGraph:
    """A graph of what work(handle of the stream) launches there; it allocates nothing.

    Whatever happens, the stream is not being captured afterwards.

    Raises: KernelError, CaptureError: no graph can hold it.
    """
    here, device, handle = driver.get(), stream.device_index, stream.handle
    # Relaxed: others may load kernels and allocate meanwhile. And it is known, lest a finalizer waits for the device.
    capture = Capture("relaxed", _nothing, _nothing, outside)
    with capturing.lock:
        try:
            here.begin_capture(device, handle, capture.mode)
            capture.join(device, handle)
            work(handle)
            return here.end_capture(device, handle)
        finally:
            if here.is_capturing(device, handle):
                with suppress(KernelError):  # what broke it has been raised already
                    here.end_capture(device, handle).destroy()
            capture.leave()


def _nothing(*_: object) -> None:
    pass
