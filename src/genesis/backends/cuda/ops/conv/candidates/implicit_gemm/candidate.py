"""Plain Triton kernels for every problem there is: the fallback, and what the others are checked against.

One kernel (kernels/gather.py) computes the forward and the input's gradient; depthwise convolutions and weight
gradients have their own.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.binding import Pointer, accumulator, bind
from genesis.backends.cuda.launch.tiles import Tile
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm import shape
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.kernels import gather, weight_grad
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.shapes import channels_last_strides

if TYPE_CHECKING:
    import triton.language as tl

_GROUP = 8
_SPLIT_LIMIT = 64 << 20  # bytes of partial sums


class ImplicitGemmFamily(Family[ConvProblem]):
    prefix = "implicit_gemm"

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return [ImplicitGemm(*choice) for choice in shape.choices(problem)]

    def general(self, problem: ConvProblem) -> Candidate[ConvProblem]:
        """One whose kernels are compiled once for problems of all sizes: a compiler takes longer than it runs."""
        return ImplicitGemm(*shape.general(problem), general=True)


class ImplicitGemm(Candidate[ConvProblem]):
    """The plain kernels with one tile."""

    def __init__(self, tile: Tile, flat: bool = False, general: bool = False) -> None:
        """flat: taps and input channels are one dimension, which blocks cut where they will."""
        self.tile, self.flat, self._general = tile, flat, general
        sizes = f"{tile.block_m}x{tile.block_n}x{tile.block_k} w{tile.num_warps}"
        self.name = f"{ImplicitGemmFamily.prefix}/{sizes}{' flat' if flat else ''}"

    def supports(self, problem: ConvProblem) -> bool:
        return problem.dtype.is_floating_point

    def workspace(self, problem: ConvProblem) -> int:
        if problem.direction != WEIGHT_GRAD:
            return 0
        num_splits, _ = _splits(problem, self.tile, self.flat)
        sums = math.prod(problem.weight_shape) * accumulator(problem.dtype).itemsize
        return num_splits * sums if num_splits > 1 else 0

    def prepare(self, problem: ConvProblem) -> Launch:
        if problem.direction == WEIGHT_GRAD:
            return _prepare_weight_grad(problem, self.tile, self.flat, self._general)
        return _prepare_gather(problem, self.tile, self.flat, self._general)


# --- forward and input gradient ---------------------------------------------------------------------------------------
class Axis(NamedTuple):
    """The input of each result along one axis: i · step + start + tap · spread; and the weight's taps it meets."""

    out_first: int  # the results are out_first, out_first + out_step, …
    out_step: int
    out_size: int
    step: int
    start: int
    spread: int
    tap_first: int
    tap_step: int
    taps: int


def forward_axis(size: int, taps: int, stride: int, padding: int, dilation: int) -> Axis:
    """
    >>> forward_axis(5, 3, 2, 1, 1)
    Axis(out_first=0, out_step=1, out_size=3, step=2, start=-1, spread=1, tap_first=0, tap_step=1, taps=3)
    """
    out_size = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    return Axis(0, 1, out_size, stride, -padding, dilation, 0, 1, taps)


def input_grad_axes(size: int, taps: int, stride: int, padding: int, dilation: int) -> list[Axis]:
    """One axis per residue of the input's position modulo the stride.

    Position h takes part in result p at tap r if h = p · stride − padding + r · dilation. For h = residue + i · stride
    and r = first + t · every, p = i + (residue + padding − first · dilation) / stride − t · every · dilation / stride.

    >>> [(axis.out_first, axis.tap_first, axis.taps) for axis in input_grad_axes(5, 3, 2, 1, 1)]
    [(0, 1, 1), (1, 0, 2)]
    """
    every = stride // math.gcd(stride, dilation)
    axes = []
    for residue in range(min(stride, size)):
        matching = (r for r in range(min(every, taps)) if (residue + padding - r * dilation) % stride == 0)
        first = next(matching, None)
        count = 0 if first is None else -(-(taps - first) // every)
        first = first or 0
        start = (residue + padding - first * dilation) // stride
        out_size = -(-(size - residue) // stride)
        axes.append(Axis(residue, stride, out_size, 1, start, -(every * dilation // stride), first, every, count))
    return axes


def launch_axes(problem: ConvProblem) -> list[tuple[Axis, Axis]]:
    """(row, column) of each launch of a forward or an input's gradient, the longest first.

    They compute parts of one result, and run beside one another: of few pixels, each leaves most of the device idle.
    """
    p = problem
    along = list(zip(p.input_shape[2:], p.weight_shape[2:], p.stride, p.padding, p.dilation, strict=True))
    if p.direction == FORWARD:
        return [(forward_axis(*along[0]), forward_axis(*along[1]))]
    pairs = itertools.product(input_grad_axes(*along[0]), input_grad_axes(*along[1]))
    return sorted(pairs, key=lambda pair: -pair[0].taps * pair[1].taps)


def _prepare_gather(problem: ConvProblem, tile: Tile, flat: bool, general: bool) -> Launch:
    launches: list[Launch] = []
    for axes in launch_axes(problem):
        launch = _gather(problem, tile, flat, axes, general, is_beside=bool(launches))
        if launch is not None:
            launches.append(launch)
    if len(launches) == 1:
        return launches[0]

    def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
        for each in launches:
            each(stream, out, first, second, bias, residual, workspace)

    return run


class _Constants(TypedDict):
    COMPUTE: tl.dtype
    WIDE: bool
    general: bool
    RELU: NotRequired[bool]


def _gather(
    problem: ConvProblem, tile: Tile, flat: bool, axes: tuple[Axis, Axis], general: bool, is_beside: bool
) -> Launch | None:
    """out, at the positions that the axes name, = act(Σ first · weight + bias + residual); None: there are none.

    is_beside: the launch before computes other positions of the same result.
    """
    p, (row, column) = problem, axes
    transposed = p.direction != FORWARD  # out has the channels that the weight counts as its inputs
    num_images, out_channels = p.result_shape[:2]
    num_outputs, num_inputs = out_channels // p.groups, p.first_shape[1] // p.groups
    num_pixels = num_images * row.out_size * column.out_size
    if num_pixels == 0:
        return None
    itemsize = p.dtype.itemsize
    n, c, h, w = channels_last_strides(p.result_shape)
    place_strides = (n, c, h * row.out_step, w * column.out_step)
    k, d, r, s = channels_last_strides(p.weight_shape)
    out_offset = (row.out_first * h + column.out_first * w) * itemsize
    weight_offset = (row.tap_first * r + column.tap_first * s) * itemsize
    tap_strides = (r * row.tap_step, s * column.tap_step)
    geometry = (
        (row.out_size, column.out_size), p.first_shape[2:], (row.taps, column.taps), (row.step, column.step),
        (row.start, column.start), (row.spread, column.spread),
    )  # fmt: skip
    first_strides = channels_last_strides(p.first_shape)
    constants: _Constants = {"COMPUTE": COMPUTE[p.dtype], "WIDE": _is_wide(p), "general": general}
    constants["RELU"] = p.activation == "relu"
    pointers = (
        Pointer(p.dtype, _alignment(p, out_offset)),
        Pointer(p.dtype, p.alignment),
        Pointer(p.dtype, _alignment(p, weight_offset)),
        Pointer(p.dtype, p.alignment) if p.bias else None,
        Pointer(p.dtype, _alignment(p, out_offset)) if p.residual else None,
    )
    if p.is_depthwise:
        grid = (-(-num_pixels // tile.block_m), -(-out_channels // tile.block_n))
        ready = bind(
            gather._depthwise_kernel, p.device, grid, *pointers, int(is_beside), num_pixels, out_channels,
            1 if transposed else num_outputs, num_inputs if transposed else 1, *geometry,
            place_strides, first_strides, (k, *tap_strides), place_strides if p.residual else None,
            **constants, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        )  # fmt: skip
    else:
        channel_strides = (d, k) if transposed else (k, d)
        vectors = _vector(num_inputs, general), _vector(num_outputs, general)
        ready = bind(
            gather._conv_kernel, p.device, (p.groups * tile.num_tiles(num_pixels, num_outputs),), *pointers,
            int(is_beside), num_pixels, num_outputs, num_inputs, *geometry, place_strides, first_strides,
            (*channel_strides, *tap_strides), p.weight_shape[0] // p.groups * k, place_strides if p.residual else None,
            **constants, PRECISION=tiles.DOT_PRECISION[p.dtype], FLAT=flat, GROUP=_GROUP,
            TRANSPOSED=transposed and max(vectors) > 1, INPUT_VECTOR=vectors[0], OUTPUT_VECTOR=vectors[1],
            **tile.constants,
        )  # fmt: skip
    return _with_operands(ready, out_offset, weight_offset, p.bias, p.residual)


def _with_operands(ready: AddressLaunch, out_offset: int, weight_offset: int, bias: bool, residual: bool) -> Launch:
    """ready, which wants only the addresses that there are, as a Launch."""
    if residual and bias:  # the residual lies as the result does
        return lambda stream, out, x, weight, bias, residual, _: ready(
            stream, out + out_offset, x, weight + weight_offset, bias, residual + out_offset
        )
    if residual:
        return lambda stream, out, x, weight, bias, residual, _: ready(
            stream, out + out_offset, x, weight + weight_offset, residual + out_offset
        )
    if bias:
        return lambda stream, out, x, weight, bias, *_: ready(stream, out + out_offset, x, weight + weight_offset, bias)
    return lambda stream, out, x, weight, *_: ready(stream, out + out_offset, x, weight + weight_offset)


# --- weight gradient --------------------------------------------------------------------------------------------------
def _prepare_weight_grad(problem: ConvProblem, tile: Tile, flat: bool, general: bool) -> Launch:
    p = problem
    num_outputs, num_inputs, *taps = p.weight_shape
    num_pixels = p.num_terms
    num_splits, pixels_per_split = _splits(p, tile, flat)
    num_elements = math.prod(p.weight_shape)
    order = channels_last_strides(p.weight_shape)
    sums = p.dtype if num_splits == 1 else accumulator(p.dtype)
    pointers = (Pointer(sums, p.alignment), Pointer(p.dtype, p.alignment), Pointer(p.dtype, p.alignment))
    padding = (-p.padding[0], -p.padding[1])
    geometry = (p.output_shape[2:], p.input_shape[2:], tuple(taps), p.stride, padding, p.dilation)
    strides = (
        (num_elements, *order), channels_last_strides(p.output_shape), channels_last_strides(p.input_shape),
    )  # fmt: skip
    constants: _Constants = {"COMPUTE": COMPUTE[p.dtype], "WIDE": _is_wide(p), "general": general}
    if p.is_depthwise:
        ready = bind(
            weight_grad._depthwise_weight_grad_kernel, p.device,
            (math.prod(taps) * num_splits, -(-num_outputs // tile.block_n)), *pointers, num_pixels, num_outputs,
            num_outputs // p.groups, *geometry, num_splits, pixels_per_split, *strides,
            **constants, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        )  # fmt: skip
    else:
        ready = bind(
            weight_grad._conv_weight_grad_kernel, p.device, (shape.num_tiles(p, tile, flat) * num_splits,), *pointers,
            num_pixels, num_outputs // p.groups, num_inputs, reciprocal(p.output_shape[3]),
            reciprocal(p.output_shape[2]), *geometry, num_splits, pixels_per_split, *strides,
            **constants, PRECISION=tiles.DOT_PRECISION[p.dtype], FLAT=flat,
            INPUT_VECTOR=_vector(num_inputs, general), OUTPUT_VECTOR=_vector(num_outputs // p.groups, general),
            **tile.constants,
        )  # fmt: skip
    if num_splits == 1:
        return lambda stream, out, grad, x, *_: ready(stream, out, grad, x)
    finish = finisher(p, num_splits, sums, general)

    def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
        ready(stream, workspace, grad, x)
        finish(stream, out, workspace, 0, 0)

    return run


def _splits(problem: ConvProblem, tile: Tile, flat: bool) -> tuple[int, int]:
    """Over how many programs the pixels of one tile are shared out, and how many each gets."""
    pixels_per_block = tile.block_m if problem.is_depthwise else tile.block_k
    num_bytes = math.prod(problem.weight_shape) * accumulator(problem.dtype).itemsize
    num_pixels = problem.num_terms
    num_splits = _num_splits(
        shape.num_tiles(problem, tile, flat), num_pixels, pixels_per_block, num_bytes, problem.device
    )
    blocks = -(-num_pixels // pixels_per_block)
    return num_splits, -(-blocks // num_splits) * pixels_per_block


def _num_splits(num_programs: int, num_pixels: int, pixels_per_block: int, num_bytes: int, device: int) -> int:
    """Choose enough splits to keep the multiprocessors busy twice over, each with enough to do, in bounded memory."""
    wanted = 2 * driver.get().properties(device).multiprocessor_count // max(num_programs, 1)
    return max(1, min(wanted, num_pixels // (4 * pixels_per_block), _SPLIT_LIMIT // max(num_bytes, 1)))


# --- what the kernels are told of sizes -------------------------------------------------------------------------------
def _vector(num_channels: int, general: bool) -> int:
    """How many channels may be loaded at once, where the compiler can't know it: of multiples of 16 it does.

    >>> _vector(18, False), _vector(24, False), _vector(32, False), _vector(24, True)
    (2, 8, 1, 1)
    """
    return 1 if general or num_channels % 16 == 0 else math.gcd(num_channels, 8)


def reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift), by which numbers below 2³¹ are divided: ((n · multiplier >> 32) + n) >> shift.

    The multiplier has 32 bits, and is given as a signed number. After Granlund and Montgomery, "Division by invariant
    integers using multiplication", 1994.

    >>> multiplier, shift = reciprocal(7)
    >>> [((n * (multiplier % 2**32) >> 32) + n) >> shift for n in (0, 6, 7, 2**31 - 1)]
    [0, 0, 1, 306783378]
    """
    shift = (divisor - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1
    return multiplier - (1 << 32) * (multiplier >> 31), shift


def _alignment(problem: ConvProblem, offset: int) -> int:
    return math.gcd(problem.alignment, offset) if offset else problem.alignment


def _is_wide(problem: ConvProblem) -> bool:
    """Do offsets need 64 bits?"""
    shapes = (problem.first_shape, problem.second_shape, problem.result_shape)
    return any(math.prod(shape) >= 2**31 for shape in shapes)
