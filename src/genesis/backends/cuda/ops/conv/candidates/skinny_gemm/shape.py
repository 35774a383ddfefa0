"""How a block shares out a product of few pixels, and a guess at the time that takes.

Rows and columns are the result's: pixels × outputs of the forward, pixels × channels of the input's gradient, outputs ×
channels of the weight's.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import cached_property

from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem

_TERMS = 4  # of a gradient's sum, that a thread takes at a time
_MOST_SUMS, _MOST_THREADS = 64, 1024  # of a thread; of a block
_WORDS = 64  # that a thread loads before it multiplies
_OTHER_REGISTERS = 32
_ROUNDED, _LEAST_ROUNDED, _MOST_ROUNDED = 0.7, 31, 277  # of a chain's roundings; terms, as accuracy.py bounds the error

# Of a large GPU, for the guess.
_CLOCK, _LATENCY, _BARRIER = 1.6e9, 4e-7, 1e-7
_CACHE_BYTES_PER_CLOCK, _BUSY = 48, 0.7  # of a multiprocessor, from the second cache; of its clocks
_REGISTERS, _THREADS, _BLOCKS = 65536, 2048, 32  # of a multiprocessor
_PROCESSORS, _SCHEDULERS = 132, 4

_NUM_TILES, _OF_A_THREAD, _OF_A_BLOCK = 10, 4, 2  # worth trying; of as many results of a thread, of a block
_LEAST_BYTES, _MOST_BESIDE, _MOST_SHARING, _NUM_SPLITS = 16, 128, 512, 3  # of lanes; threads of a split, of a block


@dataclasses.dataclass(frozen=True)
class Tile:
    """A thread's share of a result, and how many threads there are beside it."""

    rows: int
    columns: int
    lanes: int  # neighbours: they share the forward's sums, and have a gradient's columns side by side
    down: int  # groups of lanes
    across: int  # of the forward
    splits: int  # groups that share a sum

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} l{self.lanes} g{self.down}x{self.across} s{self.splits}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(8, 4, 16, 1, 2, 4))) == Tile(8, 4, 16, 1, 2, 4)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) l(\d+) g(\d+)x(\d+) s(\d+)", _MOST_THREADS)
        return cls(*numbers) if numbers else None

    @property
    def num_threads(self) -> int:
        return self.lanes * self.down * self.across * self.splits

    @property
    def sums(self) -> int:
        return self.rows * self.columns

    @property
    def has_powers_of_2(self) -> bool:
        numbers = (self.rows, self.columns, self.lanes, self.down, self.across, self.splits)
        return all(number & (number - 1) == 0 for number in numbers)


@dataclasses.dataclass(frozen=True)
class Work:
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
    tile: Tile

    def is_possible(self) -> bool:
        tile = self.tile
        return (
            tile.has_powers_of_2
            and tile.lanes <= 32 <= tile.num_threads <= _MOST_THREADS
            and (self.is_forward or tile.across == 1)
            and tile.sums <= _MOST_SUMS
            and self.registers <= min(255, _REGISTERS // tile.num_threads)
            and self.shared_memory <= programs.MOST_SHARED
            and self.is_accurate
        )

    @property
    def is_accurate(self) -> bool:
        """Are sums rounded less often, one after the other, than in a chain of all terms?"""
        chain = min(self.problem.num_terms, self.steps * (self.vector if self.is_forward else _TERMS)) + self.parts
        return chain <= _ROUNDED * min(_MOST_ROUNDED, max(_LEAST_ROUNDED, self.problem.num_terms))

    @property
    def is_forward(self) -> bool:
        return self.problem.direction == FORWARD

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        pixels, (outputs, channels) = num_pixels(self.problem), self.problem.weight_shape[:2]
        return {FORWARD: (pixels, outputs), WEIGHT_GRAD: (outputs, channels)}.get(
            self.problem.direction, (pixels, channels)
        )

    @cached_property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        tile = self.tile
        return tile.rows * tile.down, tile.columns * (tile.across if self.is_forward else tile.lanes)

    @cached_property
    def grid(self) -> int:
        return math.prod(-(-size // of_block) for size, of_block in zip(self.sizes, self.block, strict=True))

    @cached_property
    def parts(self) -> int:
        """Sums of a result that lie side by side in shared memory."""
        tile, part = self.tile, self.tile.lanes * self.tile.down
        return tile.splits if self.is_forward or part >= 32 else tile.num_threads // 32

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        return self.parts * math.prod(self.block) * 4

    @cached_property
    def vector(self) -> int:
        """Channels that are loaded at once: terms of the forward, columns of a gradient."""
        most = 16 if self.is_forward else self.tile.columns
        return _vector(self.problem, self.problem.weight_shape[1], most)

    @cached_property
    def grad_vector(self) -> int:
        """Outputs of a gradient's pixel that are loaded at once."""
        most = self.tile.rows if self.problem.direction == WEIGHT_GRAD else _TERMS
        return _vector(self.problem, self.problem.weight_shape[0], most)

    @cached_property
    def steps(self) -> int:
        """The vectors of a thread in a row of the forward; or its groups of terms of a gradient."""
        tile, terms = self.tile, self.problem.num_terms
        if self.is_forward:
            return -(-terms // (self.vector * tile.lanes * tile.splits))
        return -(-terms // (_TERMS * tile.splits))

    @cached_property
    def loads(self) -> tuple[int, int]:
        """(of a thread in a step, the registers that they fill)"""
        tile, size = self.tile, self.problem.dtype.itemsize
        if self.is_forward:
            number = tile.rows + tile.columns
            return number, number * -(-self.vector * size // 4)
        grads, seconds = tile.rows * _TERMS // self.grad_vector, tile.columns * _TERMS // self.vector
        return grads + seconds, grads * -(-self.grad_vector * size // 4) + seconds * -(-self.vector * size // 4)

    @cached_property
    def at_once(self) -> int:
        """Steps that are loaded before they are multiplied."""
        return max(1, min(self.steps, _WORDS // self.loads[1]))

    @property
    def registers(self) -> int:
        """A guess at how many a thread needs."""
        pointers = 2 * (self.tile.rows + self.tile.columns) if self.is_forward else 0
        return self.tile.sums + self.at_once * self.loads[1] + pointers + _OTHER_REGISTERS

    @property
    def seconds(self) -> float:
        """A guess: loads that wait for each other, and beside them instructions, or what comes from the caches."""
        p, tile, threads = self.problem, self.tile, self.tile.num_threads
        resident = min(_BLOCKS, _THREADS // threads, _REGISTERS // (threads * self.registers))
        waves = -(-self.grid // (_PROCESSORS * resident))
        waiting = waves * (-(-self.steps // self.at_once) * _LATENCY + _BARRIER)
        products = tile.sums * (self.vector if self.is_forward else _TERMS)
        loads, words = self.loads
        step = products + 2 * loads + (2 * words if p.dtype.itemsize == 2 else 0)
        results = -(-math.prod(self.block) // threads)
        instructions = self.steps * step + 4 * tile.sums + results * (self.parts + 12) + 60
        of_processor = -(-self.grid // _PROCESSORS)  # blocks
        clocks = of_processor / (_CLOCK * _BUSY)
        warps = threads / 32
        computing = clocks * warps * instructions / min(_SCHEDULERS, of_processor * warps)
        loading = clocks * sum(self.block) * p.num_terms * p.dtype.itemsize / _CACHE_BYTES_PER_CLOCK
        lines = loads * max(words / loads, 16 / min(16, tile.lanes))  # of 128 bytes in the first cache
        through = clocks * warps * self.steps * lines
        return waiting + max(computing, loading, through)

    @property
    def macros(self) -> dict[str, int]:
        p, tile = self.problem, self.tile
        outputs, channels = p.weight_shape[:2]
        macros = {
            "DTYPE": programs.DTYPES.index(p.dtype), "CHANNELS": channels, "OUTPUTS": outputs, "ROWS": tile.rows,
            "COLUMNS": tile.columns, "LANES": tile.lanes, "DOWN": tile.down, "SPLITS": tile.splits,
            "VECTOR": self.vector, "AT_ONCE": self.at_once, "BIAS": int(p.bias), "RESIDUAL": int(p.residual),
            "RELU": int(p.activation == "relu"),
        }  # fmt: skip
        if self.is_forward:
            return macros | {"ACROSS": tile.across}
        return macros | {
            "WEIGHT_GRAD": int(p.direction == WEIGHT_GRAD), "TERMS": _TERMS, "GRAD_VECTOR": self.grad_vector,
            "ONE_TURN": int(self.steps <= self.at_once),
        }  # fmt: skip


def num_pixels(problem: ConvProblem) -> int:
    images, _, *sizes = problem.output_shape
    return images * math.prod(sizes)


def rounded(problem: ConvProblem) -> ConvProblem:
    """The problem of as many pixels as the next power of 2: what its kernel is compiled for, and its tiles suit.

    Batches of many sizes, as of sentences, have few kernels so.
    """
    images = (power_of_2(num_pixels(problem)), problem.weight_shape[1], 1, 1)
    return dataclasses.replace(problem, input_shape=images)


def promising(problem: ConvProblem) -> list[Tile]:
    """The tiles worth trying, the most promising first: a few of each size, of a thread's and of a block's."""
    works = (Work(problem, tile) for tile in tiles(problem))
    ranked = sorted((work for work in works if work.is_possible()), key=lambda work: work.seconds)
    found: collections.Counter[tuple[str, int, int]] = collections.Counter()
    chosen = []
    for work in ranked:
        of_thread, of_block = ("thread", work.tile.rows, work.tile.columns), ("block", *work.block)
        if found[of_thread] < _OF_A_THREAD and found[of_block] < _OF_A_BLOCK:
            found.update((of_thread, of_block))
            chosen.append(work.tile)
    return chosen[:_NUM_TILES]


def tiles(problem: ConvProblem) -> Iterator[Tile]:
    """All that might be worth trying.

    No more threads, rows or columns than twice what there is for them; tiles that are not far from square.
    """
    size, is_forward = problem.dtype.itemsize, problem.direction == FORWARD
    one = Work(problem, Tile(1, 8, 1, 1, 1, 1))
    rows, columns, terms = (power_of_2(number) for number in (*one.sizes, problem.num_terms))
    at_a_time, line = (one.vector, terms) if is_forward else (_TERMS, columns)  # of the terms; where the lanes lie
    for own_rows, own_columns in itertools.product(_powers(rows, 8), _powers(columns, 8)):
        if own_rows * own_columns > _MOST_SUMS or _is_long(own_rows, own_columns, rows, columns):
            continue
        of_lane = one.vector if is_forward else own_columns
        # Of fewer, lanes would share a sum by way of shared memory.
        least = min(32, rows // own_rows * (columns // own_columns) * (terms // of_lane)) if is_forward else 1
        for lanes in _powers(line // of_lane, 32):
            if lanes * of_lane < min(_LEAST_BYTES // size, line):
                continue
            beside = _powers(columns // own_columns, 32) if is_forward else [1]
            for down, across in itertools.product(_powers(rows // own_rows, max(8, 32 // columns)), beside):
                threads = lanes * down * across
                if not least <= threads <= _MOST_BESIDE:
                    continue
                if is_forward and _is_long(own_rows * down, own_columns * across, rows, columns):
                    continue
                most = max(terms // (at_a_time * (lanes if is_forward else 1)), 32 // threads)
                for splits in _powers(most, _MOST_SHARING // threads)[-_NUM_SPLITS:]:
                    yield Tile(own_rows, own_columns, lanes, down, across, splits)


def _is_long(rows: int, columns: int, all_rows: int, all_columns: int) -> bool:
    """Is a tile far from square, though there are more rows or columns?"""
    return (rows > 4 * columns and columns < all_columns) or (columns > 4 * rows and rows < all_rows)


def _powers(most: int, limit: int) -> list[int]:
    """1, 2, 4, … up to both."""
    return [1 << n for n in range(max(1, min(most, limit)).bit_length())]


def _vector(problem: ConvProblem, length: int, most: int) -> int:
    """Numbers that are loaded at once, from lines of such a length."""
    size = problem.dtype.itemsize
    return min(most, math.gcd(length * size, problem.alignment, 16) // size)
