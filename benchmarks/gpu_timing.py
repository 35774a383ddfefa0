"""Time on the device of short calls, PyTorch's and Genesis' on one stream: replays of a CUDA graph of N of them.

A graph shrinks the gaps between launches, so what is left is the kernels. Genesis launches on PyTorch's stream, and the
capture takes what is launched there. Nothing may allocate from the driver meanwhile: the calls run until the pools
serve them all.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from genesis.backends.cuda.runtime import memory, streams

Call = Callable[[], object]
_PASSES = 6  # until the pools serve all


def at_full_speed(tf32: bool) -> dict[str, object]:
    """Let PyTorch search cuDNN's algorithms, and compute float32 in TF32 or not; the GPU, as results name it."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}


@contextmanager
def shared_stream() -> Iterator[torch.cuda.Stream]:
    """PyTorch and Genesis launch on one stream, which can be captured (the default stream can't)."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), streams.use(streams.Stream(0, handle=stream.cuda_stream)):
        yield stream
        stream.synchronize()


@contextmanager
def many_captures() -> Iterator[None]:
    """A shared stream at full speed, without TF32; each capture collects garbage only of what is made from here on."""
    at_full_speed(tf32=False)
    gc.collect()
    gc.freeze()
    with shared_stream():
        yield


def captured(calls: Sequence[Call], num_launches: int) -> torch.cuda.CUDAGraph:
    """A graph of so many calls, one after the other, round and round; on the current stream, already warm."""
    sequence = [calls[i % len(calls)] for i in range(num_launches)]
    for _ in range(_PASSES):
        before = _driver_allocations()
        for call in sequence:
            call()
        if _driver_allocations() == before:
            break
    torch.cuda.synchronize()
    gc.collect()  # what a cycle holds would go back to the pool in the middle of the capture
    graph = torch.cuda.CUDAGraph()
    before = _driver_allocations()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*graph is empty.*")  # then the calls launched on another stream
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                for call in sequence:
                    call()
            finally:
                graph.capture_end()
    finally:
        gc.enable()
    if _driver_allocations() != before:
        raise RuntimeError("memory was taken from the driver during the capture: the graph would own it")
    return graph


def _driver_allocations() -> int:
    return memory.pool(0).statistics().num_driver_allocations


def milliseconds(call: Call, repeats: int = 3) -> float:
    """A first estimate: the least time of a call by events, launch gaps included."""
    best = float("inf")
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


def interleaved(
    sides: Mapping[str, Sequence[Call]], rounds: int, budget_ms: float = 2.0, most_launches: int = 20
) -> dict[str, list[float]]:
    """Milliseconds of one call of each side, round by round; sides take turns, beginning with another one each time.

    Args:
        sides: for each side the same call on several sets of data, so that a cache does not hold them all.
        budget_ms: about how long a replay should be.
    """
    for calls in sides.values():
        for call in calls:
            call()
    slowest = max(milliseconds(calls[0]) for calls in sides.values())
    num_launches = int(min(most_launches, max(1, budget_ms / max(slowest, 1e-3))))
    graphs = {name: captured(calls, num_launches) for name, calls in sides.items()}
    for graph in graphs.values():
        graph.replay()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / num_launches)
    return times
