"""The statistics of a convolution's result by a pass over it: what any candidate can be followed by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, Parts
from genesis.backends.cuda.ops.conv import statistics as channel_sums
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime.array import Layout, layout_of
from genesis.shapes import channels_last_strides


class ApartFamily(Family):
    prefix = "apart"

    def __init__(
        self, candidates: Callable[[ConvProblem], Iterator[Candidate]],
        trials: Callable[[ConvProblem], Iterator[Candidate]],
        named: Callable[[ConvProblem, str], Candidate | None],
    ) -> None:  # fmt: skip
        """All of the problem without statistics."""
        self._candidates, self._trials, self._named = candidates, trials, named

    def variants(self, problem: ConvProblem) -> Iterator[Candidate]:
        return map(Apart, self._candidates(_alone(problem))) if problem.statistics else iter(())

    def trials(self, problem: ConvProblem) -> Iterator[Candidate]:
        return map(Apart, self._trials(_alone(problem))) if problem.statistics else iter(())

    def named(self, problem: ConvProblem, name: str) -> Candidate | None:
        first = self._named(_alone(problem), name.partition("/")[2])
        return None if first is None else Apart(first)


class Apart(Candidate):
    """One of the candidates for the convolution alone, and the pass."""

    def __init__(self, first: Candidate) -> None:
        self._first, self.name = first, f"{ApartFamily.prefix}/{first.name}"
        self.arithmetic, self.deterministic = first.arithmetic, first.deterministic
        self.builds_slowly = first.builds_slowly
        self.is_ready_made = first.is_ready_made  # the pass is compiled once for all problems

    def supports(self, problem: ConvProblem) -> bool:
        return problem.statistics and self._first.supports(_alone(problem))

    def parts(self, problem: ConvProblem) -> Parts:
        sums = channel_sums.Sums.over(_result(problem))
        return Parts(sums.number, sums.block_rows)

    def workspace(self, problem: ConvProblem) -> int:
        return self._num_bytes(problem) + self._first.workspace(_alone(problem))

    def _num_bytes(self, problem: ConvProblem) -> int:
        return self.parts(problem).num_bytes(problem.result_shape[1])

    def prepare(self, problem: ConvProblem) -> Launch:
        result, space = _result(problem), self._num_bytes(problem)
        sums = channel_sums.Sums.over(result)
        partial = layout_of((3, sums.number, result.shape[1]), dtypes.float32, problem.device)
        compute = self._first.prepare(_alone(problem))
        sum_up = channel_sums.statistics_pass(result, partial, sums)

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, residual, workspace + space)
            sum_up(stream, workspace, out)

        return run


def _alone(problem: ConvProblem) -> ConvProblem:
    return dataclasses.replace(problem, statistics=False)


def _result(problem: ConvProblem) -> Layout:
    shape = problem.result_shape
    return layout_of(shape, problem.dtype, problem.device, channels_last_strides(shape))
