"""Depthwise convolution: each channel with a filter of its own, vectors of channels at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from genesis.backends.contract import Pair
from genesis.backends.cpu.x86.assembler import R8, R9, R10, RBP, RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.micro import apply_activation
from genesis.backends.cpu.x86.problem import Kernels, Problem, balanced, split

MOST_PIXELS = {True: 14, False: 8}


@dataclass(frozen=True)
class Depthwise:
    """Some pixels of a row, for as many vectors of channels as the call's count. Lengths are in bytes.

    x is that of the first row r that meets the image; to the next it is rbp.

    Attributes:
        pixels: results.
        rows: the first and the end of the rows r of the filter that meet the image.
        columns: for each s, the first and the end of the results where it meets the image.
        kernel: rows and columns of the filter.
        column: from one s to the next in x.
        pixel: from a result to the next in x.
        start: of the first result's s = 0 in x.
        out_pixel: from a result to the next in y.
    """

    wide: bool
    pixels: int
    rows: Pair
    columns: tuple[Pair, ...]
    kernel: Pair
    column: int
    pixel: int
    start: int
    out_pixel: int
    has_bias: bool
    has_residual: bool
    activation: str | None
    in_scratch: bool = False  # x is there

    def code(self) -> bytes:
        a = Assembler(self.wide)
        if self.in_scratch:
            a.move(RDI, R10)
        height, width = self.kernel
        apply = apply_activation(a, self.activation, self.pixels)
        x = self.pixels + 2
        weights = list(range(x + 1, a.num_vectors))
        start = a.here
        a.move(R10, RDI)
        for m in range(self.pixels):
            if self.has_bias:
                a.load(m, (R8, 0))
            else:
                a.zero(m)
        for r in range(*self.rows):
            held = dict(zip(range(width), weights, strict=False))
            for s, vector in held.items():
                a.load(vector, (RSI, (r * width + s) * a.vector_bytes))
            for place, uses in self._uses().items():
                a.load(x, (R10, place))
                for m, s in uses:
                    a.multiply_add(m, x, held.get(s, (RSI, (r * width + s) * a.vector_bytes)))
            a.add_integer(R10, RBP)
        for m in range(self.pixels):
            if self.has_residual:
                a.add(m, m, (R9, m * self.out_pixel))
            apply(m)
            a.store((RDX, m * self.out_pixel), m)
        for register in (RDI, RDX, R8, R9):
            a.increase(register, a.vector_bytes)
        a.increase(RSI, height * width * a.vector_bytes)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _uses(self) -> dict[int, list[Pair]]:
        """By place in x: the results m and the columns s of the filter that take it."""
        uses: dict[int, list[Pair]] = {}
        for s, (first, end) in enumerate(self.columns):
            for m in range(first, end):
                uses.setdefault(self.start + m * self.pixel + s * self.column, []).append((m, s))
        return dict(sorted(uses.items()))


def is_supported(problem: Problem, wide: bool) -> bool:
    channels, per_group, *kernel = problem.weight_shape
    fits = problem.geometry.groups == channels == problem.input_shape[1] and per_group == 1 and math.prod(kernel) <= 49
    return fits and problem.strides[1] == 1 and channels % (16 if wide else 8) == 0


def packed(weight: Tensor, lanes: int) -> Tensor:
    """By vector of channels, r, s and channel."""
    channels = weight.shape[0]
    return weight.reshape(channels // lanes, lanes, -1).transpose(1, 2).reshape(-1).contiguous()  # 1×1 may be a view


def job(problem: Problem, wide: bool, num_threads: int) -> Job:
    """The job of a depthwise convolution."""
    return _Planner(problem, wide, num_threads).job()


class _Planner:
    def __init__(self, problem: Problem, wide: bool, num_threads: int) -> None:
        self._problem, self._wide, self._num_threads = problem, wide, num_threads
        self._lanes = 16 if wide else 8
        self._channels = problem.input_shape[1]
        self._image, _, self._row, self._pixel = (4 * each for each in problem.strides)
        self._kernels = Kernels()

    def job(self) -> Job:
        batch, _, height, width = self._problem.output_shape
        stride, padding, dilation, _ = self._problem.geometry
        out_row = width * self._channels * 4
        taps = self._problem.all_taps(0)
        kinds, kind_of_row = np.unique(taps, axis=0, return_inverse=True)
        tables = [self._calls((int(low), int(high))) for low, high in kinds]
        starts, ends = np.array([bounds(table) for table in tables]).T[:, kind_of_row.reshape(-1)]
        place = np.arange(height) * stride[0] - padding[0] + taps[:, 0] * dilation[0]
        images = np.arange(batch)[:, None]
        blocks = rows(
            starts, ends, images * self._image + place * self._row, 0, (images * height + np.arange(height)) * out_row,
            0, 0,
        )  # fmt: skip
        return Job(balanced(blocks, np.ones(len(blocks)), self._num_threads), (tables, self._kernels))

    def _calls(self, taps: Pair) -> Numbers:
        problem = self._problem
        sizes = np.array(split(problem.output_shape[3], MOST_PIXELS[self._wide]))
        firsts = sizes.cumsum() - sizes
        kernels = [self._kernel(taps, *columns) for columns in problem.tiles_of_row(0, sizes)]
        return rows(
            np.array(kernels), firsts * problem.geometry.stride[1] * self._pixel, 0, firsts * self._channels * 4,
            self._channels // self._lanes, 0, 0, self._row * problem.geometry.dilation[0], 0,
        )  # fmt: skip

    def _kernel(self, taps: Pair, pixels: int, columns: tuple[Pair, ...]) -> int:
        problem = self._problem
        stride, padding, dilation, _ = problem.geometry
        height, width = problem.weight_shape[2:]
        kernel = Depthwise(
            self._wide, pixels, taps, columns, (height, width), self._pixel * dilation[1], self._pixel * stride[1],
            -padding[1] * self._pixel, self._channels * 4, problem.has_bias, problem.has_residual, problem.activation,
        )  # fmt: skip
        return self._kernels.address(kernel)
