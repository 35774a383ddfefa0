"""Depthwise convolution in CUDA C++: forward and input gradient (gather.cu), weight gradient (weight_grad.cu).

It is bound by memory. So a thread keeps the sums of a tile of results, or of the taps, in registers, and loads the
channels of a pixel once for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, Parts, admissible
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.depthwise.shape import Shape, Work, promising
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_NUM_SHAPES = 16  # worth trying
_MOST_TAPS = 256  # they are unrolled


class DepthwiseFamily(Family[ConvProblem]):
    prefix = "depthwise"
    per_turn = 3  # they come before what takes several times as long
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not supports(problem):
            return ()
        return [each for each in map(Depthwise, _promising(problem)) if admissible(each, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        shape = Shape.named(name.removeprefix(f"{self.prefix}/"))
        return None if shape is None else Depthwise(shape)


class Depthwise(Candidate[ConvProblem]):
    """One shape of the kernels."""

    arithmetic = FULL

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.name = f"{DepthwiseFamily.prefix}/{shape}"

    def supports(self, problem: ConvProblem) -> bool:
        return supports(problem) and Work(problem, self.shape).is_possible()

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        if problem.direction == FORWARD and Work(problem, self.shape).has_whole_tiles:
            return PLAIN | {"statistics"}
        return PLAIN

    def parts(self, problem: ConvProblem) -> Parts:
        """One of each block: as many pixels as Parts says, if not the same."""
        work = Work(problem, self.shape)
        return Parts(work.parts, self.shape.rows * self.shape.columns * work.workers * work.iterations)

    def workspace(self, problem: ConvProblem) -> int:
        if problem.statistics:
            return self.parts(problem).num_bytes(problem.result_shape[1])
        if problem.direction == WEIGHT_GRAD:
            return Work(problem, self.shape).parts * numel(problem.weight_shape) * 4
        return 0

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        name = "depthwise_weight_grad" if problem.direction == WEIGHT_GRAD else "depthwise"
        return name, Work(problem, self.shape).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        work = Work(problem, self.shape)
        num_addresses = 3 if problem.direction == WEIGHT_GRAD else 6
        name, macros = self.program(problem)
        ready = programs.prepare(
            problem.device, name, macros, work.grid, work.num_threads, work.shared_memory, num_addresses,
            **work.geometry,
        )  # fmt: skip
        if problem.direction == WEIGHT_GRAD:
            finish = finisher(problem, work.parts)

            def run_weight_grad(stream: int, out: int, grad: int, x: int, _: int, __: int, workspace: int) -> None:
                ready(stream, grad, x, workspace)
                finish(stream, out, workspace, 0, 0)

            return run_weight_grad

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias, residual, workspace)

        return run


def supports(problem: ConvProblem) -> bool:
    """Is there a shape for it?"""
    p = problem
    return (
        p.is_depthwise
        and p.dtype in programs.DTYPES
        and numel(p.weight_shape[2:]) <= _MOST_TAPS
        and all(0 < numel(shape) < 2**31 for shape in (p.input_shape, p.weight_shape, p.output_shape))
        and programs.is_available(p.device)
    )


@functools.lru_cache(maxsize=1024)
def _promising(problem: ConvProblem) -> list[Shape]:
    return promising(problem, _NUM_SHAPES)


driver.forget_on_switch(_promising.cache_clear)
