"""Batch norm's passes over channels-last tensors in training: of memory, one each."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genesis.backends.cpu.x86 import machine
from genesis.backends.cpu.x86.assembler import R8, R9, R10, RAX, RCX, RDI, RDX, RSI, Assembler
from genesis.backends.cpu.x86.driver import Job, bounds, rows
from genesis.backends.cpu.x86.micro import apply_activation
from genesis.backends.cpu.x86.problem import Kernels, balanced, split
from genesis.backends.cpu.x86.statistics import SUMMANDS

SCALED, ADDED = "scaled", "added"
_MOST_VECTORS = 4  # whose sums are in registers
_UNROLLED = 8  # vectors of a turn of the inner loop, at most
_SMALL = 1 << 17  # numbers: of so few, float64 sums of single pixels take no longer
_LEAST_NUMBERS = 1 << 14  # of a thread's share


def is_supported(x: Tensor) -> bool:
    """Whether there are kernels for such a float32 tensor, which is channels-last, on this machine."""
    return machine.vectors() is not None and x.shape[1] % 8 == 0 and x.numel() > 0


def combine(x: Tensor, grad: Tensor, factors: Tensor) -> Tensor:
    """x · factors[0] + factors[1] + grad · factors[2], by channel; grad: in the layout of x."""
    channels = x.shape[1]
    y = torch.empty_like(x)
    kernel = Combine(_is_wide(channels), channels, SCALED, None)
    _combining(x.numel() // channels, kernel, torch.get_num_threads()).run(
        x.data_ptr(), factors.data_ptr(), y.data_ptr(), 0, grad.data_ptr()
    )
    return y


def normalized(x: Tensor, factors: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    """activation(x · factors[0] + factors[1] + residual), by channel; residual: in the layout of x; activation: of
    micro's."""
    channels = x.shape[1]
    y = torch.empty_like(x)
    kernel = Combine(_is_wide(channels), channels, None if residual is None else ADDED, activation)
    _combining(x.numel() // channels, kernel, torch.get_num_threads()).run(
        x.data_ptr(), factors.data_ptr(), y.data_ptr(), 0, 0 if residual is None else residual.data_ptr()
    )
    return y


def moments(x: Tensor) -> Tensor | None:
    """(n, 2, C): by channel the mean of groups of SUMMANDS pixels, and their Σ (x − mean)²; None of a small x."""
    return None if _is_small(x) else _summed(x, None, None)


def grad_sums(grad: Tensor, x: Tensor, mean: Tensor) -> Tensor | None:
    """(n, 2, C): by channel Σ grad and Σ grad · (x − mean) of the same groups; grad: in the layout of x."""
    return None if _is_small(x) else _summed(x, grad, mean)


def _is_small(x: Tensor) -> bool:
    return x.numel() <= max(_SMALL, SUMMANDS * x.shape[1])


def _summed(x: Tensor, grad: Tensor | None, mean: Tensor | None) -> Tensor:
    """(groups, 2, channels)"""
    channels = x.shape[1]
    blocks = x.numel() // channels // SUMMANDS
    sums = torch.empty(blocks, 2, channels, dtype=torch.float32, device="cpu")
    job = _summing(blocks, channels, grad is not None, _is_wide(channels), torch.get_num_threads())
    w, y = (0 if each is None else each.data_ptr() for each in (mean, grad))
    job.run(x.data_ptr(), w, y, 0, 0, sums.data_ptr())
    return sums


def _is_wide(channels: int) -> bool:
    return machine.vectors() == "avx512" and channels % 16 == 0


@functools.lru_cache(512)
def _combining(pixels: int, kernel: Combine, num_threads: int) -> Job:
    kernels, channels = Kernels(), kernel.channels
    share = max(-(-_LEAST_NUMBERS // channels), -(-pixels // num_threads))
    firsts = np.arange(0, pixels, share)
    counts = np.minimum(share, pixels - firsts)
    calls = rows(kernels.address(kernel), 0, 0, 0, counts, 0, 0, 0, 0)
    start = calls.ctypes.data + np.arange(len(calls)) * calls.strides[0]
    place = firsts * channels * 4
    blocks = rows(start, start + calls.strides[0], place, 0, place, 0, 0)
    return Job(balanced(blocks, counts, num_threads), (calls, kernels))


@functools.lru_cache(512)
def _summing(count: int, channels: int, of_grads: bool, wide: bool, num_threads: int) -> Job:
    kernels = Kernels()
    lanes = 16 if wide else 8
    widths = split(channels // lanes, _MOST_VECTORS)
    firsts = np.array([sum(widths[:index]) for index in range(len(widths))]) * (lanes * 4)
    addresses = np.array([kernels.address(Sums(wide, width, channels, of_grads)) for width in widths])
    calls = rows(addresses, firsts, firsts, firsts, 0, firsts, 0, 0, 0)
    places = np.arange(count) * (channels * 4)
    blocks = rows(*bounds(calls), places * SUMMANDS, 0, places * SUMMANDS, 0, places * 2)
    return Job(balanced(blocks, np.ones(count), num_threads), (calls, kernels))


@dataclass(frozen=True)
class Combine:
    """Pixels, as many as the call's count; w is the scale, the shift and the other's scale, each of all channels.

    Attributes:
        other: what is done with another tensor: SCALED, ADDED; None: there is none.
    """

    wide: bool
    channels: int
    other: str | None
    activation: str | None

    def code(self) -> bytes:
        a = Assembler(self.wide)
        turns = self.channels * 4 // a.vector_bytes
        most = _UNROLLED if self.wide or self.activation is None else _UNROLLED - 1  # two vectors are the activation's
        vectors = max(n for n in range(1, most + 1) if turns % n == 0)
        apply = apply_activation(a, self.activation, 2 * vectors)
        pixel = a.here
        a.move(R8, RSI)
        a.constant(RAX, turns // vectors)
        turn = a.here
        for n in range(vectors):
            place, factor, sums = n * a.vector_bytes, 2 * n, 2 * n + 1
            a.load(factor, (R8, place))
            a.load(sums, (R8, self.channels * 4 + place))
            a.multiply_add(sums, factor, (RDI, place))
            if self.other == SCALED:
                a.load(factor, (R8, self.channels * 8 + place))
                a.multiply_add(sums, factor, (R9, place))
            elif self.other == ADDED:
                a.add(sums, sums, (R9, place))
            apply(sums)
            a.store((RDX, place), sums)
        for register in (RDI, RDX, R8, R9):
            a.increase(register, vectors * a.vector_bytes)
        a.increase(RAX, -1)
        a.jump_back_unless_zero(turn)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(pixel)
        a.end()
        return bytes(a.code)


@dataclass(frozen=True)
class Sums:
    """Some vectors of channels of SUMMANDS pixels of x (rdi) and the gradient (rdx); the mean is w, the result is in
    scratch memory."""

    wide: bool
    vectors: int
    channels: int
    of_grads: bool

    def code(self) -> bytes:
        a = Assembler(self.wide)
        first, second, means = ([k * self.vectors + n for n in range(self.vectors)] for k in range(3))
        spare = 3 * self.vectors
        for n in (*first, *second):
            a.zero(n)
        if self.of_grads:
            for n, mean in enumerate(means):
                a.load(mean, (RSI, n * a.vector_bytes))
        else:
            self._means(a, first, second, means, spare)
        start = self._begin(a)
        for n in range(self.vectors):
            place = n * a.vector_bytes
            a.load(spare, (RDI, place))
            a.subtract(spare, spare, means[n])
            if self.of_grads:
                a.load(spare + 1, (RDX, place))
                a.add(first[n], first[n], spare + 1)
                a.multiply_add(second[n], spare, spare + 1)
            else:
                a.multiply_add(second[n], spare, spare)
        self._next(a, start, (RDI, RDX), 1)
        for n in range(self.vectors):
            a.store((R10, n * a.vector_bytes), first[n] if self.of_grads else means[n])
            a.store((R10, self.channels * 4 + n * a.vector_bytes), second[n])
        a.end()
        return bytes(a.code)

    def _means(self, a: Assembler, first: list[int], second: list[int], means: list[int], spare: int) -> None:
        """Sums of even and odd pixels apart, which wait for each other less."""
        a.move(R8, RDI)
        start = self._begin(a, 2)
        for pixel, sums in enumerate((first, second)):
            for n, vector in enumerate(sums):
                a.add(vector, vector, (R8, pixel * self.channels * 4 + n * a.vector_bytes))
        self._next(a, start, (R8,), 2)
        a.fill(spare, 1 / SUMMANDS)
        for n, mean in enumerate(means):
            a.add(mean, first[n], second[n])
            a.multiply(mean, mean, spare)
            a.zero(second[n])

    def _begin(self, a: Assembler, pixels: int = 1) -> int:
        a.constant(RAX, SUMMANDS // pixels)
        return a.here

    def _next(self, a: Assembler, start: int, registers: tuple[int, ...], pixels: int) -> None:
        for register in registers:
            a.increase(register, pixels * self.channels * 4)
        a.increase(RAX, -1)
        a.jump_back_unless_zero(start)
