"""The problem that all the kernels solve, and how its work is split."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from genesis.backends.contract import Pair, Shape
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

    def taps(self, place: int, axis: int) -> Pair:
        """Rows or columns of the filter that meet the image, at this place of y: the first, and the end."""
        stride, padding, dilation, _ = self.geometry
        start = place * stride[axis] - padding[axis]
        return _taps(start, dilation[axis], self.weight_shape[2 + axis], self.input_shape[2 + axis])

    def tap_columns(self, first: int, pixels: int) -> tuple[Pair, ...]:
        """For each column of the filter, at which of these pixels of y it meets the image: the first and the end."""
        met = [self.taps(first + m, 1) for m in range(pixels)]
        found = []
        for s in range(self.weight_shape[3]):
            inside = [m for m, (low, high) in enumerate(met) if low <= s < high]
            found.append((inside[0], inside[-1] + 1) if inside else (0, 0))
        return tuple(found)


@functools.cache
def _taps(start: int, step: int, count: int, size: int) -> Pair:
    inside = [k for k in range(count) if 0 <= start + k * step < size]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


class Kernel(Protocol):
    """A kernel, hashable, whose code it can give."""

    def code(self) -> bytes: ...

    def __hash__(self) -> int: ...


@functools.lru_cache(4096)
def compiled(kernel: Kernel) -> Code:
    return Code(kernel.code())


def balanced(units: Sequence[tuple[tuple[int, ...], int]], num_threads: int) -> list[list[tuple[int, ...]]]:
    """Blocks, with what they cost, for each thread in turn."""
    ends = np.cumsum([cost for _, cost in units])
    centres = ends - np.array([cost for _, cost in units]) / 2
    of_thread = np.minimum(centres * num_threads // ends[-1], num_threads - 1)
    return [
        [unit for (unit, _), t in zip(units, of_thread, strict=True) if t == thread] for thread in range(num_threads)
    ]


def split(count: int, most: int) -> list[int]:
    """count as a sum of nearly equal parts."""
    parts = -(-count // most)
    return [count // parts + (i < count % parts) for i in range(parts)]
