"""CUDA graphs as the layers above see them: which capture this thread is in, and memory that outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from genesis.backends.contract import Capture as Capture
from genesis.backends.contract import GraphCapture as GraphCapture
from genesis.ndarray.array import backend_of
from genesis.ndarray.array import replays as replays
from genesis.ndarray.device import Device
from genesis.ndarray.ndarray import NDArray

_DEFAULT_STREAM = 0


def capture_of(device: Device) -> GraphCapture | None:
    """The capture of a CUDA graph that takes in what this thread launches on a device; None: there is none."""
    if not replays.captures:
        return None
    found: GraphCapture | None = backend_of(device).capture(device.index)
    return found


@contextmanager
def outside(device: Device) -> Iterator[None]:
    """Run what the block launches, even in a capture: for memory that outlives the graph, and its first values."""
    capture = capture_of(device)
    if capture is None:
        yield
        return
    with capture.outside(device.index):
        yield


def lasting(array: NDArray) -> NDArray:
    """An array made outside of a capture, which is used in the order of another stream than that of its making."""
    if replays.captures:
        array.record_stream(_DEFAULT_STREAM)
    return array
