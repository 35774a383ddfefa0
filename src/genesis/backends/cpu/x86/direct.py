"""Direct convolution: the calls of the innermost kernel that make one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu.x86.driver import Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.micro import LINE, UNROLLED, Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Kernels, Problem, balanced, split

SUMMANDS = 256  # of a sum in a register
FEW_SUMMANDS = 64  # where sums of oneDNN's are as short: of few pixels
_SUMS_BYTES = 24 << 10  # of y, to which the parts of a block are added: they stay in the innermost cache


@dataclass(frozen=True)
class Options:
    """How a convolution is taken apart; chosen by measuring."""

    wide: bool
    num_threads: int
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
        self._is_planar = self._channel != 4 and problem.weight_shape[1] > 1
        self._out_sizes = problem.output_shape[2:]
        self._out_pixel = self._out_channels * 4 * spread[1]
        self._out_row = self._out_sizes[1] * self._out_pixel * spread[0]
        self._taps = problem.all_taps(0)
        self._kernels = Kernels()
        self._lists: dict[object, Numbers] = {}

    def job(self) -> Job:
        ends = np.cumsum(self._widths) * (self._lanes * 4)  # of the channels, in bytes
        last = len(self._widths) - 1
        found = []
        for width, is_last in dict.fromkeys((width, k == last) for k, width in enumerate(self._widths)):
            alike = [k for k, each in enumerate(self._widths) if (each, k == last) == (width, is_last)]
            found.append(self._blocks(width, is_last, ends[alike] - width * self._lanes * 4, int(ends[-1])))
        blocks, costs, places = (np.concatenate(each) for each in zip(*found, strict=True))
        if not self._options.weights_first:
            order = np.argsort(places, kind="stable")
            blocks, costs = blocks[order], costs[order]
        return Job(balanced(blocks, costs, self._options.num_threads), (self._lists, self._kernels))

    def _blocks(self, vectors: int, is_last: bool, biases: Numbers, total: int) -> tuple[Numbers, Numbers, Numbers]:
        """Blocks of so many vectors of channels, what they cost, and their places in the result.

        biases: where their channels begin, of as many bytes as total.
        """
        regions = self._regions(vectors)
        images = np.arange(self._problem.input_shape[0])[:, None, None]
        biases = biases[:, None, None, None]
        top, end, left, right = regions.T[:, :, None]
        starts, ends = self._lists_of(regions, vectors, is_last).T[:, :, None]
        x = images * self._image + (top * self._stride[0] - self._padding[0]) * self._row
        x = x + left * self._stride[1] * self._pixel
        y = (images * self._out_sizes[0] + top) * self._out_row + left * self._out_pixel
        i, j = np.indices(self._spread).reshape(2, -1)
        between = i * (self._out_row // self._spread[0]) + j * (self._out_channels * 4)
        weight = (np.arange(len(i)) * total + biases) * math.prod(self._problem.weight_shape[1:])
        blocks = rows(starts, ends, x, weight, (y + between) + biases, biases, 0)
        size = len(biases), len(images), len(regions), len(i)
        costs = np.broadcast_to((end - top) * (right - left) * vectors, size)
        places = np.broadcast_to((images * self._out_sizes[0] + top) * self._out_sizes[1] + left, size)
        return blocks, costs.ravel(), places.ravel()

    def _regions(self, vectors: int) -> Numbers:
        """Rows and columns of y that a block computes: the first and the end of each."""
        height, width = self._out_sizes
        most = max(1, _SUMS_BYTES // (vectors * self._lanes * 4))
        if self._problem.weight_shape[2:] == (1, 1) and height == 1:
            tile = MOST_PIXELS[self._options.wide][vectors]
            tiles = -(-width // tile)
            count = max(1, -(-width // most))
            count = min(tiles, -(-count // self._options.num_threads) * self._options.num_threads)
            edges = width * np.arange(count + 1) // count
            return rows(0, 1, edges[:-1], edges[1:])
        count = -(-height // max(1, most // width))
        if self._problem.input_shape[0] * count % self._options.num_threads and not self._options.weights_first:
            count = min(height, -(-count // self._options.num_threads) * self._options.num_threads)
        edges = height * np.arange(count + 1) // count
        return rows(edges[:-1], edges[1:], 0, width)

    def _lists_of(self, regions: Numbers, vectors: int, is_last: bool) -> Numbers:
        """For each region, where the list of its calls begins and ends. Those whose taps are all inside share it."""
        height = self._problem.weight_shape[2]
        top, end, left, right = regions.T
        cut = np.concatenate([[0], np.cumsum((self._taps != (0, height)).any(1))])
        is_inside = cut[end] == cut[top]
        if self._padding[1]:
            is_inside &= (left == 0) & (right == self._out_sizes[1])
        sizes = (end - top) * (self._out_sizes[1] + 1) + right - left
        kinds = np.where(is_inside, sizes, -1 - np.arange(len(regions)))
        _, firsts, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
        found = [bounds(self._calls(vectors, is_last, *regions[first].tolist())) for first in firsts.tolist()]
        return np.array(found)[kind_of.reshape(-1)]

    def _calls(self, vectors: int, is_last: bool, top: int, end: int, left: int, right: int) -> Numbers:
        """A block's calls, part by part."""
        taps = self._taps[top:end]
        key = vectors, is_last, taps.tobytes(), (left, right) if self._padding[1] else right - left
        known = self._lists.get(key)
        if known is not None:
            return known
        sizes = np.array(split(right - left, MOST_PIXELS[self._options.wide][vectors]))
        tiles = self._problem.tiles_of_row(left, sizes)
        starts = sizes.cumsum() - sizes
        low, high = taps.T[:, :, None]
        parts = np.array(self._parts)[:, None, None]
        firsts = parts.cumsum(0) - parts
        line = vectors * self._lanes * 4
        height, width = self._problem.weight_shape[2:]
        x = (np.arange(end - top)[:, None] * self._stride[0] + low * self._dilation[0]) * self._row
        y = np.arange(end - top)[:, None] * self._out_row + starts * self._out_pixel
        kernels = self._addresses(tuple(tiles), vectors, is_last, 0)[:, None, :]
        weights, distance = parts * (height * width * line), self._channel if self._is_planar else 0
        if not self._is_planar:
            ahead, fetching, share = fetched_ahead(len(taps) * len(sizes), line)
            index = np.arange(len(taps) * len(sizes)).reshape(len(taps), -1)
            kernels = np.where(
                index < fetching, self._addresses(tuple(tiles), vectors, is_last, ahead)[:, None, :], kernels
            )
            distance = weights + (index * share * weights).astype(np.int64) - low * parts * (width * line)
        found = self._lists[key] = rows(
            kernels, x + firsts * self._channel + starts * (self._stride[1] * self._pixel),
            (firsts * height + low * parts) * (width * line), y, high - low, 0, 0,
            self._row * self._dilation[0], distance,
        )  # fmt: skip
        return found

    def _addresses(
        self, tiles: tuple[tuple[int, tuple[Pair, ...]], ...], vectors: int, is_last: bool, ahead: int
    ) -> Numbers:
        """Addresses of the kernels, by part and tile."""
        key = tiles, vectors, is_last, ahead
        if key in self._lists:
            return self._lists[key]
        lanes = self._lanes - (-self._out_channels % self._lanes if is_last else 0)
        last = len(self._parts) - 1
        parts = [(channels, p == 0, p == last) for p, channels in enumerate(self._parts)]
        known = {
            (part, tile): self._micro(*tile, vectors, lanes, part, ahead) for part in {*parts} for tile in {*tiles}
        }  # fmt: skip
        found = self._lists[key] = np.array([[known[part, tile] for tile in tiles] for part in parts])
        return found

    def _micro(
        self, pixels: int, columns: tuple[Pair, ...], vectors: int, last_lanes: int, part: tuple[int, bool, bool],
        ahead: int,
    ) -> int:  # fmt: skip
        problem = self._problem
        taps = [
            ((s * self._dilation[1] - self._padding[1]) * self._pixel if met[0] < met[1] else 0, *met)
            for s, met in enumerate(columns)
        ]
        kernel = Micro(
            self._options.wide, pixels, vectors, last_lanes, tuple(taps), part[0], self._pixel * self._stride[1],
            self._out_pixel, *part[1:], problem.has_bias, problem.has_residual, problem.activation, self._is_planar,
            ahead=ahead,
        )  # fmt: skip
        return self._kernels.address(kernel)


def fetched_ahead(count: int, line: int) -> tuple[int, int, float]:
    """How calls that multiply by the same part of the weights bring the next part into the cache, which lies behind it.

    It would else be waited for in the first call, and the memory do nothing during the others.

    Args:
        count: of the calls; line: the bytes of a step's weights.
    Returns: the lines of the cache that a turn of each fetches; how many of the calls do; the share of each.
    """
    lines = UNROLLED * line / LINE
    ahead = math.ceil(lines / count)
    return ahead, math.ceil(lines / ahead), ahead / lines


def parts_of(weight_shape: Shape, summands: int = SUMMANDS) -> list[int]:
    """The channels of the parts. summands: of a sum in a register, at most if there are many; else as near as fours of
    channels come."""
    _, channels, *kernel = weight_shape
    fitting = summands / (4 * math.prod(kernel))
    most = 4 * max(1, math.floor(fitting) if summands == SUMMANDS else round(fitting))
    fours = split(-(-channels // 4), most // 4)
    parts = [4 * each for each in fours]
    parts[-1] -= -channels % 4
    return parts


def packed(weight: Tensor, widths: list[int], parts: list[int], out: Tensor | None = None) -> Tensor:
    """The weights of a block of k, of these widths, after those of another; in it, by part, r, s, c and k."""
    if sum(widths) != weight.shape[0]:
        weight = torch.nn.functional.pad(weight, (0, 0, 0, 0, 0, 0, 0, sum(widths) - weight.shape[0]))
    _, channels, height, width = weight.shape
    area = height * width
    out = torch.empty(weight.numel(), dtype=weight.dtype, device="cpu") if out is None else out
    for k, count, outputs in _alike(widths):  # one copy, if all are
        for c, num_parts, depth in _alike(parts):
            steps = (
                outputs * channels * area,
                depth * area * outputs,
                width * depth * outputs,
                depth * outputs,
                outputs,
                1,
            )
            shape = count, num_parts, height, width, depth, outputs
            place = out.as_strided(shape, steps, out.storage_offset() + (k * channels + c * outputs) * area)
            taken = weight[k : k + count * outputs, c : c + num_parts * depth]
            place.copy_(taken.unflatten(1, (num_parts, depth)).unflatten(0, (count, outputs)).permute(0, 2, 4, 5, 3, 1))
    return out


def _alike(sizes: list[int]) -> list[tuple[int, int, int]]:
    """Runs of equal sizes: where they begin, how many, and the size."""
    found, start = [], 0
    for size, run in itertools.groupby(sizes):
        count = len([*run])
        found.append((start, count, size))
        start += count * size
    return found


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
