"""cuBLASLt's algorithms as candidates, where a convolution is a product of matrices as they lie in memory.

That is a 1×1 convolution of one group, without stride and padding. Of NHWC activations each pixel is a row: the forward
is (pixels, C) @ (C, K), the input's gradient (pixels, K) @ (K, C), the weight's gradient (K, pixels) @ (pixels, C).
Bias, residual and ReLU are added to the sums before those are rounded and written.

Not where all bits of float32 count: there it has nothing on tensor cores, and sums that are further off than the tuner
takes.
"""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.backends.cuda.driver import KernelError, cublaslt
from genesis.backends.cuda.driver.cublaslt import Gemm, Product
from genesis.backends.cuda.engine.candidate import FULL, TF32, Candidate, Family, Launch
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.shapes import numel

_NUM_ASKED = 8  # asked for more, it gave no more


class CublasltFamily(Family[ConvProblem]):
    prefix = "cublaslt"
    per_turn = 4  # they need no compiler

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        if not _is_supported(problem):
            return []
        try:
            found = cublaslt.products(_gemm(problem), _NUM_ASKED)
        except KernelError:  # a layout that it refuses
            return []
        by_name: dict[str, Candidate] = {}
        for candidate in map(Cublaslt, found):
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


def _is_supported(problem: ConvProblem) -> bool:
    """Rows begin at multiples of 16 bytes: other ones are left to the library's old kernels, some of which round the
    sum before they add a bias or residual, and once more after it."""
    p = problem
    rounded = p.dtype is dtypes.float32 and p.precision != "highest"
    shapes = (p.first_shape, p.second_shape, p.result_shape)
    return (
        (rounded or p.dtype in (dtypes.float16, dtypes.bfloat16))
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
