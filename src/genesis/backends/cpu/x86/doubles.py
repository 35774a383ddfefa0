"""Arithmetic on vectors of four float64 numbers, which are float32 in memory; AVX2 suffices for it."""

from __future__ import annotations

from genesis.backends.cpu.x86.assembler import Assembler, Memory, Op, encoded

LANES = 4

_WIDEN, _NARROW, _BROADCAST, _STORE = Op(0, 1, 0x5A), Op(1, 1, 0x5A), Op(1, 2, 0x19), Op(0, 1, 0x11)
_ADD, _MULTIPLY, _SUBTRACT, _DIVIDE, _SQUARE_ROOT = (Op(1, 1, code) for code in (0x58, 0x59, 0x5C, 0x5E, 0x51))
_HALF = ~4 & 0xFF  # of the third byte: the instruction is one on 16 bytes


class Doubles(Assembler):
    """Collects machine code; vectors are the registers 0 … 15."""

    def __init__(self) -> None:
        super().__init__(wide=False)

    def widen(self, to: int, memory: Memory) -> None:
        """Four float32 numbers."""
        self._doubles(_WIDEN, to, 0, memory)

    def store_floats(self, memory: Memory, vector: int, spare: int | None = None) -> None:
        """The vector as four float32 numbers; they are in spare then, or else in the vector itself."""
        rounded = vector if spare is None else spare
        self._doubles(_NARROW, rounded, 0, vector)
        code = bytearray(encoded(False, _STORE, rounded, 0, memory, 0, False, 0))
        code[2] &= _HALF
        self.code += code

    def broadcast_double(self, to: int, memory: Memory) -> None:
        self._doubles(_BROADCAST, to, 0, memory)

    def add_doubles(self, to: int, x: int, y: int) -> None:
        self._doubles(_ADD, to, x, y)

    def subtract_doubles(self, to: int, x: int, y: int) -> None:
        self._doubles(_SUBTRACT, to, x, y)

    def multiply_doubles(self, to: int, x: int, y: int) -> None:
        self._doubles(_MULTIPLY, to, x, y)

    def divide_doubles(self, to: int, x: int, y: int) -> None:
        self._doubles(_DIVIDE, to, x, y)

    def square_roots(self, to: int, x: int) -> None:
        self._doubles(_SQUARE_ROOT, to, 0, x)

    def _doubles(self, op: Op, to: int, x: int, operand: int | Memory) -> None:
        self.code += encoded(False, op, to, x, operand, 0, False, 0)
