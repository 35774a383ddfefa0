"""Winograd's F(2×2, 3×3) on vectors: 16 products of matrices for four outputs, instead of 36 products.

A block of tiles is transformed into scratch memory that stays in the cache, multiplied by the transformed weights at
each of the 16 places by the kernel of direct convolution, and transformed back. See genesis.backends.cpu.winograd for
the formulas. Its sums are C products long: in parts, as those of direct convolution, they round as little.

Source: Lavin & Gray 2016, arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from genesis.backends.cpu.x86.driver import Job, Numbers
from genesis.backends.cpu.x86.micro import Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Problem, balanced, compiled, split
from genesis.backends.cpu.x86.winograd_kernels import FromTile, ToTile

_SUMMANDS = 128  # of a sum in a register
_SCRATCH_BYTES = 512 << 10  # of a thread: stays in its cache
_CACHE_BYTES = 2 << 20
# Estimates, in cycles of a core.
_PER_VECTOR = 45  # to transform a vector of channels of a tile, one way
_PER_TILE = 60
_BYTES_PER_CYCLE = 8  # of weights that don't stay in the cache


def is_supported(problem: Problem, wide: bool) -> bool:
    lanes = 16 if wide else 8
    out_channels, channels, *kernel = problem.weight_shape
    geometry = problem.geometry
    fits = tuple(kernel) == (3, 3) and channels % lanes == 0 and out_channels % lanes == 0
    return (
        fits
        and geometry.stride == (1, 1)
        and geometry.dilation == (1, 1)
        and max(geometry.padding) <= 1
        and (problem.strides[1] == 1 and math.prod(problem.output_shape) > 0)
    )


def pays(problem: Problem, wide: bool) -> bool:
    """Whether it is expected to be faster than direct convolution."""
    lanes = 16 if wide else 8
    out_channels, channels = problem.weight_shape[:2]
    batch, _, height, width = problem.output_shape
    tiles = batch * -(-height // 2) * -(-width // 2)
    pairs = channels * out_channels
    direct = batch * height * width * 9 * pairs / lanes / 2
    transforms = tiles * ((channels + out_channels) / lanes * _PER_VECTOR + _PER_TILE)
    weights = 4 * 16 * pairs
    blocks = max(1, tiles * 16 * 4 * (channels + out_channels) / _SCRATCH_BYTES)
    reading = blocks * weights / _BYTES_PER_CYCLE if weights > _CACHE_BYTES else 0
    return tiles * 16 * pairs / lanes / 2 + transforms + reading < direct


def packed(weight: Tensor, widths: list[int]) -> Tensor:
    """G w Gᵀ: by place, block of k, c and k."""
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    tiles = torch.einsum("ir,kcrs,js->ijck", g, weight.double(), g).float().flatten(0, 1)
    return torch.cat([block.reshape(-1) for place in tiles.unbind(0) for block in place.split(widths, 1)])


class Winograd:
    """The job of a convolution."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int, widths: list[int]) -> None:
        self._problem, self._wide, self._num_threads, self._widths = problem, wide, num_threads, widths
        self._lanes = 16 if wide else 8
        self._channels, self._out_channels = problem.input_shape[1], problem.weight_shape[0]
        self._image, _, self._row, self._pixel = (4 * each for each in problem.strides)
        self._height, self._width = problem.output_shape[2:]
        self._rows, self._columns = -(-self._height // 2), -(-self._width // 2)  # of tiles
        self._parts = split(self._channels // 4, _SUMMANDS // 4)
        self._kernels: list[object] = []
        self._lists: dict[object, Numbers] = {}
        per_tile = 16 * 4 * (self._channels + self._out_channels)
        tiles = self._rows * self._columns
        most = max(MOST_PIXELS[wide][max(widths)], _SCRATCH_BYTES // per_tile)
        # A block is some rows of tiles, or a part of one row.
        if most < self._columns:
            self._spans = [(r, r + 1, *span) for r in range(self._rows) for span in _spans(self._columns, most)]
        else:
            count = max(-(-tiles // most), min(self._rows, num_threads) if problem.input_shape[0] % num_threads else 1)
            self._spans = [(top, end, 0, self._columns) for top, end in _spans(self._rows, -(-self._rows // count))]
        self._most_tiles = max((end - top) * (right - left) for top, end, left, right in self._spans)
        self.scratch_bytes = self._most_tiles * per_tile * num_threads

    def job(self) -> Job:
        out_row = self._width * self._out_channels * 4
        units = []
        for image in range(self._problem.input_shape[0]):
            for top, end, left, right in self._spans:
                calls = self._calls(top, end, left, right)
                x = image * self._image + (2 * top - self._problem.geometry.padding[0]) * self._row
                x += (2 * left - self._problem.geometry.padding[1]) * self._pixel
                y = image * self._height * out_row + 2 * top * out_row + 2 * left * self._out_channels * 4
                start = calls.ctypes.data
                units.append(((start, start + calls.nbytes, x, 0, y, 0), (end - top) * (right - left)))
        threads = balanced(units, self._num_threads)
        size = self.scratch_bytes // self._num_threads
        blocks = [
            np.array([(*unit, thread * size) for unit in mine], dtype=np.int64).reshape(-1, 7)
            for thread, mine in enumerate(threads)
        ]
        return Job(blocks, (self._lists, self._kernels))

    def _calls(self, top: int, end: int, left: int, right: int) -> Numbers:
        insides = [self._inside(row, self._problem.input_shape[2], 0) for row in range(top, end)]
        columns = [self._inside(column, self._problem.input_shape[3], 1) for column in range(left, right)]
        outs = [min(2, self._height - 2 * row) for row in range(top, end)]
        out_columns = [min(2, self._width - 2 * column) for column in range(left, right)]
        key = tuple(insides), tuple(columns), tuple(outs), tuple(out_columns)
        known = self._lists.get(key)
        if known is None:
            tiles = len(insides) * len(columns)
            v, m = tiles * self._channels * 4, tiles * self._out_channels * 4
            places = [(i, j) for i in range(len(insides)) for j in range(len(columns))]
            calls = [
                (self._address(ToTile(self._wide, insides[i], columns[j], self._row, self._pixel, v)),
                 2 * i * self._row + 2 * j * self._pixel, 0, 0, self._channels // self._lanes,
                 index * self._channels * 4, 0)
                for index, (i, j) in enumerate(places)
            ]  # fmt: skip
            calls += self._products(tiles, v, m)
            out_row, out_pixel = self._width * self._out_channels * 4, self._out_channels * 4
            problem = self._problem
            calls += [
                (self._address(FromTile(self._wide, outs[i], out_columns[j], out_row, out_pixel, m, problem.has_bias,
                                        problem.has_residual, problem.activation)),
                 0, 0, 2 * i * out_row + 2 * j * out_pixel, self._out_channels // self._lanes,
                 16 * v + index * self._out_channels * 4, 0)
                for index, (i, j) in enumerate(places)
            ]  # fmt: skip
            known = self._lists[key] = np.array(calls, dtype=np.int64)
        return known

    def _inside(self, tile: int, size: int, axis: int) -> tuple[int, int]:
        """Which of a tile's four rows or columns are in the image."""
        start = 2 * tile - self._problem.geometry.padding[axis]
        return max(0, -start), max(0, min(4, size - start))

    def _products(self, tiles: int, v: int, m: int) -> list[tuple[int, ...]]:
        """v, m: from one of the 16 places to the next, of the transformed input and of the products."""
        calls = []
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
