"""The statistics of a convolution's result by a pass over it."""

from __future__ import annotations

import dataclasses

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Launch, Parts
from genesis.backends.cuda.engine.passes import Pass
from genesis.backends.cuda.ops.conv import statistics
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.shapes import channels_last_strides


class StatisticsPass(Pass[ConvProblem]):
    name = "with_statistics_pass"
    is_last_resort = False
    hides_errors = False

    def is_wanted(self, problem: ConvProblem) -> bool:
        return problem.statistics

    def without(self, problem: ConvProblem) -> ConvProblem:
        return dataclasses.replace(problem, statistics=False)

    def parts(self, problem: ConvProblem) -> Parts:
        return statistics.Sums.over(_result(problem)).parts

    def num_bytes(self, problem: ConvProblem) -> int:
        return self.parts(problem).num_bytes(problem.result_shape[1])

    def prepare(self, problem: ConvProblem, compute: Launch) -> Launch:
        result, space = _result(problem), self.num_bytes(problem)
        sums = statistics.Sums.over(result)
        partial = layout_of((3, sums.number, result.shape[1]), dtypes.float32, problem.device)
        sum_up = statistics.statistics_pass(result, partial, sums)

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, residual, workspace + space)
            sum_up(stream, workspace, out)

        return run


def _result(problem: ConvProblem) -> Layout:
    shape = problem.result_shape
    return layout_of(shape, problem.dtype, problem.device, channels_last_strides(shape))
