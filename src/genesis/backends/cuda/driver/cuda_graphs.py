"""CUDA graphs through cuda.bindings: stream capture, instantiation, launches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver import memset_nodes
from genesis.backends.cuda.driver.interface import CaptureMode, Function
from genesis.backends.cuda.driver.results import check
from genesis.errors import OutOfMemoryError

_SUCCESS = cu.CUresult.CUDA_SUCCESS
_MODES = {
    "global": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    "thread_local": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    "relaxed": cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
}
_PROGRAMMATIC = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
_AUTO_FREE = int(cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)


class Captures:
    """How many captures are underway, and beginning and ending one; the device's context is current."""

    def __init__(self) -> None:
        self.num_underway = 0
        self._lock = threading.Lock()

    def begin(self, stream: int, mode: CaptureMode) -> None:
        check(cu.cuStreamBeginCapture(cu.CUstream(stream), _MODES[mode]), "begin a capture")
        with self._lock:
            self.num_underway += 1

    def end(self, stream: int, activate: Callable[[], None]) -> Captured:
        with self._lock:
            self.num_underway -= 1
        graph = check(cu.cuStreamEndCapture(cu.CUstream(stream)), "end a capture")
        return Captured(graph, activate)


@contextmanager
def unrestricted() -> Iterator[None]:
    """Allow this thread inside the block what captures forbid: Genesis' and other libraries', which are not counted."""
    before = check(cu.cuThreadExchangeStreamCaptureMode(_MODES["relaxed"]), "relax the capture mode")
    try:
        yield
    finally:
        check(cu.cuThreadExchangeStreamCaptureMode(before), "restore the capture mode")


class Captured:
    """A graph that can be instantiated once."""

    def __init__(self, graph: cu.CUgraph, activate: Callable[[], None]) -> None:
        """activate: makes the device's context current."""
        self._graph, self._activate = graph, activate
        self.num_nodes = int(check(cu.cuGraphGetNodes(graph), "count a graph's nodes")[1])

    def replace_memsets(self, kernel: Callable[[], Function | None], overlaps: bool) -> None:
        self._activate()
        try:
            memset_nodes.replace(self._graph, kernel, overlaps)
        except BaseException:
            self.destroy()
            raise

    def overlaps(self) -> bool:
        what = "look at a graph's edges"
        count = check(cu.cuGraphGetEdges(self._graph), what)[3]
        edges = check(cu.cuGraphGetEdges(self._graph, count), what)[2] if count else []
        return any(edge.type == _PROGRAMMATIC for edge in edges)

    def instantiate(self) -> Executable:
        self._activate()
        try:
            result = cu.cuGraphInstantiate(self._graph, _AUTO_FREE)
        finally:
            self.destroy()
        if result[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemoryError(f"graph: out of memory for the {self.num_nodes} nodes that were captured")
        return Executable(check(result, "instantiate a graph"), self._activate)

    def destroy(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            check(cu.cuGraphDestroy(graph), "destroy a graph")


class Executable:
    """An instantiated graph."""

    def __init__(self, executable: cu.CUgraphExec, activate: Callable[[], None]) -> None:
        self._executable, self._activate = executable, activate
        self._streams: dict[int, cu.CUstream] = {}

    def launch(self, stream: int) -> None:
        self._activate()
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._streams[stream] = cu.CUstream(stream)
        (status,) = cu.cuGraphLaunch(self._executable, handle)
        if status != _SUCCESS:
            check((status,), "launch a graph")

    def destroy(self) -> None:
        executable, self._executable = self._executable, None
        if executable is not None:
            self._activate()
            check(cu.cuGraphExecDestroy(executable), "destroy a graph")
