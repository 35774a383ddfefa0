"""How a depthwise kernel shares out its work, and a guess at the time that takes.

A thread has `vector` neighbouring input channels and, one after the other, tiles of rows × columns results (of the
weight's gradient: of the gradient's pixels).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates.programs import DTYPES, MOST_SHARED
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem

_MOST_MULTIPLIER = 8  # outputs of an input channel that a thread has
_LANES = 32  # threads side by side over the channels, at most
_SUMS = 128  # of a weight's gradient in a thread, at most
_BLOCKS = {FORWARD: (8, 32), INPUT_GRAD: (8, 32), WEIGHT_GRAD: (2, 4)}  # for each multiprocessor
_TILES_OF_VECTOR = 4  # that are looked at closer
_MOST_REGISTERS = 300  # by the guess: some spills pay

# Of a large GPU, for the guess.
_CLOCK, _BYTES_PER_SECOND, _LATENCY = 1.6e9, 2.9e12, 9e-7
_REGISTERS, _THREADS = 65536, 2048  # of a multiprocessor
_BUSY = 0.8  # of the clocks in which an instruction could begin, one does


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a kernel is compiled, and launched."""

    vector: int
    rows: int  # of a tile
    columns: int
    ahead: int  # rows that are loaded before they are needed
    threads: int = 256  # of a block, at most
    blocks: int = 16  # of the grid, for each multiprocessor

    def __str__(self) -> str:
        return f"v{self.vector} {self.rows}x{self.columns} ahead {self.ahead} t{self.threads} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Shape | None:
        """The shape that is written so.

        >>> Shape.named(str(Shape(2, 4, 7, 1))) == Shape(2, 4, 7, 1)
        True
        """
        numbers = numbers_in(name, r"v(\d+) (\d+)x(\d+) ahead (\d+) t(\d+) b(\d+)", 1024)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work:
    """One problem with one shape."""

    problem: ConvProblem
    shape: Shape

    @cached_property
    def multiplier(self) -> int:
        """Outputs of an input channel that a thread has: a divisor of all that there are."""
        return next(n for n in range(_MOST_MULTIPLIER, 0, -1) if outputs_per_input(self.problem) % n == 0)

    @cached_property
    def splits(self) -> int:
        """Threads that share the outputs of an input channel; or rounds, if results are the input's gradient."""
        return outputs_per_input(self.problem) // self.multiplier

    @cached_property
    def outputs(self) -> int:
        """Output channels of a thread, in a round."""
        return self.shape.vector * self.multiplier

    @cached_property
    def num_groups(self) -> int:
        """Groups of channels, a thread's each."""
        p = self.problem
        return p.input_shape[1] // self.shape.vector if p.direction == INPUT_GRAD else p.weight_shape[0] // self.outputs

    @cached_property
    def weights(self) -> int:
        """Weight's channels of a thread."""
        return self.outputs * (self.splits if self.problem.direction == INPUT_GRAD else 1)

    @cached_property
    def lanes(self) -> int:
        """Lanes of a block, as many in each slice; slices begin at multiples of 32 bytes."""
        slices = -(-self.num_groups // max(1, min(_LANES, self._most_lanes)))
        lanes = -(-self.num_groups // slices)
        sector = max(1, 32 // (self.shape.vector * self.problem.dtype.itemsize))
        whole = -(-lanes // sector) * sector
        return whole if slices > 1 and whole <= min(_LANES, self._most_lanes) else lanes

    @property
    def _most_lanes(self) -> int:
        """The most that fit into shared memory with what they share; 0 if one lane does not."""
        if self.problem.direction == WEIGHT_GRAD:
            fixed = self.problem.weight_shape[3] * self.outputs * self.shape.threads * 4
            return (MOST_SHARED - fixed) // (self.outputs * self.tap_rows * self.problem.weight_shape[3] * 4)
        return MOST_SHARED // (math.prod(self.problem.weight_shape[2:]) * self.weights * 4)

    @cached_property
    def workers(self) -> int:
        return max(1, self.shape.threads // self.lanes)

    @cached_property
    def slices(self) -> int:
        return -(-self.num_groups // self.lanes)

    @cached_property
    def tap_rows(self) -> int:
        """Rows of taps of a thread, in the weight's gradient."""
        rows, columns = self.problem.weight_shape[2:]
        groups = -(-rows * columns * self.outputs // max(_SUMS, columns * self.outputs))
        return -(-rows // min(groups, rows))

    @property
    def tap_groups(self) -> int:
        return -(-self.problem.weight_shape[2] // self.tap_rows) if self.problem.direction == WEIGHT_GRAD else 1

    @cached_property
    def tiled(self) -> tuple[int, int, int]:
        """(images, height, width) of what the tiles cover."""
        p = self.problem
        images, _, height, width = p.input_shape if p.direction == INPUT_GRAD else p.output_shape
        return images, height, width

    @cached_property
    def strips(self) -> int:
        return -(-self.tiled[2] // self.shape.columns)

    @cached_property
    def bands(self) -> int:
        return -(-self.tiled[1] // self.shape.rows)

    @cached_property
    def num_units(self) -> int:
        return self.tiled[0] * self.bands * self.strips

    @cached_property
    def iterations(self) -> int:
        """Tiles of a thread."""
        processors = driver.get().properties(self.problem.device).multiprocessor_count
        parts = max(1, self.shape.blocks * processors // (self.slices * self.tap_groups))
        if self.problem.direction == WEIGHT_GRAD or self.problem.statistics:
            parts = min(parts, MOST_PARTS)
        return -(-self.num_units // (self.workers * parts))

    @cached_property
    def parts(self) -> int:
        """Blocks that have the same channels."""
        return -(-self.num_units // (self.workers * self.iterations))

    @property
    def grid(self) -> int:
        return self.parts * self.slices * self.tap_groups

    @property
    def num_threads(self) -> int:
        return self.lanes * self.workers

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        if self.problem.direction == WEIGHT_GRAD:
            columns = self.problem.weight_shape[3]
            return columns * self.outputs * (self.num_threads + self.tap_rows * self.lanes) * 4
        merged = (3 * self.outputs + 1) * self.num_threads if self.problem.statistics else 0
        return max(math.prod(self.problem.weight_shape[2:]) * self.lanes * self.weights, merged) * 4

    def is_possible(self) -> bool:
        p, shape = self.problem, self.shape
        width = shape.vector * p.dtype.itemsize
        is_whole = p.input_shape[1] % shape.vector == 0 and (shape.vector == 1 or self.splits == 1)
        strides = p.stride if p.direction == INPUT_GRAD else (1, 1)
        return (
            is_whole
            and self._most_lanes > 0
            and self.shared_memory <= MOST_SHARED
            and p.alignment >= min(16, width & -width)
            and shape.rows % strides[0] == shape.columns % strides[1] == 0
        )

    @property
    def has_whole_tiles(self) -> bool:
        return self.tiled[1] % self.shape.rows == 0 and self.tiled[2] % self.shape.columns == 0

    @property
    def macros(self) -> dict[str, int]:
        p, shape = self.problem, self.shape
        macros = {
            "DTYPE": DTYPES.index(p.dtype), "VECTOR": shape.vector, "MULTIPLIER": self.multiplier,
            "SPLITS": self.splits, "TILE_Y": shape.rows, "TILE_X": shape.columns, "AHEAD": shape.ahead,
            "THREADS": shape.threads, "TAPS_Y": p.weight_shape[2], "TAPS_X": p.weight_shape[3],
            "CHANNELS": p.first_shape[1], "OUT_CHANNELS": p.result_shape[1],
        }  # fmt: skip
        for name, pair in (("STRIDE", p.stride), ("DILATION", p.dilation), ("PADDING", p.padding)):
            macros[f"{name}_Y"], macros[f"{name}_X"] = pair
        if p.direction == WEIGHT_GRAD:
            its = {"TAPS_Y": self.tap_rows, "KERNEL_Y": p.weight_shape[2]}
            return {**macros, **its, "CHANNELS": p.input_shape[1], "OUT_CHANNELS": p.weight_shape[0]}
        epilogue = {"BIAS": p.bias, "RESIDUAL": p.residual, "RELU": p.activation == "relu", "STATISTICS": p.statistics}
        return {**macros, "INPUT_GRAD": int(p.direction == INPUT_GRAD), **{k: int(v) for k, v in epilogue.items()}}

    @property
    def geometry(self) -> dict[str, int]:
        p = self.problem
        read = p.input_shape if p.direction == WEIGHT_GRAD else p.first_shape
        geometry = {
            "lanes": self.lanes, "workers": self.workers, "slices": self.slices, "iterations": self.iterations,
            "num_groups": self.num_groups, "num_units": self.num_units, "strips": self.strips, "bands": self.bands,
            "height": read[2], "width": read[3], "out_height": self.tiled[1], "out_width": self.tiled[2],
        }  # fmt: skip
        if p.direction == WEIGHT_GRAD:
            return {**geometry, "tap_groups": self.tap_groups}
        return {**geometry, "num_weights": p.weight_shape[0]}

    # --- a guess at the time ------------------------------------------------------------------------------------------
    @cached_property
    def _window(self) -> tuple[int, int]:
        """(rows, columns) that a tile loads."""
        p = self.problem
        taps = (self.tap_rows, p.weight_shape[3]) if p.direction == WEIGHT_GRAD else p.weight_shape[2:]
        tile = (self.shape.rows, self.shape.columns)
        if p.direction == INPUT_GRAD:
            places = [
                {(i + pad - t * d) // s for i in range(n) for t in range(k) if (i + pad - t * d) % s == 0}
                for n, k, s, pad, d in zip(tile, taps, p.stride, p.padding, p.dilation, strict=True)
            ]
        else:
            places = [
                {i * s + t * d for i in range(n) for t in range(k)}
                for n, k, s, d in zip(tile, taps, p.stride, p.dilation, strict=True)
            ]
        return len(places[0]), len(places[1])

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, about."""
        p, shape = self.problem, self.shape
        loaded = self.outputs if p.direction == INPUT_GRAD else shape.vector
        row = self._window[1] * loaded
        words = p.dtype.itemsize / 4
        ahead = min(shape.ahead, self._window[0])
        pixels = shape.rows * shape.columns
        if p.direction == WEIGHT_GRAD:
            sums = self.tap_rows * p.weight_shape[3] * self.outputs + pixels * self.outputs
        else:
            sums = pixels * (shape.vector if p.direction == INPUT_GRAD else self.outputs)
        return int(30 + sums + row + row * words * ahead + 2 * self.outputs)

    @cached_property
    def seconds(self) -> float:
        """A guess: what memory, the instructions or the latency of loads take, whichever is more."""
        p, shape = self.problem, self.shape
        properties = driver.get().properties(p.device)
        processors = max(1, properties.multiprocessor_count)
        pixels = shape.rows * shape.columns
        rows, columns = self._window
        loaded = self.outputs if p.direction == INPUT_GRAD else shape.vector
        taps = (self.tap_rows if p.direction == WEIGHT_GRAD else p.weight_shape[2]) * p.weight_shape[3]
        products = float(pixels * taps * self.outputs * self.splits_of_a_round)
        if p.direction == INPUT_GRAD:
            products /= math.prod(p.stride)
        loads = rows * columns * (loaded * (1 if p.dtype.itemsize == 2 else 0) + 2.5)
        loads += pixels * (self.outputs + 2.5)  # results, or the gradient's pixels
        weights = 0 if p.direction == WEIGHT_GRAD else products / shape.columns / 4
        instructions = (products + loads + weights + 70) * self.num_units * self.num_groups * self.tap_groups
        in_use = min(_THREADS, _REGISTERS // max(32, min(255, self.registers)) // 32 * 32)
        spilled = 1 + max(0, self.registers - 240) / 40
        active = self.lanes * self.slices / self.num_groups
        full = min(1.0, self.grid * self.num_threads / (processors * min(in_use, 512)))
        issue = instructions * spilled * active / (128 * processors * _CLOCK * _BUSY * full)
        width = shape.vector * p.dtype.itemsize
        in_flight = processors * in_use * full * min(columns * (1 + min(shape.ahead, rows)), 40) * width
        narrow = 1.0 if self.lanes * width >= 64 else 64 / (self.lanes * width)
        halo = rows / max(1, shape.rows * (p.stride[0] if p.direction != INPUT_GRAD else 1 / p.stride[0]))
        traffic = p.bytes * (1 + 0.05 * (halo - 1)) * narrow / _BYTES_PER_SECOND
        latency = p.bytes * min(halo, 3) * _LATENCY / max(in_flight, 1)
        partial = self.parts * math.prod(p.weight_shape) * 8 / _BYTES_PER_SECOND if p.direction == WEIGHT_GRAD else 0
        times = sorted((issue, traffic, latency))
        return times[2] + 0.3 * times[1] + partial + self._begin

    @property
    def splits_of_a_round(self) -> int:
        return self.splits if self.problem.direction == INPUT_GRAD else 1

    @property
    def _begin(self) -> float:
        """Seconds of all blocks' first steps, one after the other on a multiprocessor."""
        p = self.problem
        processors = max(1, driver.get().properties(p.device).multiprocessor_count)
        share = math.prod(p.weight_shape[2:]) * self.lanes * self.weights / self.num_threads
        resident = max(1, min(_THREADS, _REGISTERS // max(32, min(255, self.registers))) // self.num_threads)
        return (1e-6 + share * 1e-8) * max(1, self.grid / (processors * resident))


MOST_PARTS = 256  # of a sum over pixels; one program puts them together


def outputs_per_input(problem: ConvProblem) -> int:
    return problem.weight_shape[0] // problem.groups


def promising(problem: ConvProblem, number: int) -> list[Shape]:
    """The best by the guess, at most two of a tile; the second half of them takes each vector in turn.

    Tiles are ranked first, and then what else there is to choose for the best of them.
    """
    tiles = sorted(_tiles(problem), key=lambda work: work.seconds)
    vectors = list(dict.fromkeys(work.shape.vector for work in tiles))
    own = {vector: [work for work in tiles if work.shape.vector == vector][:_TILES_OF_VECTOR] for vector in vectors}
    varied = {
        vector: sorted((work for tile in works for work in _varied(tile)), key=lambda work: work.seconds)
        for vector, works in own.items()
    }
    turns = itertools.chain.from_iterable(itertools.zip_longest(*map(_two_of_a_tile, varied.values())))
    best = _two_of_a_tile(sorted(itertools.chain.from_iterable(varied.values()), key=lambda work: work.seconds))
    choice = [*best[: number // 2], *(work for work in turns if work is not None)]
    return list(dict.fromkeys(work.shape for work in choice))[:number]


def _tiles(problem: ConvProblem) -> Iterator[Work]:
    p = problem
    _, height, width = Work(p, Shape(1, 1, 1, 1)).tiled
    strides = p.stride if p.direction == INPUT_GRAD else (1, 1)
    vectors = (1, 2, 4, 8) if p.dtype.itemsize == 2 else (1, 2, 4)
    rows = _sizes((1, 2, 3, 4, 7), height, strides[0], p.statistics)
    columns = _sizes((2, 3, 4, 5, 6, 7, 8), width, strides[1], p.statistics)
    for vector, row, column in itertools.product(vectors, rows, columns):
        work = Work(p, Shape(vector, row, column, 2, 128, _BLOCKS[p.direction][0]))
        if work.is_possible() and work.registers <= _MOST_REGISTERS:
            yield work


def _varied(tile: Work) -> list[Work]:
    """The same tile with all else that there is to choose; of those that come to the same launch, one."""
    most = min(tile.problem.weight_shape[2] + tile.shape.rows - 1, 6)
    found: dict[tuple[int, ...], Work] = {}
    for ahead, threads, blocks in itertools.product(sorted({1, 2, most}), (128, 256), _BLOCKS[tile.problem.direction]):
        options = {"ahead": ahead, "threads": threads, "blocks": blocks}
        work = Work(tile.problem, dataclasses.replace(tile.shape, **options))
        if work.is_possible():
            found.setdefault((ahead, work.num_threads, work.grid), work)
    return list(found.values())


def _two_of_a_tile(works: Sequence[Work]) -> list[Work]:
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    chosen = []
    for work in works:
        tile = (work.shape.vector, work.shape.rows, work.shape.columns)
        seen[tile] += 1
        if seen[tile] <= 2:
            chosen.append(work)
    return chosen


def _sizes(choice: tuple[int, ...], size: int, stride: int, whole: bool) -> list[int]:
    """Tiles along an axis: multiples of the stride, no larger than they need to be; whole: divisors of the size."""
    found = sorted({-(-min(n, size) // stride) * stride for n in choice})
    if whole:
        return [n for n in found if size % n == 0]
    # The largest of those that cover it in as many steps is no better than the smallest.
    return list({-(-size // n): n for n in sorted(found, reverse=True)}.values())
