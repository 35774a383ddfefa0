"""What the kernels' convolutions have in common: the problem, and how work is split."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from genesis.backends.contract import Shape
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
