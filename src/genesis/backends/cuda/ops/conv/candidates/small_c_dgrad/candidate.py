"""The input's gradient of few channels (an image), by multiply-adds in float32 (kernels.py).

For a first layer whose gradient is asked for with all bits of float32. As a matrix product each residue of the stride
has a column per channel, of which a tensor core would compute 8 or 16 at least; and the residues as channels of one
convolution (sub_pixel.py) want the same number of taps, or zeros, which must not meet infinities. Here each residue has
its own taps, all of them in registers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.small_c_dgrad.kernels import _small_c_dgrad_kernel
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.kernels import _gather_weight_kernel
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.shapes import numel

_MOST_CHANNELS = 8
_LANES = 32
_MOST_REGISTERS = 200  # of the 255 that a thread has: for the weight and the window
_LEAST_STEPS = 4  # of a round, after which results are stored
_MOST_RESULTS = 64  # of a round and a row of i
_LEAST_ROUNDS = 7  # of a strip: before the first one, a window and the weight are loaded
_PROGRAMS = 16  # per multiprocessor, so that the last ones leave few of them idle
_GATHER_BLOCK = 1024


class Shape(NamedTuple):
    """How a warp shares the work."""

    per_lane: int  # channels of the gradient
    num_warps: int
    ahead: int = 0  # pixels loaded before they are needed


# Of those tried on an H200: the two fastest for a stem, and the fastest for 3×3 with stride 1.
_SHAPES = (Shape(4, 4, 1), Shape(2, 4, 1), Shape(4, 4))


class SmallCDgradFamily(Family[ConvProblem]):
    prefix = "small_c_dgrad"

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        choice = [SmallCDgrad(shape) for shape in _SHAPES]
        return [candidate for candidate in choice if admissible(candidate, problem)]


class SmallCDgrad(Candidate[ConvProblem]):
    """One shape of the kernel."""

    arithmetic = FULL

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.name = f"{SmallCDgradFamily.prefix}/{shape.per_lane} per lane w{shape.num_warps} ahead {shape.ahead}"

    def supports(self, problem: ConvProblem) -> bool:
        p = problem
        return (
            p.direction == INPUT_GRAD
            and p.is_exact
            and p.groups == 1
            and p.dilation == (1, 1)
            and p.input_shape[1] <= _MOST_CHANNELS
            and p.weight_shape[0] <= _LANES * self.shape.per_lane
            and numel(p.result_shape) > 0
            and numel(p.output_shape) > 0
            and max(numel(p.input_shape[1:]), numel(p.output_shape[1:]), p.input_shape[0] * p.input_shape[2]) < 2**30
            and self._part(p) is not None
        )

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return frozenset({"bias"})

    def _part(self, problem: ConvProblem) -> _Part | None:
        """The most at once that there is room for; None: there is too little even for one channel and row."""
        p = problem
        channels = [each for each in range(p.input_shape[1], 0, -1) if p.input_shape[1] % each == 0]
        rows = [p.stride[0], 1] if p.weight_shape[2] >= p.stride[0] else [p.stride[0]]
        choice = (_Part(each, residues) for residues in rows for each in channels)
        return next((part for part in choice if part.fits(p, self.shape)), None)

    def workspace(self, problem: ConvProblem) -> int:
        """For the weight with its taps in reverse and the gradient's channels innermost."""
        return numel(problem.weight_shape) * problem.dtype.itemsize

    def prepare(self, problem: ConvProblem) -> Launch:
        p, part = problem, self._part(problem)
        assert part is not None
        outputs, inputs, *taps = p.weight_shape
        gather = bind(
            _gather_weight_kernel, p.device, (inputs * math.prod(taps),), Pointer(p.dtype),
            Pointer(p.dtype, p.alignment), inputs, outputs, tuple(taps), (1, 1), tuple(each - 1 for each in taps),
            tuple(taps), BLOCK=min(power_of_2(outputs), _GATHER_BLOCK),
        )  # fmt: skip
        launches = [self._launch(p, part, first) for first in range(0, p.stride[0], part.residues)]

        def run(stream: int, out: int, grad: int, weight: int, bias: int, _: int, workspace: int) -> None:
            gather(stream, workspace, weight)
            for each in launches:
                each(stream, out, grad, workspace, *([bias] if p.bias else []))

        return run

    def _launch(self, problem: ConvProblem, part: _Part, first_residue: int) -> AddressLaunch:
        p, shape = problem, self.shape
        images, inputs, *size = p.input_shape
        outputs, _, *taps = p.weight_shape
        height, width = part.windows(p, first_residue)
        steps = part.num_steps(p, shape)
        block_k = power_of_2(outputs)
        rows = _LANES * shape.num_warps * shape.per_lane // block_k
        num_rows = images * -(-size[0] // p.stride[0])
        groups, rounds = -(-num_rows // rows), -(-size[1] // (p.stride[1] * steps))
        wanted = -(-_PROGRAMS * driver.get().properties(p.device).multiprocessor_count // groups)
        rounds_per_strip = -(-rounds // max(1, min(wanted, rounds // _LEAST_ROUNDS)))
        strips = -(-rounds // rounds_per_strip)
        return bind(
            _small_c_dgrad_kernel, p.device, (groups * strips,), Pointer(p.dtype), Pointer(p.dtype, p.alignment),
            Pointer(p.dtype), Pointer(p.dtype) if p.bias else None, num_rows, strips, rounds_per_strip, inputs,
            p.output_shape[2:], tuple(size), OUTPUTS=outputs, TAPS_Y=taps[0], TAPS_X=taps[1], STRIDE_Y=p.stride[0],
            STRIDE_X=p.stride[1], PADDING_Y=p.padding[0], PADDING_X=p.padding[1], LOW_Y=height.low, LOW_X=width.low,
            HEIGHT=height.size, WIDTH=width.size, FIRST_RESIDUE=first_residue, RESIDUES=part.residues,
            CHANNELS=part.channels, STEPS=steps, AHEAD=shape.ahead, ROWS=rows, BLOCK_K=block_k,
            BLOCK_N=power_of_2(part.num_results(p, shape)), num_warps=shape.num_warps,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Part:
    """The part of a pixel that a program computes at a time."""

    channels: int
    residues: int  # of the rows: all, or one

    def windows(self, problem: ConvProblem, first: int) -> tuple[_Window, _Window]:
        """The rows and columns of the gradient that meet these residues, the first of which is given."""
        p = problem
        along = zip(p.weight_shape[2:], p.stride, p.padding, (first, 0), (self.residues, p.stride[1]), strict=True)
        rows, columns = (_window(*each) for each in along)
        return rows, columns

    def num_steps(self, problem: ConvProblem, shape: Shape) -> int:
        """Steps of a round: after them the window's columns are back in their registers, so none moves."""
        ring = self.windows(problem, 0)[1].size + shape.ahead
        return ring * -(-_LEAST_STEPS // ring)

    def num_results(self, problem: ConvProblem, shape: Shape) -> int:
        """Results of a round and a row of i."""
        return self.residues * problem.stride[1] * self.channels * self.num_steps(problem, shape)

    def fits(self, problem: ConvProblem, shape: Shape) -> bool:
        """Do registers hold the weight and the window, in each launch, and a round's results?"""
        p = problem
        numbers = []
        for first in range(0, p.stride[0], self.residues):
            rows, columns = self.windows(p, first)
            taps = p.weight_shape[2] if self.residues == p.stride[0] else rows.size
            numbers.append(self.channels * taps * p.weight_shape[3] + rows.size * (columns.size + shape.ahead))
        return shape.per_lane * max(numbers) <= _MOST_REGISTERS and self.num_results(p, shape) <= _MOST_RESULTS


class _Window(NamedTuple):
    """Along one axis: which of the gradient's pixels the positions i · stride + residue meet, of some residues."""

    low: int  # the first is i + low
    size: int


def _window(taps: int, stride: int, padding: int, first: int, count: int) -> _Window:
    """A window of residues. Position i · stride + residue meets pixel i + (residue + padding − r) / stride at tap r.

    >>> _window(7, 2, 3, 0, 2), _window(7, 2, 3, 0, 1)
    (_Window(low=-1, size=4), _Window(low=-1, size=3))
    """
    low = -((taps - 1 - padding - first) // stride)
    return _Window(low, (first + count - 1 + padding) // stride - low + 1)
