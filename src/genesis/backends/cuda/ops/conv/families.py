"""The families of candidates, the most promising first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, Family, admissible
from genesis.backends.cuda.ops.conv.candidates.cublaslt import CublasltFamily
from genesis.backends.cuda.ops.conv.candidates.cudnn import CudnnFamily
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import DirectFamily
from genesis.backends.cuda.ops.conv.candidates.small_c.candidate import FewChannelsFamily
from genesis.backends.cuda.ops.conv.candidates.small_c_dgrad.candidate import FewInputsFamily
from genesis.backends.cuda.ops.conv.candidates.small_k.candidate import FewOutputsFamily
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.candidate import SubPixelFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.halo_tile import PatchFamily
from genesis.backends.cuda.ops.conv.candidates.with_residual_pass import AddedFamily, without_residual
from genesis.backends.cuda.ops.conv.candidates.with_statistics_pass import ApartFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem

_LIBRARIES = (CublasltFamily.prefix, CudnnFamily.prefix)
_MOST_SLOW = 6  # of a family; cuDNN's heuristics have the best among their first few
_FALLBACK, _FIRST_LAYER, _PATCH, _WGMMA = DirectFamily(), FewChannelsFamily(), PatchFamily(), WgmmaFamily()
FAMILIES: tuple[Family, ...] = (
    FewOutputsFamily(), _PATCH, FewInputsFamily(), SubPixelFamily(), CublasltFamily(), CudnnFamily(), _FIRST_LAYER,
    _WGMMA, _FALLBACK,
)  # fmt: skip
_WITH_STATISTICS: tuple[Family, ...] = (_FIRST_LAYER, _PATCH, _WGMMA)  # in the same pass


def candidates(problem: ConvProblem) -> Iterator[Candidate]:
    """All that compute the problem as it asks, the best guess first; there is always one."""
    for family in _in_order(problem):
        yield from _admissible(family.variants(problem), problem)


def in_turns(problem: ConvProblem) -> Iterator[Candidate]:
    """Those worth measuring: the first that the libraries suggest, which need no compiler, then of each family the best
    guess, and so on in turns; then the few slow ones, that take longer to build than all others together."""
    ordered = sorted(_in_order(problem), key=lambda family: -family.per_turn)
    choice = [(list(_admissible(family.trials(problem), problem)), family.per_turn) for family in ordered]
    yield from _alternating([(iter([each for each in mine if not each.builds_slowly]), most) for mine, most in choice])
    for mine, _ in choice:
        yield from [each for each in mine if each.builds_slowly][:_MOST_SLOW]


def _alternating(waiting: list[tuple[Iterator[Candidate], int]]) -> Iterator[Candidate]:
    """So many of each at a time."""
    while waiting:
        for variants in list(waiting):
            turn = list(itertools.islice(*variants))
            if not turn:
                waiting.remove(variants)
            yield from turn


def _admissible(choice: Iterable[Candidate], problem: ConvProblem) -> Iterator[Candidate]:
    return (candidate for candidate in choice if admissible(candidate, problem))


def _in_order(problem: ConvProblem) -> Sequence[Family]:
    """Statistics come by a pass of their own until it is measured that they should not, but for the kernel to which
    they are next to nothing.

    What is added to an input's gradient is added by a pass of its own where a family's kernels don't do it, or only
    such of a library's as it must compile first.

    cuBLASLt comes before all that compute the same: of the products in benchmarks/results/bench_conv.md, in 16 bits
    and rounded float32, a library wins all but one.

    The libraries come last
    - where all bits of float32 count. They have nothing on tensor cores for that, and their sums are chains of
      multiply-adds: of more than 280 terms they are further off than 3e-7, or not, depending on how a plan shares them
      out. The tuner checks that, a guess can't;
    - in the forward of a first layer in bfloat16, where cuDNN's engines take twice as long as ours;
    - where the device is done before the next call comes: theirs cost the host more than a launch of ours.
    """
    if problem.statistics:
        return sorted((_APART, *_WITH_STATISTICS), key=lambda family: family.prefix != PatchFamily.prefix)
    if problem.residual and problem.direction == INPUT_GRAD:
        families = _in_order(without_residual(problem))
        return [each for family in families for each in (AddedFamily(family), family)]
    exact = problem.dtype is dtypes.float32 and problem.precision == "highest"
    first_layer = (
        problem.dtype is dtypes.bfloat16
        and problem.direction == FORWARD
        and any(True for _ in _FIRST_LAYER.variants(problem))
    )
    waits_for_the_host = problem.flops < 10**8 and problem.bytes < 2**20
    if not (exact or first_layer or waits_for_the_host):
        return FAMILIES
    return sorted(FAMILIES, key=lambda family: family.prefix in _LIBRARIES)


def named(problem: ConvProblem, name: str) -> Candidate | None:
    """The candidate of that name, if it still is one for this problem."""
    for family in _in_order(problem):
        if name.startswith(f"{family.prefix}/"):
            candidate = family.named(problem, name)
            return candidate if candidate is not None and admissible(candidate, problem) else None
    return None


_APART = ApartFamily(candidates, in_turns, named)


def gives_statistics(problem: ConvProblem) -> bool:
    """Is there a candidate that finds the statistics while it computes the result?"""
    return any(True for family in _WITH_STATISTICS for _ in _admissible(family.variants(problem), problem))


def reference(problem: ConvProblem) -> Candidate:
    """What others are compared with."""
    return _FALLBACK.general(problem)
