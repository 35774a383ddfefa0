"""The weight's gradient on Hopper (native/conv_wgmma_weight_grad.cu): float32 and 16-bit types."""

from __future__ import annotations

import dataclasses
import math
import struct

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.conv import hopper
from genesis.backends.cuda.conv.candidate import FULL, Candidate, Launch
from genesis.backends.cuda.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.conv.sums import finisher
from genesis.backends.cuda.conv.triton_direct import Axis, forward_axis
from genesis.dtypes import DType
from genesis.shapes import numel

_TERMS = 64  # BK
_CHANNELS_APART = {dtypes.float32: 4, dtypes.float16: 8, dtypes.bfloat16: 8}  # 16 bytes, as the copy engine wants
_LEAST_CHANNELS = 16  # with fewer, most of a tile is empty
_LEAST_STEPS, _MOST_STEPS = 8, 128  # of a split: each ends with an addition in float32
_MOST_BYTES = 256 << 20  # of partial sums


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    columns: int
    stages: int
    consumers: int = 2
    products: int = 1  # of float32
    alternate: bool = False  # consumers have the same rows and take the pixels of every other stage

    @property
    def rows(self) -> int:
        return 64 * self.sharers

    @property
    def sharers(self) -> int:
        """Consumers of one stage."""
        return 1 if self.alternate else self.consumers

    def cubin(self, dtype: DType) -> bytes:
        macros = {
            "BN": self.columns, "STAGES": self.stages, "CONSUMERS": self.consumers,
            "SPLIT": int(dtype is dtypes.float32), "ALTERNATE": int(self.alternate), "PRODUCTS": self.products,
            "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"',
        }  # fmt: skip
        return hopper.cubin("conv_wgmma_weight_grad", tuple(macros.items()))

    def shared_memory(self, dtype: DType) -> int:
        # Tiles begin at multiples of 1024.
        return self.stages * (self.rows + self.columns) * _TERMS * dtype.itemsize + 1024

    def threads(self, dtype: DType) -> int:
        """One warpgroup loads, in float32 one splits, the others multiply."""
        return 128 * (self.consumers + (2 if dtype is dtypes.float32 else 1))


_SPLIT_SHAPES = (Shape(128, 3, products=3), Shape(64, 4, products=3), Shape(64, 6, products=3, alternate=True))
_ROUNDED_SHAPES = (Shape(128, 3), Shape(64, 4), Shape(64, 6, alternate=True))
_PLAIN_SHAPES = (Shape(256, 4), Shape(128, 5, 3), Shape(128, 6), Shape(64, 8))


def shapes(problem: ConvProblem) -> tuple[Shape, ...]:
    if problem.dtype is not dtypes.float32:
        return _PLAIN_SHAPES
    return _SPLIT_SHAPES if problem.precision == "highest" else _ROUNDED_SHAPES


def weight_grads(prefix: str, problem: ConvProblem) -> list[WgmmaWeightGrad]:
    """The candidates for a problem, the best guess first."""
    if not _is_supported(problem):
        return []
    choice = [
        WgmmaWeightGrad(prefix, shape, splits, hopper.arithmetic(problem))
        for shape in shapes(problem)
        for splits in _worthwhile_splits(problem, shape)
    ]
    return sorted(choice, key=lambda candidate: candidate.estimate(problem))


class WgmmaWeightGrad(Candidate):
    """One shape of the kernel, and in how many parts the pixels are summed."""

    def __init__(self, prefix: str, shape: Shape, splits: int, arithmetic: str) -> None:
        self.shape, self.splits, self.arithmetic = shape, splits, arithmetic
        self.num_sums = splits * shape.consumers // shape.sharers  # of each result
        tile = f"{shape.rows}x{shape.columns} stages {shape.stages}{' rounded' if arithmetic != FULL else ''}"
        self.name = f"{prefix}/weight_grad {tile} splits {splits}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time, in steps of a tile of 64 columns."""
        rounds = -(-_num_tiles(problem, self.shape) * self.splits // _processors(problem))
        step = self.shape.sharers * (self.shape.columns / 64 + 1)
        sums = self.num_sums * numel(problem.weight_shape) / 2**18 if self.num_sums > 1 else 0
        return rounds * step * (_num_steps(problem) / self.splits + 3) + sums

    def workspace(self, problem: ConvProblem) -> int:
        return self.num_sums * 4 * numel(problem.weight_shape) if self.num_sums > 1 else 0

    def prepare(self, problem: ConvProblem) -> Launch:
        return self.prepare_view(problem)

    def prepare_view(self, problem: ConvProblem, view: hopper.View | None = None) -> Launch:
        """The launch on an input that is dense, or lies in memory as view says."""
        from genesis.backends.cuda.driver.tensor_maps import Box, MapKernel, Pixels

        p, shape = problem, self.shape
        outputs, inputs, *taps = p.weight_shape
        images, _, height, width = p.input_shape
        num_pixels = p.num_terms
        sizes, out_sizes = (images, height, width), p.output_shape[2:]
        if hopper.is_flat(p):  # one row of all pixels
            sizes, out_sizes = (1, 1, num_pixels), (1, num_pixels)
        axes = [axis._replace(out_size=size) for axis, size in zip(_axes(p), out_sizes, strict=True)]
        (low_y, high_y), (low_x, high_x) = (
            hopper.bounds(axis, size) for axis, size in zip(axes, sizes[1:], strict=True)
        )
        loaded = 128 // p.dtype.itemsize
        grad = Box(p.dtype, (1, num_pixels, outputs), (1, _TERMS, loaded))
        pixels = Pixels(p.dtype, (*sizes, inputs), (low_y, low_x), (high_y, high_x), p.stride, _TERMS, loaded)
        structure = struct.pack(
            "<14i", outputs, inputs, num_pixels, *out_sizes, *p.stride, low_y, low_x, *taps, *p.dilation, self.splits
        )
        if view is not None:
            pixels = pixels._replace(shape=(*pixels.shape[:3], view.num_channels), strides=view.strides)
        kernel = MapKernel(p.device, "conv_wgmma_weight_grad", shape.cubin(p.dtype), shape.shared_memory(p.dtype))
        grid = min(_num_tiles(p, shape) * self.splits, _processors(p))
        launch = kernel.prepare(grid, shape.threads(p.dtype), (grad, pixels), 1, structure)
        if self.num_sums == 1:
            return lambda stream, out, grad, x, *_: launch(stream, grad, x, out)
        finish = finisher(p, self.num_sums)

        def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
            launch(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    outputs, inputs = p.weight_shape[:2]
    return (
        p.direction == WEIGHT_GRAD
        and p.dtype in _CHANNELS_APART
        and p.groups == 1
        and p.alignment == 16
        and outputs % _CHANNELS_APART[p.dtype] == 0
        and inputs % _CHANNELS_APART[p.dtype] == 0
        and min(outputs, inputs) >= _LEAST_CHANNELS
        and p.num_terms > 0
        and hopper.is_accurate(p, p.num_terms)
        and max(p.num_terms, numel(p.input_shape) // inputs) < 2**30
        and hopper.is_available(p.device)
        and all(hopper.is_within_reach(axis, size) for axis, size in zip(_axes(p), p.input_shape[2:], strict=True))
    )


def _axes(problem: ConvProblem) -> list[Axis]:
    p = problem
    along = zip(p.input_shape[2:], p.weight_shape[2:], p.stride, p.padding, p.dilation, strict=True)
    return [forward_axis(*each) for each in along]


def _processors(problem: ConvProblem) -> int:
    return driver.get().properties(problem.device).multiprocessor_count


def _num_steps(problem: ConvProblem) -> int:
    return -(-problem.num_terms // _TERMS)


def _num_tiles(problem: ConvProblem, shape: Shape) -> int:
    outputs, inputs, *taps = problem.weight_shape
    return -(-outputs // shape.rows) * -(-inputs // shape.columns) * math.prod(taps)


def _worthwhile_splits(problem: ConvProblem, shape: Shape) -> list[int]:
    """What fills one to four rounds of all multiprocessors; more where a split's sums would be rounded too often for
    full precision."""
    tiles, processors, steps = _num_tiles(problem, shape), _processors(problem), _num_steps(problem)
    room = max(1, _MOST_BYTES // (4 * numel(problem.weight_shape)))
    least = min(-(-steps // _MOST_STEPS), room) if shape.products == 3 else 1
    most = min(steps // _LEAST_STEPS, room)
    wanted = {rounds * processors // tiles for rounds in (1, 2, 4)}
    return sorted({least} | {splits for splits in wanted if least < splits <= most})
