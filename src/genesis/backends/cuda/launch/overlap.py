"""Kernels that come up while the one before them still runs: programmatic dependent launch, on Hopper and later.

Between two kernels that depend on each other a GPU stands still for a microsecond or two; a network's step has a
thousand of them. A kernel with a constexpr parameter PDL calls _follow(PDL) before it reads or writes memory. Launchers
do not give that parameter: it is True where the driver launches the kernel before the one ahead of it has ended.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _follow(PDL: tl.constexpr):
    """Wait until the kernels before have ended and their results are there; let the next kernel come up meanwhile."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
