"""A 1×1 convolution and the depthwise one that takes its result: an inverted residual's first two layers in one job.

The result of the first is the widest of the network. A thread computes some rows of it at a time, and of these some
channels, in memory that stays in its cache, where the second reads them. Rows that two blocks need are computed twice.

Source: Sandler et al. 2018, "MobileNetV2", arXiv:1801.04381, section 5 (memory-efficient inference).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from genesis.backends.contract import Pair
from genesis.backends.cpu.x86 import depthwise, direct
from genesis.backends.cpu.x86.depthwise import Depthwise
from genesis.backends.cpu.x86.driver import Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.micro import Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Kernels, Problem, balanced, split

_SCRATCH_BYTES = {True: 384 << 10, False: 192 << 10}  # of a thread, with AVX-512 or not: fits its second cache
_MOST_TWICE = 0.2  # of the rows, that may be computed twice


def is_supported(first: Problem, second: Problem, wide: bool) -> bool:
    """Are these such layers, with pixels of x that lie one after the other?"""
    width, pixel = first.input_shape[3], first.strides[3]
    is_expansion = first.weight_shape[2:] == (1, 1) and first.geometry == ((1, 1), (0, 0), first.geometry.dilation, 1)
    is_dense = first.strides[1:3] == (1, width * pixel)
    adds = first.has_residual or second.has_residual
    follows = second.input_shape == first.output_shape and depthwise.is_supported(second, wide)
    return is_expansion and is_dense and follows and not adds


def pays(first: Problem, second: Problem, wide: bool, num_threads: int) -> bool:
    """Is one job of two such layers expected to be faster?"""
    planner = _Planner(first, second, wide, num_threads)
    twice = (second.weight_shape[2] - 1) * second.geometry.dilation[0] + 1 - second.geometry.stride[0]
    return twice <= planner.rows_of_block * _MOST_TWICE or len(planner.edges) == 2


@functools.lru_cache(64)
def job(first: Problem, second: Problem, wide: bool, num_threads: int) -> tuple[Job, int]:
    """The job and the bytes of its scratch memory. Weights and biases of both lie one after the other."""
    planner = _Planner(first, second, wide, num_threads)
    return planner.job(), planner.scratch_bytes * num_threads


class _Planner:
    """Attributes: edges: the rows of the result where blocks begin and end; rows_of_block: of the first's result."""

    def __init__(self, first: Problem, second: Problem, wide: bool, num_threads: int) -> None:
        self._first, self._second, self._wide, self._num_threads = first, second, wide, num_threads
        self._vector, num_vectors = (64, first.weight_shape[0] // 16) if wide else (32, first.weight_shape[0] // 8)
        self._widths = widths = split(num_vectors, 4 if wide else 2)  # in vectors, as the first's weight was packed
        self._kernels, self._lists = Kernels(), dict[object, Numbers]()
        self._row = first.output_shape[3] * max(widths) * self._vector  # of the scratch memory
        (stride, _), (dilation, _) = second.geometry.stride, second.geometry.dilation
        self._reach = (second.weight_shape[2] - 1) * dilation + 1
        self._batch, _, self._height, _ = second.output_shape
        most = max(1, (_SCRATCH_BYTES[wide] // self._row - self._reach) // stride + 1)  # rows of the second's result
        count = -(-self._height // most)
        if self._batch * count % num_threads:
            count = min(self._height, -(-count // num_threads) * num_threads)
        self.edges = self._height * np.arange(count + 1) // count
        self.rows_of_block = (int(np.diff(self.edges).max()) - 1) * stride + self._reach
        self.scratch_bytes = min(self.rows_of_block, first.output_shape[2]) * self._row

    def job(self) -> Job:
        """For each image, rows and channels: a block of the first's calls, then one of the second's."""
        first, second, vector = self._first, self._second, self._vector
        image, _, row, _ = (4 * each for each in first.strides)
        channels, out_row = first.weight_shape[0] * 4, second.output_shape[3] * second.weight_shape[0] * 4
        starts = (np.cumsum(self._widths) - self._widths) * vector  # of the channels, in bytes
        taps = math.prod(second.weight_shape[2:])
        second_weight = channels * first.weight_shape[1]
        found, costs = [], []
        for top, end in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True):
            low, high = self._rows_read(top, end)
            for width, start in zip(self._widths, starts.tolist(), strict=True):
                expands = bounds(self._expand(width, high - low)) if high > low else (0, 0)
                filters = bounds(self._filter(width, top, end, low))
                found += [
                    (*expands, low * row, start * first.weight_shape[1], 0, start, 0),
                    (*filters, 0, second_weight + start * taps, top * out_row + start, channels + start, 0),
                ]
                costs += [(high - low) * width, 0]
        blocks = np.array(found, np.int64)[None].repeat(self._batch, 0)
        images = np.arange(self._batch)[:, None]
        blocks[:, ::2, 2] += images * image
        blocks[:, 1::2, 4] += images * (self._height * out_row)
        threads = balanced(blocks.reshape(-1, 2, 7), np.tile(np.array(costs[::2]), self._batch), self._num_threads)
        for thread, mine in enumerate(threads):
            mine[:, :, -1] = thread * self.scratch_bytes
        return Job([mine.reshape(-1, 7) for mine in threads], (self._lists, self._kernels))

    def _rows_read(self, top: int, end: int) -> Pair:
        """The rows of the first's result that these of the second's need."""
        (stride, _), (padding, _) = self._second.geometry.stride, self._second.geometry.padding
        low, high = top * stride - padding, (end - 1) * stride - padding + self._reach
        height = self._first.output_shape[2]
        return min(max(low, 0), height), min(max(high, 0), height)

    def _expand(self, width: int, num_rows: int) -> Numbers:
        """Calls that compute whole rows, one after the other in scratch memory, part by part of the channels of x."""
        key = "expand", width, num_rows
        if key not in self._lists:
            first, line = self._first, width * self._vector
            pixel = 4 * first.strides[3]
            sizes = np.array(split(num_rows * first.output_shape[3], MOST_PIXELS[self._wide][width]))
            starts = sizes.cumsum() - sizes
            parts = direct.parts_of(first.weight_shape)
            lists, done = [], 0
            for part, channels in enumerate(parts):
                ends = part == 0, part == len(parts) - 1
                known = {
                    int(size): self._kernels.address(Micro(
                        self._wide, int(size), width, self._vector // 4, ((0, 0, int(size)),), channels, pixel, line,
                        *ends, first.has_bias, False, first.activation, out_in_scratch=True,
                    ))
                    for size in np.unique(sizes)
                }  # fmt: skip
                kernels = np.array([known[size] for size in sizes.tolist()])
                lists.append(rows(kernels, starts * pixel + done * 4, done * line, 0, 1, 0, starts * line, 0, 0))
                done += channels
            self._lists[key] = np.concatenate(lists)
        return self._lists[key]

    def _filter(self, width: int, top: int, end: int, low: int) -> Numbers:
        """Calls that compute rows top to end of the result from those in scratch memory, the first of which is low."""
        second, line = self._second, width * self._vector
        stride, padding, dilation, _ = second.geometry
        taps = second.all_taps(0)[top:end]
        places = np.arange(top, end) * stride[0] - padding[0] + taps[:, 0] * dilation[0] - low
        places[taps[:, 0] == taps[:, 1]] = 0  # no row of the filter meets the image
        key = "filter", width, taps.tobytes(), places.tobytes()
        if key not in self._lists:
            row, pixel = self._first.output_shape[3] * line, second.weight_shape[0] * 4
            sizes = np.array(split(second.output_shape[3], depthwise.MOST_PIXELS[self._wide]))
            firsts = sizes.cumsum() - sizes
            tiles = second.tiles_of_row(0, sizes)
            kernels = np.array([[self._kernel(tuple(met), line, *tile) for tile in tiles] for met in taps.tolist()])
            out = np.arange(end - top)[:, None] * (second.output_shape[3] * pixel) + firsts * pixel
            x = places[:, None] * row + firsts * (stride[1] * line)
            self._lists[key] = rows(kernels, 0, 0, out, width, x, 0, row * dilation[0], 0)
        return self._lists[key]

    def _kernel(self, taps: Pair, line: int, pixels: int, columns: tuple[Pair, ...]) -> int:
        second = self._second
        stride, padding, dilation, _ = second.geometry
        height, width = second.weight_shape[2:]
        kernel = Depthwise(
            self._wide, pixels, taps, columns, (height, width), line * dilation[1], line * stride[1],
            -padding[1] * line, second.weight_shape[0] * 4, second.has_bias, False, second.activation,
            in_scratch=True,
        )  # fmt: skip
        return self._kernels.address(kernel)
