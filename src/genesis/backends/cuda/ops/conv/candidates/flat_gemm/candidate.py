"""1×1 convolutions in 16 bits of channels so few that the weight stays on the chip: pixels stream past it once.

They are bound by memory, which is accessed alike for all channels: pixels are copied as one piece, also where they
begin at odd addresses, as those of a head with 21 classes do. The copy engine takes no such rows, and the libraries
take them two or four bytes at a time. A block's sums of a weight's gradient stay in registers: operands are read once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, admissible
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.shape import (
    Tile,
    has_odd_channels,
    is_product_in_16_bits,
    kind_of_work,
    num_pixels,
)
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_MOST_WEIGHTS, _MOST_CHANNELS = 1 << 16, 512
_FEW_WEIGHTS = 1 << 14  # of the guess
_FEW_WEIGHTS_IN_VECTORS = 1 << 13  # where the copy engine and the libraries take the rows, too
_LEAST_PIXELS = 1 << 7  # of fewer, warps would have none
_MANY_PIXELS = 1 << 12  # of the guess
_NUM_TILES, _NUM_TILES_IN_VECTORS = 10, 4  # worth trying: each is compiled for its channels


class FlatGemmFamily(Family[ConvProblem]):
    prefix = "flat_gemm"

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        return self.trials(problem) if _is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        has_vectors = not has_odd_channels(problem)
        is_large = has_vectors and numel(problem.weight_shape) > _FEW_WEIGHTS_IN_VECTORS
        if not _supports(problem) or num_pixels(problem) < _LEAST_PIXELS or is_large:
            return ()
        return [each for each in map(FlatGemm, _promising(problem)) if admissible(each, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = Tile.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else FlatGemm(tile)


class FlatGemm(Candidate[ConvProblem]):
    """One tile of the kernels."""

    arithmetic = FULL

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"{FlatGemmFamily.prefix}/{tile}"

    def supports(self, problem: ConvProblem) -> bool:
        return _supports(problem) and kind_of_work(problem)(problem, self.tile).is_possible()

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return frozenset({"bias", "activation"})

    def workspace(self, problem: ConvProblem) -> int:
        return kind_of_work(problem)(problem, self.tile).workspace

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        name = "flat_gemm_weight_grad" if problem.direction == WEIGHT_GRAD else "flat_gemm_forward"
        return name, kind_of_work(problem)(problem, self.tile).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        work, (name, macros) = kind_of_work(problem)(problem, self.tile), self.program(problem)
        num_addresses = 3 if problem.direction == WEIGHT_GRAD else 4
        ready = programs.prepare(
            problem.device, name, macros, work.grid, work.num_threads, work.shared_memory, num_addresses,
            num_pixels=work.num_pixels, iterations=work.iterations,
        )  # fmt: skip
        if problem.direction == WEIGHT_GRAD:
            finish = finisher(problem, work.grid)

            def run_weight_grad(stream: int, out: int, grad: int, x: int, _: int, __: int, workspace: int) -> None:
                ready(stream, grad, x, workspace)
                finish(stream, out, workspace, 0, 0)

            return run_weight_grad

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias)

        return run


@functools.lru_cache(maxsize=1024)
def _promising(problem: ConvProblem) -> list[Tile]:
    works = sorted(
        (work for work in kind_of_work(problem).of_all(problem) if work.is_possible()), key=lambda work: work.seconds
    )
    return [work.tile for work in works[: _NUM_TILES if has_odd_channels(problem) else _NUM_TILES_IN_VECTORS]]


driver.forget_on_switch(_promising.cache_clear)


def _is_best_guess(problem: ConvProblem) -> bool:
    """Do rows begin where neither the copy engine nor a library's kernels for tensor cores take them?"""
    is_small = numel(problem.weight_shape) <= _FEW_WEIGHTS and num_pixels(problem) >= _MANY_PIXELS
    return is_small and has_odd_channels(problem)


def _supports(problem: ConvProblem) -> bool:
    p = problem
    return (
        is_product_in_16_bits(p)
        and max(p.weight_shape) <= _MOST_CHANNELS
        and numel(p.weight_shape) <= _MOST_WEIGHTS
        and programs.is_available(p.device)
    )
