"""Memsets in CUDA graphs, as kernels: a graph goes from kernel to kernel faster than by way of a memset.

cuDNN clears a few bytes before many of its kernels. That costs most in a graph with branches, such as NCCL's calls.
"""

from __future__ import annotations

import functools
from pathlib import Path

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.interface import CapturedGraph, Function
from genesis.backends.cuda.driver.overlap import overlaps
from genesis.errors import GenesisError

_SOURCE = Path(__file__).with_name("fill.cu")


def replace_memsets(captured: CapturedGraph, device: int) -> None:
    """Do so in a graph that has been captured on a GPU; leave it alone where CUDA C++ cannot be compiled."""
    capability = driver.get().properties(device).compute_capability
    captured.replace_memsets(functools.partial(_kernel, device), overlaps(capability))


@functools.cache  # a module stays on the device for good
def _kernel(device: int) -> Function | None:
    from genesis.backends.cuda.nvrtc.program import Program

    here = driver.gpu()
    program = Program("fill", _SOURCE.read_text(), _SOURCE.name, _SOURCE.parent)
    try:
        entry = program.compiled(f"sm_{here.properties(device).compute_capability}", ("fill",))
    except GenesisError:  # no NVRTC, or one that does not know this GPU
        return None
    return here.load_binary("fill", entry.cubin, 0, device)[1]
