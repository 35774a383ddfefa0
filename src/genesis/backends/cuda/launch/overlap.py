"""Kernels that come up while the one before them still runs: programmatic dependent launch, on Hopper and later.

Between two kernels that depend on each other a GPU stands still for a microsecond or two; a network's step has a
thousand of them. A kernel with a constexpr parameter PDL calls _follow(PDL), or _follow_and_hold or _begin, before it
reads or writes memory. Launchers do not give that parameter: it is True where the driver launches the kernel before the
one ahead of it has ended.
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


@triton.jit
def _follow_and_hold(PDL: tl.constexpr):
    """Wait as _follow() does; the next kernel comes up at _let_next_begin(), or when this one ends.

    After kernels that leave no room beside them, what came up earlier would be packed onto the few multiprocessors that
    are done first.
    """
    if PDL:
        gdc_wait()


@triton.jit
def _let_next_begin(PDL: tl.constexpr):
    """Let the next kernel come up once all programs have called this: where little is left to do."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _begin(is_beside, PDL: tl.constexpr):
    """Wait as _follow() does, but not for a launch before that computes another part of the same result.

    What came before that one has ended when this one begins. Such a kernel calls _end() last of all.
    """
    if PDL:
        if is_beside == 0:
            gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _end(is_beside, PDL: tl.constexpr):
    """Wait until the launch that this one ran beside has ended: whoever comes next waits for this one alone."""
    if PDL:  # noqa: SIM102  (the first is decided when it is compiled)
        if is_beside != 0:
            gdc_wait()


@triton.jit
def _barrier_kernel(PDL: tl.constexpr):
    """Do nothing, after all that was launched before; the next kernel comes up when this one ends: see barrier.py."""
    _follow_and_hold(PDL)
