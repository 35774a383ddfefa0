"""The gradient of a depthwise convolution's weight: for each channel, sums over pixels of grad times x.

    dw[c, r, s] = Σ_{n, p, q} grad[n, p, q, c] · x[n, p·stride + r, q·stride + s, c]

A kernel holds all taps of a vector of channels in registers, goes through some pixels of a row, and adds its sums to
those of a block of rows, of which there are few; the blocks' sums are added up at the end.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu.x86 import depthwise, machine
from genesis.backends.cpu.x86.assembler import RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.problem import Kernels, Problem, balanced, split
from genesis.records import ConvGeometry

_MOST_PIXELS = 28  # of a sum in a register
_MOST_SUMS = 64  # that a block adds up
_FAR = 1 << 26  # floats: rows of x are told apart by 32 bits of bytes


@dataclass(frozen=True)
class DepthwiseWeightGrad:
    """Some pixels of a row, for as many vectors of channels as the call's count. Lengths are in bytes.

    Attributes:
        rows: the first and the end of the rows r of the filter that meet the image.
        columns: for each s, the first and the end of the pixels at which it meets the image.
        kernel: rows and columns of the filter.
        row, column: from one r, and s, to the next in x.
        x_pixel, grad_pixel: from a pixel to the next.
        start: in x, of the first pixel's s = 0.
        tap: from a tap's sums to the next one's.
    """

    wide: bool
    pixels: int
    rows: Pair
    columns: tuple[Pair, ...]
    kernel: Pair
    row: int
    column: int
    x_pixel: int
    grad_pixel: int
    start: int
    tap: int

    def code(self) -> bytes:
        """A function of x (rdi), where r = 0 lies, grad (rsi), the sums (rdx) and the vectors (rcx)."""
        a = Assembler(self.wide)
        width = self.kernel[1]
        grad = a.num_vectors - 1
        together = max(1, (a.num_vectors - 1) // width)  # rows of the filter
        start = a.here
        for first in range(*self.rows, together):
            taps = [(r, s) for r in range(first, min(first + together, self.rows[1])) for s in range(width)]
            for vector in range(len(taps)):
                a.zero(vector)
            for m in range(self.pixels):
                a.load(grad, (RSI, m * self.grad_pixel))
                for vector, (r, s) in enumerate(taps):
                    if self.columns[s][0] <= m < self.columns[s][1]:
                        place = self.start + r * self.row + m * self.x_pixel + s * self.column
                        a.multiply_add(vector, grad, (RDI, place))
            for vector, (r, s) in enumerate(taps):
                place = (r * width + s) * self.tap
                a.add(vector, vector, (RDX, place))
                a.store((RDX, place), vector)
        for register in (RDI, RSI, RDX):
            a.increase(register, a.vector_bytes)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)


def is_supported(problem: Problem, wide: bool) -> bool:
    """problem: the convolution whose weight it is, of an input that is channels-last."""
    columns = problem.weight_shape[3]
    fits = columns < (32 if wide else 16) and max(problem.strides[2:]) * max(problem.weight_shape[2:]) < _FAR
    return fits and depthwise.is_supported(problem, wide) and math.prod(problem.output_shape) > 0


@functools.lru_cache(256)
def planned(problem: Problem, wide: bool, num_threads: int) -> tuple[Job, int]:
    """The job, and how many blocks have sums of their own."""
    planner = _Planner(problem, wide)
    height = problem.output_shape[2]
    count = -(-height // max(1, _MOST_SUMS // len(planner.sizes)))
    if problem.output_shape[0] * count % num_threads:
        count = min(height, -(-count // num_threads) * num_threads)
    return planner.job(split(height, -(-height // count)), num_threads)


class _Planner:
    def __init__(self, problem: Problem, wide: bool) -> None:
        self._problem, self._wide = problem, wide
        self.sizes = np.array(split(problem.output_shape[3], _MOST_PIXELS))  # of the pieces of a row
        self._tiles = problem.tiles_of_row(0, self.sizes)
        self._channels = problem.input_shape[1]
        self._image, _, self._row, self._pixel = (4 * each for each in problem.strides)
        self._taps = problem.all_taps(0)
        self._kernels = Kernels()

    def job(self, heights: list[int], num_threads: int) -> tuple[Job, int]:
        """heights: the rows of an image's blocks."""
        batch, channels, height, width = self._problem.output_shape
        ends = np.cumsum(heights)
        lists = [self._calls(end - size, end) for size, end in zip(heights, ends.tolist(), strict=True)]
        starts, stops = np.array([bounds(calls) for calls in lists]).T
        images, count = np.arange(batch)[:, None], batch * len(lists)
        sums = np.arange(count).reshape(batch, -1) * (math.prod(self._problem.weight_shape) * 4)
        grads = images * (height * width * channels * 4)
        blocks = rows(starts, stops, images * self._image, grads, sums, 0, 0)
        shares = balanced(blocks, np.tile(np.array(heights), batch), num_threads)
        return Job(shares, (lists, self._kernels)), count

    def _calls(self, top: int, end: int) -> Numbers:
        problem = self._problem
        stride, padding, _, _ = problem.geometry
        firsts = self.sizes.cumsum() - self.sizes
        places = np.arange(top, end)[:, None]
        x = (places * stride[0] - padding[0]) * self._row + firsts * (stride[1] * self._pixel)
        grad = (places * problem.output_shape[3] + firsts) * (self._channels * 4)
        taps = self._taps[top:end].tolist()
        kernels = np.array([[self._kernel((low, high), *tile) for tile in self._tiles] for low, high in taps])
        calls = rows(kernels, x, grad, 0, self._channels // (16 if self._wide else 8), 0, 0, 0, 0)
        meets = np.repeat([low < high for low, high in taps], len(self.sizes))
        return np.ascontiguousarray(calls[meets])

    def _kernel(self, taps: Pair, pixels: int, columns: tuple[Pair, ...]) -> int:
        stride, padding, dilation, _ = self._problem.geometry
        height, width = self._problem.weight_shape[2:]
        kernel = DepthwiseWeightGrad(
            self._wide, pixels, taps, columns, (height, width), self._row * dilation[0], self._pixel * dilation[1],
            self._pixel * stride[1], self._channels * 4, -padding[1] * self._pixel, self._channels * 4,
        )  # fmt: skip
        return self._kernels.address(kernel)


def weight_grad(grad: Tensor, x: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    """Both channels-last."""
    problem = Problem(tuple(x.shape), x.stride(), tuple(weight_shape), geometry, False, False, None)
    job, count = planned(problem, machine.vectors() == "avx512", torch.get_num_threads())
    channels, _, *kernel = weight_shape
    sums = torch.zeros(count, math.prod(kernel), channels, dtype=torch.float32, device="cpu")
    job.run(x.data_ptr(), grad.data_ptr(), sums.data_ptr(), 0, 0)
    total = sums.sum(0) if count > 1 else sums[0]
    return total.t().contiguous().view(weight_shape)
