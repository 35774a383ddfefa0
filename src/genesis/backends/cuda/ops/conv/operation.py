"""Convolution for the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from genesis import dtypes
from genesis.backends.cuda.engine import stored
from genesis.backends.cuda.engine.candidate import Family
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.ops.conv import accuracy, bench, families
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.plan import ConvPlan
from genesis.backends.cuda.ops.conv.problem import ConvProblem


class Conv(Operation[ConvProblem]):
    def families(self, problem: ConvProblem) -> Sequence[Family[ConvProblem]]:
        return families.in_order(problem)

    def plan(self, problem: ConvProblem) -> ConvPlan:
        return ConvPlan(self, problem)

    def problem(self, key: str, device: int) -> ConvProblem:
        return ConvProblem.from_key(key, device)

    def bench(self, problem: ConvProblem) -> ConvBench:
        return ConvBench(problem)

    def prepare_reference(self, problem: ConvProblem) -> None:
        bench.prepare_reference(problem)

    def rehearsals(self, problem: ConvProblem) -> Mapping[str, Callable[[], object]]:
        return bench.rehearsals(problem)

    def error_bound(self, problem: ConvProblem) -> float:
        """Bound of the distance from the reference, which in float64 is rounded as well."""
        return accuracy.error_bound(problem) * (math.sqrt(2) if problem.dtype is dtypes.float64 else 1)


CONV = Conv()
stored.register(CONV)
