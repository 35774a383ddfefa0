"""Winograd's F(2×2, 3×3) on vectors: 16 products of matrices for four outputs, instead of 36 products.

A block of tiles is transformed into scratch memory that stays in the cache, multiplied by the transformed weights at
each of the 16 places by the kernel of direct convolution, and transformed back. See genesis.backends.cpu.winograd for
the formulas. Its sums are C products long: in parts, as those of direct convolution, they round as little.

Source: Lavin & Gray 2016, arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Pair
from genesis.backends.cpu.x86.driver import Job, Numbers
from genesis.backends.cpu.x86.micro import Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Problem, balanced, compiled, split
from genesis.backends.cpu.x86.winograd_kernels import FromTile, ToTile

_SUMMANDS = 64  # of a sum in a register: with the transforms, as far from float64 as 256 of a direct convolution
_SCRATCH_BYTES = 768 << 10  # of a thread: stays in its cache
_CACHED_BYTES = 4 << 20  # of weights that are read often; of more, they are read as seldom as possible
_FEW_VECTORS = 4  # of channels: of fewer, a call transforms several tiles
# Estimates, in cycles of a core.
_PER_VECTOR = 40  # to transform a vector of channels of a tile, one way
_PER_TILE = 60
_PER_SUMS = 2  # to begin and to store a vector of sums
_BYTES_PER_CYCLE = 8  # of weights that don't stay in the cache


class Line(NamedTuple):
    """A row or column of tiles.

    Attributes:
        origin: the row or column of y where it begins.
        inside: the first and the end of those of its four rows or columns of x that are in the image.
        outputs: how many of its two rows or columns of y are.
    """

    origin: int
    inside: Pair
    outputs: int


def is_supported(problem: Problem, wide: bool) -> bool:
    lanes = 16 if wide else 8
    out_channels, channels, *kernel = problem.weight_shape
    fits = tuple(kernel) == (3, 3) and channels % lanes == 0 and out_channels % lanes == 0
    return (
        fits and problem.geometry.stride == (1, 1) and problem.strides[1] == 1 and math.prod(problem.output_shape) > 0
    )


def pays(problem: Problem, wide: bool, num_threads: int) -> bool:
    """Whether it is expected to be faster than direct convolution."""
    lanes = 16 if wide else 8
    out_channels, channels = problem.weight_shape[:2]
    batch = problem.input_shape[0]
    pairs = channels * out_channels
    tiles = batch * len(lines(problem, 0)) * len(lines(problem, 1))
    direct = batch * _num_taps(problem, 0) * _num_taps(problem, 1) * pairs / lanes / 2
    transforms = tiles * ((channels + out_channels) / lanes * _PER_VECTOR + _PER_TILE)
    weights = 4 * 16 * pairs
    scratch = tiles * 16 * 4 * (channels + out_channels)
    readings = max(num_threads, scratch / _scratch_bytes(problem)) if weights > _CACHED_BYTES // 2 else 0
    products = tiles * 16 * (pairs / 2 + _PER_SUMS * out_channels) / lanes
    return products + transforms + readings * weights / _BYTES_PER_CYCLE < direct


def _num_taps(problem: Problem, axis: int) -> int:
    """How often the weight meets a number and not the padding, which direct convolution leaves out."""
    size, outputs = problem.input_shape[2 + axis], problem.output_shape[2 + axis]
    starts = [tap * problem.geometry.dilation[axis] - problem.geometry.padding[axis] for tap in range(3)]
    return sum(max(0, min(size, start + outputs) - max(0, start)) for start in starts)


def lines(problem: Problem, axis: int) -> list[Line]:
    """The rows or columns of tiles. With a dilation d, those of 0, d, 2d, … come first, then those of 1, d + 1, …"""
    size, outputs = problem.input_shape[2 + axis], problem.output_shape[2 + axis]
    padding, dilation = problem.geometry.padding[axis], problem.geometry.dilation[axis]
    found = []
    for phase in range(min(dilation, outputs)):
        for origin in range(phase, outputs, 2 * dilation):
            inside = [k for k in range(4) if 0 <= origin - padding + k * dilation < size]
            span = (inside[0], inside[-1] + 1) if inside else (0, 0)
            found.append(Line(origin, span, 1 + (origin + dilation < outputs)))
    return found


def _scratch_bytes(problem: Problem) -> int:
    weights = 4 * 16 * problem.weight_shape[0] * problem.weight_shape[1]
    return _SCRATCH_BYTES if weights <= _CACHED_BYTES else weights // 2


def packed(weight: Tensor, widths: list[int]) -> Tensor:
    """G w Gᵀ: by place, block of k, c and k."""
    channels, out_channels = weight.shape[1], weight.shape[0]
    flat = weight.permute(2, 3, 1, 0).reshape(9, -1)
    tiles = (_both_sides() @ flat).view(16, channels, out_channels)
    if len({*widths}) == 1:
        return tiles.view(16, channels, len(widths), -1).transpose(1, 2).contiguous().view(-1)
    return torch.cat([block.reshape(-1) for place in tiles.unbind(0) for block in place.split(widths, 1)])


@functools.cache
def _both_sides() -> Tensor:
    """The matrix of w → G w Gᵀ, both flattened; its numbers are powers of two."""
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float32, device="cpu")
    return torch.kron(g, g)


class Winograd:
    """The job of a convolution."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int, widths: list[int]) -> None:
        self._problem, self._wide, self._num_threads, self._widths = problem, wide, num_threads, widths
        self._lanes = 16 if wide else 8
        self._channels, self._out_channels = problem.input_shape[1], problem.weight_shape[0]
        self._image, _, self._row, self._pixel = (4 * each for each in problem.strides)
        self._out_pixel = self._out_channels * 4
        self._out_row = problem.output_shape[3] * self._out_pixel
        self._dilation, self._padding = problem.geometry.dilation, problem.geometry.padding
        self._rows, self._columns = lines(problem, 0), lines(problem, 1)
        self._parts = split(self._channels // 4, _SUMMANDS // 4)
        self._kernels: list[object] = []
        self._lists: dict[object, Numbers] = {}
        per_tile = 16 * 4 * (self._channels + self._out_channels)
        most = max(MOST_PIXELS[wide][max(widths)], _scratch_bytes(problem) // per_tile)
        num_rows, num_columns = len(self._rows), len(self._columns)
        # A block is some rows of tiles, or a part of one row.
        if most < num_columns:
            self._spans = [(r, r + 1, *span) for r in range(num_rows) for span in _spans(num_columns, most)]
        else:
            count = max(1, -(-num_rows * num_columns // most))
            if problem.input_shape[0] % num_threads:
                count = min(num_rows, -(-count // num_threads) * num_threads)
            self._spans = [(top, end, 0, num_columns) for top, end in _spans(num_rows, -(-num_rows // count))]
        most_tiles = max((end - top) * (right - left) for top, end, left, right in self._spans)
        self.scratch_bytes = most_tiles * per_tile * num_threads

    def job(self) -> Job:
        height = self._problem.output_shape[2]
        units = []
        for image in range(self._problem.input_shape[0]):
            for top, end, left, right in self._spans:
                rows, columns = self._rows[top:end], self._columns[left:right]
                calls = self._calls(rows, columns)
                x = image * self._image + (rows[0].origin - self._padding[0]) * self._row
                x += (columns[0].origin - self._padding[1]) * self._pixel
                y = (image * height + rows[0].origin) * self._out_row + columns[0].origin * self._out_pixel
                start = calls.ctypes.data
                units.append(((start, start + calls.nbytes, x, 0, y, 0), len(rows) * len(columns)))
        threads = balanced(units, self._num_threads)
        size = self.scratch_bytes // self._num_threads
        blocks = [
            np.array([(*unit, thread * size) for unit in mine], dtype=np.int64).reshape(-1, 7)
            for thread, mine in enumerate(threads)
        ]
        return Job(blocks, (self._lists, self._kernels))

    def _calls(self, rows: list[Line], columns: list[Line]) -> Numbers:
        key = tuple((each.origin - line[0].origin, *each[1:]) for line in (rows, columns) for each in line), len(rows)
        known = self._lists.get(key)
        if known is None:
            tiles = len(rows) * len(columns)
            v, m = tiles * self._channels * 4, tiles * self._out_channels * 4
            runs = [(i, *run) for i in range(len(rows)) for run in _runs(columns, 2 * self._dilation[1])]
            calls = [call for run in runs for call in self._to_tiles(rows, columns, run, v)]
            calls += self._products(tiles, v, m)
            calls += [call for run in runs for call in self._from_tiles(rows, columns, run, v, m)]
            known = self._lists[key] = np.array(calls, dtype=np.int64)
        return known

    def _to_tiles(
        self, rows: list[Line], columns: list[Line], run: tuple[int, int, int], v: int
    ) -> Iterator[tuple[int, ...]]:
        """Transform the tiles first … end of row i."""
        i, first, end = run
        vector, channels = self._lanes * 4, self._channels * 4
        line, place = columns[first], i * len(columns) + first
        x = (rows[i].origin - rows[0].origin) * self._row + (line.origin - columns[0].origin) * self._pixel
        steps = (2 * self._dilation[1] * self._pixel, channels), (vector, vector)
        layout = self._row * self._dilation[0], self._pixel * self._dilation[1], v
        across, along = (ToTile(self._wide, rows[i].inside, line.inside, *layout, *each) for each in steps)
        if self._channels <= _FEW_VECTORS * self._lanes:
            for k in range(0, channels, vector):
                yield self._address(across), x + k, 0, 0, end - first, place * channels + k, 0
        else:
            for tile in range(end - first):
                at = x + tile * steps[0][0], 0, 0, self._channels // self._lanes, (place + tile) * channels, 0
                yield self._address(along), *at

    def _from_tiles(
        self, rows: list[Line], columns: list[Line], run: tuple[int, int, int], v: int, m: int
    ) -> Iterator[tuple[int, ...]]:
        i, first, end = run
        problem, vector, channels = self._problem, self._lanes * 4, self._out_pixel
        line, place = columns[first], i * len(columns) + first
        y = (rows[i].origin - rows[0].origin) * self._out_row + (line.origin - columns[0].origin) * channels
        step, start = 2 * self._dilation[1] * channels, 16 * v + place * channels
        layout = self._out_row * self._dilation[0], channels * self._dilation[1], m
        outputs = rows[i].outputs, line.outputs
        if self._out_channels <= _FEW_VECTORS * self._lanes:
            for k in range(0, channels, vector):
                across = FromTile(
                    self._wide,
                    *outputs,
                    *layout,
                    step,
                    channels,
                    0,
                    k,
                    problem.has_bias,
                    problem.has_residual,
                    problem.activation,
                )
                yield self._address(across), 0, 0, y + k, end - first, start + k, 0
        else:
            along = FromTile(
                self._wide,
                *outputs,
                *layout,
                vector,
                vector,
                vector,
                0,
                problem.has_bias,
                problem.has_residual,
                problem.activation,
            )
            for tile in range(end - first):
                count = self._out_channels // self._lanes
                yield self._address(along), 0, 0, y + tile * step, count, start + tile * channels, 0

    def _products(self, tiles: int, v: int, m: int) -> list[tuple[int, ...]]:
        """v, m: from one of the 16 places to the next, of the transformed input and of the products."""
        calls: list[tuple[int, ...]] = []
        weight = 0
        for place in range(16):
            k = 0
            for vectors in self._widths:
                line = vectors * self._lanes * 4
                counts = split(tiles, MOST_PIXELS[self._wide][vectors])
                first = 0
                for part in self._parts:
                    channels, start = 4 * part, 0
                    for count in counts:
                        kernel = Micro(
                            self._wide, count, vectors, self._lanes, ((0, 0, count),), channels, 0,
                            self._channels * 4, 4, self._out_channels * 4, first == 0, True, in_scratch=True,
                        )  # fmt: skip
                        x = place * v + (start * self._channels + first) * 4
                        y = 16 * v + place * m + start * self._out_channels * 4 + k
                        calls.append((self._address(kernel), 0, weight, 0, 1, x, y))
                        start += count
                    weight += channels * line
                    first += channels
                k += line
        return calls

    def _address(self, kernel: Micro | ToTile | FromTile) -> int:
        code = compiled(kernel)
        self._kernels.append(code)
        return code.address


def _spans(count: int, most: int) -> list[tuple[int, int]]:
    sizes = split(count, most)
    ends = list(np.cumsum(sizes))
    return [(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]


def _runs(columns: list[Line], step: int) -> Iterator[Pair]:
    """Tiles alike, one a step after the other: first and end."""
    first = 0
    for end in range(1, len(columns) + 1):
        alike = end < len(columns) and columns[end][1:] == columns[first][1:]
        if alike and columns[end].origin - columns[end - 1].origin == step:
            continue
        yield first, end
        first = end
