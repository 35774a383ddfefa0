"""Products of few rows, of fully connected layers and their gradients, by the kernels of 1×1 convolutions.

A layer's rows are pixels there, its inputs channels: each of its three products is one direction of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.shapes import Shape

_LEAST_FLOPS = 1 << 15  # of a guess: a kernel is compiled for columns and terms
_OF_CONVOLUTIONS = SkinnyGemmFamily()


class SkinnyFamily(Family[MatmulProblem]):
    prefix = SkinnyGemmFamily.prefix

    def variants(self, problem: MatmulProblem) -> Sequence[Candidate[MatmulProblem]]:
        conv = convolution(problem)
        if conv is None or problem.flops < _LEAST_FLOPS:
            return ()
        return _products(conv, _OF_CONVOLUTIONS.variants(conv))

    def trials(self, problem: MatmulProblem) -> Sequence[Candidate[MatmulProblem]]:
        conv = convolution(problem)
        return () if conv is None else _products(conv, _OF_CONVOLUTIONS.trials(conv))

    def named(self, problem: MatmulProblem, name: str) -> Candidate[MatmulProblem] | None:
        conv = convolution(problem)
        candidate = None if conv is None else _OF_CONVOLUTIONS.named(conv, name)
        return None if conv is None or candidate is None else Skinny(conv, candidate)


class Skinny(Candidate[MatmulProblem]):
    """A convolution's candidate, as a product."""

    arithmetic = FULL

    def __init__(self, conv: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
        self._conv, self._candidate, self.name = conv, candidate, candidate.name

    def supports(self, problem: MatmulProblem) -> bool:
        return self._candidate.supports(self._conv)

    def prepare(self, problem: MatmulProblem) -> Launch:
        return self._candidate.prepare(self._conv)


def _products(conv: ConvProblem, candidates: Iterable[Candidate[ConvProblem]]) -> list[Candidate[MatmulProblem]]:
    return [Skinny(conv, candidate) for candidate in candidates]


def convolution(problem: MatmulProblem) -> ConvProblem | None:
    """The 1×1 convolution, or gradient of one, that the product is.

    Returns: None: it has several matrices, or they do not lie as a convolution's operands do.

    Example: a layer of 784 inputs and 512 outputs.
        >>> from genesis import dtypes
        >>> layouts = (784, 1), (1, 784), (1,), (0,), (0,)
        >>> product = MatmulProblem(0, dtypes.float32, 128, 512, 784, *layouts, True, 16, "highest")
        >>> str(convolution(product))
        'conv forward 128x784x1x1 * 512x1x1, float32, highest'
    """
    p = problem
    if p.num_matrices != 1:
        return None
    x, y = (p.rows, p.terms), (p.terms, p.columns)
    has_rows_of_x, has_rows_of_y = _is_dense(x, p.x_strides), _is_dense(y, p.y_strides)
    if has_rows_of_x and _is_dense(y[::-1], p.y_strides[::-1]):
        direction, pixels, outputs, channels = FORWARD, p.rows, p.columns, p.terms
    elif has_rows_of_x and has_rows_of_y:
        direction, pixels, outputs, channels = INPUT_GRAD, p.rows, p.terms, p.columns
    elif _is_dense(x[::-1], p.x_strides[::-1]) and has_rows_of_y and not p.has_bias:
        direction, pixels, outputs, channels = WEIGHT_GRAD, p.terms, p.rows, p.columns
    else:
        return None
    return ConvProblem(
        direction, (pixels, channels, 1, 1), (outputs, channels, 1, 1), dtype=p.dtype, bias=p.has_bias,
        alignment=p.alignment, precision=p.precision, deterministic=p.deterministic, device=p.device,
    )  # fmt: skip


def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Do rows lie one after the other?"""
    return all(size == 1 or stride == dense for size, stride, dense in zip(shape, strides, (shape[1], 1), strict=True))
