"""Convolutions of few pixels whose weights change, as products with the weight where it lies.

    y[k, p] = Σ_{r, s, c} w[k, r, s, c] · x[p·stride + (r, s) − padding, c]
    z[p, (r, s, c)] = Σ_k grad[p, k] · w[k, (r, s, c)]    grad_x[p·stride + (r, s) − padding, c] += z[p, (r, s, c)]

Where pixels are few, to pack a weight takes as long as to multiply by it, and oneDNN reorders it too. The kernels of
direct convolution read their x where it lies: forward, the weight takes its place, and its k that of the pixels; what
is packed are columns of what the filter sees from a pixel. The result lies as NCHW does, and is turned around. For the
gradient of x, rows of the weight are read as they lie.

Source of columns: Chellapilla, Puri & Simard 2006, "High performance convolutional neural networks for document
processing".
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.columns import columns_of
from genesis.backends.cpu.x86 import direct, pages
from genesis.backends.cpu.x86.assembler import RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.direct import FEW_SUMMANDS, Options
from genesis.backends.cpu.x86.driver import Job, bounds, rows
from genesis.backends.cpu.x86.micro import LINE, UNROLLED, Step, step_code
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Kernels, Problem, split
from genesis.records import ConvGeometry

_MOST_PIXELS = 400
_LEAST_CHANNELS = 64  # of fewer, too little is computed per float of the columns
_PLAIN = ConvGeometry((1, 1), (0, 0), (1, 1), 1)


def is_supported(pixels: int, weight_shape: Shape, groups: int) -> bool:
    """pixels: of the result, or of its gradient; weight_shape: (K, C, R, S)."""
    return groups == 1 and 0 < pixels <= _MOST_PIXELS and min(weight_shape[:2]) >= _LEAST_CHANNELS


def has_input_grad(pixels: int, weight_shape: Shape, groups: int, wide: bool) -> bool:
    fits = weight_shape[0] % UNROLLED == 0 and math.prod(weight_shape[1:]) % (16 if wide else 8) == 0
    return fits and is_supported(pixels, weight_shape, groups)


class _Columns(NamedTuple):
    job: Job
    widths: list[int]
    parts: list[int]


@functools.lru_cache(256)
def _columns(pixels: int, weight_shape: Shape, wide: bool, num_threads: int) -> _Columns:
    lanes, (outputs, *kernel) = 16 if wide else 8, weight_shape
    vectors, terms = -(-pixels // lanes), math.prod(kernel)
    shape, strides = (1, terms, 1, outputs), (outputs * terms, 1, outputs * terms, terms)
    problem = Problem(shape, strides, (vectors * lanes, terms, 1, 1), _PLAIN, False, False, None)
    widths = split(vectors, 4 if wide else 2)
    parts = direct.parts_of(problem.weight_shape, FEW_SUMMANDS)
    job = direct.Direct(problem, Options(wide, num_threads, False), widths, parts).job()
    return _Columns(job, [each * lanes for each in widths], parts)


class Forward:
    """The convolution."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int) -> None:
        self._shape = shape = problem.output_shape
        self._strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
        self._kernel, self._geometry = problem.weight_shape[2:], problem.geometry
        self._pixels, self._terms = shape[0] * shape[2] * shape[3], math.prod(problem.weight_shape[1:])
        self._job, self._widths, self._parts = _columns(self._pixels, problem.weight_shape, wide, num_threads)

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight, columns = weight.contiguous(memory_format=torch.channels_last), self._packed(x)
        result = torch.empty(self._shape[1], sum(self._widths), dtype=torch.float32, device="cpu")
        self._job.run(weight.data_ptr(), columns.data_ptr(), result.data_ptr(), 0, 0)
        y = x.new_empty_strided(self._shape, self._strides)
        found = result[:, : self._pixels].t().view(self._shape[0], *self._shape[2:], -1)
        if bias is None:
            y.permute(0, 2, 3, 1).copy_(found)
        else:
            torch.add(found, bias, out=y.permute(0, 2, 3, 1))
        return y

    def _packed(self, x: Tensor) -> Tensor:
        """The columns as the kernels read them, in scratch memory."""
        lanes = sum(self._widths)
        count, used = lanes * self._terms, self._pixels * self._terms
        memory = pages.scratch(8 * count)
        columns, packed = memory[:count], memory[count : 2 * count]
        windows = columns_of(x.permute(0, 2, 3, 1), self._shape[2:], self._kernel, self._geometry)
        columns[used:].zero_()
        columns[:used].view(windows.shape).copy_(windows)
        return direct.packed(columns.view(lanes, self._terms, 1, 1), self._widths, self._parts, packed)


@dataclass(frozen=True)
class Rows:
    """Some pixels times vectors of a row of the weight, as many k as four times the call's count. Lengths are in bytes.

    Attributes:
        x_pixel, y_pixel: from a pixel to the next.
        row: from a k of the weight to the next.
        begins: y is these sums; otherwise they are added to it.
        fetches: brings what lies behind these parts of the rows into the cache.
    """

    wide: bool
    pixels: int
    vectors: int
    x_pixel: int
    y_pixel: int
    row: int
    begins: bool
    fetches: bool

    def code(self) -> bytes:
        """A function of x (rdi), w (rsi), y (rdx) and the count (rcx)."""
        a = Assembler(self.wide)
        width = self.vectors * a.vector_bytes
        for vector in range(self.pixels * self.vectors):
            a.zero(vector)
        start = a.here
        for k in range(UNROLLED):
            for ahead in range(width, 2 * width, LINE) if self.fetches else ():
                a.prefetch((RSI, k * self.row + ahead))
            step = Step(self.wide, self.pixels, self.vectors, 4 * k, 0, self.pixels, self.x_pixel)
            a.code += step_code(step, k * self.row)
        a.increase(RDI, 4 * UNROLLED)
        a.increase(RSI, UNROLLED * self.row)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        for vector in range(self.pixels * self.vectors):
            m, n = divmod(vector, self.vectors)
            place = (RDX, m * self.y_pixel + n * a.vector_bytes)
            if not self.begins:
                a.add(vector, vector, place)
            a.store(place, vector)
        a.end()
        return bytes(a.code)


@functools.lru_cache(256)
def _rows(pixels: int, outputs: int, terms: int, wide: bool, num_threads: int) -> Job:
    """Threads share the columns of z, in blocks that all pixels go through while they are in the cache."""
    vector, kernels = 64 if wide else 32, Kernels()
    lists = []
    for mine in _shares(split(4 * terms // vector, 4 if wide else 2), num_threads):
        calls = []
        for first, vectors in mine:
            sizes = np.array(split(pixels, MOST_PIXELS[wide][vectors]))
            starts = sizes.cumsum() - sizes
            done = 0
            for turns in split(outputs // UNROLLED, FEW_SUMMANDS // UNROLLED):
                addresses = [
                    kernels.address(Rows(
                        wide, size, vectors, 4 * outputs, 4 * terms, 4 * terms, done == 0, tile == 0,
                    ))
                    for tile, size in enumerate(sizes.tolist())
                ]  # fmt: skip
                x, w = starts * (4 * outputs) + 4 * done, done * 4 * terms + first * vector
                y = starts * (4 * terms) + first * vector
                calls.append(rows(np.array(addresses), x, w, y, turns, 0, 0, 0, 0))
                done += turns * UNROLLED
        lists.append(np.concatenate(calls) if calls else np.empty((0, 9), np.int64))
    blocks = [rows(*bounds(calls), 0, 0, 0, 0, 0)[: len(calls)] for calls in lists]
    return Job(blocks, (lists, kernels))


def _shares(widths: list[int], num_threads: int) -> list[list[tuple[int, int]]]:
    """Blocks of columns for each thread: the first vector and how many."""
    firsts = [0, *itertools.accumulate(widths)]
    edges = [len(widths) * n // num_threads for n in range(num_threads + 1)]
    blocks = [*zip(firsts, widths, strict=False)]
    return [blocks[start:end] for start, end in itertools.pairwise(edges)]


class InputGrad:
    """The gradient of a convolution's input; problem: the convolution, of whatever strides its input has."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int) -> None:
        self._problem, (outputs, channels, *kernel) = problem, problem.weight_shape
        self._kernel = kernel
        batch, _, *self._sizes = problem.output_shape
        self._pixels, self._terms = batch * math.prod(self._sizes), channels * math.prod(kernel)
        self._job = _rows(self._pixels, outputs, self._terms, wide, num_threads)
        self._is_flat = tuple(kernel) == (1, 1) and problem.geometry[:2] == ((1, 1), (0, 0))

    def run(self, grad: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """grad: channels-last, as the result is; bias: None."""
        batch, channels, *sizes = self._problem.input_shape
        weight = weight.contiguous(memory_format=torch.channels_last)
        if self._is_flat:
            images = torch.empty(batch, *sizes, channels, dtype=torch.float32, device="cpu")
            self._job.run(grad.data_ptr(), weight.data_ptr(), images.data_ptr(), 0, 0)
            return images.permute(0, 3, 1, 2)
        memory = pages.scratch(4 * self._pixels * self._terms)
        self._job.run(grad.data_ptr(), weight.data_ptr(), memory.data_ptr(), 0, 0)
        z = memory[: self._pixels * self._terms].view(batch, *self._sizes, *self._kernel, channels)
        (down, right), (top, left), dilation, _ = self._problem.geometry
        height, width = self._sizes
        padded = torch.zeros(
            batch, sizes[0] + 2 * top, sizes[1] + 2 * left, channels, dtype=torch.float32, device="cpu"
        )
        for r, s in itertools.product(*map(range, self._kernel)):
            i, j = r * dilation[0], s * dilation[1]
            padded[:, i : i + height * down : down, j : j + width * right : right] += z[:, :, :, r, s]
        inner = padded[:, top : top + sizes[0], left : left + sizes[1]]
        return inner.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
