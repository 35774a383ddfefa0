"""Choose the tiles that the plain kernels of a convolution are worth trying with, and count them."""

from __future__ import annotations

import math

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.tiles import Tile
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem

# By bytes per element, from large to small.
_TILES = {
    2: (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 3), Tile(64, 64, 64, 4, 3)),
    4: (Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3), Tile(64, 64, 32, 4, 3)),
    8: (Tile(64, 64, 16, 4, 3), Tile(32, 32, 16, 4, 3)),
}
_NUM_TILES = 3  # worth trying
_FLAT_BELOW = 16  # channels; fewer fill no block of terms
_DEPTHWISE_BLOCK, _DEPTHWISE_CHANNELS = 4096, 128  # results per program; of so many channels at most

# Of uneven channels: rows of a tile that has all columns, up to so many; results of four warps, and of eight.
_ROWS, _MOST_COLUMNS = (128, 64, 256), 256
_OF_FOUR_WARPS, _MOST_RESULTS = 128 * 64, 128 * 256
_WAVES = 2  # programs for each multiprocessor; where there are fewer, 64 rows are better than 128
_FEW_CHANNELS = 32
# Of a weight's gradient, whose terms are pixels: long blocks where a tile is small.
_FLAT_TILES = (Tile(64, 64, 64, 4, 3), Tile(64, 64, 128, 4, 3))
_TILES_OF_TAPS = (Tile(64, 64, 128, 4, 3), Tile(64, 64, 64, 4, 3))


def choices(problem: ConvProblem) -> list[tuple[Tile, bool]]:
    """Tiles worth trying, the most promising first. With each: is it flat, taps and channels in one dimension?"""
    if problem.is_depthwise:
        return [(_depthwise_tile(*_depthwise_sizes(problem)), False)]
    if is_uneven(problem):
        return _uneven(problem)
    flat = _has_few_inputs(problem)
    given = _TILES[problem.dtype.itemsize]
    ranked = tiles.ranked(given, *_product_sizes(problem, flat), problem.groups, problem.dtype, problem.device)
    return [(tile, flat) for tile in ranked[:_NUM_TILES]]


def general(problem: ConvProblem) -> tuple[Tile, bool]:
    """A tile that depends on the dtype alone, and whether it is flat."""
    if problem.is_depthwise:
        return _depthwise_tile(_DEPTHWISE_BLOCK, _DEPTHWISE_CHANNELS), False
    return _TILES[problem.dtype.itemsize][-2], _has_few_inputs(problem)


def num_tiles(problem: ConvProblem, tile: Tile, flat: bool) -> int:
    """The programs of a weight's gradient, without splits."""
    num_outputs, _, *taps = problem.weight_shape
    if problem.is_depthwise:
        return math.prod(taps) * -(-num_outputs // tile.block_n)
    rows, columns, _ = _product_sizes(problem, flat)
    return problem.groups * tile.num_tiles(rows, columns) * (1 if flat else math.prod(taps))


def _has_few_inputs(problem: ConvProblem) -> bool:
    """Do the channels that are one factor of a product fill no block?"""
    p = problem
    num_inputs = p.weight_shape[1] if p.direction == WEIGHT_GRAD else p.first_shape[1] // p.groups
    return num_inputs < _FLAT_BELOW


# --- channels of which 16 is no divisor -------------------------------------------------------------------------------
def is_uneven(problem: ConvProblem) -> bool:
    """Are these 16-bit images without groups whose pixels do not all begin at a multiple of 32 bytes?"""
    num_outputs, num_inputs = problem.weight_shape[:2]
    return problem.dtype.itemsize == 2 and problem.groups == 1 and (num_outputs % 16 > 0 or num_inputs % 16 > 0)


def is_best_guess(problem: ConvProblem) -> bool:
    """Are these kernels faster than a library's first plan, which copies uneven channels first, and pads them?

    On an H200 cuDNN's first plans took 0.85 to 3 times as long with 3×3 taps and 18 to 52 channels, longer in 22 of 25
    cases; with one tap either may be faster. It does not copy multiples of 8.
    """
    num_outputs, num_inputs = problem.weight_shape[:2]
    if not is_uneven(problem) or math.prod(problem.weight_shape[2:]) == 1:
        return False
    return num_inputs % 8 > 0 or (num_outputs % 8 > 0 and problem.direction != WEIGHT_GRAD)


def _uneven(problem: ConvProblem) -> list[tuple[Tile, bool]]:
    """Return choices() as they were fast on an H200, with 12 to 256 channels."""
    has_taps, few = math.prod(problem.weight_shape[2:]) > 1, _has_few_inputs(problem)
    if problem.direction == WEIGHT_GRAD:
        flat = few or (has_taps and problem.weight_shape[1] > _FEW_CHANNELS)
        found = [(tile, True) for tile in _FLAT_TILES] if has_taps else []
        within = [] if few and has_taps else [(tile, False) for tile in _TILES_OF_TAPS]
        found = [*found, *within] if flat else [*within, *found]
    else:
        flat = has_taps and (few or problem.direction == FORWARD)
        first, *others = _gather_tiles(problem, has_taps)
        found = [(first, flat), (first._replace(block_k=96 - first.block_k), flat)]  # 32 and 64
        found += [(first, not flat)] if has_taps and not few else []
        found += [(tile, flat) for tile in others]
    return list(dict.fromkeys((tile.fitted(*_product_sizes(problem, flat)), flat) for tile, flat in found))


def _gather_tiles(problem: ConvProblem, has_taps: bool) -> list[Tile]:
    """Return tiles of the forward or the input's gradient: with all columns, where they are not too many."""
    num_pixels, num_outputs, _ = _product_sizes(problem, False)
    columns = min(max(16, tiles.power_of_2(num_outputs)), _MOST_COLUMNS)
    block = 64 if has_taps and problem.first_shape[1] > _FEW_CHANNELS and columns < _MOST_COLUMNS else 32
    num_programs = -(-num_pixels // 128) * -(-num_outputs // columns)
    is_full = num_programs >= _WAVES * driver.get().properties(problem.device).multiprocessor_count
    best = 128 if is_full and columns < _MOST_COLUMNS else 64
    return [
        Tile(rows, columns, block, 4 if rows * columns <= _OF_FOUR_WARPS else 8, 3)
        for rows in sorted(_ROWS, key=lambda rows: rows != best)
        if rows * columns <= _MOST_RESULTS
    ]


# --- sizes ------------------------------------------------------------------------------------------------------------
def _product_sizes(problem: ConvProblem, flat: bool) -> tuple[int, int, int]:
    """(rows, columns, terms) of the matrix product that one group, and if it isn't flat one tap, comes to."""
    p = problem
    num_inputs, taps = p.weight_shape[1], math.prod(p.weight_shape[2:])
    if p.direction == WEIGHT_GRAD:
        return p.weight_shape[0] // p.groups, num_inputs * (taps if flat else 1), p.num_terms
    num_inputs = p.first_shape[1] // p.groups
    num_pixels = p.result_shape[0] * math.prod(p.result_shape[2:])
    if p.direction != FORWARD:
        num_pixels = -(-num_pixels // math.prod(p.stride))  # one residue's
    return num_pixels, p.result_shape[1] // p.groups, num_inputs * (taps if flat else 1)


def _depthwise_sizes(problem: ConvProblem) -> tuple[int, int]:
    if problem.direction == WEIGHT_GRAD:
        return problem.num_terms, problem.weight_shape[0]
    return problem.result_shape[0] * math.prod(problem.result_shape[2:]), problem.result_shape[1]


def _depthwise_tile(num_pixels: int, num_channels: int) -> Tile:
    block_n = min(tiles.power_of_2(num_channels), _DEPTHWISE_CHANNELS)
    return Tile(min(tiles.power_of_2(num_pixels), _DEPTHWISE_BLOCK // block_n), block_n, 1, 4, 1)
