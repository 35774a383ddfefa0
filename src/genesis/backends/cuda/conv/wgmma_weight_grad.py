"""The weight's gradient in float32 on Hopper (native/conv_wgmma_weight_grad.cu)."""

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
from genesis.shapes import numel

_ROWS, _TERMS = 128, 64  # BM, BK
_THREADS = 512
_LEAST_CHANNELS = 16  # with fewer, most of a tile is empty
_LEAST_STEPS, _MOST_STEPS = 8, 128  # of a split: each ends with an addition in float32
_MOST_BYTES = 256 << 20  # of partial sums


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    columns: int
    stages: int

    def cubin(self) -> bytes:
        return hopper.cubin("conv_wgmma_weight_grad", (("BN", self.columns), ("STAGES", self.stages)))

    @property
    def shared_memory(self) -> int:
        return self.stages * (_ROWS + self.columns) * _TERMS * 4 + 1024  # tiles begin at multiples of 1024


SHAPES = (Shape(128, 3), Shape(64, 4))


def weight_grads(prefix: str, problem: ConvProblem) -> list[WgmmaWeightGrad]:
    """The candidates for a problem, the best guess first."""
    if not _is_supported(problem):
        return []
    choice = [
        WgmmaWeightGrad(prefix, shape, splits) for shape in SHAPES for splits in _worthwhile_splits(problem, shape)
    ]
    return sorted(choice, key=lambda candidate: candidate.estimate(problem))


class WgmmaWeightGrad(Candidate):
    """One shape of the kernel, and in how many parts the pixels are summed."""

    arithmetic = FULL

    def __init__(self, prefix: str, shape: Shape, splits: int) -> None:
        self.shape, self.splits = shape, splits
        self.name = f"{prefix}/weight_grad {_ROWS}x{shape.columns} stages {shape.stages} splits {splits}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time, in steps of a tile of 64 columns."""
        rounds = -(-_num_tiles(problem, self.shape) * self.splits // _processors(problem))
        step = self.shape.columns / 64 + 1
        sums = self.splits * numel(problem.weight_shape) / 2**18 if self.splits > 1 else 0
        return rounds * step * (_num_steps(problem) / self.splits + 3) + sums

    def workspace(self, problem: ConvProblem) -> int:
        return self.splits * 4 * numel(problem.weight_shape) if self.splits > 1 else 0

    def prepare(self, problem: ConvProblem) -> Launch:
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
        grad = Box(p.dtype, (1, num_pixels, outputs), (1, _TERMS, 32))
        pixels = Pixels(p.dtype, (*sizes, inputs), (low_y, low_x), (high_y, high_x), p.stride, _TERMS, 32)
        structure = struct.pack(
            "<14i", outputs, inputs, num_pixels, *out_sizes, *p.stride, low_y, low_x, *taps, *p.dilation, self.splits
        )
        kernel = MapKernel(p.device, "conv_wgmma_weight_grad", shape.cubin(), shape.shared_memory)
        grid = min(_num_tiles(p, shape) * self.splits, _processors(p))
        launch = kernel.prepare(grid, _THREADS, (grad, pixels), 1, structure)
        if self.splits == 1:
            return lambda stream, out, grad, x, *_: launch(stream, grad, x, out)
        finish = finisher(p, self.splits)

        def run(stream: int, out: int, grad: int, x: int, bias: int, residual: int, workspace: int) -> None:
            launch(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    outputs, inputs = p.weight_shape[:2]
    return (
        p.direction == WEIGHT_GRAD
        and p.dtype is dtypes.float32
        and p.groups == 1
        and p.alignment == 16
        and outputs % 4 == 0
        and inputs % 4 == 0
        and min(outputs, inputs) >= _LEAST_CHANNELS
        and p.num_terms > 0
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
    return -(-outputs // _ROWS) * -(-inputs // shape.columns) * math.prod(taps)


def _worthwhile_splits(problem: ConvProblem, shape: Shape) -> list[int]:
    """What fills one to four rounds of all multiprocessors; more where a split's sums would be rounded too often."""
    tiles, processors, steps = _num_tiles(problem, shape), _processors(problem), _num_steps(problem)
    room = max(1, _MOST_BYTES // (4 * numel(problem.weight_shape)))
    least = min(-(-steps // _MOST_STEPS), room)
    most = min(steps // _LEAST_STEPS, room)
    wanted = {rounds * processors // tiles for rounds in (1, 2, 4)}
    return sorted({least} | {splits for splits in wanted if least < splits <= most})
