"""CUDA graphs through cuda.bindings, seen without a GPU: which calls are made, and what their errors become."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.cuda_graphs import Captured, Captures, unrestricted
from genesis.errors import OutOfMemoryError

MODES = cu.CUstreamCaptureMode
NAMES = {
    "cuStreamBeginCapture": (),
    "cuStreamEndCapture": ("graph",),
    "cuGraphGetNodes": ([], 3),
    "cuGraphInstantiate": ("executable",),
    "cuGraphLaunch": (),
    "cuGraphDestroy": (),
    "cuGraphExecDestroy": (),
    "cuThreadExchangeStreamCaptureMode": (MODES.CU_STREAM_CAPTURE_MODE_GLOBAL,),
}


class Library:
    """Stands in for the driver's library: calls by name, and the errors that some of them are to give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.errors: dict[str, cu.CUresult] = {}
        for name, values in NAMES.items():
            monkeypatch.setattr(cu, name, self._stub(name, values))

    def _stub(self, name: str, values: tuple[Any, ...]) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            told = (int(each) if isinstance(each, cu.CUstream) else each for each in arguments)
            self.calls.append((name, *told))
            return self.errors.get(name, cu.CUresult.CUDA_SUCCESS), *values

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


def capture(captures: Captures) -> Captured:
    captures.begin(0x10, "thread_local")
    return captures.end(0x10, lambda: None)


def test_a_graph_from_capture_to_end(library: Library) -> None:
    captured = capture(Captures())
    assert captured.num_nodes == 3
    executable = captured.instantiate()
    executable.launch(0x20)
    executable.launch(0x20)
    executable.destroy()
    executable.destroy()
    captured.destroy()
    assert library.calls == [
        ("cuStreamBeginCapture", 0x10, MODES.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        ("cuStreamEndCapture", 0x10),
        ("cuGraphGetNodes", "graph"),
        ("cuGraphInstantiate", "graph", 1),
        ("cuGraphDestroy", "graph"),
        ("cuGraphLaunch", "executable", 0x20),
        ("cuGraphLaunch", "executable", 0x20),
        ("cuGraphExecDestroy", "executable"),
    ]


def test_what_is_forbidden_is_allowed_inside_a_block(library: Library) -> None:
    """Whoever's capture it is: those of other libraries are not counted."""
    with unrestricted():
        assert library.calls == [("cuThreadExchangeStreamCaptureMode", MODES.CU_STREAM_CAPTURE_MODE_RELAXED)]
    assert library.calls[1:] == [("cuThreadExchangeStreamCaptureMode", MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)]


@pytest.mark.parametrize("name", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch"])
def test_errors_say_what_was_done(library: Library, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (cu.CUresult.CUDA_SUCCESS, b"the reason"))
    library.errors[name] = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    captures = Captures()
    with pytest.raises(KernelError, match=r"(capture|graph): CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: the reason"):
        capture(captures).instantiate().launch(0)
    assert captures.num_underway == 0
    if name == "cuGraphInstantiate":
        assert library.calls[-1] == ("cuGraphDestroy", "graph")


def test_no_memory_for_the_nodes(library: Library) -> None:
    library.errors["cuGraphInstantiate"] = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError, match="graph: out of memory for the 3 nodes"):
        capture(Captures()).instantiate()
