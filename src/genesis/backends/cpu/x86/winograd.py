"""Winograd's F(2×2, 3×3) on vectors: 16 products of matrices for four outputs, instead of 36 products.

A block of tiles is transformed into scratch memory that stays in the cache, multiplied by the transformed weights at
each of the 16 places by the kernel of direct convolution, and transformed back. See genesis.backends.cpu.winograd for
the formulas. Its sums are C products long: in parts, as those of direct convolution, they round as little.

Source: Lavin & Gray 2016, arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genesis.backends.contract import Pair
from genesis.backends.cpu.x86.direct import fetched_ahead
from genesis.backends.cpu.x86.driver import CALL, Job, Numbers, bounds, rows
from genesis.backends.cpu.x86.micro import Micro
from genesis.backends.cpu.x86.problem import MOST_PIXELS, Kernels, Problem, balanced, meeting, split
from genesis.backends.cpu.x86.winograd_kernels import FromTile, ToTile

_SUMMANDS = 64  # of a sum in a register: with the transforms, as far from float64 as 256 of a direct convolution
_SCRATCH_BYTES = 768 << 10  # of a thread: stays in its cache
_CACHED_BYTES = 4 << 20  # of weights that are read often; of more, they are read as seldom as possible
_SHARED_BYTES = 1 << 20  # of weights which threads share where
_FEW_TILES = 256  # tiles are no more
_FEW_VECTORS = 4  # of channels: of fewer, a call transforms several tiles
# Estimates, in cycles of a core.
_PER_VECTOR = 40  # to transform a vector of channels of a tile, one way
_PER_TILE = 60
_PER_SUMS = 2  # to begin and to store a vector of sums
_BYTES_PER_CYCLE = 8  # of weights that don't stay in the cache

Runs: TypeAlias = "tuple[Numbers, Numbers, Numbers]"
"""Tiles alike, side by side: the first tile of each run, how many, and what their lines have in common."""


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
    tiles = batch * _num_lines(problem, 0) * _num_lines(problem, 1)
    direct = batch * _num_taps(problem, 0) * _num_taps(problem, 1) * pairs / lanes / 2
    transforms = tiles * ((channels + out_channels) / lanes * _PER_VECTOR + _PER_TILE)
    weights = 4 * 16 * pairs
    scratch = tiles * 16 * 4 * (channels + out_channels)
    threads = (
        1 if _shares_weights(problem, num_threads, -(-out_channels // lanes // (4 if wide else 2))) else num_threads
    )
    readings = max(threads, scratch / _scratch_bytes(problem)) if weights > _CACHED_BYTES // 2 else 0
    products = tiles * 16 * (pairs / 2 + _PER_SUMS * out_channels) / lanes
    return products + transforms + readings * weights / _BYTES_PER_CYCLE < direct


def _num_taps(problem: Problem, axis: int) -> int:
    """How often the weight meets a number and not the padding, which direct convolution leaves out."""
    size, outputs = problem.input_shape[2 + axis], problem.output_shape[2 + axis]
    starts = [tap * problem.geometry.dilation[axis] - problem.geometry.padding[axis] for tap in range(3)]
    return sum(max(0, min(size, start + outputs) - max(0, start)) for start in starts)


def lines(problem: Problem, axis: int) -> Numbers:
    """The rows or columns of tiles. With a dilation d, those of 0, d, 2d, … come first, then those of 1, d + 1, …

    For each: the row or column of y where it begins; the first and the end of those of its four rows or columns of x
    that are in the image; how many of its two rows or columns of y are.
    """
    size, outputs = problem.input_shape[2 + axis], problem.output_shape[2 + axis]
    padding, dilation = problem.geometry.padding[axis], problem.geometry.dilation[axis]
    phases = range(min(dilation, outputs))
    origins = np.concatenate([np.arange(phase, outputs, 2 * dilation) for phase in phases])
    inside = meeting(origins - padding, dilation, 4, size)
    return np.column_stack([origins, inside, 1 + (origins + dilation < outputs)])


def _shares_weights(problem: Problem, num_threads: int, num_blocks: int) -> bool:
    """Whether threads compute some channels of all tiles, and not all of some tiles.

    Where tiles are few, to read the weights takes longer than to transform all tiles in each thread.
    """
    tiles = problem.input_shape[0] * _num_lines(problem, 0) * _num_lines(problem, 1)
    weights = 4 * 16 * problem.weight_shape[0] * problem.weight_shape[1]
    return num_blocks % num_threads == 0 and weights >= _SHARED_BYTES and tiles <= _FEW_TILES


def _num_lines(problem: Problem, axis: int) -> int:
    outputs, dilation = problem.output_shape[2 + axis], problem.geometry.dilation[axis]
    return sum(-(-(outputs - phase) // (2 * dilation)) for phase in range(min(dilation, outputs)))


def _scratch_bytes(problem: Problem) -> int:
    weights = 4 * 16 * problem.weight_shape[0] * problem.weight_shape[1]
    return _SCRATCH_BYTES if weights <= _CACHED_BYTES else weights // 2


def packed(weight: Tensor, widths: list[int], out: Tensor | None = None) -> Tensor:
    """G w Gᵀ: by place, block of k, c and k."""
    out_channels, channels = weight.shape[:2]
    in_places = weight.permute(2, 3, 1, 0)
    if len({*widths}) == 1:
        flat = in_places.unflatten(3, (len(widths), -1)).transpose(2, 3).reshape(9, -1)
    else:
        flat = torch.cat([block.reshape(9, -1) for block in in_places.split(widths, 3)], 1)
    return torch.mm(_both_sides(), flat, out=None if out is None else out.view(16, channels * out_channels)).view(-1)


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
        self._parts = [4 * fours for fours in split(self._channels // 4, _SUMMANDS // 4)]
        self._kernels = Kernels()
        self._lists: dict[object, Numbers] = {}
        self._products_of: dict[tuple[int, Pair], Numbers] = {}
        self._shares = self._weights_by_thread()
        per_tile = 16 * 4 * (self._channels + self._out_channels)
        most = max(MOST_PIXELS[wide][max(widths)], _scratch_bytes(problem) // per_tile)
        num_rows, num_columns = len(self._rows), len(self._columns)
        # A block is some rows of tiles, or a part of one row.
        if most < num_columns:
            first, end = _spans(num_columns, most)
            top = np.arange(num_rows)[:, None]
            self._spans = rows(top, top + 1, first, end)
        else:
            count = max(1, -(-num_rows * num_columns // most))
            if problem.input_shape[0] % num_threads and len(self._shares) == 1:
                count = min(num_rows, -(-count // num_threads) * num_threads)
            self._spans = rows(*_spans(num_rows, -(-num_rows // count)), 0, num_columns)
        top, end, left, right = self._spans.T
        self._tiles = (end - top) * (right - left)
        self.scratch_bytes = int(self._tiles.max()) * per_tile * num_threads

    def _weights_by_thread(self) -> list[Pair]:
        """The blocks of channels of y that a thread computes, first and end; all, if threads share the tiles."""
        count = len(self._widths)
        if not _shares_weights(self._problem, self._num_threads, count):
            return [(0, count)]
        share = count // self._num_threads
        return [(first, first + share) for first in range(0, count, share)]

    def job(self) -> Job:
        top, _, left, _ = self._spans.T
        kinds = _kinds(self._rows, self._spans[:, :2], 2 * self._dilation[0]) * (len(self._columns) + 1) ** 2
        kinds += _kinds(self._columns, self._spans[:, 2:], 2 * self._dilation[1])
        _, firsts, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
        lists = [[bounds(self._calls(share, *span)) for span in self._spans[firsts].tolist()] for share in self._shares]
        starts, ends = np.array(lists)[:, None, kind_of.reshape(-1)].transpose(3, 0, 1, 2)
        p, q = self._rows[top, 0], self._columns[left, 0]
        images = np.arange(self._problem.input_shape[0])[:, None]
        x = images * self._image + (p - self._padding[0]) * self._row + (q - self._padding[1]) * self._pixel
        y = (images * self._problem.output_shape[2] + p) * self._out_row + q * self._out_pixel
        costs = np.tile(self._tiles, len(images) * len(self._shares))
        threads = balanced(rows(starts, ends, x, 0, y, 0, 0), costs, self._num_threads)
        for thread, blocks in enumerate(threads):
            blocks[:, -1] = thread * (self.scratch_bytes // self._num_threads)
        return Job(threads, (self._lists, self._kernels))

    def _calls(self, share: Pair, top: int, end: int, left: int, right: int) -> Numbers:
        lines = self._rows[top:end].copy(), self._columns[left:right].copy()
        for each in lines:
            each[:, 0] -= each[0, 0]
        key = share, len(lines[0]), *(each.tobytes() for each in lines)
        known = self._lists.get(key)
        if known is None:
            runs = _runs(lines[1], 2 * self._dilation[1])
            tiles = len(lines[0]) * len(lines[1])
            known = self._lists[key] = np.concatenate([
                self._to_tiles(*lines, runs, tiles),
                self._products(tiles, share),
                self._from_tiles(*lines, runs, tiles, share),
            ])  # fmt: skip
        return known

    def _to_tiles(self, lines: Numbers, columns: Numbers, runs: Runs, tiles: int) -> Numbers:
        """Transform the tiles of all rows, run by run."""
        vector, channels = self._lanes * 4, self._channels * 4
        many = self._channels > _FEW_VECTORS * self._lanes  # of a tile in a call; or tiles side by side
        steps = (vector, vector) if many else (2 * self._dilation[1] * self._pixel, channels)
        pixel = self._pixel * self._dilation[1]

        def kernel(inside: tuple[int, ...], of_columns: tuple[int, ...]) -> int:
            return self._kernels.address(ToTile(self._wide, inside[:2], of_columns[:2], pixel, *steps))  # type: ignore[arg-type]

        addresses = _table(kernel, lines, runs[2])
        x, places = lines[:, :1] * self._row, np.arange(len(lines))[:, None] * len(columns)
        layout = self._row * self._dilation[0], tiles * channels
        if many:
            run_of = np.repeat(np.arange(len(runs[0])), runs[1])
            x, places = x + columns[:, 0] * self._pixel, places + np.arange(len(columns))
            return rows(addresses[:, run_of], x, 0, 0, self._channels // self._lanes, places * channels, 0, *layout)
        x, places = x + columns[runs[0], 0] * self._pixel, places + runs[0]
        k = np.arange(0, channels, vector)
        return rows(
            addresses[..., None], x[..., None] + k, 0, 0, runs[1][:, None], places[..., None] * channels + k, 0, *layout
        )

    def _from_tiles(self, lines: Numbers, columns: Numbers, runs: Runs, tiles: int, share: Pair) -> Numbers:
        problem, vector, channels = self._problem, self._lanes * 4, self._out_pixel
        many = self._out_channels > _FEW_VECTORS * self._lanes
        first, end = (sum(self._widths[:index]) * vector for index in share)  # of the channels, in bytes
        steps = (vector, vector, vector) if many else (2 * self._dilation[1] * channels, channels, 0)
        pixel = channels * self._dilation[1]
        last = problem.has_bias, problem.has_residual, problem.activation

        def kernel(of_row: tuple[int, ...], of_columns: tuple[int, ...], bias: int = 0) -> int:
            return self._kernels.address(FromTile(self._wide, of_row[2], of_columns[2], pixel, *steps, bias, *last))

        y, places = lines[:, :1] * self._out_row, np.arange(len(lines))[:, None] * len(columns)
        start, layout = 16 * tiles * self._channels * 4, (self._out_row * self._dilation[0], tiles * channels)
        if many:
            run_of = np.repeat(np.arange(len(runs[0])), runs[1])
            y, places = y + columns[:, 0] * channels, start + (places + np.arange(len(columns))) * channels
            addresses = _table(functools.partial(kernel, bias=first), lines, runs[2])[:, run_of]
            return rows(addresses, 0, 0, y + first, (end - first) // vector, places + first, 0, *layout)
        y, places = y + columns[runs[0], 0] * channels, start + (places + runs[0]) * channels
        return np.concatenate([
            rows(addresses, 0, 0, y + k, runs[1], places + k, 0, *layout)
            for k in range(first, end, vector)
            for addresses in [_table(functools.partial(kernel, bias=k), lines, runs[2])]
        ])  # fmt: skip

    def _products(self, tiles: int, share: Pair) -> Numbers:
        """The 16 places, block of channels by block, part by part."""
        known = self._products_of.get((tiles, share))
        if known is not None:
            return known
        channels, out_channels = self._channels * 4, self._out_channels * 4  # in bytes
        parts = np.array(self._parts)
        firsts = parts.cumsum() - parts
        place = np.arange(16)[:, None, None]
        found = []
        for index in range(*share):
            vectors = self._widths[index]
            line, k = vectors * self._lanes * 4, sum(self._widths[:index]) * self._lanes * 4
            counts = np.array(split(tiles, MOST_PIXELS[self._wide][vectors]))
            starts = counts.cumsum() - counts
            ahead, fetching, each = fetched_ahead(len(counts), line)
            addresses = self._product_addresses(counts.tolist(), vectors, np.arange(len(counts)) < fetching, ahead)
            weight = place * (self._channels * out_channels) + self._channels * k + (firsts * line)[:, None]
            following = (parts * line)[:, None] + np.zeros_like(weight)
            if index == share[1] - 1:  # behind its last part lies what another thread reads
                first = sum(self._widths[: share[0]]) * self._lanes * 4
                following[:, -1] = self._channels * out_channels + self._channels * (first - k) - firsts[-1] * line
            following = following + (np.arange(len(counts)) * each * (parts * line)[:, None]).astype(np.int64)
            x = place * (tiles * channels) + starts * channels + (firsts * 4)[:, None]
            y = tiles * (16 * channels) + place * (tiles * out_channels) + starts * out_channels + k
            found.append(rows(addresses, 0, weight, 0, 1, x, y, 0, following).reshape(16, -1, CALL))
        known = self._products_of[tiles, share] = np.concatenate(found, 1).reshape(-1, CALL)
        return known

    def _product_addresses(
        self, counts: list[int], vectors: int, fetching: npt.NDArray[np.bool_], ahead: int
    ) -> Numbers:
        """Addresses of the kernels, by part and count; those that fetch weights ahead, so many lines."""
        calls = list(zip(counts, (fetching * ahead).tolist(), strict=True))
        parts = [(part, p == 0) for p, part in enumerate(self._parts)]
        known = {(part, call): self._product(*call, vectors, *part) for part in {*parts} for call in {*calls}}
        return np.array([[known[part, call] for call in calls] for part in parts])

    def _product(self, count: int, ahead: int, vectors: int, channels: int, begins: bool) -> int:
        kernel = Micro(
            self._wide, count, vectors, self._lanes, ((0, 0, count),), channels, self._channels * 4, self._out_pixel,
            begins, True, in_scratch=True, ahead=ahead,
        )  # fmt: skip
        return self._kernels.address(kernel)


def _table(kernel: Callable[[tuple[int, ...], tuple[int, ...]], int], lines: Numbers, columns: Numbers) -> Numbers:
    """The addresses of kernels by row and run of tiles, of which few differ."""
    of_rows, of_columns = ([tuple(each) for each in kinds] for kinds in (lines[:, 1:].tolist(), columns.tolist()))
    known = {kind: [kernel(kind, each) for each in of_columns] for kind in {*of_rows}}
    return np.array([known[kind] for kind in of_rows])


def _kinds(lines: Numbers, spans: Numbers, step: int) -> Numbers:
    """A number for each span of lines; the same for those that differ by their place alone."""
    starts, ends = spans.T
    is_first = np.append(True, (lines[1:, 1:] != lines[:-1, 1:]).any(1) | (np.diff(lines[:, 0]) != step))
    run_of = is_first.cumsum()
    whole = (run_of[starts] == run_of[ends - 1]) & (lines[starts, 1:] == (0, 4, 2)).all(1)
    return np.where(whole, ends - starts, (starts + 1) * len(lines) + ends)


def _spans(count: int, most: int) -> tuple[Numbers, Numbers]:
    sizes = np.array(split(count, most))
    ends = sizes.cumsum()
    return ends - sizes, ends


def _runs(columns: Numbers, step: int) -> Runs:
    """Tiles alike, one a step after the other."""
    is_first = (columns[1:, 1:] != columns[:-1, 1:]).any(1) | (np.diff(columns[:, 0]) != step)
    edges = np.concatenate([[0], np.flatnonzero(is_first) + 1, [len(columns)]])
    return edges[:-1], np.diff(edges), columns[edges[:-1], 1:]
