"""The transforms of Winograd's F(2×2, 3×3) on vectors of channels: V = Bᵀ x B of a tile, and y = Aᵀ M A."""

from __future__ import annotations

from dataclasses import dataclass

from genesis.backends.cpu.x86.assembler import R8, R9, R10, RCX, RDI, RDX, Assembler
from genesis.backends.cpu.x86.micro import apply_activation

# Row i of Bᵀ x is x[first] ± x[second].
_ROWS = ((0, 2, False), (1, 2, True), (2, 1, False), (1, 3, False))


@dataclass(frozen=True)
class ToTile:
    """Vectors of tiles of x into scratch memory, as many as the call's count. Lengths are in bytes.

    Attributes:
        rows, columns: the first and the end of those of the tile's 4 × 4 pixels that are in the image.
        row, pixel: from one to the next in x.
        place: from one of the 16 places to the next in scratch memory.
        step, step_in_scratch: from a vector to the next: that of the next channels, or of the next tile.
    """

    wide: bool
    rows: tuple[int, int]
    columns: tuple[int, int]
    row: int
    pixel: int
    place: int
    step: int
    step_in_scratch: int

    def code(self) -> bytes:
        a = Assembler(self.wide)
        start = a.here
        for i, (first, second, adds) in enumerate(_ROWS):
            for j in range(4):
                self._combine(a, j, (first, j), (second, j), adds)
            for j, (left, right, adds_columns) in enumerate(_ROWS):
                (a.add if adds_columns else a.subtract)(4 + j, left, right)
                a.store((R10, (4 * i + j) * self.place), 4 + j)
        a.increase(RDI, self.step)
        a.increase(R10, self.step_in_scratch)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _combine(self, a: Assembler, to: int, first: tuple[int, int], second: tuple[int, int], adds: bool) -> None:
        (row, column), (second_row, _) = first, second
        is_inside = self.columns[0] <= column < self.columns[1]
        if is_inside and self.rows[0] <= row < self.rows[1]:
            a.load(to, (RDI, row * self.row + column * self.pixel))
        else:
            a.zero(to)
        if is_inside and self.rows[0] <= second_row < self.rows[1]:
            (a.add if adds else a.subtract)(to, to, (RDI, second_row * self.row + column * self.pixel))


@dataclass(frozen=True)
class FromTile:
    """Vectors of the 2 × 2 results of tiles, as many as the call's count, with bias, residual and activation.

    Attributes:
        rows, columns: how many of the results are in the image.
        row, pixel: from one to the next in y.
        place: from one of the 16 places to the next in scratch memory.
        step, step_in_scratch, step_of_bias: from a vector to the next.
        bias: where the first vector's begins.
    """

    wide: bool
    rows: int
    columns: int
    row: int
    pixel: int
    place: int
    step: int
    step_in_scratch: int
    step_of_bias: int
    bias: int
    has_bias: bool
    has_residual: bool
    activation: str | None

    def code(self) -> bytes:
        a = Assembler(self.wide)
        apply = apply_activation(a, self.activation, 12)
        start = a.here
        for i in range(self.rows):
            # Row i of Aᵀ M: m0 + m1 + m2, or m1 − m2 − m3.
            for j in range(4):
                self._column(a, j, i, j)
            a.add(4, 1, 2)
            a.add(4, 4, 0)
            a.subtract(5, 1, 2)
            a.subtract(5, 5, 3)
            for j in range(self.columns):
                place = i * self.row + j * self.pixel
                if self.has_bias:
                    a.add(4 + j, 4 + j, (R8, self.bias))
                if self.has_residual:
                    a.add(4 + j, 4 + j, (R9, place))
                apply(4 + j)
                a.store((RDX, place), 4 + j)
        for register, step in (
            (RDX, self.step), (R9, self.step), (R10, self.step_in_scratch), (R8, self.step_of_bias)
        ):  # fmt: skip
            a.increase(register, step)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _column(self, a: Assembler, to: int, i: int, j: int) -> None:
        def memory(row: int) -> tuple[int, int]:
            return R10, (4 * row + j) * self.place

        a.load(to, memory(1))
        (a.add if i == 0 else a.subtract)(to, to, memory(2))
        if i == 0:
            a.add(to, to, memory(0))
        else:
            a.subtract(to, to, memory(3))
