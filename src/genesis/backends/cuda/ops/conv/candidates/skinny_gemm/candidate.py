"""1×1 convolutions of few pixels: forward (forward.cu), input gradient and weight gradient (gradient.cu).

Those of squeeze-and-excite layers and classifiers. They are bound by latency, not by bandwidth: so all multiprocessors
take part, loads are in flight together, and many threads share a sum, which they add up within their block.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, admissible
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.shape import Tile, Work, num_pixels, promising, rounded
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_MOST_PIXELS, _MOST_ELEMENTS = 4096, 1 << 28  # of the problem; of an operand

# Of guesses, as benchmarks/bench_few_pixels.py measured on an H100.
_FEW_PIXELS, _FEW_FLOPS, _FEW_FLOPS_WEIGHT_GRAD = 256, 3 * 10**7, 10**7
_FEW_PIXELS_EXACT, _FEW_FLOPS_EXACT = 1024, 2 * 10**8  # where all bits of float32 count
_FEW_WEIGHTS = 1 << 19  # of whose gradient: to write more takes longer than to compute it


class SkinnyGemmFamily(Family[ConvProblem]):
    prefix = "skinny_gemm"

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        return self.trials(problem) if _is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not _supports(problem):
            return ()
        found = [each for each in map(SkinnyGemm, _promising(rounded(problem))) if admissible(each, problem)]
        return sorted(found, key=lambda each: Work(problem, each.tile).seconds)

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = Tile.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else SkinnyGemm(tile)


class SkinnyGemm(Candidate[ConvProblem]):
    """One tile of the kernels."""

    arithmetic = FULL

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"{SkinnyGemmFamily.prefix}/{tile}"

    def supports(self, problem: ConvProblem) -> bool:
        if not _supports(problem):
            return False
        return all(Work(each, self.tile).is_possible() for each in (problem, rounded(problem)))

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return PLAIN

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        name = "skinny_gemm_forward" if problem.direction == FORWARD else "skinny_gemm_gradient"
        return name, Work(rounded(problem), self.tile).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        p, work = problem, Work(problem, self.tile)
        name, macros = self.program(p)
        ready = programs.prepare(
            p.device, name, macros, work.grid, self.tile.num_threads, work.shared_memory, 5, num_pixels=num_pixels(p)
        )

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, second, out, bias, residual)

        return run


@functools.lru_cache(maxsize=1024)
def _promising(problem: ConvProblem) -> list[Tile]:
    return promising(problem)


driver.forget_on_switch(_promising.cache_clear)


def _is_best_guess(problem: ConvProblem) -> bool:
    """Are the pixels and products so few that all other kernels are behind?"""
    is_weight_grad = problem.direction == WEIGHT_GRAD
    if problem.is_exact:
        pixels, flops = _FEW_PIXELS_EXACT, _FEW_FLOPS_EXACT
    else:
        pixels, flops = _FEW_PIXELS, _FEW_FLOPS_WEIGHT_GRAD if is_weight_grad else _FEW_FLOPS
    is_small = num_pixels(problem) <= pixels and problem.flops <= flops
    return is_small and not (is_weight_grad and numel(problem.weight_shape) > _FEW_WEIGHTS)


def _supports(problem: ConvProblem) -> bool:
    p = problem
    return (
        p.is_flat
        and p.groups == 1
        and p.dtype in programs.DTYPES
        and 0 < num_pixels(p) <= _MOST_PIXELS
        and all(0 < numel(each) <= _MOST_ELEMENTS for each in (p.input_shape, p.weight_shape, p.output_shape))
        and p.alignment >= p.dtype.itemsize
        and not p.statistics
        and programs.is_available(p.device)
    )
