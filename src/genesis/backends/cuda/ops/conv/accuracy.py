"""How exact a convolution's result is to be."""

from __future__ import annotations

from genesis import dtypes
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.backends.engine import accuracy
from genesis.shapes import numel


def error_bound(problem: ConvProblem) -> float:
    """The largest relative L2 distance from the exact result that a result may have on random operands.

    In float32 that is what a chain of float32 multiply-adds has, but not above 3e-7; in float64 a chain of float64's,
    with its spread; elsewhere the rounding of the result, or of the operands where that is coarser. What is added to
    an input's gradient may be added after that is rounded, as a pass does: of two parts as large as each other, one is
    then rounded twice.
    """
    if problem.is_exact:
        return min(3e-7, chain_error(problem))
    if problem.dtype is dtypes.float64:
        return chain_bound(problem)
    if problem.is_rounded:
        return accuracy.LOWERED[problem.precision]
    return accuracy.rounding(problem.dtype, 1.5 if problem.residual and problem.direction == INPUT_GRAD else 1)


def chain_error(problem: ConvProblem) -> float:
    """Error of one chain of multiply-adds per result, on average."""
    return accuracy.chain_error(problem.dtype, problem.num_terms)


def chain_bound(problem: ConvProblem) -> float:
    """The largest that such chains have."""
    return accuracy.chain_bound(problem.dtype, problem.num_terms, numel(problem.result_shape))
