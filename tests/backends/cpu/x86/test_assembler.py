"""Machine code against that of GNU's assembler, and a few instructions run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R15,
    RAX,
    RBX,
    RDI,
    RSI,
    RSP,
    Assembler,
)  # fmt: skip
from genesis.backends.cpu.x86.doubles import Doubles

# What objdump makes of it → the call and its code.
WIDE: dict[str, tuple[Callable[[Assembler], object], str]] = {
    "vmovups zmm17,[rdi+0x40]": (lambda a: a.load(17, (RDI, 64)), "62e17c48104f01"),
    "vmovups [r12-0x80]{k1},zmm31": (lambda a: a.store((R12, -128), 31, True), "62417c49117c24fe"),
    "vbroadcastss zmm9,[rsp+0x4]": (lambda a: a.broadcast(9, (RSP, 4)), "62727d48184c2401"),
    "vfmadd231ps zmm20,zmm3,zmm25": (lambda a: a.multiply_add(20, 3, 25), "62827d40b8e1".replace("7d40", "6548")),
    "vfmadd231ps zmm1,zmm30,[r13+0x3e8]": (lambda a: a.multiply_add(1, 30, (R13, 1000)), "62d20d40b88de8030000"),
    "vfmadd231ps zmm1,zmm30,[r13+0x8]{1to16}": (lambda a: a.multiply_add(1, 30, (R13, 8), True), "62d20d50b84d02"),
    "vaddps zmm1{k1}{z},zmm2,[rax]": (lambda a: a.add(1, 2, (RAX, 0), True), "62f16cc9584800"),
    "vsubps zmm1,zmm2,zmm18": (lambda a: a.subtract(1, 2, 18), "62b16c485cca"),
    "vmaxps zmm3,zmm4,zmm5": (lambda a: a.maximum(3, 4, 5), "62f15c485fdd"),
    "vminps zmm3,zmm4,zmm5": (lambda a: a.minimum(3, 4, 5), "62f15c485ddd"),
    "vpxord zmm21,zmm21,zmm21": (lambda a: a.zero(21), "62a15540efed"),
    "mov eax,0x1f; kmovw k1,eax": (lambda a: a.set_mask(5), "b81f000000c5f892c8"),
    "mov r9,rdi": (lambda a: a.move(R9, RDI), "4989f9"),
    "mov rdi,[r9+0x10]": (lambda a: a.move(RDI, (R9, 16)), "498b7910"),
    "add r9,rax": (lambda a: a.add_integer(R9, RAX), "4901c1"),
    "movabs r10,0x10000000000": (lambda a: a.constant(R10, 1 << 40), "49ba0000000000010000"),
    "add r11,-1": (lambda a: a.increase(R11, -1), "4981c3ffffffff"),
    "cmp rax,r9": (lambda a: a.compare(RAX, R9), "4c39c8"),
    "push rbx; push r15": (lambda a: a.push(RBX, R15), "534157"),
    "pop r15; pop rbx": (lambda a: a.pop(RBX, R15), "415f5b"),
    "prefetcht1 [r10+0x40]": (lambda a: a.prefetch((R10, 64)), "410f185240"),
    "call [r12+0x8]": (lambda a: a.call((R12, 8)), "41ff542408"),
    "call rax": (lambda a: a.call(RAX), "ffd0"),
    "vzeroupper; ret": (lambda a: a.end(), "c5f877c3"),
}
NARROW: dict[str, tuple[Callable[[Assembler], object], str]] = {
    "vmovups ymm9,[rdi+0x40]": (lambda a: a.load(9, (RDI, 64)), "c4617c104f40"),
    "vmovups [r12-0x80],ymm15": (lambda a: a.store((R12, -128), 15), "c4417c117c2480"),
    "vfmadd231ps ymm10,ymm3,ymm15": (lambda a: a.multiply_add(10, 3, 15), "c44265b8d7"),
    "vfmadd231ps ymm1,ymm9,[r13+0x3e8]": (lambda a: a.multiply_add(1, 9, (R13, 1000)), "c4c235b88de8030000"),
    "vpxor ymm12,ymm12,ymm12": (lambda a: a.zero(12), "c4411defe4"),
    "vpxor ymm5,ymm2,[rdi+0x20]": (lambda a: a.exclusive_or(5, 2, (RDI, 32)), "c4e16def6f20"),
    "vpaddq ymm3,ymm3,ymm12": (lambda a: a.add_words(3, 3, 12), "c4c165d4dc"),
    "vpmuludq ymm6,ymm6,ymm8": (lambda a: a.multiply_halves(6, 6, 8), "c4c14df4f0"),
    "vpshufd ymm9,ymm6,0xf5": (lambda a: a.shuffle(9, 6, 0xF5), "c4617d70cef5"),
    "vpshufd ymm7,[rdi+0x20],0x4e": (lambda a: a.shuffle(7, (RDI, 32), 0x4E), "c4e17d707f204e"),
}
DOUBLES: dict[str, tuple[Callable[[Doubles], object], str]] = {
    "vcvtps2pd ymm9,[rdi+0x40]": (lambda a: a.widen(9, (RDI, 64)), "c4617c5a4f40"),
    "vcvtpd2ps xmm3,ymm10; vmovups [r11+0x10],xmm3": (
        lambda a: a.store_floats((R11, 16), 10, 3), "c4c17d5adac4c178115b10"
    ),
    "vbroadcastsd ymm5,[rsi+0x48]": (lambda a: a.broadcast_double(5, (RSI, 72)), "c4e27d196e48"),
    "vaddpd ymm1,ymm2,ymm11": (lambda a: a.add_doubles(1, 2, 11), "c4c16d58cb"),
    "vsubpd ymm1,ymm2,ymm3": (lambda a: a.subtract_doubles(1, 2, 3), "c4e16d5ccb"),
    "vmulpd ymm9,ymm10,ymm11": (lambda a: a.multiply_doubles(9, 10, 11), "c4412d59cb"),
    "vdivpd ymm1,ymm2,ymm3": (lambda a: a.divide_doubles(1, 2, 3), "c4e16d5ecb"),
    "vsqrtpd ymm8,ymm9": (lambda a: a.square_roots(8, 9), "c4417d51c1"),
}  # fmt: skip


def test_encodings_of_doubles() -> None:
    for name, (emit, code) in DOUBLES.items():
        assembler = Doubles()
        emit(assembler)
        assert assembler.code.hex() == code, name


@pytest.mark.parametrize("wide", [True, False])
def test_encodings(wide: bool) -> None:
    for name, (emit, code) in (WIDE if wide else NARROW).items():
        assembler = Assembler(wide)
        emit(assembler)
        assert assembler.code.hex() == code, name


@pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")
@pytest.mark.parametrize("wide", [True, False])
def test_arithmetic(wide: bool) -> None:
    if wide and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    a = Assembler(wide)
    a.load(3, (RDI, 0))
    a.fill(12, -2.5)
    a.multiply(5, 3, 12)
    a.store((RSI, 0), 5)
    a.end()
    code = machine.Code(bytes(a.code))
    x, y = torch.randn(a.vector_bytes // 4), torch.empty(a.vector_bytes // 4)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address)(x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x * -2.5)


@pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")
def test_flow() -> None:
    """n · step for n > 0 by a loop, and 7 for n = 0."""
    a = Assembler(False)
    a.constant(RAX, 7)
    nothing = a.jump_if_zero(RDI)
    a.constant(RAX, 0)
    start = a.here
    a.add_integer(RAX, RSI)
    a.increase(RDI, -1)
    a.jump_back_unless_zero(start)
    a.land(nothing)
    a.move(R8, RAX)
    a.move(RAX, R8)
    a.end()
    code = machine.Code(bytes(a.code))
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.address)
    assert [function(n, 5) for n in (0, 1, 3)] == [7, 5, 15]
