"""The problem that all the kernels solve, and how its work is split."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu.x86.driver import Numbers
from genesis.backends.cpu.x86.machine import Code
from genesis.records import ConvGeometry

MOST_PIXELS = {True: (0, 26, 13, 9, 6), False: (0, 12, 6, 4)}
"""With AVX-512 or not, by vectors of channels: the pixels whose sums the registers hold."""


@dataclass(frozen=True)
class Problem:
    """A convolution; strides: of x, in floats."""

    input_shape: Shape
    strides: Shape
    weight_shape: Shape
    geometry: ConvGeometry
    has_bias: bool
    has_residual: bool
    activation: str | None

    @property
    def output_shape(self) -> Shape:
        (batch, _, *sizes), (out_channels, _, *kernel) = self.input_shape, self.weight_shape
        stride, padding, dilation, _ = self.geometry
        return (
            batch,
            out_channels,
            *(
                (size + 2 * p - d * (k - 1) - 1) // s + 1
                for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True)
            ),
        )

    def flattened(self) -> Problem:
        """The same with all pixels in one row, or those of each image, where nothing tells rows apart."""
        (batch, channels, height, width), (image, channel, row, pixel) = self.input_shape, self.strides
        stride, padding, *_ = self.geometry
        if self.weight_shape[2:] != (1, 1) or stride != (1, 1) or padding != (0, 0) or row != pixel * width:
            return self
        together = batch if image == row * height else 1
        shape = batch // together, channels, 1, together * height * width
        return replace(self, input_shape=shape, strides=(image, channel, pixel * shape[3], pixel))

    def all_taps(self, axis: int) -> Numbers:
        """For each place of y along an axis, which rows or columns of the filter meet the image: the first, the end."""
        stride, padding, dilation, _ = self.geometry
        starts = np.arange(self.output_shape[2 + axis]) * stride[axis] - padding[axis]
        return meeting(starts, dilation[axis], self.weight_shape[2 + axis], self.input_shape[2 + axis])

    def tiles_of_row(self, left: int, sizes: Numbers) -> list[tuple[int, tuple[Pair, ...]]]:
        """For tiles of so many pixels of y, from this one: how many, and for each column of the filter at which of them
        it meets the image: the first and the end."""
        stride, padding, dilation = (each[1] for each in self.geometry[:3])
        width, kernel = self.input_shape[3], self.weight_shape[3]
        found = []
        first = left
        for pixels in sizes.tolist():
            start = first * stride - padding
            if start >= 0 and start + (pixels - 1) * stride + (kernel - 1) * dilation < width:
                columns: tuple[Pair, ...] = ((0, pixels),) * kernel
            else:
                columns = _met_columns(start, stride, dilation, kernel, width, pixels)
            found.append((pixels, columns))
            first += pixels
        return found


def meeting(starts: Numbers, step: int, count: int, size: int) -> Numbers:
    """Numbers start, start + step, …, count of them, that lie in 0 … size: the first, the end; 0, 0 if none does."""
    low = np.clip(-(starts // step), 0, count)
    high = np.clip(-((starts - size) // step), 0, count)
    return np.where((low < high)[:, None], np.stack([low, high], 1), 0)


@functools.lru_cache(1 << 12)
def _met_columns(start: int, stride: int, dilation: int, kernel: int, width: int, pixels: int) -> tuple[Pair, ...]:
    found = []
    for s in range(kernel):
        inside = [m for m in range(pixels) if 0 <= start + m * stride + s * dilation < width]
        found.append((inside[0], inside[-1] + 1) if inside else (0, 0))
    return tuple(found)


class Kernel(Protocol):
    """A kernel, hashable, whose code it can give."""

    def code(self) -> bytes: ...

    def __hash__(self) -> int: ...


@functools.lru_cache(4096)
def compiled(kernel: Kernel) -> Code:
    return Code(kernel.code())


class Kernels:
    """The kernels of a job: holds their code."""

    def __init__(self) -> None:
        self._codes: dict[Kernel, Code] = {}

    def address(self, kernel: Kernel) -> int:
        code = self._codes.get(kernel)
        if code is None:
            code = self._codes[kernel] = compiled(kernel)
        return code.address


def balanced(blocks: Numbers, costs: Numbers | npt.NDArray[np.float64], num_threads: int) -> list[Numbers]:
    """Blocks for each thread in turn."""
    ends = costs.cumsum()
    of_thread = np.minimum((ends - costs / 2) * num_threads // ends[-1], num_threads - 1)
    edges = np.searchsorted(of_thread, np.arange(num_threads + 1)).tolist()
    return [blocks[start:end] for start, end in itertools.pairwise(edges)]


def split(count: int, most: int) -> list[int]:
    """count as a sum of nearly equal parts."""
    parts = -(-count // most)
    return [count // parts + (i < count % parts) for i in range(parts)]


def laid_out(values: Tensor, out: Tensor | None) -> Tensor:
    """values one after the other, in out where that is given."""
    if out is None:
        return values.reshape(-1).contiguous()  # a slice may be seen as one dimension without a copy
    out.view(values.shape).copy_(values)
    return out
