"""Direct convolution: the calls of the innermost kernel that make one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu.x86.driver import Job, Numbers
from genesis.backends.cpu.x86.machine import Code
from genesis.backends.cpu.x86.micro import Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Problem, balanced, compiled, split

_SUMMANDS = 256  # of a sum in a register
_SUMS_BYTES = 24 << 10  # of y, to which the parts of a block are added: they stay in the innermost cache


@dataclass(frozen=True)
class Options:
    """How a convolution is taken apart; chosen by measuring."""

    wide: bool
    num_threads: int
    most_vectors: int
    weights_first: bool  # threads share the weights, not the pixels


class Direct:
    """The job of a convolution."""

    def __init__(self, problem: Problem, options: Options, widths: list[int], parts: list[int]) -> None:
        self._problem, self._options, self._widths, self._parts = problem, options, widths, parts
        self._lanes = 16 if options.wide else 8
        self._out_channels = problem.weight_shape[0]
        batch, channels, *sizes = problem.input_shape
        (stride, padding, dilation, _), kernel = problem.geometry, problem.weight_shape[2:]
        image, channel, row, pixel = (4 * each for each in problem.strides)
        out_sizes = problem.output_shape[2:]
        flat = kernel == (1, 1) and stride == (1, 1) and padding == (0, 0) and row == pixel * sizes[1]
        if flat:  # rows need not be told apart, nor images
            together = batch if image == row * sizes[0] else 1
            batch, sizes, out_sizes = (
                batch // together,
                [1, together * sizes[0] * sizes[1]],
                (1, together * math.prod(out_sizes)),
            )
            row = pixel * sizes[1]
        self._batch, self._sizes, self._out_sizes, self._kernel = batch, sizes, out_sizes, kernel
        self._stride, self._padding, self._dilation = stride, padding, dilation
        self._image, self._channel, self._row, self._pixel = image, channel, row, pixel
        self._kernels: dict[Micro, Code] = {}
        self._lists: dict[object, Numbers] = {}

    def job(self) -> Job:
        units = self._units()
        blocks = [np.array(mine, dtype=np.int64) for mine in balanced(units, self._options.num_threads)]
        return Job(blocks, (self._lists, self._kernels))

    def _units(self) -> list[tuple[tuple[int, ...], int]]:
        """Blocks with what they cost."""
        height, width = self._out_sizes
        out_row, vector = width * self._out_channels * 4, self._lanes * 4
        weights = [0]
        for each in self._widths:
            weights.append(weights[-1] + each * vector * math.prod(self._problem.weight_shape[1:]))
        places = [sum(self._widths[:k]) * vector for k in range(len(self._widths))]
        units = []
        for k, vectors in enumerate(self._widths):
            for image in range(self._batch):
                for (top, end), (left, right) in self._regions(vectors):
                    calls = self._calls(k, top, end, left, right)
                    x = image * self._image + (top * self._stride[0] - self._padding[0]) * self._row
                    x += left * self._stride[1] * self._pixel
                    y = image * height * out_row + top * out_row + left * self._out_channels * 4 + places[k]
                    start = calls.ctypes.data
                    unit = (start, start + calls.nbytes, x, weights[k], y, places[k], 0)
                    units.append((unit, (end - top) * (right - left) * vectors, (image, top, left, k)))
        if not self._options.weights_first:
            units.sort(key=lambda unit: unit[2])
        return [unit[:2] for unit in units]

    def _regions(self, vectors: int) -> list[tuple[Pair, Pair]]:
        """Rows and columns of y that a block computes."""
        height, width = self._out_sizes
        most = max(1, _SUMS_BYTES // (vectors * self._lanes * 4))
        if self._kernel == (1, 1) and height == 1:
            tile = MOST_PIXELS[self._options.wide][vectors]
            tiles = -(-width // tile)
            count = max(1, -(-width // most))
            count = min(tiles, -(-count // self._options.num_threads) * self._options.num_threads)
            edges = [width * i // count for i in range(count + 1)]
            return [((0, 1), (edges[i], edges[i + 1])) for i in range(count)]
        rows = max(1, most // width)
        count = -(-height // rows)
        if self._batch * count % self._options.num_threads and not self._options.weights_first:
            count = min(height, -(-count // self._options.num_threads) * self._options.num_threads)
        edges = [height * i // count for i in range(count + 1)]
        return [((edges[i], edges[i + 1]), (0, width)) for i in range(count)]

    def _calls(self, k: int, top: int, end: int, left: int, right: int) -> Numbers:
        """A block's calls, part by part."""
        rows = tuple(self._taps(p, 0) for p in range(top, end))
        vectors = self._widths[k]
        is_last = k == len(self._widths) - 1
        columns_key = (left, right) if self._padding[1] else right - left
        key = vectors, is_last, rows, columns_key
        known = self._lists.get(key)
        if known is not None:
            return known
        most = MOST_PIXELS[self._options.wide][vectors]
        tiles = split(right - left, most)
        starts = [sum(tiles[:i]) for i in range(len(tiles))]
        last_lanes = self._lanes - (-self._out_channels % self._lanes if is_last else 0)
        out_row, line = self._out_sizes[1] * self._out_channels * 4, vectors * self._lanes * 4
        height, width = self._kernel
        calls, first, weight = [], 0, 0
        for part in self._parts:
            kernels = [
                self._micro(pixels, vectors, last_lanes, left + start, part, first)
                for pixels, start in zip(tiles, starts, strict=True)
            ]
            for p, (low, high) in enumerate(rows):
                x = p * self._stride[0] * self._row + low * self._dilation[0] * self._row + first * self._channel
                w = weight + low * width * part * line
                calls += [
                    (kernel, x + start * self._stride[1] * self._pixel, w, p * out_row + start * self._out_channels * 4,
                     high - low, 0, 0)
                    for kernel, start in zip(kernels, starts, strict=True)
                ]  # fmt: skip
            first += part
            weight += height * width * part * line
        found = self._lists[key] = np.array(calls, dtype=np.int64)
        return found

    def _taps(self, place: int, axis: int) -> Pair:
        """Which taps meet the image, at this place of y: the first, and the end."""
        start = place * self._stride[axis] - self._padding[axis]
        inside = [k for k in range(self._kernel[axis]) if 0 <= start + k * self._dilation[axis] < self._sizes[axis]]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _micro(self, pixels: int, vectors: int, last_lanes: int, start: int, channels: int, first: int) -> int:
        met = [self._taps(start + m, 1) for m in range(pixels)]
        taps = []
        for s in range(self._kernel[1]):
            inside = [m for m, (low, high) in enumerate(met) if low <= s < high]
            offset = (s * self._dilation[1] - self._padding[1]) * self._pixel
            taps.append((offset, inside[0], inside[-1] + 1) if inside else (offset, 0, 0))
        problem = self._problem
        kernel = Micro(
            self._options.wide, pixels, vectors, last_lanes, tuple(taps), channels,
            self._row * self._dilation[0], self._pixel * self._stride[1], self._channel, self._out_channels * 4,
            first == 0, first + channels == problem.weight_shape[1],
            problem.has_bias, problem.has_residual, problem.activation,
        )  # fmt: skip
        code = self._kernels[kernel] = compiled(kernel)
        return code.address


def parts_of(weight_shape: Shape) -> list[int]:
    _, channels, *kernel = weight_shape
    most = max(4, _SUMMANDS // math.prod(kernel) // 4 * 4)
    fours = split(-(-channels // 4), most // 4)
    parts = [4 * each for each in fours]
    parts[-1] -= -channels % 4
    return parts


def packed(weight: Tensor, widths: list[int], parts: list[int]) -> Tensor:
    """The weights of a block of k, of these widths, after those of another; in it, by part, r, s, c and k."""
    padded = torch.nn.functional.pad(weight.permute(2, 3, 1, 0), (0, sum(widths) - weight.shape[0]))
    blocks = [part.reshape(-1) for block in padded.split(widths, 3) for part in block.split(parts, 2)]
    return torch.cat(blocks)


def unpacked(weights: Tensor, shape: Shape, widths: list[int], parts: list[int]) -> Tensor:
    """The weight of which packed() made these."""
    kernel = shape[2:]
    blocks = weights.split([math.prod((*shape[1:], width)) for width in widths])
    whole = [
        torch.cat([
            part.view(*kernel, channels, width)
            for part, channels in zip(
                block.split([math.prod(kernel) * each * width for each in parts]), parts, strict=True
            )
        ], 2)
        for block, width in zip(blocks, widths, strict=True)
    ]  # fmt: skip
    return torch.cat(whole, 3)[..., : shape[0]].permute(3, 2, 0, 1)
