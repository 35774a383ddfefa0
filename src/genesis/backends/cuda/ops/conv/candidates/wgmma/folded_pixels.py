"""The weight's gradient of a plain product with uneven or few channels: pixels side by side as channels.

    grad (P, K)ᵀ · input (P, C) = the sum of the f blocks (K, C) on the diagonal of grad (P/f, f·K)ᵀ · input (P/f, f·C)

In NHWC both are the same memory. With f · K and f · C channels, pixels begin where the copy engine can load them, and
there are fewer steps; the products beside the diagonal are computed for nothing, where memory is what takes the time.
"""

from __future__ import annotations

import dataclasses

from genesis.backends.cuda.engine.candidate import Candidate, Launch
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.candidates.wgmma.weight_grad import WgmmaWeightGrad, weight_grads
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem

_FOLDS = (2, 4, 8)
_MOST_CHANNELS = 2048  # of a folded pixel


def fold(problem: ConvProblem, pixels: int) -> ConvProblem | None:
    """The problem with so many pixels side by side; None: it is no plain product, or they don't come out even.

    Example:
        >>> thin = ConvProblem("weight_grad", (64, 48, 56, 56), (12, 48, 1, 1), dtype=genesis.bfloat16)
        >>> fold(thin, 2).input_shape, fold(thin, 2).weight_shape
        ((1, 96, 1, 100352), (24, 96, 1, 1))
    """
    p = problem
    outputs, inputs = (pixels * channels for channels in p.weight_shape[:2])
    is_product = p.direction == WEIGHT_GRAD and p.is_flat and p.groups == 1 and p.num_terms % pixels == 0
    if not is_product or max(outputs, inputs) > _MOST_CHANNELS:
        return None
    return dataclasses.replace(
        p, input_shape=(1, inputs, 1, p.num_terms // pixels), weight_shape=(outputs, inputs, 1, 1)
    )


def folded_weight_grads(prefix: str, problem: ConvProblem) -> list[FoldedPixels]:
    """The candidates with the least fold that the kernels support, the best guess first."""
    for pixels in _FOLDS:
        folded = fold(problem, pixels)
        found = [] if folded is None else weight_grads(prefix, folded)
        if found:
            return [FoldedPixels(inner, pixels) for inner in found if inner.num_sums > 1]
    return []


class FoldedPixels(Candidate[ConvProblem]):
    """The kernel for the folded problem; adding up its sums leaves out what is beside the diagonal."""

    def __init__(self, inner: WgmmaWeightGrad, pixels: int) -> None:
        self._inner, self._pixels = inner, pixels
        self.shape, self.num_sums, self.arithmetic = inner.shape, inner.num_sums * pixels, inner.arithmetic
        self.name = f"{inner.name} pixels {pixels}"

    def supports(self, problem: ConvProblem) -> bool:
        folded = fold(problem, self._pixels)
        return folded is not None and self._inner.supports(folded)

    def estimate(self, problem: ConvProblem) -> float:
        return self._inner.estimate(self._folded(problem))

    def workspace(self, problem: ConvProblem) -> int:
        return self._inner.workspace(self._folded(problem))

    def prepare(self, problem: ConvProblem) -> Launch:
        launch = self._inner.prepare_sums(self._folded(problem))
        finish = finisher(problem, self._inner.num_sums, fold=self._pixels)

        def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
            launch(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run

    def _folded(self, problem: ConvProblem) -> ConvProblem:
        found = fold(problem, self._pixels)
        assert found is not None
        return found
