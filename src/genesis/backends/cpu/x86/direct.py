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
    """The job of a convolution.

    Args:
        spread: by how much rows and columns of y lie apart. There is a weight for each of the places between, one after
            the other: a transposed convolution whose windows don't overlap.
    """

    def __init__(
        self, problem: Problem, options: Options, widths: list[int], parts: list[int], spread: Pair = (1, 1)
    ) -> None:
        self._options, self._widths, self._parts, self._spread = options, widths, parts, spread
        self._problem = problem = problem.flattened() if spread == (1, 1) else problem
        self._lanes = 16 if options.wide else 8
        self._out_channels = problem.weight_shape[0]
        self._stride, self._padding, self._dilation, _ = problem.geometry
        self._image, self._channel, self._row, self._pixel = (4 * each for each in problem.strides)
        self._out_sizes = problem.output_shape[2:]
        self._out_pixel = self._out_channels * 4 * spread[1]
        self._out_row = self._out_sizes[1] * self._out_pixel * spread[0]
        self._kernels: list[Code] = []
        self._lists: dict[object, Numbers] = {}

    def job(self) -> Job:
        units = self._units()
        blocks = [np.array(mine, dtype=np.int64).reshape(-1, 7) for mine in balanced(units, self._options.num_threads)]
        return Job(blocks, (self._lists, self._kernels))

    def _units(self) -> list[tuple[tuple[int, ...], int]]:
        """Blocks with what they cost."""
        vector = self._lanes * 4
        bounds = [vector * sum(self._widths[:k]) for k in range(len(self._widths) + 1)]  # of the channels k, in bytes
        per_channel = math.prod(self._problem.weight_shape[1:])
        places = [(i, j) for i in range(self._spread[0]) for j in range(self._spread[1])]
        found = []
        for k, vectors in enumerate(self._widths):
            for image in range(self._problem.input_shape[0]):
                for (top, end), (left, right) in self._regions(vectors):
                    calls = self._calls(k, top, end, left, right)
                    start = calls.ctypes.data
                    x = image * self._image + (top * self._stride[0] - self._padding[0]) * self._row
                    x += left * self._stride[1] * self._pixel
                    y = (image * self._out_sizes[0] + top) * self._out_row + left * self._out_pixel + bounds[k]
                    for index, (i, j) in enumerate(places):
                        weight = (index * bounds[-1] + bounds[k]) * per_channel
                        between = i * self._out_row // self._spread[0] + j * self._out_channels * 4
                        unit = (start, start + calls.nbytes, x, weight, y + between, bounds[k], 0)
                        found.append((unit, (end - top) * (right - left) * vectors, (image, top, left, k)))
        if not self._options.weights_first:
            found.sort(key=lambda each: each[2])
        return [each[:2] for each in found]

    def _regions(self, vectors: int) -> list[tuple[Pair, Pair]]:
        """Rows and columns of y that a block computes."""
        height, width = self._out_sizes
        most = max(1, _SUMS_BYTES // (vectors * self._lanes * 4))
        if self._problem.weight_shape[2:] == (1, 1) and height == 1:
            tile = MOST_PIXELS[self._options.wide][vectors]
            tiles = -(-width // tile)
            count = max(1, -(-width // most))
            count = min(tiles, -(-count // self._options.num_threads) * self._options.num_threads)
            edges = [width * i // count for i in range(count + 1)]
            return [((0, 1), (edges[i], edges[i + 1])) for i in range(count)]
        rows = max(1, most // width)
        count = -(-height // rows)
        if self._problem.input_shape[0] * count % self._options.num_threads and not self._options.weights_first:
            count = min(height, -(-count // self._options.num_threads) * self._options.num_threads)
        edges = [height * i // count for i in range(count + 1)]
        return [((edges[i], edges[i + 1]), (0, width)) for i in range(count)]

    def _calls(self, k: int, top: int, end: int, left: int, right: int) -> Numbers:
        """A block's calls, part by part."""
        rows = tuple(self._problem.taps(p, 0) for p in range(top, end))
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
        line = vectors * self._lanes * 4
        height, width = self._problem.weight_shape[2:]
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
                    (kernel, x + start * self._stride[1] * self._pixel, w, p * self._out_row + start * self._out_pixel,
                     high - low, 0, 0)
                    for kernel, start in zip(kernels, starts, strict=True)
                ]  # fmt: skip
            first += part
            weight += height * width * part * line
        found = self._lists[key] = np.array(calls, dtype=np.int64)
        return found

    def _micro(self, pixels: int, vectors: int, last_lanes: int, start: int, channels: int, first: int) -> int:
        problem = self._problem
        taps = [
            ((s * self._dilation[1] - self._padding[1]) * self._pixel, *met)
            for s, met in enumerate(problem.tap_columns(start, pixels))
        ]
        kernel = Micro(
            self._options.wide, pixels, vectors, last_lanes, tuple(taps), channels,
            self._row * self._dilation[0], self._pixel * self._stride[1], self._channel, self._out_pixel,
            first == 0, first + channels == problem.weight_shape[1],
            problem.has_bias, problem.has_residual, problem.activation,
        )  # fmt: skip
        code = compiled(kernel)
        self._kernels.append(code)
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
    if len({*widths}) == len({*parts}) == 1 and sum(widths) == weight.shape[0]:  # one copy
        split_up = weight.unflatten(1, (len(parts), -1)).unflatten(0, (len(widths), -1))
        return split_up.permute(0, 2, 4, 5, 3, 1).contiguous().view(-1)
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
