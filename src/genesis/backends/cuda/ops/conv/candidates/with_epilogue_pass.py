"""Sum and ReLU after a forward convolution, by a separate pass over its result."""

from __future__ import annotations

import dataclasses

from genesis.backends.cuda.engine.candidate import Launch
from genesis.backends.cuda.engine.passes import Pass
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.ops.conv.kernels.epilogue import _epilogue_kernel
from genesis.backends.cuda.ops.conv.problem import FORWARD, ConvProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.shapes import numel

_BLOCK = 1024


class EpiloguePass(Pass[ConvProblem]):
    """A library's fused kernels may be far behind its plain ones: the tuner compares them with a plain one and a pass.

    In 16 bits of ReLU alone, which does not mind that the result has been rounded: all that add a bias or a residual do
    so before they round the sum, and nobody wants less. In float32 the second rounding is lost among those of the sum.
    """

    name = "with_epilogue_pass"
    is_last_resort = False
    hides_errors = True

    def is_wanted(self, problem: ConvProblem) -> bool:
        p = problem
        rounds_finely = p.dtype.itemsize >= 4
        return (
            p.direction == FORWARD
            and not p.statistics
            and (rounds_finely or not p.residual)
            and (p.activation is not None or p.residual)
        )

    def without(self, problem: ConvProblem) -> ConvProblem:
        bias = problem.bias and problem.dtype.itemsize < 4
        return dataclasses.replace(problem, bias=bias, residual=False, activation=None)

    def prepare(self, problem: ConvProblem, compute: Launch) -> Launch:
        p, operand = problem, Pointer(problem.dtype, problem.alignment)
        num_elements = numel(p.result_shape)
        finish = bind(
            _epilogue_kernel, p.device, (-(-num_elements // _BLOCK),), operand, operand, operand, num_elements,
            p.result_shape[1], BIAS=p.bias and not self.without(p).bias, RESIDUAL=p.residual,
            RELU=p.activation == "relu", COMPUTE=COMPUTE[p.dtype], BLOCK=_BLOCK,
        )  # fmt: skip

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, 0, workspace)
            finish(stream, out, bias, residual)

        return run
