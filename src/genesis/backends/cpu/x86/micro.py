"""The innermost kernel: some pixels times some channels, their sums in registers over one part of the products.

    y[m, k] (+)= Σ_{r, s, c in the part} x[m·stride + (r, s), c] · w[r, s, c, k]

A step of c loads the weights of some vectors of k, and multiplies them by one float of each pixel, in all lanes. A part
is short, so that its sums round little; it is then added to what is in y. Where rows of x lie is an argument, so that
images of all sizes share a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from genesis.backends.cpu.x86.assembler import R8, R9, R10, R11, RAX, RBP, RCX, RDI, RDX, RSI, Assembler

UNROLLED = 4  # steps of c in a turn of the loop
LINE = 64  # bytes of the cache


@dataclass(frozen=True)
class Micro:
    """One kernel. Lengths are in bytes, but for counts.

    Attributes:
        pixels, vectors: results m, and vectors of channels k.
        last_lanes: channels in the last vector.
        taps: for each s, what is added to the address of x, and the first and the last pixel (excluded) that it meets.
        channels: c in the part.
        pixel: from an m of x to the next.
        is_planar: the channels of x don't lie side by side.
        out_pixel: from an m of y to the next.
        begins: the part is the first one; y is the bias and its sums.
        ends: the part is the last one; the residual is added to y, and the activation applied.
    """

    wide: bool
    pixels: int
    vectors: int
    last_lanes: int
    taps: tuple[tuple[int, int, int], ...]
    channels: int
    pixel: int
    out_pixel: int
    begins: bool
    ends: bool
    has_bias: bool = False
    has_residual: bool = False
    activation: str | None = None
    is_planar: bool = False
    in_scratch: bool = False  # x and y are there
    out_in_scratch: bool = False  # y is there
    ahead: int = 0  # lines of the cache that each turn fetches of weights which later calls need; x is not planar

    def code(self) -> bytes:
        """A function of x (rdi), w (rsi), y (rdx), the number of rows (rcx), bias (r8) and residual (r9).

        From a row r of x to the next it is rbp, and from a channel to the next rax where x is planar. Otherwise, the
        weights to fetch ahead begin rax bytes after w.
        """
        a = Assembler(self.wide)
        if self.in_scratch:
            a.move(RDI, R10)
        if self.in_scratch or self.out_in_scratch:
            a.move(RDX, R11)
        if self.is_planar:
            a.move(R10, RAX)
        elif self.ahead:
            a.move(R10, RSI)
            a.add_integer(R10, RAX)
        if self.last_lanes != a.vector_bytes // 4:
            a.set_mask(self.last_lanes)
        a.code += _sums_code(
            self.wide, self.pixels, self.vectors, self.taps, self.channels, self.pixel, self.is_planar, self.ahead
        )
        sums = [[m * self.vectors + n for n in range(self.vectors)] for m in range(self.pixels)]
        self._finish(a, sums)
        a.end()
        return bytes(a.code)

    def _finish(self, a: Assembler, sums: list[list[int]]) -> None:
        lanes = a.vector_bytes // 4
        free = self.pixels * self.vectors
        apply = apply_activation(a, self.activation if self.ends else None, free)
        for m, row in enumerate(sums):
            for n, vector in enumerate(row):
                masked = n == self.vectors - 1 and self.last_lanes != lanes
                place = m * self.out_pixel + n * a.vector_bytes
                if self.begins and self.has_bias:
                    a.add(vector, vector, (R8, n * a.vector_bytes))
                if not self.begins:
                    a.add(vector, vector, (RDX, place), masked)
                if self.ends and self.has_residual:
                    a.add(vector, vector, (R9, place), masked)
                apply(vector)
                a.store((RDX, place), vector, masked)


@functools.lru_cache(1 << 12)  # the kernels of a convolution's parts have it in common
def _sums_code(
    wide: bool, pixels: int, vectors: int, taps: tuple[tuple[int, int, int], ...], channels: int, pixel: int,
    is_planar: bool, ahead: int,
) -> bytes:  # fmt: skip
    """Fills the sums; r11 is where a planar row begins, r10 what is fetched ahead."""
    a = Assembler(wide)
    for vector in range(pixels * vectors):
        a.zero(vector)
    nothing = a.jump_if_zero(RCX)
    start = a.here
    moved = 0
    if is_planar:
        a.move(R11, RDI)
    for offset, first, end in taps:
        if first == end:
            a.increase(RSI, channels * vectors * a.vector_bytes)
        elif is_planar:
            a.move(RDI, R11)
            _tap(a, Step(wide, pixels, vectors, offset, first, end, pixel), channels, is_planar)
        else:
            step = Step(wide, pixels, vectors, offset - moved, first, end, pixel)
            moved += _tap(a, step, channels, is_planar, ahead)
    if is_planar:
        a.move(RDI, R11)
    a.add_integer(RDI, RBP)
    a.increase(RDI, -moved)
    a.increase(RCX, -1)
    a.jump_back_unless_zero(start)
    a.land(nothing)
    return bytes(a.code)


class Step(NamedTuple):
    """A channel of x: offset is the place of its first pixel, first … end are those that take part."""

    wide: bool
    pixels: int
    vectors: int
    offset: int
    first: int
    end: int
    pixel: int


def _tap(a: Assembler, step: Step, channels: int, is_planar: bool, ahead: int = 0) -> int:
    """All channels for one s; returns how far x is moved."""
    line = step.vectors * a.vector_bytes
    turns, left = divmod(channels, UNROLLED)
    if turns == 1:
        turns, left = 0, channels

    def steps(count: int) -> None:
        for c in range(count):
            x = step if is_planar else step._replace(offset=step.offset + 4 * c)
            a.code += step_code(x, c * line)
            if is_planar:
                a.add_integer(RDI, R10)

    if turns:
        a.constant(RAX, turns)
        start = a.here
        for n in range(ahead):
            a.prefetch((R10, n * LINE))
        a.increase(R10, ahead * LINE)
        steps(UNROLLED)
        if not is_planar:
            a.increase(RDI, UNROLLED * 4)
        a.increase(RSI, UNROLLED * line)
        a.increase(RAX, -1)
        a.jump_back_unless_zero(start)
    steps(left)
    a.increase(RSI, left * line)
    return turns * UNROLLED * 4


@functools.lru_cache(1 << 12)
def step_code(step: Step, w: int) -> bytes:
    a = Assembler(step.wide)
    vectors = step.vectors
    free = list(range(step.pixels * vectors, a.num_vectors))
    weights = free[:vectors]
    direct = step.wide and (vectors == 1 or len(free) == vectors)
    if len(free) < vectors + (not direct):
        weights = free[:-1]
    spare = free[len(weights) :]
    for n, vector in enumerate(weights):
        a.load(vector, (RSI, w + n * a.vector_bytes))
    for m in range(step.first, step.end):
        place = (RDI, step.offset + m * step.pixel)
        if direct:
            for n, vector in enumerate(weights):
                a.multiply_add(m * vectors + n, vector, place, broadcasts=True)
            continue
        factor = spare[m % len(spare)]
        a.broadcast(factor, place)
        for n in range(vectors):
            weight = weights[n] if n < len(weights) else (RSI, w + n * a.vector_bytes)
            a.multiply_add(m * vectors + n, factor, weight)
    return bytes(a.code)


ACTIVATIONS = (None, "relu", "relu6")


def apply_activation(a: Assembler, activation: str | None, free: int) -> Callable[[int], None]:
    """A function that applies it to a vector; what that needs is in the vectors free and free + 1. NaN stays."""
    if activation is None:
        return lambda vector: None
    zero, six = free, free + 1
    a.zero(zero)
    if activation == "relu":
        return lambda vector: a.maximum(vector, zero, vector)
    a.fill(six, 6.0)

    def relu6(vector: int) -> None:
        a.maximum(vector, zero, vector)
        a.minimum(vector, six, vector)

    return relu6
