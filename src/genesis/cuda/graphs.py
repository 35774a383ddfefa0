"""CUDA graphs, as in torch.cuda: what a block launches is captured once, and launched again without Python.

A captured block is not run: its tensors have their values after the first replay, which reads inputs where they lay
during the capture.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import get_args

from genesis.amp.casting import with_new_cache
from genesis.autograd.modes import Autocast, state
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import CaptureMode
from genesis.backends.cuda.runtime import capture, capturing, memory, streams
from genesis.backends.cuda.runtime.graph_pool import PoolHandle, new_handle
from genesis.cuda.device import index_of, is_available
from genesis.cuda.streams import Stream, current_stream
from genesis.cuda.streams import stream as stream_context
from genesis.errors import describe
from genesis.ndarray.array import replays


class Graph:
    """A CUDA graph: launches and copies that were captured once, and are replayed by one call.

    Capture with `genesis.cuda.graph`. The graph reads and writes the memory that was used during the capture: keep the
    tensors that it reads, copy new inputs into them, and read its results after replay(). Memory that was allocated
    during the capture belongs to the graph's own pool until reset(), or until the graph is deleted.

    Random numbers are drawn anew in each replay, as if its calls had been made then, and optimizers' options are read
    anew. Other Python numbers keep the values of the capture.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(3, device="cuda")
        ...     g = genesis.cuda.Graph()
        ...     with genesis.cuda.graph(g):
        ...         y = x * 2
        ...     _ = x.copy_(genesis.tensor([1.0, 2.0, 3.0]))
        ...     g.replay()
        ...     y.tolist()
        [2.0, 4.0, 6.0]
    """

    def __init__(self) -> None:
        self._graph = capture.Graph()
        self._stream: streams.Stream | None = None  # lives as long as the graph: its pool is in this stream's order

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: CaptureMode = "global") -> None:
        """Capture what is launched on the current stream until capture_end(). `genesis.cuda.graph` does both.

        Args:
            pool: as in genesis.cuda.graph.
            capture_error_mode: as in genesis.cuda.graph.
        Raises: CaptureError: the current stream is the default one or is being captured; the graph holds a capture.

        Example:
            >>> from genesis.settings import override
            >>> with override(cuda="simulated"), genesis.cuda.stream(genesis.cuda.Stream()):
            ...     g, x = genesis.cuda.Graph(), genesis.ones(2, device="cuda")
            ...     g.capture_begin()
            ...     y = x + 1
            ...     g.capture_end()
            ...     g.replay()
            ...     y.tolist()
            [2.0, 2.0]
        """
        handle = _handle_of("capture_begin", pool)
        if capture_error_mode not in get_args(CaptureMode):
            expected = "'global', 'thread_local' or 'relaxed'"
            raise ValueError(describe("capture_begin", "capture_error_mode", expected, repr(capture_error_mode)))
        stream, modes = current_stream(), _Modes()
        self._graph.begin(stream, handle, capture_error_mode, modes.leave)
        modes.enter()
        self._stream = stream

    def capture_end(self) -> None:
        """End the capture that capture_begin() began. See `genesis.cuda.Graph.capture_begin`.

        Raises: CaptureError: none is underway, or it was broken.
        """
        self._graph.end()

    def replay(self) -> None:
        """Launch all that was captured on the current stream.

        Raises: CaptureError: nothing was captured. IndexError: a replay that is done has met an index out of range.
        """
        self._graph.replay()
        replays.count += 1

    def reset(self) -> None:
        """Forget what was captured, and give its memory back once no tensor uses it.

        Example:
            >>> from genesis.settings import override
            >>> with override(cuda="simulated"):
            ...     g, x = genesis.cuda.Graph(), genesis.ones(2, device="cuda")
            ...     with genesis.cuda.graph(g):
            ...         _ = x.add_(1)
            ...     g.reset()
            ...     with genesis.cuda.graph(g):
            ...         _ = x.mul_(2)
            ...     g.replay()
            ...     x.tolist()
            [2.0, 2.0]
        """
        self._graph.reset()
        self._stream = None

    def pool(self) -> PoolHandle:
        """The graph's memory pool, for the capture of another graph. See `genesis.cuda.graph_pool_handle`.

        Returns: the name of the pool, for the argument pool of genesis.cuda.graph.
        Raises: CaptureError: nothing was captured.
        """
        return self._graph.handle


CUDAGraph = Graph


def apart(cuda_graph: Graph) -> AbstractContextManager[None]:
    """Inside the capture of a graph that shares a pool: memory that no other graph of the pool overwrites."""
    return cuda_graph._graph.apart()


class graph:  # noqa: N801  (PyTorch's name)
    """Capture what is launched inside a with block into a graph, without running it.

    Not everything can be captured: waiting for the device (`.item()`, `.cpu()`, `if tensor:`), copies from and to host
    memory that is not pinned, seeding. These raise a CaptureError with your line. An exception in the block ends the
    capture; the stream can be used as before. Run the block once before it is captured: kernels are built and chosen
    then.

    Args:
        cuda_graph: a genesis.cuda.Graph that holds no capture.
        pool: the memory of another graph, by its pool(), or a new one to share, by graph_pool_handle(); a pool of the
            graph's own by default. Graphs that share one must be replayed in the order of their captures, and not at
            the same time: a later one may overwrite results of an earlier one that nobody held during its capture.
        stream: captured inside the block; a side stream by default. Other streams take part if they wait for an event
            of it, and must be waited for before the block ends.
        capture_error_mode: what else breaks the capture: "global": waiting and allocating by any thread;
            "thread_local": by this one; "relaxed": nothing.
    Raises: CaptureError: the graph holds a capture; the stream is the default one or is being captured; a stream that
        took part was not waited for.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x, g = genesis.ones(3, device="cuda"), genesis.cuda.Graph()
        ...     with genesis.cuda.graph(g):
        ...         y = x * 2
        ...     g.replay()
        ...     y.tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(
        self,
        cuda_graph: Graph,
        pool: PoolHandle | None = None,
        stream: Stream | None = None,
        capture_error_mode: CaptureMode = "global",
    ) -> None:
        if not isinstance(cuda_graph, Graph):
            raise TypeError(describe("graph", "cuda_graph", "a genesis.cuda.Graph", type(cuda_graph).__name__))
        self.cuda_graph, self.pool, self.capture_error_mode = cuda_graph, pool, capture_error_mode
        self.capture_stream = _default_stream() if stream is None else stream
        self._stream_context = stream_context(self.capture_stream)

    def __enter__(self) -> None:
        memory.pool(self.capture_stream.device_index).empty_cache()  # nothing can be given back while it goes on
        self._stream_context.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._stream_context.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph._graph.abandon()
        finally:
            self._stream_context.__exit__(None, None, None)


class _Modes:
    """Modes of a thread that captures: its ops read weights where they lie, not what was made of them before."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._before: tuple[bool, Autocast | None] | None = None

    def enter(self) -> None:
        with _entering:
            replays.captures += 1
        self._before = state.folding, state.autocast
        state.folding, state.autocast = False, with_new_cache(state.autocast)

    def leave(self) -> None:
        if self._before is None:
            return
        with _entering:
            replays.captures -= 1
        if threading.get_ident() == self._thread:
            state.folding, state.autocast = self._before
        self._before = None


_entering = threading.Lock()


class _Defaults(threading.local):
    """The streams that this thread captures on: its graphs can share memory, which is in a stream's order."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, int], Stream] = {}  # by driver and device


_defaults = _Defaults()


def _default_stream() -> Stream:
    key = driver.get().name, index_of("graph", None)
    if key not in _defaults.streams:
        _defaults.streams[key] = Stream(key[1])
    return _defaults.streams[key]


def graph_pool_handle() -> PoolHandle:
    """A memory pool that several graphs can share, by their pool argument.

    Returns: a name for the pool, for the argument pool of genesis.cuda.graph.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     pool, x = genesis.cuda.graph_pool_handle(), genesis.ones(3, device="cuda")
        ...     first, second = genesis.cuda.Graph(), genesis.cuda.Graph()
        ...     with genesis.cuda.graph(first, pool=pool):
        ...         y = x + 1
        ...     with genesis.cuda.graph(second, pool=pool):
        ...         z = y * 2
        ...     first.replay()
        ...     second.replay()
        ...     z.tolist()
        [4.0, 4.0, 4.0]
    """
    return new_handle()


def is_current_stream_capturing() -> bool:
    """Whether what is launched on the current stream goes into a CUDA graph; False without CUDA.

    Example:
        >>> genesis.cuda.is_current_stream_capturing()
        False
    """
    return is_available() and capturing.has_begun(index_of("is_current_stream_capturing", None))


def _handle_of(op: str, pool: PoolHandle | None) -> PoolHandle | None:
    if pool is None or (isinstance(pool, tuple) and len(pool) == 2 and all(isinstance(part, int) for part in pool)):
        return pool
    raise TypeError(describe(op, "pool", "a graph's pool() or a graph_pool_handle()", type(pool).__name__))
