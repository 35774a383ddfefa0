"""An assembler for what kernels need of x86-64: moves, loops, and arithmetic on vectors of AVX2 or AVX-512.

Operands of memory are pairs (base register, displacement in bytes). Vectors have 16 floats in registers 0 … 31 with
AVX-512, whose instructions have the EVEX prefix, and 8 floats in registers 0 … 15 with AVX2 (VEX).

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple, TypeAlias

Memory: TypeAlias = "tuple[int, int]"

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)


class Op(NamedTuple):
    """An instruction on vectors: the prefix that is implied (0: none, 1: 66), the map (1: 0F, 2: 0F38), the opcode."""

    prefix: int
    table: int
    opcode: int


_LOAD, _STORE, _BROADCAST = Op(0, 1, 0x10), Op(0, 1, 0x11), Op(1, 2, 0x18)
_BROADCAST_INTEGER, _EXCLUSIVE_OR = Op(1, 2, 0x7C), Op(1, 1, 0xEF)
_ADD_WORDS, _MULTIPLY_HALVES, _SHUFFLE = (Op(1, 1, code) for code in (0xD4, 0xF4, 0x70))
_ADD, _MULTIPLY, _SUBTRACT, _MINIMUM, _MAXIMUM = (Op(0, 1, code) for code in (0x58, 0x59, 0x5C, 0x5D, 0x5F))
_MULTIPLY_ADD = Op(1, 2, 0xB8)

_ZEROES, _KEEPS = 0x81, 0x01  # what a masked instruction does with the lanes that it doesn't touch


class Assembler:
    """Collects machine code.

    Args:
        wide: with AVX-512; AVX2 otherwise.
    """

    def __init__(self, wide: bool) -> None:
        self.wide = wide
        self.vector_bytes = 64 if wide else 32
        self.num_vectors = 32 if wide else 16
        self.code = bytearray()

    # Arithmetic on vectors; operand may be in memory.

    def load(self, to: int, memory: Memory, masked: bool = False) -> None:
        self._vector(_LOAD, to, 0, memory, mask=_ZEROES * masked)

    def store(self, memory: Memory, vector: int, masked: bool = False) -> None:
        self._vector(_STORE, vector, 0, memory, mask=_KEEPS * masked)

    def broadcast(self, to: int, memory: Memory) -> None:
        self._vector(_BROADCAST, to, 0, memory, scale=4)

    def multiply_add(self, to: int, x: int, operand: int | Memory, broadcasts: bool = False) -> None:
        """to += x · operand; broadcasts: the operand is one float in memory (AVX-512)."""
        self._vector(_MULTIPLY_ADD, to, x, operand, 4 if broadcasts else 0, broadcasts)

    def add(self, to: int, x: int, operand: int | Memory, masked: bool = False) -> None:
        self._vector(_ADD, to, x, operand, mask=_ZEROES * masked)

    def subtract(self, to: int, x: int, operand: int | Memory) -> None:
        self._vector(_SUBTRACT, to, x, operand)

    def maximum(self, to: int, x: int, operand: int | Memory) -> None:
        """The greater one; operand where either is NaN."""
        self._vector(_MAXIMUM, to, x, operand)

    def minimum(self, to: int, x: int, operand: int | Memory) -> None:
        """The smaller one; operand where either is NaN."""
        self._vector(_MINIMUM, to, x, operand)

    def multiply(self, to: int, x: int, operand: int | Memory) -> None:
        self._vector(_MULTIPLY, to, x, operand)

    def fill(self, vector: int, value: float) -> None:
        """All lanes with a number; changes rax."""
        self.code += b"\xb8" + struct.pack("<f", value)  # mov eax, number
        if self.wide:
            self._vector(_BROADCAST_INTEGER, vector, 0, RAX)  # vpbroadcastd
            return
        self.code += bytes((0xC4, (~vector >> 3 & 1) << 7 | 0x61, 0x79, 0x6E, 0xC0 | (vector & 7) << 3))  # vmovd
        self._vector(_BROADCAST, vector, 0, vector)

    def zero(self, vector: int) -> None:
        self.exclusive_or(vector, vector, vector)

    # Integers in the lanes of vectors of AVX2: of 64 bits, but for the shuffle of 32.

    def exclusive_or(self, to: int, x: int, operand: int | Memory) -> None:
        self._vector(_EXCLUSIVE_OR, to, x, operand)

    def add_words(self, to: int, x: int, operand: int | Memory) -> None:
        self._vector(_ADD_WORDS, to, x, operand)

    def multiply_halves(self, to: int, x: int, operand: int | Memory) -> None:
        """The lower halves of both, to products of 64 bits."""
        self._vector(_MULTIPLY_HALVES, to, x, operand)

    def shuffle(self, to: int, operand: int | Memory, order: int) -> None:
        """Put those of each four lanes of 32 bits that order names, two bits for each, the first in the lowest."""
        self._vector(_SHUFFLE, to, 0, operand)
        self.code.append(order)

    def set_mask(self, lanes: int) -> None:
        """The lanes that masked instructions touch (AVX-512); changes rax."""
        self.code += b"\xb8" + ((1 << lanes) - 1).to_bytes(4, "little")  # mov eax, mask
        self.code += b"\xc5\xf8\x92\xc8"  # kmovw k1, eax

    def prefetch(self, memory: Memory) -> None:
        """Into the second cache; memory may be any, mapped or not."""
        base, offset = memory
        self.code += (b"\x41" if base > 7 else b"") + b"\x0f\x18" + _address(2, base, offset)

    # Integers.

    def move(self, to: int, source: int | Memory) -> None:
        if isinstance(source, tuple):
            self._integer(0x8B, to, source)
        else:
            self._integer(0x89, source, to)

    def move_to(self, memory: Memory, source: int) -> None:
        self._integer(0x89, source, memory)

    def add_integer(self, to: int, source: int | Memory) -> None:
        if isinstance(source, tuple):
            self._integer(0x03, to, source)
        else:
            self._integer(0x01, source, to)

    def constant(self, to: int, value: int) -> None:
        self.code += bytes([0x48 | to >> 3, 0xB8 | to & 7]) + value.to_bytes(8, "little", signed=value < 0)

    def increase(self, register: int, value: int) -> None:
        if value:
            self._integer(0x81, 0, register)
            self.code += value.to_bytes(4, "little", signed=True)

    def compare(self, register: int, other: int | Memory) -> None:
        if isinstance(other, tuple):
            self._integer(0x3B, register, other)
        else:
            self._integer(0x39, other, register)

    def push(self, *registers: int) -> None:
        for each in registers:
            self.code += (b"\x41" if each > 7 else b"") + bytes([0x50 | each & 7])

    def pop(self, *registers: int) -> None:
        for each in reversed(registers):
            self.code += (b"\x41" if each > 7 else b"") + bytes([0x58 | each & 7])

    # Flow.

    @property
    def here(self) -> int:
        return len(self.code)

    def jump_back_unless_zero(self, target: int) -> None:
        self.code += b"\x0f\x85" + (target - self.here - 6).to_bytes(4, "little", signed=True)

    def jump_back(self, target: int) -> None:
        self.code += b"\xe9" + (target - self.here - 5).to_bytes(4, "little", signed=True)

    def jump_if_zero(self, register: int) -> int:
        """To where land() is called with the result."""
        self._integer(0x85, register, register)
        self.code += b"\x0f\x84\0\0\0\0"
        return self.here

    def jump_unless_less(self) -> int:
        """To where land() is called with the result; as compare() found."""
        self.code += b"\x0f\x8d\0\0\0\0"
        return self.here

    def land(self, jump: int) -> None:
        self.code[jump - 4 : jump] = (self.here - jump).to_bytes(4, "little", signed=True)

    def call(self, operand: int | Memory) -> None:
        """A function whose address is there."""
        if isinstance(operand, tuple):
            base, offset = operand
            prefix = b"\x41" if base > 7 else b""
            self.code += prefix + b"\xff" + _address(2, base, offset)
        else:
            self.code += (b"\x41" if operand > 7 else b"") + bytes([0xFF, 0xD0 | operand & 7])

    def end(self) -> None:
        self.code += b"\xc5\xf8\x77\xc3"  # vzeroupper, ret

    def _integer(self, opcode: int, reg: int, operand: int | Memory) -> None:
        if isinstance(operand, tuple):
            base, offset = operand
            self.code += bytes([0x48 | reg >> 3 << 2 | base >> 3, opcode]) + _address(reg, base, offset)
        else:
            self.code += bytes([0x48 | reg >> 3 << 2 | operand >> 3, opcode, 0xC0 | (reg & 7) << 3 | operand & 7])

    def _vector(
        self, op: Op, reg: int, x: int, operand: int | Memory, scale: int = 0, broadcasts: bool = False, mask: int = 0
    ) -> None:
        """scale: the bytes of the operand in memory, if they aren't those of a vector."""
        self.code += encoded(self.wide, op, reg, x, operand, scale, broadcasts, mask)


@functools.lru_cache(1 << 16)  # kernels repeat each other's instructions
def encoded(
    wide: bool, op: Op, reg: int, x: int, operand: int | Memory, scale: int, broadcasts: bool, mask: int
) -> bytes:
    in_memory = isinstance(operand, tuple)
    rm, offset = operand if isinstance(operand, tuple) else (operand, 0)
    low, third = (~reg >> 3 & 1) << 7 | (~rm >> 3 & 1) << 5, (~x & 15) << 3 | op.prefix
    if wide:
        fifth_bit = 1 if in_memory else ~rm >> 4 & 1
        second = low | fifth_bit << 6 | (~reg >> 4 & 1) << 4 | op.table
        fourth = 0x40 | (~x >> 4 & 1) << 3 | broadcasts << 4 | mask
        code = bytes((0x62, second, third | 4, fourth, op.opcode))
        scale = scale or 64
    else:
        code = bytes((0xC4, low | 0x40 | op.table, third | 4, op.opcode))
        scale = 1
    return code + (_address(reg, rm, offset, scale) if in_memory else bytes((0xC0 | (reg & 7) << 3 | rm & 7,)))


def _address(reg: int, base: int, offset: int, scale: int = 1) -> bytes:
    """The ModRM byte of memory, and what follows; displacements of one byte count in units of scale."""
    low = (reg & 7) << 3 | base & 7
    middle = b"\x24" if base & 7 == RSP else b""
    if offset % scale == 0 and -128 <= offset // scale < 128:
        return bytes((0x40 | low,)) + middle + (offset // scale & 0xFF).to_bytes(1, "little")
    return bytes((0x80 | low,)) + middle + offset.to_bytes(4, "little", signed=True)
