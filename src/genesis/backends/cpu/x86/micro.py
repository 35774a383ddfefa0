"""The innermost kernel: some pixels times some channels, their sums in registers over one part of the products.

    y[m, k] (+)= Σ_{r, s, c in the part} x[m·stride + (r, s), c] · w[r, s, c, k]

A step of c loads the weights of some vectors of k, and multiplies them by one float of each pixel, in all lanes. A part
is short, so that its sums round little; it is then added to what is in y. All places are constants of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from genesis.backends.cpu.x86.assembler import R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, Assembler

_UNROLLED = 4  # steps of c in a turn of the loop


@dataclass(frozen=True)
class Micro:
    """One kernel. Lengths are in bytes, but for counts.

    Attributes:
        pixels, vectors: results m, and vectors of channels k.
        last_lanes: channels in the last vector.
        taps: for each s, what is added to the address of x, and the first and the last pixel (excluded) that it meets.
        channels: c in the part.
        row: from a row r of x to the next.
        pixel, channel: from an m or c of x to the next.
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
    row: int
    pixel: int
    channel: int
    out_pixel: int
    begins: bool
    ends: bool
    has_bias: bool = False
    has_residual: bool = False
    activation: str | None = None
    in_scratch: bool = False  # x and y are there

    def code(self) -> bytes:
        """A function of x (rdi), w (rsi), y (rdx), the number of rows (rcx), bias (r8) and residual (r9)."""
        a = Assembler(self.wide)
        if self.in_scratch:
            a.move(RDI, R10)
            a.move(RDX, R11)
        if self.last_lanes != a.vector_bytes // 4:
            a.set_mask(self.last_lanes)
        sums = [[m * self.vectors + n for n in range(self.vectors)] for m in range(self.pixels)]
        for vector in range(self.pixels * self.vectors):
            a.zero(vector)
        nothing = a.jump_if_zero(RCX)
        start = a.here
        moved = 0
        for offset, first, end in self.taps:
            moved = self._tap(a, sums, offset, first, end, moved)
        a.increase(RDI, self.row - moved)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.land(nothing)
        self._finish(a, sums)
        a.end()
        return bytes(a.code)

    def _tap(self, a: Assembler, sums: list[list[int]], offset: int, first: int, end: int, moved: int) -> int:
        """moved: how far x is ahead of the row's first channel; returns how far it is then."""
        line = self.vectors * a.vector_bytes
        turns, left = divmod(self.channels, _UNROLLED)
        if first == end:
            a.increase(RSI, self.channels * line)
            return moved
        if turns == 1:
            turns, left = 0, self.channels
        if turns:
            a.constant(RAX, turns)
            start = a.here
            for c in range(_UNROLLED):
                self._step(a, sums, offset - moved + c * self.channel, c * line, first, end)
            a.increase(RDI, _UNROLLED * self.channel)
            a.increase(RSI, _UNROLLED * line)
            a.increase(RAX, -1)
            a.jump_back_unless_zero(start)
            moved += turns * _UNROLLED * self.channel
        for c in range(left):
            place = turns * _UNROLLED + c
            self._step(a, sums, offset - moved + place * self.channel, c * line, first, end)
        a.increase(RSI, left * line)
        return moved

    def _step(self, a: Assembler, sums: list[list[int]], x: int, w: int, first: int, end: int) -> None:
        free = list(range(self.pixels * self.vectors, a.num_vectors))
        weights = free[: self.vectors]
        direct = self.wide and (self.vectors == 1 or len(free) == self.vectors)
        if len(free) < self.vectors + (not direct):
            weights = free[:-1]
        spare = free[len(weights) :]
        for n, vector in enumerate(weights):
            a.load(vector, (RSI, w + n * a.vector_bytes))
        for m in range(first, end):
            place = (RDI, x + m * self.pixel)
            if direct:
                for n, vector in enumerate(weights):
                    a.multiply_add(sums[m][n], vector, place, broadcasts=True)
                continue
            factor = spare[m % len(spare)]
            a.broadcast(factor, place)
            for n in range(self.vectors):
                weight = weights[n] if n < len(weights) else (RSI, w + n * a.vector_bytes)
                a.multiply_add(sums[m][n], factor, weight)

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
