"""Runs lists of kernel calls on several threads.

A thread has a list of blocks; a block is a list of calls, which other blocks may share, and where its operands begin.

    for thread in mine: for block in thread: for call in block.calls: call.kernel(block.x + call.x, …)

A kernel finds x in rdi, w in rsi, y in rdx, the call's count in rcx, the bias in r8, the residual in r9, which lies as
y does, two places of the scratch memory in r10 and r11, and two lengths in rbp and rax.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from genesis.backends.contract import Pair
from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    RSP,
    Assembler,
)
from genesis.backends.cpu.x86.machine import Code

Numbers = npt.NDArray[np.int64]
Column: TypeAlias = "Numbers | int"

CALL = 9  # numbers: kernel, x, w, y, count, two places of scratch memory, two lengths
BLOCK = 7  # numbers: first call, end of calls, x, w, y, bias, scratch
_OPERANDS = 6  # x, w, y, bias, scratch, residual

# On the stack.
_X, _W, _Y, _BIAS, _SCRATCH, _RESIDUAL, _END, _NUM_THREADS = range(0, 64, 8)
_FRAME = 72


def rows(*columns: Column) -> Numbers:
    """One for each element of the columns, broadcast against each other."""
    found = np.empty((*np.broadcast(*columns).shape, len(columns)), np.int64)
    for index, column in enumerate(columns):
        found[..., index] = column
    return found.reshape(-1, len(columns))


def bounds(calls: Numbers) -> Pair:
    """Begin and end of a list."""
    start = calls.ctypes.data
    return start, start + calls.nbytes


class Job:
    """Calls to be made on several threads; blocks: of each, as rows of BLOCK numbers. keep: what they point to."""

    def __init__(self, blocks: Sequence[Numbers], keep: object) -> None:
        self._keep = (blocks, keep)
        self._num_threads = len(blocks)
        self._bounds = np.array([bounds(each) for each in blocks], dtype=np.int64)
        self._bounds_address = self._bounds.ctypes.data
        self._worker, self._worker_address, self._parallel, _ = _functions()

    def run(self, x: int, w: int, y: int, bias: int, residual: int, scratch: int = 0) -> None:
        """With the addresses of its operands."""
        count = self._num_threads
        data = _pack(x, w, y, bias, scratch, residual, self._bounds_address, count)
        if count == 1:
            self._worker(data)
        else:
            self._parallel(self._worker_address, data, count, 0)


_pack = struct.Struct("8q").pack  # x, w, y, bias, scratch, residual, bounds, count


class _Functions(NamedTuple):
    worker: Callable[[bytes], None]
    worker_address: int
    parallel: Callable[[int, bytes, int, int], None]
    code: Code


@functools.cache
def _functions() -> _Functions:
    code = Code(_worker_code())
    worker = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(code.address)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
    return _Functions(worker, code.address, kind(machine.address_of("GOMP_parallel")), code)


def _worker_code() -> bytes:
    """A function of _Data, which all threads of a team call."""
    a = Assembler(False)
    saved = (RBX, RBP, R12, R13, R14, R15)
    a.push(*saved)
    a.increase(RSP, -_FRAME)
    a.move(R12, RDI)
    a.constant(RAX, machine.address_of("omp_get_num_threads"))
    a.call(RAX)
    a.move_to((RSP, _NUM_THREADS), RAX)
    a.constant(RAX, machine.address_of("omp_get_thread_num"))
    a.call(RAX)
    a.move(RBX, RAX)
    threads = a.here
    a.compare(RBX, (R12, 8 * (_OPERANDS + 1)))
    finished = a.jump_unless_less()
    a.move(RAX, RBX)
    for _ in range(4):  # · 16
        a.add_integer(RAX, RAX)
    a.add_integer(RAX, (R12, 8 * _OPERANDS))
    a.move(R15, (RAX, 0))
    a.move(RAX, (RAX, 8))
    a.move_to((RSP, _END), RAX)
    blocks = a.here
    a.compare(R15, (RSP, _END))
    next_thread = a.jump_unless_less()
    a.move(R13, (R15, 0))
    a.move(R14, (R15, 8))
    for index, place in enumerate((_X, _W, _Y, _BIAS, _SCRATCH)):
        a.move(RAX, (R12, 8 * index))
        a.add_integer(RAX, (R15, 16 + 8 * index))
        a.move_to((RSP, place), RAX)
    a.move(RAX, (R12, 8 * 5))
    a.add_integer(RAX, (R15, 16 + 8 * 2))  # the residual lies as y does
    a.move_to((RSP, _RESIDUAL), RAX)
    _call_kernels(a)
    a.increase(R15, 8 * BLOCK)
    a.jump_back(blocks)
    a.land(next_thread)
    a.add_integer(RBX, (RSP, _NUM_THREADS))
    a.jump_back(threads)
    a.land(finished)
    a.increase(RSP, _FRAME)
    a.pop(*saved)
    a.end()
    return bytes(a.code)


def _call_kernels(a: Assembler) -> None:
    """Make the calls from R13 up to R14 with the operands of a block, which are on the stack."""
    calls = a.here
    a.compare(R13, R14)
    next_block = a.jump_unless_less()
    for register, place, index in (
        (RDI, _X, 1), (RSI, _W, 2), (RDX, _Y, 3), (R9, _RESIDUAL, 3), (R10, _SCRATCH, 5), (R11, _SCRATCH, 6)
    ):  # fmt: skip
        a.move(register, (RSP, place))
        a.add_integer(register, (R13, 8 * index))
    a.move(RCX, (R13, 8 * 4))
    a.move(RBP, (R13, 8 * 7))
    a.move(RAX, (R13, 8 * 8))
    a.move(R8, (RSP, _BIAS))
    a.call((R13, 0))
    a.increase(R13, 8 * CALL)
    a.jump_back(calls)
    a.land(next_block)
