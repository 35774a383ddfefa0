"""The transforms of Winograd's F(2×2, 3×3) on vectors of channels: V = Bᵀ x B of a tile, and y = Aᵀ M A."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from genesis.backends.cpu.x86.assembler import R8, R9, R10, R11, RAX, RBP, RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.micro import apply_activation

_X_ROWS = RDI, RSI, RDX, R8  # where the rows of x lie
# Row i of Bᵀ x is x[first] ± x[second].
_ROWS = ((0, 2, False), (1, 2, True), (2, 1, False), (1, 3, False))


@dataclass(frozen=True)
class ToTile:
    """Vectors of tiles of x into scratch memory, as many as the call's count. Lengths are in bytes.

    From a row of x to the next it is rbp, from one of the 16 places in scratch memory to the next rax.

    Attributes:
        rows, columns: the first and the end of those of the tile's 4 × 4 pixels that are in the image.
        pixel: from one to the next in x.
        step, step_in_scratch: from a vector to the next: that of the next channels, or of the next tile.
    """

    wide: bool
    rows: tuple[int, int]
    columns: tuple[int, int]
    pixel: int
    step: int
    step_in_scratch: int

    def code(self) -> bytes:
        a = Assembler(self.wide)
        for before, row in itertools.pairwise(_X_ROWS):
            a.move(row, before)
            a.add_integer(row, RBP)
        start = a.here
        a.move(R11, R10)
        for first, second, adds in _ROWS:
            for j in range(4):
                self._combine(a, j, first, second, adds)
            for j, (left, right, adds_columns) in enumerate(_ROWS):
                (a.add if adds_columns else a.subtract)(4 + j, left, right)
                a.store((R11, 0), 4 + j)
                a.add_integer(R11, RAX)
        for row in _X_ROWS:
            a.increase(row, self.step)
        a.increase(R10, self.step_in_scratch)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _combine(self, a: Assembler, column: int, first: int, second: int, adds: bool) -> None:
        is_inside = self.columns[0] <= column < self.columns[1]
        if is_inside and self.rows[0] <= first < self.rows[1]:
            a.load(column, (_X_ROWS[first], column * self.pixel))
        else:
            a.zero(column)
        if is_inside and self.rows[0] <= second < self.rows[1]:
            (a.add if adds else a.subtract)(column, column, (_X_ROWS[second], column * self.pixel))


@dataclass(frozen=True)
class FromTile:
    """Vectors of the 2 × 2 results of tiles, as many as the call's count, with bias, residual and activation.

    From a row of y to the next it is rbp, from one of the 16 places in scratch memory to the next rax.

    Attributes:
        rows, columns: how many of the results are in the image.
        pixel: from one to the next in y.
        step, step_in_scratch, step_of_bias: from a vector to the next.
        bias: where the first vector's begins.
    """

    wide: bool
    rows: int
    columns: int
    pixel: int
    step: int
    step_in_scratch: int
    step_of_bias: int
    bias: int
    has_bias: bool
    has_residual: bool
    activation: str | None

    def code(self) -> bytes:
        a = Assembler(self.wide)
        a.move(RDI, RAX)  # of which activations make use
        apply = apply_activation(a, self.activation, 12)
        for row, second in ((RDX, RSI), (R9, RAX)):
            a.move(second, row)
            a.add_integer(second, RBP)
        start = a.here
        self._columns(a)
        for i, (y, residual) in enumerate(((RDX, R9), (RSI, RAX))[: self.rows]):
            a.add(8, 4 * i + 1, 4 * i + 2)
            a.add(8, 8, 4 * i)
            a.subtract(9, 4 * i + 1, 4 * i + 2)
            a.subtract(9, 9, 4 * i + 3)
            for j in range(self.columns):
                if self.has_bias:
                    a.add(8 + j, 8 + j, (R8, self.bias))
                if self.has_residual:
                    a.add(8 + j, 8 + j, (residual, j * self.pixel))
                apply(8 + j)
                a.store((y, j * self.pixel), 8 + j)
        for register in (RDX, RSI, R9, RAX):
            a.increase(register, self.step)
        a.increase(R10, self.step_in_scratch)
        a.increase(R8, self.step_of_bias)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _columns(self, a: Assembler) -> None:
        """Rows of Aᵀ M: m0 + m1 + m2 into 0 … 3, and m1 − m2 − m3 into 4 … 7."""
        a.move(R11, R10)
        for i in range(4 if self.rows == 2 else 3):
            for j in range(4):
                place = R11, 0
                if i == 0:
                    a.load(j, place)
                elif i == 1:
                    a.load(4 + j, place)
                    a.add(j, j, 4 + j)
                elif i == 2:
                    a.load(8, place)
                    a.add(j, j, 8)
                    a.subtract(4 + j, 4 + j, 8)
                else:
                    a.subtract(4 + j, 4 + j, place)
                a.add_integer(R11, RDI)
