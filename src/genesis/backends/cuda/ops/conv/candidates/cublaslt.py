"""cuBLASLt's algorithms as candidates, where a convolution is a product of matrices as they lie in memory.

That is a 1×1 convolution of one group, without stride and padding. Of NHWC activations each pixel is a row: the forward
is (pixels, C) @ (C, K), the input's gradient (pixels, K) @ (K, C), the weight's gradient (K, pixels) @ (pixels, C).
Bias, residual and ReLU are added to the sums before those are rounded and written.

A weight's gradient is also tried as many products, each of a part of the pixels, whose float32 results are added up.
With many pixels and few channels, that is ahead of the library's own way to split a product.

Not where all bits of float32 count: there it has nothing on tensor cores, and sums that are further off than the tuner
takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cublaslt
from genesis.backends.cuda.driver.cublaslt import Gemm, Product
from genesis.backends.cuda.engine.candidate import FULL, TF32, Candidate, Family, Launch
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_NUM_ASKED = 8  # asked for more, it gave no more
_NUM_ASKED_IN_PARTS = 3
_PARTS = "parts"  # in names
_TILES = (64, 128)  # sides of tiles that would fill all multiprocessors
_LEAST_PIXELS = 128  # of a part
_MOST_BYTES = 32 << 20  # of parts


class CublasltFamily(Family[ConvProblem]):
    prefix = "cublaslt"
    per_turn = 4  # they need no compiler

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return _distinct(map(Cublaslt, _asked(_gemm(problem), _NUM_ASKED))) if _is_supported(problem) else []

    def trials(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return [*self.variants(problem), *self._in_parts(problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        choice = self._in_parts if name.startswith(f"{self.prefix}/{_PARTS} ") else self.variants
        return next((candidate for candidate in choice(problem) if candidate.name == name), None)

    def _in_parts(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        if problem.direction != WEIGHT_GRAD or not _is_supported(problem):
            return []
        products = (_asked(_part(problem, number), _NUM_ASKED_IN_PARTS) for number in _numbers_of_parts(problem))
        return _distinct(map(CublasltInParts, itertools.chain.from_iterable(products)))


def _asked(gemm: Gemm, most: int) -> list[Product]:
    try:
        return cublaslt.products(gemm, most)
    except KernelError:  # a layout that the library refuses
        return []


def _distinct(candidates: Iterable[Candidate[ConvProblem]]) -> list[Candidate[ConvProblem]]:
    """The first of each name."""
    by_name: dict[str, Candidate[ConvProblem]] = {}
    for candidate in candidates:
        by_name.setdefault(candidate.name, candidate)
    return list(by_name.values())


class Cublaslt(Candidate[ConvProblem]):
    """One algorithm for one problem, as in "algorithm 66 tile 418 stages 36 cluster 3 splits 1"."""

    is_ready_made = True

    def __init__(self, product: Product) -> None:
        self._product = product
        self.name = f"{CublasltFamily.prefix}/{product.name}"
        self.arithmetic = TF32 if product.gemm.dtype is dtypes.float32 else FULL

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def workspace(self, problem: ConvProblem) -> int:
        return self._product.workspace

    def prepare(self, problem: ConvProblem) -> Launch:
        return self._product.runner()


class CublasltInParts(Candidate[ConvProblem]):
    """One algorithm for a weight's gradient in so many parts, and a kernel that adds them up."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self.name = f"{CublasltFamily.prefix}/{_PARTS} {product.gemm.num_matrices} {product.name}"
        self.arithmetic = TF32 if product.gemm.dtype is dtypes.float32 else FULL

    def supports(self, problem: ConvProblem) -> bool:
        return problem.direction == WEIGHT_GRAD and _is_supported(problem)

    def workspace(self, problem: ConvProblem) -> int:
        return self._sums(problem) + self._product.workspace

    def prepare(self, problem: ConvProblem) -> Launch:
        product, num_bytes = self._product.runner(), self._sums(problem)
        finish = finisher(problem, self._product.gemm.num_matrices)

        def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
            product(stream, workspace, grad, x, 0, 0, workspace + num_bytes)
            finish(stream, out, workspace, 0, 0)

        return run

    def _sums(self, problem: ConvProblem) -> int:
        """Bytes of the parts, rounded up to a multiple of 256."""
        return -(-self._product.gemm.num_matrices * numel(problem.weight_shape) * 4 // 256) * 256


def _is_supported(problem: ConvProblem) -> bool:
    """Rows begin at multiples of 16 bytes: other ones are left to the library's old kernels, some of which round the
    sum before they add a bias or residual, and once more after it."""
    p = problem
    shapes = (p.first_shape, p.second_shape, p.result_shape)
    return (
        (p.is_rounded or p.dtype in (dtypes.float16, dtypes.bfloat16))
        and p.is_flat
        and p.groups == 1
        and p.alignment == 16
        and all(channels * p.dtype.itemsize % 16 == 0 for channels in p.weight_shape[:2])
        and all(0 < numel(shape) < 2**31 for shape in shapes)
        and cublaslt.is_available()
    )


def _gemm(problem: ConvProblem) -> Gemm:
    p = problem
    pixels, (outputs, inputs, *_) = p.input_shape[0] * math.prod(p.input_shape[2:]), p.weight_shape
    if p.direction == FORWARD:
        sizes, strides = (pixels, outputs, inputs), ((inputs, 1), (1, inputs))
    elif p.direction == INPUT_GRAD:
        sizes, strides = (pixels, inputs, outputs), ((outputs, 1), (inputs, 1))
    else:
        sizes, strides = (outputs, inputs, pixels), ((1, outputs), (inputs, 1))
    return Gemm(
        p.device, p.dtype, *sizes, *strides, has_bias=p.bias, has_residual=p.residual, relu=p.activation == "relu",
        alignment=p.alignment, precision="high" if p.dtype is dtypes.float32 else "highest",
    )  # fmt: skip


def _part(problem: ConvProblem, number: int) -> Gemm:
    """The products of so many parts of a weight's gradient's pixels."""
    outputs, inputs = problem.weight_shape[:2]
    whole = _gemm(problem)
    pixels = whole.terms // number
    return whole._replace(
        terms=pixels,
        num_matrices=number,
        x_batch_stride=pixels * outputs,
        y_batch_stride=pixels * inputs,
        has_sums=True,
    )


def _numbers_of_parts(problem: ConvProblem) -> list[int]:
    """Numbers that divide the pixels, so that parts of a tile each fill all multiprocessors."""
    outputs, inputs = problem.weight_shape[:2]
    pixels = problem.num_terms
    most = min(pixels // _LEAST_PIXELS, _MOST_BYTES // (4 * outputs * inputs))
    processors = driver.get().properties(problem.device).multiprocessor_count
    possible = [n for n in range(2, min(most, processors) + 1) if pixels % n == 0]
    wanted = {processors / (-(-outputs // side) * -(-inputs // side)) for side in _TILES}
    wanted |= {min(wanted) / 2}
    return sorted({min(possible, key=lambda n: abs(math.log(n / each))) for each in wanted}) if possible else []
