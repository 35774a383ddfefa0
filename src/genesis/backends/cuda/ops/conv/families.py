"""The families of candidates, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, Family, admissible
from genesis.backends.cuda.engine.passes import PassFamily
from genesis.backends.cuda.ops.conv.candidates.cublaslt import CublasltFamily
from genesis.backends.cuda.ops.conv.candidates.cudnn import CudnnFamily
from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import DepthwiseFamily
from genesis.backends.cuda.ops.conv.candidates.depthwise.toeplitz import ToeplitzFamily
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.candidate import FlatGemmFamily
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.warpgroups import WarpgroupsFamily
from genesis.backends.cuda.ops.conv.candidates.folded import FoldedFamily, fold
from genesis.backends.cuda.ops.conv.candidates.grouped import shape as grouped_shapes
from genesis.backends.cuda.ops.conv.candidates.grouped.candidate import GroupedFamily
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm import shape as plain_shapes
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.padded.candidate import PaddedFamily
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import PatchFamily
from genesis.backends.cuda.ops.conv.candidates.patch.fma_forward import PatchFmaForward
from genesis.backends.cuda.ops.conv.candidates.patch.fma_weight_grad import PatchFmaWeightGrad
from genesis.backends.cuda.ops.conv.candidates.patch.forward import PatchForward
from genesis.backends.cuda.ops.conv.candidates.patch.weight_grad import PatchWeightGrad
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.candidates.small_c.candidate import SmallCFamily
from genesis.backends.cuda.ops.conv.candidates.small_c_dgrad.candidate import SmallCDgradFamily
from genesis.backends.cuda.ops.conv.candidates.small_k.candidate import SmallKFamily
from genesis.backends.cuda.ops.conv.candidates.stem.candidate import StemFamily
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.candidate import SubPixelDgradFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.halo_tile import HaloTileFamily
from genesis.backends.cuda.ops.conv.candidates.with_epilogue_pass import EpiloguePass
from genesis.backends.cuda.ops.conv.candidates.with_residual_pass import ResidualPass
from genesis.backends.cuda.ops.conv.candidates.with_statistics_pass import StatisticsPass
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem

_LEAST_INSIDE = 0.76  # of the rows that taps meet: the others are padding
_ONE_STEP = 32  # terms that a tensor core's product of 16-bit types takes at a time
_LIBRARIES = (CublasltFamily.prefix, CudnnFamily.prefix)
_STATISTICS_PASS, _RESIDUAL_PASS, _EPILOGUE_PASS = StatisticsPass(), ResidualPass(), EpiloguePass()
_FALLBACK, _FIRST_LAYER = ImplicitGemmFamily(), SmallCFamily()
_HALO_TILE, _STEM = HaloTileFamily(), StemFamily()
_DEPTHWISE, _TOEPLITZ, _GROUPED, _WGMMA = DepthwiseFamily(), ToeplitzFamily(), GroupedFamily(), WgmmaFamily()
_PATCHES = map(PatchFamily, (PatchForward, PatchWeightGrad, PatchFmaForward, PatchFmaWeightGrad))
_PADDED_WGMMA = PaddedFamily(_WGMMA)
_PADDED = (*map(PaddedFamily, (CublasltFamily(), CudnnFamily())), _PADDED_WGMMA, PaddedFamily(_HALO_TILE))
_PADDED_LIBRARIES = tuple(family.prefix for family in _PADDED[:2])
FAMILIES: tuple[Family[ConvProblem], ...] = (
    _TOEPLITZ, _DEPTHWISE, SkinnyGemmFamily(), WarpgroupsFamily(), FlatGemmFamily(), SmallKFamily(), _HALO_TILE, _STEM,
    SmallCDgradFamily(), SubPixelDgradFamily(), *_PATCHES, *_PADDED, CublasltFamily(), CudnnFamily(), _FIRST_LAYER,
    _WGMMA, _FALLBACK, _GROUPED,
)  # fmt: skip
_FIRST_LIBRARY = next(i for i, family in enumerate(FAMILIES) if family.prefix in _LIBRARIES)
_FIRST_PADDED = FAMILIES.index(_PADDED[0])
_BEFORE = (*FAMILIES[:_FIRST_PADDED], _PADDED_WGMMA, *FAMILIES[_FIRST_PADDED:_FIRST_LIBRARY], _WGMMA)
_WGMMA_BEFORE_LIBRARIES = tuple(dict.fromkeys((*_BEFORE, *FAMILIES)))  # each once


def in_order(problem: ConvProblem) -> Sequence[Family[ConvProblem]]:
    """Candidates for this problem: those that take its taps as channels first, where that can be.

    A window that is the whole image is a matrix product; as a convolution, of its input's gradient's products all but
    one in so many taps are with padding.
    """
    folded = fold(problem)
    if folded is None:
        return _with_passes(problem)
    return [*map(FoldedFamily, _with_passes(folded)), *_with_passes(problem)]


def _with_passes(problem: ConvProblem) -> Sequence[Family[ConvProblem]]:
    """Candidates for this problem, the passes appended for what they do not fuse.

    Statistics come by a pass of their own until it is measured that they should not, but for the kernels to which they
    are next to nothing.

    A forward's sum and ReLU are fused, and where that is measured compared with a pass after a library's plain kernel:
    their fused ones may be far behind. Genesis' own kernels do both at next to no cost.

    What is added to an input's gradient is added by a pass of its own where a family's kernels don't do it, or only
    such of a library's as it must compile first.

    cuBLASLt comes before all that compute the same: of the products in benchmarks/results/bench_conv.md, in 16 bits
    and rounded float32, a library wins all but one. Weight gradients in 16 bits that are no plain products, of several
    taps or with a stride, are Hopper's kernels' first: most of cuDNN's first plans are behind them; and in rounded
    float32 all of them, as libraries' first plans are level with them at best. So is, in 16 bits, what is dilated so
    far that many rows of taps meet padding, which Hopper's kernels leave out.

    The libraries come last
    - where all bits of float32 count. They have nothing on tensor cores for that, and their sums are chains of
      multiply-adds: of more than 280 terms they are further off than 3e-7, or not, depending on how a plan shares them
      out. The tuner checks that, a guess can't;
    - in the forward of a first layer in bfloat16, where cuDNN's engines take twice as long as ours. Of those for first
      layers, the one for 3×3 taps of an image is the plain one: its 27 terms are one step, and need no copies;
    - in 16 bits, where they would copy channels first that are no multiples of 8, unless there is one tap;
    - where the device is done before the next call comes: theirs cost the host more than a launch of ours.

    Copies with zeros behind odd channels come before what would gather those, where the weight is large.

    The kernels for groups come after all others, but first where the others are far behind them. In the weight's
    gradient, Hopper's come before them, unless most of their tiles, of 64 channels of one group, are empty.
    """
    if problem.statistics:
        appended = [PassFamily(_STATISTICS_PASS, family) for family in _with_passes(_STATISTICS_PASS.without(problem))]
        nearly_free = [family for family in FAMILIES if family in (_DEPTHWISE, _HALO_TILE, _STEM)]
        return [*nearly_free, *appended, *(family for family in _with_statistics() if family not in nearly_free)]
    if _RESIDUAL_PASS.is_wanted(problem):
        families = _with_passes(_RESIDUAL_PASS.without(problem))
        return [each for family in families for each in (PassFamily(_RESIDUAL_PASS, family), family)]
    if _EPILOGUE_PASS.is_wanted(problem):
        plain = _in_order(_EPILOGUE_PASS.without(problem))
        libraries = [family for family in plain if family.prefix in _LIBRARIES]
        return [*_in_order(problem), *(PassFamily(_EPILOGUE_PASS, family) for family in libraries)]
    return _in_order(problem)


def _in_order(problem: ConvProblem) -> Sequence[Family[ConvProblem]]:
    """All families, the libraries and the kernels for groups where _with_passes() says."""
    exact, is_gathered = problem.is_exact, problem.dtype.itemsize == 2 and not problem.is_flat
    is_hoppers = problem.direction == WEIGHT_GRAD and (problem.groups == 1 or exact or _fills_tiles(problem))
    if grouped_shapes.is_best_guess(problem):
        first = (_WGMMA, _GROUPED) if is_hoppers else (_GROUPED,)
        return [*first, *(family for family in FAMILIES if family not in first)]
    is_hoppers = is_hoppers and (problem.is_rounded or is_gathered or problem.groups > 1)
    families = _WGMMA_BEFORE_LIBRARIES if is_hoppers or _meets_padding(problem) else FAMILIES
    first_layer = (
        problem.dtype is dtypes.bfloat16
        and problem.direction == FORWARD
        and any(True for _ in _FIRST_LAYER.variants(problem))
    )
    waits_for_the_host = problem.flops < 10**8 and problem.bytes < 2**20
    if not (exact or first_layer or waits_for_the_host or plain_shapes.is_best_guess(problem)):
        return families
    is_short = problem.dtype.itemsize == 2 and math.prod(problem.weight_shape[1:]) <= _ONE_STEP
    last = (*_LIBRARIES, *(_PADDED_LIBRARIES if exact or waits_for_the_host else ()))
    return sorted(families, key=lambda each: (each.prefix in last, is_short and each is _FIRST_LAYER))


def _fills_tiles(problem: ConvProblem) -> bool:
    """Do a group's channels fill enough of a tile of Hopper's weight gradient, which has 64 of them?

    Of three taps in a row it loads the pixels once.
    """
    return min(grouped_shapes.channels(problem)) >= (24 if problem.weight_shape[3] <= 3 else 32)


def _meets_padding(problem: ConvProblem) -> bool:
    """Do rows of taps lie in padding so often that a kernel which leaves them out is ahead of a library's?

    As in DeepLabV3's head: with a dilation of 24 for 64 rows, a quarter of all products.
    """
    p = problem
    if p.direction == WEIGHT_GRAD or p.dtype.itemsize != 2 or p.groups > 1 or p.dilation[0] == 1:
        return False
    rows, taps = p.input_shape[2], p.weight_shape[2]
    starts = [i * p.stride[0] - p.padding[0] for i in range(p.output_shape[2])]
    inside = sum(0 <= start + tap * p.dilation[0] < rows for start in starts for tap in range(taps))
    return inside <= _LEAST_INSIDE * len(starts) * taps


def _with_statistics() -> list[Family[ConvProblem]]:
    return [family for family in FAMILIES if family.finds_statistics]


def gives_statistics(problem: ConvProblem) -> bool:
    """Is there a candidate that finds the statistics while it computes the result?"""
    return any(admissible(each, problem) for family in _with_statistics() for each in family.variants(problem))


def reference(problem: ConvProblem) -> Candidate[ConvProblem]:
    """The reference that others are compared with."""
    return _FALLBACK.general(problem)
