"""The gradient of a convolution's weight, without columns: sums over pixels of grad times vectors of the input.

    dw[k, r, s, c] = Σ_{n, p, q} grad[n, p, q, k] · x[n, p·stride + r, q·stride + s, c]

A kernel holds some k of a tap (r, s) times some vectors of c in registers, and goes through the pixels of some rows.
Operands and result are read and written where they lie, channels-last: nothing is packed. Rows are few, so that their
pixels stay in the cache while all taps go through them, and so that sums round little; they are then added to what is
in dw. Threads share the k.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import R8, R9, R10, RAX, RBP, RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import CALL, Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.micro import Step, step_code
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Kernels, Problem, balanced, meeting, split
from genesis.records import ConvGeometry

_UNROLLED = 4
_LEAST_SUMMANDS, _MOST_SUMMANDS = 112, 256  # of a sum in a register
_CACHED_BYTES = 640 << 10  # of grad and input: a thread goes through them again for each part of dw
_MOST_CALLS = 1 << 17
_MANY_WEIGHTS = 1 << 18  # of a 1×1 kernel: with AVX2, oneDNN's products are the faster ones
_LEAST_CHANNELS, _LEAST_OUTPUTS = 32, 24  # of fewer, too little is computed per float that is read


@dataclass(frozen=True)
class WeightGrad:
    """One kernel. Lengths are in bytes, but for counts.

    Attributes:
        outputs: k.
        vectors: of c.
        pixels: q of a row.
        grad_pixel, x_pixel: from a pixel to the next.
        out: from a k of dw to the next.
        begins: dw is these sums; otherwise they are added to it.
    """

    wide: bool
    outputs: int
    vectors: int
    pixels: int
    grad_pixel: int
    x_pixel: int
    out: int
    begins: bool

    def code(self) -> bytes:
        """A function of grad (rdi), x (rsi), dw (rdx) and the number of rows (rcx).

        From a row of grad to the next it is rbp, of x rax.
        """
        a = Assembler(self.wide)
        for vector in range(self.outputs * self.vectors):
            a.zero(vector)
        a.move(R10, RAX)
        start_row = a.here
        a.move(R8, RDI)
        a.move(R9, RSI)
        turns, left = divmod(self.pixels, _UNROLLED)
        if turns:
            a.constant(RAX, turns)
            start = a.here
            self._steps(a, _UNROLLED)
            a.increase(RDI, _UNROLLED * self.grad_pixel)
            a.increase(RSI, _UNROLLED * self.x_pixel)
            a.increase(RAX, -1)
            a.jump_back_unless_zero(start)
        self._steps(a, left)
        a.move(RDI, R8)
        a.add_integer(RDI, RBP)
        a.move(RSI, R9)
        a.add_integer(RSI, R10)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start_row)
        for vector in range(self.outputs * self.vectors):
            m, n = divmod(vector, self.vectors)
            place = (RDX, m * self.out + n * a.vector_bytes)
            if not self.begins:
                a.add(vector, vector, place)
            a.store(place, vector)
        a.end()
        return bytes(a.code)

    def _steps(self, a: Assembler, count: int) -> None:
        for pixel in range(count):
            step = Step(self.wide, self.outputs, self.vectors, pixel * self.grad_pixel, 0, self.outputs, 4)
            a.code += step_code(step, pixel * self.x_pixel)


def is_supported(problem: Problem, wide: bool) -> bool:
    """problem: the convolution whose weight it is, of an input that is channels-last."""
    channels = problem.weight_shape[1]
    if problem.geometry.groups != 1 or channels % (16 if wide else 8) or problem.strides[1] != 1:
        return False
    if not math.prod(problem.output_shape):
        return False
    plan = _Planner(problem, wide, 1)
    return plan.meets_all and len(plan.chunks) * plan.num_tiles <= _MOST_CALLS


def pays(weight_shape: Shape, wide: bool) -> bool:
    """Whether it is expected to be faster than oneDNN."""
    if not wide and weight_shape[2:] == (1, 1) and math.prod(weight_shape) >= _MANY_WEIGHTS:
        return False
    return weight_shape[0] >= _LEAST_OUTPUTS and weight_shape[1] >= _LEAST_CHANNELS


class _Planner:
    def __init__(self, problem: Problem, wide: bool, num_threads: int) -> None:
        self._wide, self._num_threads = wide, num_threads
        self._lanes = 16 if wide else 8
        self._stride, self._padding, self._dilation, _ = problem.geometry
        self._out_channels, self._channels, *self._kernel = problem.weight_shape
        self._image, _, self._row, self._pixel = (4 * each for each in problem.strides)
        batch, _, height, width = problem.output_shape
        sizes = problem.input_shape[2:]
        is_flat = tuple(self._kernel) == (1, 1) and self._stride == (1, 1) and self._padding == (0, 0)
        if is_flat and self._image == self._row * sizes[0]:  # nothing tells images apart
            batch, height, sizes = 1, batch * height, (batch * sizes[0], sizes[1])
        self._height, self._width = height, width
        # For each row or column of the filter, the first and the end of those of grad that it meets.
        self._met = [
            meeting_outputs(
                out, size, self._kernel[axis], self._stride[axis], self._padding[axis], self._dilation[axis]
            )
            for axis, (out, size) in enumerate(zip((height, width), sizes, strict=True))
        ]
        summands = min(_MOST_SUMMANDS, max(_LEAST_SUMMANDS, math.isqrt(batch * height * width)))
        counts = np.array(split(height, max(1, summands // width)))
        ends = counts.cumsum()
        image, part = np.indices((batch, len(counts))).reshape(2, -1)
        self.chunks = np.stack([image, (ends - counts)[part], ends[part]], 1)
        self._widths = split(self._channels // self._lanes, len(MOST_PIXELS[wide]) - 1)
        self._outputs = split(self._out_channels, MOST_PIXELS[wide][max(self._widths)])
        self._kernels = Kernels()

    @property
    def num_tiles(self) -> int:
        return len(self._outputs) * math.prod(self._kernel) * len(self._widths)

    @property
    def meets_all(self) -> bool:
        """Whether each tap meets the image somewhere: the others' part of dw would not be written."""
        return all((met[:, 0] < met[:, 1]).all() for met in self._met)

    def job(self) -> Job:
        """The calls of a thread, chunk by chunk, or where all that is read stays in the cache tile by tile."""
        tiles = self._tiles()
        costs = tiles[:, 1] * tiles[:, 5]
        read = 4 * self._height * self._width * (self._channels + self._out_channels) * (self.chunks[-1, 0] + 1)
        is_cached = read <= _CACHED_BYTES
        shares = balanced(tiles, costs, self._num_threads)
        lists = [self._calls(each, is_cached) if len(each) else np.empty((0, CALL), np.int64) for each in shares]
        blocks = [rows(*bounds(calls), 0, 0, 0, 0, 0)[: len(calls)] for calls in lists]
        return Job(blocks, (lists, self._kernels))

    def _tiles(self) -> Numbers:
        """First k, how many, r, s, first c, vectors."""
        outputs, widths = np.array(self._outputs), np.array(self._widths)
        k, r, s, c = np.indices((len(outputs), *self._kernel, len(widths))).reshape(4, -1)
        firsts, starts = outputs.cumsum() - outputs, (widths.cumsum() - widths) * self._lanes
        return np.stack([firsts[k], outputs[k], r, s, starts[c], widths[c]], 1)

    def _calls(self, tiles: Numbers, tile_by_tile: bool) -> Numbers:
        first_k, outputs, r, s, first_c, vectors = tiles.T
        image, top, end = self.chunks.T[:, :, None]
        low = np.maximum(top, self._met[0][r, 0])
        count = np.minimum(end, self._met[0][r, 1]) - low
        left, right = self._met[1][s].T
        taken = count > 0
        begins = np.arange(len(self.chunks))[:, None] == taken.argmax(0)
        grad = ((image * self._height + low) * self._width + left) * self._out_channels + first_k
        x = image * self._image + (low * self._stride[0] - self._padding[0] + r * self._dilation[0]) * self._row
        x = x + (left * self._stride[1] - self._padding[1] + s * self._dilation[1]) * self._pixel + 4 * first_c
        out = (first_k * self._kernel[0] + r) * self._kernel[1] + s
        calls = rows(
            self._addresses(np.stack([outputs, vectors, right - left], 1), begins), grad * 4, x,
            (out * self._channels + first_c) * 4, count, 0, 0, self._width * self._out_channels * 4,
            self._stride[0] * self._row,
        ).reshape(*taken.shape, -1)  # fmt: skip
        if tile_by_tile:
            calls, taken = calls.swapaxes(0, 1), taken.T
        return np.ascontiguousarray(calls[taken])

    def _addresses(self, kinds: Numbers, begins: npt.NDArray[np.bool_]) -> Numbers:
        """The kernels, by chunk and tile."""
        found, which = np.unique(kinds, axis=0, return_inverse=True)
        tables = [
            [self._kernels.address(self._kernel_of(k, n, q, b)) for b in (False, True)] for k, n, q in found.tolist()
        ]
        return np.array(tables)[which.reshape(-1)[None, :], begins.astype(np.int64)]

    def _kernel_of(self, outputs: int, vectors: int, pixels: int, begins: bool) -> WeightGrad:
        return WeightGrad(
            self._wide, outputs, vectors, pixels, self._out_channels * 4, self._stride[1] * self._pixel,
            math.prod(self._kernel) * self._channels * 4, begins,
        )  # fmt: skip


def meeting_outputs(outputs: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> Numbers:
    """For each tap of an axis, the first and the end of the outputs at which it meets the image."""
    starts = np.arange(kernel) * dilation - padding
    return meeting(starts, stride, outputs, size)


@functools.lru_cache(256)
def planned(problem: Problem, wide: bool, num_threads: int) -> Job:
    return _Planner(problem, wide, num_threads).job()


def weight_grad(grad: Tensor, x: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    """Both channels-last, as the result is."""
    problem = Problem(tuple(x.shape), x.stride(), tuple(weight_shape), geometry, False, False, None)
    job = planned(problem, machine.vectors() == "avx512", torch.get_num_threads())
    found = torch.empty(weight_shape, dtype=torch.float32, memory_format=torch.channels_last)
    job.run(grad.data_ptr(), x.data_ptr(), found.data_ptr(), 0, 0)
    return found
