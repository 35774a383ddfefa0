"""Hopper's matrix instructions through CUDA C++ (forward.cu): forward and input gradient.

Float32 with full precision at three float16 products per term, or rounded to 11 bits at one; 16-bit types. What Triton
cannot express here: a warpgroup that only loads, pixels gathered by the copy engine, and operands split in registers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, Parts
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import Axis, launch_axes
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma import kernels as conv_split
from genesis.backends.cuda.ops.conv.candidates.wgmma.weight_grad import weight_grads
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from genesis.shapes import channels_last_strides, numel

if TYPE_CHECKING:
    from genesis.backends.cuda.driver.tensor_maps import Pixels

_SOURCE = Path(__file__).with_suffix(".cu")
_TERMS = 64  # of a step: BK
_STAGING = 16 * 36 * 4  # bytes per warp
_LEAST_CHANNELS = 16  # with fewer, most of a step's terms are zeros
_MOST_SPLITS = 16
_MOST_STEPS = 128  # of a split, where the sums are long
_RAISED = 16  # forward.cu's
_SPLIT_BLOCK = 8192  # elements of a weight at a time


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    columns: int
    stages: int
    consumers: int
    pingpong: bool
    products: int = 1  # of float32

    @property
    def rows(self) -> int:
        return 64 * self.consumers

    def cubin(self, dtype: DType, transposed: bool = False, statistics: bool = False) -> bytes:
        """transposed: the weight lies in memory with the results' channels innermost."""
        macros = {
            "BN": self.columns, "STAGES": self.stages, "CONSUMERS": self.consumers, "PINGPONG": int(self.pingpong),
            "SPLIT": int(dtype is dtypes.float32), "PRODUCTS": self.products, "TRANSPOSED_WEIGHT": int(transposed),
            "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"', "STATISTICS": int(statistics),
        }  # fmt: skip
        return hopper.cubin("conv_wgmma", _SOURCE, tuple(macros.items()))

    def shared_memory(self, dtype: DType, statistics: bool = False) -> int:
        weight_parts = 2 if self.products == 3 else 1
        stage = (self.rows * dtype.itemsize + self.columns * 2 * weight_parts) * _TERMS
        warp = _STAGING + (4 * self.columns if statistics else 0)
        return self.stages * stage + 4 * self.consumers * warp + 1024  # tiles begin at multiples of 1024


_SPLIT_SHAPES = (
    Shape(256, 2, 2, False, 3),
    Shape(128, 3, 2, True, 3),
    Shape(64, 3, 3, False, 3),
    Shape(64, 4, 2, True, 3),
)
_ROUNDED_SHAPES = (Shape(256, 3, 2, True), Shape(128, 4, 2, True), Shape(64, 5, 2, True))
_PLAIN_SHAPES = (
    Shape(128, 4, 3, False),
    Shape(256, 4, 2, False),
    Shape(128, 5, 2, False),
    Shape(64, 6, 2, False),
    Shape(64, 8, 1, False),
)


def shapes(problem: ConvProblem) -> tuple[Shape, ...]:
    if problem.dtype is not dtypes.float32:
        return _PLAIN_SHAPES
    return _SPLIT_SHAPES if problem.precision == "highest" else _ROUNDED_SHAPES


class WgmmaFamily(Family[ConvProblem]):
    prefix = "wgmma"
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        if problem.direction == WEIGHT_GRAD:
            return weight_grads(self.prefix, problem)
        if not _is_supported(problem):
            return []
        choice = [
            Wgmma(shape, splits, hopper.arithmetic(problem))
            for shape in shapes(problem)
            if not problem.statistics or _has_programs(problem, shape)
            for splits in _worthwhile_splits(problem, shape)
        ]
        return sorted(choice, key=lambda candidate: candidate.estimate(problem))


class Wgmma(Candidate[ConvProblem]):
    """One shape of the kernel, and over how many programs the terms of a tile are shared out."""

    def __init__(self, shape: Shape, splits: int, arithmetic: str) -> None:
        self.shape, self.splits, self.arithmetic = shape, splits, arithmetic
        self.num_sums = splits  # of each result
        turns = " in turns" if shape.pingpong else ""
        rounded = " rounded" if arithmetic != FULL else ""
        tile = f"{shape.rows}x{shape.columns} stages {shape.stages}{turns}{rounded}"
        self.name = f"{WgmmaFamily.prefix}/{tile} splits {splits}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        if problem.statistics and problem.dtype is not dtypes.float32:
            return frozenset({"bias", "statistics"})
        return PLAIN

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time, in steps of a tile of 64 columns."""
        shape = self.shape
        units = math.prod(_num_tiles(problem, shape)) * self.splits
        # What a step costs beside its products: splitting the rows, and waiting.
        step = shape.consumers * (shape.columns / 64 + (1.0 if problem.dtype is dtypes.float32 else 0.5))
        rounds = -(-units // hopper.processors(problem))
        return rounds * step * (_num_steps(problem) / self.splits + 3) + (8 * step if self.splits > 1 else 0)

    def workspace(self, problem: ConvProblem) -> int:
        if problem.statistics:
            return self.parts(problem).num_bytes(_num_outputs(problem))
        return _Workspace(problem, self.splits).size

    def parts(self, problem: ConvProblem) -> Parts:
        """One of each program that takes the tiles of a column."""
        row_tiles, column_tiles = _num_tiles(problem, self.shape)
        return Parts(min(row_tiles, hopper.processors(problem) // column_tiles), self.shape.rows)

    def prepare(self, problem: ConvProblem) -> Launch:
        return self.prepare_view(problem)

    def prepare_view(self, problem: ConvProblem, view: hopper.View | None = None) -> Launch:
        """The launch on a first operand that is dense, or lies in memory as view says."""
        from genesis.backends.cuda.driver.tensor_maps import Box, MapKernel

        p, shape, space = problem, self.shape, _Workspace(problem, self.splits)
        is_split = p.dtype is dtypes.float32
        transposed = p.dtype is not dtypes.float32 and p.direction == INPUT_GRAD
        cubin, shared = shape.cubin(p.dtype, transposed, p.statistics), shape.shared_memory(p.dtype, p.statistics)
        kernel = MapKernel(p.device, "conv_wgmma", cubin, shared)
        weight = Box(dtypes.float16 if is_split else p.dtype, space.weight, (shape.columns, 1, _TERMS))
        if transposed:
            outputs, inputs, *taps = p.weight_shape
            weight = Box(p.dtype, (outputs, math.prod(taps), inputs), (_TERMS, 1, 64))
        num_addresses = 5 if p.statistics else 4
        launches: list[AddressLaunch] = []
        axes = launch_axes(p)
        for index, (row, column) in enumerate(axes):
            pixels, geometry = _geometry(p, self, row, column)
            if view is not None:
                pixels = pixels._replace(shape=(*pixels.shape[:3], view.num_channels), strides=view.strides)
            column_tiles = -(-_num_outputs(p) // shape.columns)
            grid = min(-(-geometry["num_pixels"] // shape.rows) * column_tiles * self.splits, hopper.processors(p))
            if p.statistics:
                grid = self.parts(p).number * column_tiles
            geometry |= {"is_beside": int(index > 0), "has_more_beside": int(index + 1 < len(axes))}
            threads, maps = 32 * (4 + 4 * shape.consumers), (pixels, weight, weight)
            packed = hopper.geometry(_SOURCE).pack(**geometry)
            launches.append(kernel.prepare(grid, threads, maps, num_addresses, packed))
        prepare_weight = _weight_splitter(p, space, 2 if shape.products == 3 else 1) if is_split else None
        finish = finisher(p, self.splits) if self.splits > 1 else None

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            high, low, inverse = second, second, 0
            if prepare_weight is not None:
                high, low, inverse = workspace + space.high, workspace + space.low, workspace + space.inverse
                prepare_weight(stream, second, workspace)
            target = workspace + space.sums if finish is not None else out
            addresses = (target, inverse, bias, residual, workspace)[:num_addresses]
            for launch in launches:
                launch(stream, first, high, low, *addresses)
            if finish is not None:
                finish(stream, out, target, bias, residual)

        return run


class _Workspace:
    """Places and shapes of the weight's parts and the partial sums."""

    def __init__(self, problem: ConvProblem, splits: int) -> None:
        taps, inputs = math.prod(problem.weight_shape[2:]), problem.first_shape[1]
        self.weight = (_num_outputs(problem), taps, inputs)
        self.high = self.low = self.inverse = end = 0
        if problem.dtype is dtypes.float32:
            self.weight = (_num_outputs(problem), taps, -(-inputs // 16) * 16)
            self.low = end = _padded(2 * numel(self.weight))
            self.inverse = end = end + _padded(2 * numel(self.weight))
            end += _padded(4 * _num_outputs(problem))
        self.sums = end
        self.size = end + (splits * 4 * numel(problem.result_shape) if splits > 1 else 0)


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    if p.direction == WEIGHT_GRAD or p.groups != 1 or p.alignment < 16 or not hopper.is_available(p.device):
        return False
    inputs, outputs = p.first_shape[1], _num_outputs(p)
    if p.dtype is dtypes.float32:
        aligned = inputs % 4 == 0 and outputs % 4 == 0
    else:
        aligned = p.dtype.itemsize == 2 and inputs % 8 == 0 and outputs % 8 == 0
    if not hopper.is_accurate(p, _least_terms(p)):
        return False
    if not aligned or inputs < _LEAST_CHANNELS or numel(p.result_shape) == 0 or numel(p.first_shape) == 0:
        return False
    if max(numel(shape[:1] + shape[2:]) for shape in (p.first_shape, p.result_shape)) >= 2**30:
        return False
    return all(
        hopper.is_within_reach(axis, size)
        for pair in launch_axes(p)
        for axis, size in zip(pair, p.first_shape[2:], strict=True)
    )


def _has_programs(problem: ConvProblem, shape: Shape) -> bool:
    """One at least for each column of tiles, whose statistics it sums up?"""
    return _num_tiles(problem, shape)[1] <= hopper.processors(problem)


# --- sizes ------------------------------------------------------------------------------------------------------------
def _num_outputs(problem: ConvProblem) -> int:
    return problem.result_shape[1]


def _num_steps(problem: ConvProblem) -> int:
    return -(-math.prod(problem.weight_shape[2:]) * -(-problem.first_shape[1] // _TERMS) // len(launch_axes(problem)))


def _least_terms(problem: ConvProblem) -> int:
    """Terms of a result away from the borders; the input's gradient meets another number of taps at each residue."""
    taps = [row.taps * column.taps for row, column in launch_axes(problem)]
    return problem.first_shape[1] * min((count for count in taps if count), default=0)


def _num_tiles(problem: ConvProblem, shape: Shape) -> tuple[int, int]:
    """Numbers of tiles, of rows and of columns."""
    num_pixels = problem.result_shape[0] * math.prod(problem.result_shape[2:])
    return -(-num_pixels // shape.rows), -(-_num_outputs(problem) // shape.columns)


def _worthwhile_splits(problem: ConvProblem, shape: Shape) -> list[int]:
    """1, what fills a few rounds where there are too few tiles to keep all multiprocessors busy, and for long sums of
    float32 what keeps each split's short: they are rounded at every step."""
    if len(launch_axes(problem)) > 1 or problem.statistics:
        return [1]
    processors = hopper.processors(problem)
    tiles, steps = math.prod(_num_tiles(problem, shape)), _num_steps(problem)
    wanted = {rounds * processors // tiles for rounds in (1, 2, 3)} if tiles < 2 * processors else set()
    if problem.dtype is dtypes.float32:
        wanted.add(-(-steps // _MOST_STEPS))
    most = min(_MOST_SPLITS, steps // 2)
    return [1, *sorted({min(splits, most) for splits in wanted if min(splits, most) > 1})]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256


def _geometry(problem: ConvProblem, candidate: Wgmma, row: Axis, column: Axis) -> tuple[Pixels, dict[str, int]]:
    """(the input's map, the members of the kernel's structure Geometry) of one launch."""
    from genesis.backends.cuda.driver.tensor_maps import Pixels

    p, shape = problem, candidate.shape
    images, inputs, height, width = p.first_shape
    outputs = _num_outputs(p)
    num_pixels = images * row.out_size * column.out_size
    image, _, out_row, out_column = channels_last_strides(p.result_shape)
    out_strides = (image, out_row * row.out_step, out_column * column.out_step)
    out_start = row.out_first * out_row + column.out_first * out_column
    sizes = (images, height, width)
    out_sizes = (row.out_size, column.out_size)
    if p.is_flat:  # one row of all pixels
        sizes, out_sizes = (1, 1, num_pixels), (1, num_pixels)
        out_strides = (num_pixels * outputs, num_pixels * outputs, outputs)
    per_axis = []
    for axis, size, out_size in zip((row, column), sizes[1:], out_sizes, strict=True):
        low, high = hopper.bounds(axis._replace(out_size=out_size), size)
        turned = axis.spread < 0  # from the last tap to the first, so that their offsets are positive
        first = axis.tap_first + (axis.taps - 1) * axis.tap_step if turned else axis.tap_first
        per_axis.append((low, high, abs(axis.spread), first, -axis.tap_step if turned else axis.tap_step))
    (low_y, high_y, spread_y, first_y, step_y), (low_x, high_x, spread_x, first_x, step_x) = per_axis
    pixels = Pixels(
        p.dtype, (*sizes, inputs), (low_y, low_x), (high_y, high_x), (row.step, column.step), shape.rows,
        128 // p.dtype.itemsize,
    )  # fmt: skip
    geometry = {
        "num_pixels": num_pixels, "num_outputs": outputs, "num_inputs": inputs,
        "out_height": out_sizes[0], "out_width": out_sizes[1],
        "step_y": row.step, "step_x": column.step, "low_y": low_y, "low_x": low_x,
        "taps_y": row.taps, "taps_x": column.taps, "spread_y": spread_y, "spread_x": spread_x,
        "tap_first_y": first_y, "tap_step_y": step_y, "tap_first_x": first_x, "tap_step_x": step_x,
        "weight_width": p.weight_shape[3], "num_splits": candidate.splits, "relu": int(p.activation == "relu"),
        "is_beside": 0, "has_more_beside": 0, "in_height": sizes[1],
        "out_image": out_strides[0], "out_row": out_strides[1], "out_column": out_strides[2], "out_start": out_start,
    }  # fmt: skip
    return pixels, geometry


# --- before and after -------------------------------------------------------------------------------------------------
def _weight_splitter(problem: ConvProblem, space: _Workspace, parts: int) -> Callable[[int, int, int], None]:
    """run(stream, weight, workspace): the weight's parts, the results' channels outermost."""
    p = problem
    rows, taps, padded = space.weight
    per_output = math.prod(p.weight_shape[1:])
    forward = p.direction == FORWARD
    strides = (per_output, p.weight_shape[1], 1) if forward else (1, p.weight_shape[1], per_output)
    rows_per_program = 1 if forward else 8  # that lie side by side: 32 bytes
    block = min(power_of_2(taps * padded), _SPLIT_BLOCK // rows_per_program)
    split = bind(
        conv_split._split_weight_kernel, p.device, (-(-rows // rows_per_program),), Pointer(dtypes.float16),
        Pointer(dtypes.float16), Pointer(dtypes.float32), Pointer(dtypes.float32), rows, taps, p.first_shape[1],
        strides, PADDED=padded, RAISED=_RAISED, PARTS=parts, ROWS=rows_per_program, BLOCK=block,
        num_warps=8,
    )  # fmt: skip

    def run(stream: int, weight: int, workspace: int) -> None:
        split(stream, workspace + space.high, workspace + space.low, workspace + space.inverse, weight)

    return run
