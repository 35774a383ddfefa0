"""The kernels of patches as candidates: one for each tile, and a guess at its time says which are worth trying."""

from __future__ import annotations

import abc
import collections
import functools
from collections.abc import Iterable, Sequence

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, admissible
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch.work import AnyTile, AnyWork, ForwardWork, WeightGradWork
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem

_NUM_TILES, _OF_A_SIZE = 10, 4  # worth trying; with as many pixels


class PatchCandidate(Candidate[ConvProblem]):
    """One tile of a kernel."""

    arithmetic = FULL
    kernel: str  # its name, and the beginning of the candidates'
    tile_type: type[AnyTile]
    work_type: type[AnyWork]

    def __init__(self, tile: AnyTile) -> None:
        self.tile = tile
        self.name = f"{self.kernel}/{tile}"

    @classmethod
    @abc.abstractmethod
    def computes(cls, problem: ConvProblem) -> bool:
        """Does the kernel compute this problem, with whatever tile?"""

    @classmethod
    @abc.abstractmethod
    def is_best_guess(cls, problem: ConvProblem) -> bool:
        """Is the kernel ahead of all others?"""

    @classmethod
    @abc.abstractmethod
    def tiles(cls, problem: ConvProblem) -> Iterable[AnyTile]:
        """All tiles that might be worth trying."""

    @classmethod
    def chosen(cls, ranked: Sequence[AnyWork]) -> list[AnyTile]:
        """The tiles worth trying, of those that are possible, the most promising first."""
        return varied(ranked)

    def work(self, problem: ConvProblem) -> AnyWork:
        return self.work_type(problem, self.tile)

    def supports(self, problem: ConvProblem) -> bool:
        return self.computes(problem) and self.work(problem).is_possible()

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        return self.kernel, self.work(problem).macros


class ForwardCandidate(PatchCandidate):
    """A tile of the forward, or of the input's gradient."""

    work_type: type[ForwardWork]

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        return problem.direction != WEIGHT_GRAD and not problem.statistics

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return PLAIN

    def prepare(self, problem: ConvProblem) -> Launch:
        work, (name, macros) = self.work(problem), self.program(problem)
        ready = programs.prepare(
            problem.device, name, macros, work.grid, work.num_threads, work.shared_memory, 5, **work.geometry
        )

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias, residual)

        return run


class WeightGradCandidate(PatchCandidate):
    """A tile of the weight's gradient: a second kernel adds up the blocks' parts."""

    work_type: type[WeightGradWork]

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        return problem.direction == WEIGHT_GRAD

    def work(self, problem: ConvProblem) -> WeightGradWork:
        found = super().work(problem)
        assert isinstance(found, WeightGradWork)
        return found

    def workspace(self, problem: ConvProblem) -> int:
        return self.work(problem).workspace

    def prepare(self, problem: ConvProblem) -> Launch:
        work, (name, macros) = self.work(problem), self.program(problem)
        ready = programs.prepare(
            problem.device, name, macros, work.grid, work.num_threads, work.shared_memory, 3, **work.geometry
        )
        finish = finisher(problem, work.parts)

        def run(stream: int, out: int, grad: int, x: int, _: int, __: int, workspace: int) -> None:
            ready(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


class PatchFamily(Family[ConvProblem]):
    """The tiles of a kernel."""

    def __init__(self, candidate: type[PatchCandidate]) -> None:
        self._candidate, self.prefix = candidate, candidate.kernel

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        is_guess = self._candidate.computes(problem) and self._candidate.is_best_guess(problem)
        return self.trials(problem) if is_guess else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not self._candidate.computes(problem):
            return ()
        found = [self._candidate(tile) for tile in _promising(self._candidate, problem)]
        return [each for each in found if admissible(each, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = self._candidate.tile_type.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else self._candidate(tile)


@functools.lru_cache(maxsize=4096)
def _promising(candidate: type[PatchCandidate], problem: ConvProblem) -> list[AnyTile]:
    works = (candidate.work_type(problem, tile) for tile in candidate.tiles(problem))
    return candidate.chosen(sorted((work for work in works if work.is_possible()), key=lambda work: work.seconds))


driver.forget_on_switch(_promising.cache_clear)


def varied(ranked: Iterable[AnyWork], most: int = _NUM_TILES, *, by_grid: bool = True) -> list[AnyTile]:
    """The first of each launch, or without by_grid of each compiled kernel; and a few of as many pixels."""
    launches: set[object] = set()
    found: collections.Counter[int] = collections.Counter()
    tiles: list[AnyTile] = []
    for work in ranked:
        tile = work.tile
        pixels = tile.rows * tile.columns
        if found[pixels] == _OF_A_SIZE or (launch := (*work.macros.items(), by_grid and work.grid)) in launches:
            continue
        launches.add(launch)
        found[pixels] += 1
        tiles.append(tile)
        if len(tiles) == most:
            break
    return tiles
