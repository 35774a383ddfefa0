"""Shared by the kernels of patches: what they are for, how a tile lies in shared memory, and parts of a guess."""

from __future__ import annotations

import itertools
import math

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.shapes import Shape, numel

SLACK = 8  # units of 16 bytes that are read beyond the last pixel
REGISTERS, OTHER_REGISTERS = 65536, 56  # of a multiprocessor; of a thread, beside its sums
CLOCK, BYTES_PER_SECOND = 1.5e9, 2.9e12  # of a large GPU
JOINED_PER_SECOND = 1.3e12  # bytes of parts
_RESERVED = 1 << 10  # bytes of shared memory that a block takes for itself
_MOST_TAPS = (7, 5)  # (rows, columns)
_MOST_CHANNELS = 48 * 48  # of input times output: beyond, others are ahead
_FEW_CHANNELS, _FEW_TAPS, _MANY_PIXELS = 32 * 32, 9, 1 << 14
_MOST_CHANNELS_OF_A_SIDE = 64  # in float32: where both have more, tensor cores are ahead
_MOST_TAPS_FLOAT32 = 49
_WARPS = 10  # keep a multiprocessor busy
_LATENCY, _INSTRUCTIONS = 1500, 20  # clocks of a tile, from memory; of a copy


def supports(problem: ConvProblem) -> bool:
    """16 bits, no groups, few channels, pairs of which lie at multiples of four bytes.

    Of one tap only where channels are no multiples of eight: otherwise it is a product of matrices as they lie in
    memory, which libraries do best.
    """
    p = problem
    outputs, inputs, *taps = p.weight_shape
    return (
        p.groups == 1
        and p.dtype in (dtypes.float16, dtypes.bfloat16)
        and outputs % 2 == inputs % 2 == 0
        and outputs * inputs <= _MOST_CHANNELS
        and (math.prod(taps) > 1 or outputs % 8 > 0 or inputs % 8 > 0)
        and all(number <= most for number, most in zip(taps, _MOST_TAPS, strict=True))
        and p.alignment >= 4
        and all(0 < numel(each) < 2**31 for each in (p.input_shape, p.weight_shape, p.output_shape))
        and programs.is_available(p.device)
    )


def supports_float32(problem: ConvProblem) -> bool:
    """Float32 of which all bits count, no groups, few channels of the input or the output."""
    p = problem
    outputs, inputs, *taps = p.weight_shape
    return (
        p.groups == 1
        and p.is_exact
        and min(outputs, inputs) <= _MOST_CHANNELS_OF_A_SIDE
        and math.prod(taps) <= _MOST_TAPS_FLOAT32
        and p.alignment >= 4
        and all(0 < numel(each) < 2**31 for each in (p.input_shape, p.weight_shape, p.output_shape))
        and programs.is_available(p.device)
    )


def is_best_guess(problem: ConvProblem) -> bool:
    """Are so few channels of so many pixels that all other kernels are behind? As measured on an H200."""
    outputs, inputs, *taps = problem.weight_shape
    images, _, height, width = problem.output_shape
    return (
        outputs * inputs <= _FEW_CHANNELS
        and math.prod(taps) <= _FEW_TAPS
        and problem.dilation == (1, 1)
        and images * height * width >= _MANY_PIXELS
    )


def pitch(problem: ConvProblem, channels: int) -> int:
    """The distance of pixels in shared memory, in units of 16 bytes."""
    return -(-channels * problem.dtype.itemsize // 16) | 1


def granule(problem: ConvProblem, *channels: int) -> int:
    """Bytes that are copied at once, of pixels and shares of them with so many channels."""
    return math.gcd(*(problem.dtype.itemsize * n for n in channels), problem.alignment, 16)


def clocks(lines: float, products: float, copies: float, resident: int) -> float:
    """A guess at the clocks of a tile on a multiprocessor: of shared memory or the tensor cores, copies, waiting."""
    return max(lines, products) + copies / 32 * _INSTRUCTIONS / 4 + _LATENCY / resident


def resident(problem: ConvProblem, shared_memory: int, num_threads: int, sums: int, most: int) -> int:
    """Blocks that a multiprocessor has at a time."""
    device = driver.get().properties(problem.device)
    return min(
        device.max_shared_memory // (shared_memory + _RESERVED),
        REGISTERS // (num_threads * min(255, sums + OTHER_REGISTERS)),
        max(1, most),
    )


def busy(problem: ConvProblem, grid: int, num_threads: int, resident: int) -> float:
    """The share of the device that works."""
    processors = max(1, driver.get().properties(problem.device).multiprocessor_count)
    return processors * min(1.0, grid / processors) * min(1.0, resident * num_threads / 32 / _WARPS)


def in_a_row(problem: ConvProblem, images: Shape) -> Shape:
    """Images (N, C, H, W) as one that has a single row, where each pixel stands alone."""
    number, channels, height, width = images
    return (1, channels, 1, number * height * width) if problem.is_flat else images


def areas(problem: ConvProblem, images: Shape) -> list[tuple[int, int]]:
    """Rows and columns of tiles for multiply-adds, of images of that shape."""
    _, _, height, width = in_a_row(problem, images)
    if problem.is_flat:
        return [(1, columns) for columns in (32, 64, 128, 256, 512)]
    rows = {min(n, height) for n in (2, 4, 8, 16)}
    return list(itertools.product(sorted(rows), sorted(sizes(width, 64, 8))))


def sizes(length: int, most: int, unit: int) -> set[int]:
    """Multiples of a unit that divide a length into equal parts, or nearly."""
    return {min(-(-length // n // unit) * unit or unit, most) for n in range(1, 9)}


def shares(channels: int, most: int) -> list[int]:
    """Channels of a block: all of them, if they are no more than that, or a multiple of eight."""
    return sorted({*(n for n in (32, 64) if n < channels), *([channels] if channels <= most else [])})
