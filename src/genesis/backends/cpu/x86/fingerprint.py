"""Fingerprints of memory: whether an array is bit for bit what it was, by one reading of it and no copy.

Of each part, a quarter of a MiB, 256 bits: the CRC-32C of every fourth word of 64 bits, four of them, and the sums of
the even words and of the odd ones. A change of one word shows in a sum for certain. Others pass unseen as random
numbers of that many bits would be equal: a sum does not see an exchange of words, but the CRCs do.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import torch

from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import Job, bounds, rows
from genesis.backends.cpu.x86.problem import Kernels, balanced

_STEP = 64  # bytes that a turn reads
_PART = (1 << 18) // _STEP  # turns
_CRCS, _SUMS = (RAX, RSI, R8, R9), (R10, R11)
_SIZE = 8 * len((*_CRCS, *_SUMS))  # bytes: a CRC in the lower half of its eight
_AHEAD = 1024  # bytes
_LEAST_PER_THREAD = 1 << 16  # bytes, which take as long as to wake a thread


def is_available() -> bool:
    return machine.vectors() is not None


def fingerprint(address: int, num_bytes: int) -> bytes:
    """The same for the same bytes, however many threads there are."""
    num_steps, rest = divmod(num_bytes, _STEP)
    found = b""
    if num_steps:
        threads = min(torch.get_num_threads(), max(1, num_bytes // _LEAST_PER_THREAD))
        job, size = _planned(num_steps, threads)
        out = ctypes.create_string_buffer(size)
        job.run(address, 0, ctypes.addressof(out), 0, 0)
        found = out.raw
    return found + ctypes.string_at(address + num_bytes - rest, rest)


@functools.lru_cache(512)
def _planned(num_steps: int, num_threads: int) -> tuple[Job, int]:
    """The job, and the bytes that it writes."""
    kernels, num_parts = Kernels(), -(-num_steps // _PART)
    steps = np.full(num_parts, _PART, np.int64)
    steps[-1] = num_steps - _PART * (num_parts - 1)
    parts = np.arange(num_parts, dtype=np.int64)
    calls = rows(kernels.address(_Kernel()), parts * _PART * _STEP, 0, parts * _SIZE, steps, 0, 0, 0, 0)
    start, size = bounds(calls)[0], calls.strides[0]
    blocks = rows(start + parts * size, start + (parts + 1) * size, 0, 0, 0, 0, 0)
    return Job(balanced(blocks, steps, num_threads), (calls, kernels)), num_parts * _SIZE


@dataclass(frozen=True)
class _Kernel:
    """Reads x (rdi), writes six numbers to y (rdx)."""

    def code(self) -> bytes:
        a = Assembler(False)
        for seed, register in enumerate((*_CRCS, *_SUMS), 1):
            a.constant(register, seed)
        start = a.here
        a.prefetch((RDI, _AHEAD))
        for word in range(_STEP // 8):
            a.crc32(_CRCS[word % len(_CRCS)], (RDI, 8 * word))
            a.add_integer(_SUMS[word % len(_SUMS)], (RDI, 8 * word))
        a.increase(RDI, _STEP)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        for place, register in enumerate((*_CRCS, *_SUMS)):
            a.move_to((RDX, 8 * place), register)
        a.end()
        return bytes(a.code)
