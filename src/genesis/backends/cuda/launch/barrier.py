"""Other libraries' kernels that come up while the one before still runs, and read something before they wait for it.

The engine that cuDNN 9.19 compiles for a fused convolution reads bias and residual so, on Hopper. After kernels that
let the next one come up early (overlap.py), it would read what memory held before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.overlap import can_overlap
from genesis.backends.cuda.launch.overlap import _barrier_kernel
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.runtime import capturing, streams
from genesis.backends.cuda.runtime.capture import captured
from genesis.errors import CaptureError

Rest = ParamSpec("Rest")
Launch = Callable[Concatenate[int, Rest], None]  # on a stream


def behind_all(launch: Launch[Rest], device: int, *args: Rest.args, **kwargs: Rest.kwargs) -> Launch[Rest]:
    """The same launch, whose kernels come up only when all that was launched before has ended.

    Whatever GENESIS_OVERLAP says now: what is launched before it may have been prepared under another setting.

    Args:
        args, kwargs: such as it is called with. It is captured with them, not run, to see if it needs a barrier.
    """
    if not can_overlap(driver.get().properties(device).compute_capability):
        return launch
    if not _may_overlap(lambda stream: launch(stream, *args, **kwargs), device):
        return launch
    wait = prepare_raw(_barrier_kernel, device, (1,), (), num_warps=1)

    def run(stream: int, /, *args: Rest.args, **kwargs: Rest.kwargs) -> None:
        wait(stream)
        launch(stream, *args, **kwargs)

    return run


def _may_overlap(launch: Callable[[int], None], device: int) -> bool:
    """Does one of its kernels come up while the one before runs? True as well where that cannot be found out."""
    if capturing.by_anybody(device):
        return True

    def launch_twice(stream: int) -> None:  # the first kernel of a graph has none before it
        launch(stream)
        launch(stream)

    try:
        graph = captured(streams.Stream(device), launch_twice)
    except (KernelError, CaptureError):
        return True
    try:
        return graph.overlaps()
    finally:
        graph.destroy()
