"""Add a residual to an input's gradient, by a separate pass over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.engine.passes import Pass
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.ops.conv.kernels.epilogue import _add_kernel
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.dtypes import DType
from genesis.shapes import numel

_BLOCK = 1024


class ResidualPass(Pass[ConvProblem]):
    """Not of the forward: all that compute it add the residual before they round the sum, and nobody wants less."""

    name = "with_residual_pass"
    is_last_resort = True
    hides_errors = True

    def is_wanted(self, problem: ConvProblem) -> bool:
        return problem.residual and problem.direction == INPUT_GRAD

    def without(self, problem: ConvProblem) -> ConvProblem:
        return dataclasses.replace(problem, residual=False)

    def prepare(self, problem: ConvProblem, compute: Launch) -> Launch:
        add = adder(problem.device, problem.dtype, problem.alignment, numel(problem.result_shape))

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, 0, workspace)
            add(stream, out, residual)

        return run


def adder(device: int, dtype: DType, alignment: int, num_elements: int) -> Callable[[int, int, int], None]:
    """run(stream, out, addend): out += addend, so many elements, one after the other in memory."""
    operand, grid = Pointer(dtype, alignment), (-(-num_elements // _BLOCK),)
    return bind(_add_kernel, device, grid, operand, operand, num_elements, COMPUTE=COMPUTE[dtype], BLOCK=_BLOCK)
