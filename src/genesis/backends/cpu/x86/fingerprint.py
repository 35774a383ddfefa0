"""Fingerprints of memory: whether an array is bit for bit what it was, by one reading of it and no copy.

Of each part, 64 KiB, 512 bits: sums of eight lanes, modulo 2⁶⁴. A step adds to each lane the product of the halves of
its word, xor a key that changes from step to step, and its neighbour's word:

    sum[i] += low(x[i] ^ key[i]) · high(x[i] ^ key[i]) + x[i ^ 1]

A change of one word shows in its neighbour's sum for certain. Of other changes, exchanges of words among them, which
the words' sums do not see, a part passes unseen only if by chance each lane's products add up to the same. That is no
defence against somebody who looks for such words. (Like XXH3's accumulators and UMAC's NH.)
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import torch

from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import Job, bounds, rows
from genesis.backends.cpu.x86.problem import Kernels, balanced

_STEP = 64  # bytes: two vectors
_PART = (1 << 16) // _STEP  # steps
_LEAST_PER_THREAD = 1 << 16  # bytes, which take as long as to wake a thread
_AHEAD = 4096  # bytes
_HALVES, _NEIGHBOURS = 0b11_11_01_01, 0b01_00_11_10  # the upper half of each word in both; words of 128 bits exchanged
# The first keys of the eight lanes, and what a step adds to those of either vector.
_NUMBERS = np.random.default_rng(20).integers(1, 1 << 63, 12, dtype=np.uint64)
_NUMBERS_ADDRESS = _NUMBERS.ctypes.data
KEYS, KEY_STEP = _NUMBERS[:8], _NUMBERS[8:]


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
        job.run(address, _NUMBERS_ADDRESS, ctypes.addressof(out), 0, 0)
        found = out.raw
    return found + ctypes.string_at(address + num_bytes - rest, rest)


@functools.lru_cache(512)
def _planned(num_steps: int, num_threads: int) -> tuple[Job, int]:
    """The job, and the bytes that it writes."""
    kernels, num_parts = Kernels(), -(-num_steps // _PART)
    steps = np.full(num_parts, _PART, np.int64)
    steps[-1] = num_steps - _PART * (num_parts - 1)
    parts = np.arange(num_parts, dtype=np.int64)
    calls = rows(kernels.address(_Kernel()), parts * _PART * _STEP, 0, parts * _STEP, steps, 0, 0, 0, 0)
    start, size = bounds(calls)[0], calls.strides[0]
    blocks = rows(start + parts * size, start + (parts + 1) * size, 0, 0, 0, 0, 0)
    return Job(balanced(blocks, steps, num_threads), (calls, kernels)), num_parts * _STEP


@dataclass(frozen=True)
class _Kernel:
    """Reads x (rdi) and _NUMBERS (rsi), writes the sums to y (rdx)."""

    def code(self) -> bytes:
        a = Assembler(False)
        width = a.vector_bytes
        sums, keys, key_step, mixed, upper = (0, 1), (2, 3), 4, (5, 6), (7, 8)
        for n in range(2):
            a.zero(sums[n])
            a.load(keys[n], (RSI, n * width))
        a.load(key_step, (RSI, 2 * width))
        start = a.here
        a.prefetch((RDI, _AHEAD))
        for n in range(2):
            a.exclusive_or(mixed[n], keys[n], (RDI, n * width))
            a.add_words(keys[n], keys[n], key_step)
            a.shuffle(upper[n], mixed[n], _HALVES)
            a.multiply_halves(mixed[n], mixed[n], upper[n])
            a.shuffle(upper[n], (RDI, n * width), _NEIGHBOURS)
            a.add_words(sums[n], sums[n], mixed[n])
            a.add_words(sums[n], sums[n], upper[n])
        a.increase(RDI, _STEP)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        for n in range(2):
            a.store((RDX, n * width), sums[n])
        a.end()
        return bytes(a.code)
