"""Products of fully connected layers and their gradients, by the kernels of 1×1 convolutions.

A layer's rows are pixels there, its inputs channels: each of its three products is one direction of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.shapes import Shape


class ConvolutionFamily(Family[MatmulProblem]):
    """A family of convolutions' candidates, as products."""

    def __init__(self, inner: Family[ConvProblem], guessed_from: int, tried_from: int = 0) -> None:
        """guessed_from, tried_from: multiply-adds times two from which a candidate is worth its compilation."""
        self._inner, self.prefix, self.per_turn = inner, inner.prefix, inner.per_turn
        self._guessed_from, self._tried_from = guessed_from, tried_from

    def variants(self, problem: MatmulProblem) -> Sequence[Candidate[MatmulProblem]]:
        conv = convolution(problem)
        if conv is None or problem.flops < self._guessed_from:
            return ()
        return _products(conv, self._inner.variants(conv))

    def trials(self, problem: MatmulProblem) -> Sequence[Candidate[MatmulProblem]]:
        conv = convolution(problem)
        if conv is None or problem.flops < self._tried_from:
            return ()
        return _products(conv, self._inner.trials(conv))

    def named(self, problem: MatmulProblem, name: str) -> Candidate[MatmulProblem] | None:
        conv = convolution(problem)
        candidate = None if conv is None else self._inner.named(conv, name)
        return None if conv is None or candidate is None else AsProduct(conv, candidate)


class AsProduct(Candidate[MatmulProblem]):
    """A convolution's candidate, as a product."""

    def __init__(self, conv: ConvProblem, inner: Candidate[ConvProblem]) -> None:
        self._conv, self._inner, self.name = conv, inner, inner.name
        self.arithmetic, self.deterministic = inner.arithmetic, inner.deterministic
        self.builds_slowly, self.is_ready_made = inner.builds_slowly, inner.is_ready_made

    def supports(self, problem: MatmulProblem) -> bool:
        return self._inner.supports(self._conv)

    def workspace(self, problem: MatmulProblem) -> int:
        return self._inner.workspace(self._conv)

    def prepare(self, problem: MatmulProblem) -> Launch:
        return self._inner.prepare(self._conv)


def _products(conv: ConvProblem, candidates: Iterable[Candidate[ConvProblem]]) -> list[Candidate[MatmulProblem]]:
    return [AsProduct(conv, candidate) for candidate in candidates]


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
