"""How a grouped convolution is cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, TF32
from genesis.backends.cuda.launch.tiles import DOT_PRECISION, power_of_2
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

MULTIPLY_ADDS = "multiply-adds"
_LEAST_BLOCK = 16  # of a tensor core
_MOST_CHANNELS = 128  # of a group
_OWN_GRADIENT = 64  # channels of a group for which libraries have a kernel in the weight's gradient only
_MANY_PIXELS = 1 << 13  # for which cuDNN's heuristics find its kernels for groups
_TILE, _LARGE_TILE = 32, 64  # channels that fill one
_MOST_MULTIPLIED = 8  # channels of a group's input for which multiply-adds may win
_MOST_RESULTS = 128 * 128  # of a tile: as many sums as the registers hold
_WEIGHT_GRAD_COLUMNS = 256
_MANY_IN_PARTS = 4096  # float32 in three parts: four warps lack the registers for so many

# (channels side by side, pixels, warps, stages), the most promising first
_GATHER = (
    (32, 128, 4, 3), (32, 128, 4, 1), (16, 128, 4, 3), (64, 128, 4, 2), (32, 64, 4, 3), (64, 128, 8, 1),
    (16, 256, 4, 1), (32, 256, 8, 2), (64, 64, 4, 3),
)  # fmt: skip
_AHEAD, _NOT_AHEAD, _NARROW = _GATHER[:3]  # loads run ahead, or not
_SHORT, _WIDE = _GATHER[4:6]
_MULTIPLIED = ((32, 64, 4, 1), (64, 32, 4, 1), (16, 64, 4, 1))
# (channels side by side, columns, pixels of a step, warps, stages)
_WEIGHT_GRAD = (
    (64, 64, 64, 4, 3), (32, 32, 128, 4, 3), (16, 64, 64, 4, 3), (32, 128, 64, 4, 2), (32, 256, 32, 8, 2),
    (16, 256, 64, 8, 2), (64, 256, 32, 8, 2), (32, 128, 64, 4, 1),
)  # fmt: skip
_WIDE_WEIGHT_GRAD, _LONG_WEIGHT_GRAD, _NARROW_WEIGHT_GRAD = _WEIGHT_GRAD[:3]


class Shape(NamedTuple):
    """The shape of one tile."""

    pack: int  # groups
    block_m: int  # pixels; of a weight's gradient output channels
    block_n: int  # output channels; of a weight's gradient (tap, input channel)
    block_k: int  # input channels; of a weight's gradient pixels
    taps: int  # of a weight's gradient
    num_warps: int
    num_stages: int
    precision: str  # multiply-adds, or of tl.dot

    def __str__(self) -> str:
        taps = f" taps {self.taps}" if self.taps else ""
        kind = f" {self.precision}" if self.precision in (MULTIPLY_ADDS, "tf32") else ""
        sizes = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{sizes} pack {self.pack}{taps} w{self.num_warps} s{self.num_stages}{kind}"

    @property
    def arithmetic(self) -> str:
        return TF32 if self.precision == "tf32" else FULL

    @property
    def width(self) -> int:
        """Columns of a tap in a weight's gradient."""
        return self.block_n // power_of_2(self.taps)


def channels(problem: ConvProblem) -> tuple[int, int]:
    """Channels of a group: read, and resulting; of a weight's gradient input's and output's."""
    inputs, outputs = problem.weight_shape[1], problem.weight_shape[0] // problem.groups
    return (inputs, outputs) if problem.direction in (FORWARD, WEIGHT_GRAD) else (outputs, inputs)


def supports(problem: ConvProblem) -> bool:
    p = problem
    return (
        p.groups > 1
        and not p.is_depthwise
        and p.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
        and max(channels(p)) <= _MOST_CHANNELS
        and max(p.input_shape[0] * p.input_shape[2] * p.input_shape[3], p.num_terms) < 2**31 - 2**12
    )


def is_best_guess(problem: ConvProblem) -> bool:
    """Are these kernels to be taken where nothing has been measured?

    cuDNN 9.19 has kernels of its own for 3×3 taps and groups of 4, 8, 16 and 32 channels (in TF32, and in 16 bits for
    the weight's gradient, of 64). Where there are few pixels its heuristics name others first, which take a group at a
    time (bench_grouped.json: up to 37 times as slow as these, in a CUDA graph). For groups of 2 channels, or of
    RegNet's 24 and 56, and where all bits of float32 count, it has none.
    """
    p, most = problem, max(channels(problem))
    if not supports(p):
        return False
    is_known = power_of_2(most) == most > 2  # to cuDNN
    if p.is_exact or not is_known or (p.direction == INPUT_GRAD and max(p.stride) > 1):
        return True
    if p.direction == WEIGHT_GRAD:
        return most <= 4 if p.dtype.itemsize == 2 else most < _OWN_GRADIENT
    if p.dtype.itemsize == 2 and (p.direction == INPUT_GRAD or most >= _OWN_GRADIENT):
        return True
    has_many_pixels = numel(p.result_shape) // p.result_shape[1] >= _MANY_PIXELS
    return most < _OWN_GRADIENT and not (has_many_pixels and p.weight_shape[2:] == (3, 3))


def shapes(problem: ConvProblem) -> list[Shape]:
    """The shapes worth trying, the most promising first."""
    if not supports(problem):
        return []
    limit = driver.get().properties(problem.device).max_shared_memory
    found = [each for precision in _precisions(problem) for each in _shapes(problem, precision)]
    return [each for each in dict.fromkeys(found) if _shared_memory(problem, each) <= limit]


def _precisions(problem: ConvProblem) -> list[str]:
    """Precisions to multiply in: of float32 rounded to 11 bits first, where that is allowed."""
    return ["tf32"] if problem.is_rounded else [DOT_PRECISION[problem.dtype]]


def _shapes(problem: ConvProblem, precision: str) -> Iterator[Shape]:
    if problem.direction == WEIGHT_GRAD:
        for target, columns, pixels, warps, stages in (_first_weight_grad(problem), *_WEIGHT_GRAD):
            yield _weight_grad_shape(problem, precision, target, columns, pixels, warps, stages)
        return
    choice = [(precision, sizes) for sizes in (_first_gather(problem), *_GATHER)]
    if precision == DOT_PRECISION[dtypes.float32] and channels(problem)[0] <= _MOST_MULTIPLIED:
        choice[1:1] = [(MULTIPLY_ADDS, sizes) for sizes in _MULTIPLIED]
    for each, sizes in choice:
        yield _gather_shape(problem, each, *sizes)


def _first_gather(problem: ConvProblem) -> tuple[int, int, int, int]:
    """The most promising: groups side by side are products with zeros, which cost more in float32; loads of odd numbers
    of channels gain little by running ahead, and fill the registers."""
    p, most = problem, max(channels(problem))
    is_odd = power_of_2(most) != most
    if p.is_rounded:
        if most > _LARGE_TILE:
            return _WIDE
        if most <= _LEAST_BLOCK:
            return _NOT_AHEAD if is_odd else _NARROW
        return _NOT_AHEAD if p.direction == INPUT_GRAD else _AHEAD
    if most <= _LEAST_BLOCK and (is_odd or p.is_exact):
        return _NARROW
    if p.is_exact:
        return _NOT_AHEAD if is_odd or most >= _LARGE_TILE else _AHEAD
    if not is_odd or _TILE < most <= _LARGE_TILE:
        return _AHEAD
    return _SHORT if most > _LARGE_TILE else _NOT_AHEAD


def _first_weight_grad(problem: ConvProblem) -> tuple[int, int, int, int, int]:
    if problem.is_rounded:
        return _LONG_WEIGHT_GRAD
    has_taps = math.prod(problem.weight_shape[2:]) > 1
    is_narrow = problem.is_exact and has_taps and max(channels(problem)) <= _LEAST_BLOCK
    return _NARROW_WEIGHT_GRAD if is_narrow else _WIDE_WEIGHT_GRAD


def _gather_shape(problem: ConvProblem, precision: str, target: int, pixels: int, warps: int, stages: int) -> Shape:
    p = problem
    pack = _pack(p, target)
    block_k, block_n = (_block(pack * each) for each in channels(p))
    num_pixels = p.result_shape[0] * p.result_shape[2] * p.result_shape[3]
    block_m = min(pixels, _MOST_RESULTS // block_n, _block(num_pixels))
    if precision == DOT_PRECISION[dtypes.float32] and block_m * max(block_n, block_k) >= _MANY_IN_PARTS:
        warps = 8
    return Shape(pack, block_m, block_n, block_k, 0, warps, stages, precision)


def _weight_grad_shape(
    problem: ConvProblem, precision: str, target: int, columns: int, pixels: int, warps: int, stages: int
) -> Shape:
    """Taps are shared out evenly over as many tiles as the columns demand."""
    pack = _pack(problem, target)
    inputs, outputs = channels(problem)
    width, num_taps = _block(pack * inputs), problem.weight_shape[2] * problem.weight_shape[3]
    tiles = -(-num_taps // max(1, min(columns, _WEIGHT_GRAD_COLUMNS) // width))
    taps = -(-num_taps // tiles)
    block_k = min(pixels, _block(problem.num_terms))
    return Shape(pack, _block(pack * outputs), width * power_of_2(taps), block_k, taps, warps, stages, precision)


def _pack(problem: ConvProblem, target: int) -> int:
    """Groups that have about that many channels side by side."""
    return max(1, min(target // max(channels(problem)), problem.groups))


def _block(size: int) -> int:
    return max(_LEAST_BLOCK, power_of_2(size))


def _shared_memory(problem: ConvProblem, shape: Shape) -> int:
    """Bytes for the operands' tiles; those that are not loaded ahead pass through one buffer."""
    tile = (shape.block_m + shape.block_n) * shape.block_k * problem.dtype.itemsize
    return tile * max(shape.num_stages, 1)
