"""Batch norm's numbers of each channel, in float64: statistics, factors and gradients, by one call.

    mean = Σ x / n    var = Σ (x − mean)² / n    scale = γ / √(var + eps)    shift = β − mean · scale

Pixels come one by one, or of large tensors in groups whose means and squares are known:
Σ (x − mean)² = Σ squares + SUMMANDS · Σ (mean of the group − mean)², as Chan, Golub & LeVeque 1983 have it. Backward,

    grad_x = scale · grad + slope · x + shift
    slope = −scale / (n · √(var + eps)) · grad_γ    shift = −slope · mean − scale · grad_β / n

With numpy, the forty operations on such few numbers take longer than all pixels of a small layer.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genesis.backends.cpu.x86.assembler import R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI
from genesis.backends.cpu.x86.doubles import LANES, Doubles
from genesis.backends.cpu.x86.driver import Job, bounds, rows
from genesis.backends.cpu.x86.problem import Kernels, split

SUMMANDS = 64  # pixels of a group

# Operands of a call, of eight bytes each: addresses, counts, and float64 numbers.
_GAMMA, _BETA, _RUNNING_MEAN, _RUNNING_VAR, _MEAN, _INVERSE, _FACTORS = range(0, 56, 8)
_OF_GAMMA, _OF_BETA = _RUNNING_MEAN, _RUNNING_VAR  # backward
_GROUPS, _PIXELS, _PART, _EPS, _MOMENTUM, _UNBIASED, _SUMMANDS, _ONE, _MINUS = range(56, 128, 8)
_pack = struct.Struct("9q7d").pack_into


class _Operands(threading.local):
    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(128)
        self.address = ctypes.addressof(self.buffer)


_operands = _Operands()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _vectors(channels: int) -> tuple[Tensor, Tensor]:
    """Two of the results, apart: whoever keeps one doesn't keep the other."""
    options = {"dtype": torch.float32, "device": "cpu"}
    return torch.empty(channels, **options), torch.empty(channels, **options)


def forward(
    x: Tensor, groups: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    running: tuple[Tensor | None, Tensor | None], momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Scale and shift (2, C), mean and inverse deviation of each channel; the running statistics change in place.

    groups: (n, 2, C), means and squares of the first n · SUMMANDS pixels of x, which is channels-last float32.
    """
    channels, count = x.shape[1], x.numel() // x.shape[1]
    factors = torch.empty(2, channels, dtype=torch.float32, device="cpu")
    mean, inverse = _vectors(channels)
    kernel = Forward(channels, gamma is not None, beta is not None, running[0] is not None, running[1] is not None)
    operands = gamma, beta, *running, mean, inverse, factors
    _run(kernel, x, 0, groups, operands, count, (eps, momentum, count / max(count - 1, 1)))
    return factors, mean, inverse


def backward(
    x: Tensor, grad: Tensor, groups: Tensor | None, gamma: Tensor | None, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Slope, shift and scale (3, C) of each channel, and the gradients of γ and β.

    groups: (n, 2, C), Σ grad and Σ grad · (x − mean) of the first n · SUMMANDS pixels; x and grad are channels-last.
    """
    channels, count = x.shape[1], x.numel() // x.shape[1]
    factors = torch.empty(3, channels, dtype=torch.float32, device="cpu")
    of_gamma, of_beta = _vectors(channels)
    operands = gamma, None, of_gamma, of_beta, mean, inverse, factors
    _run(Backward(channels, gamma is not None), x, grad.data_ptr(), groups, operands, count, (0.0, 0.0, 0.0))
    return factors, of_gamma, of_beta


def _run(
    kernel: Forward | Backward, x: Tensor, grad: int, groups: Tensor | None, operands: tuple[Tensor | None, ...],
    count: int, numbers: tuple[float, float, float],
) -> None:  # fmt: skip
    num_groups = 0 if groups is None else len(groups)
    skipped = num_groups * SUMMANDS * kernel.channels * 4
    left = count - num_groups * SUMMANDS
    _pack(
        _operands.buffer, 0, *map(_address, operands), num_groups, left, 1 / count, *numbers, SUMMANDS, 1.0, -1 / count
    )
    job = _planned(kernel, torch.get_num_threads())
    job.run(x.data_ptr() + skipped, _operands.address, grad + skipped, 0, 0, _address(groups))


@functools.lru_cache(512)
def _planned(kernel: Forward | Backward, num_threads: int) -> Job:
    """Threads share the channels."""
    kernels, bytes_each = Kernels(), 4 * kernel.vectors * LANES
    turns = np.array(split(kernel.channels * 4 // bytes_each, -(-kernel.channels * 4 // bytes_each // num_threads)))
    places = (turns.cumsum() - turns) * bytes_each
    calls = rows(kernels.address(kernel), places, 0, places, turns, places, 0, 0, places)
    start, size = bounds(calls)[0], calls.strides[0]
    blocks = [rows(start + n * size, start + (n + 1) * size, 0, 0, 0, 0, 0) for n in range(len(calls))]
    empty = [np.empty((0, 7), np.int64)] * (num_threads - len(blocks))
    return Job(blocks + empty, (calls, kernels))


class _Turns:
    """A kernel's loops over its channels, and in these over groups and pixels."""

    channels: int

    @property
    def vectors(self) -> int:
        """The vectors of float64 that a turn takes."""
        return (16 if self.channels % 16 == 0 else 8) // LANES

    def _over_channels(self, turn: Callable[[Doubles], None]) -> bytes:
        """Turns of x (rdi), grad (rdx), groups (r10), operands (rsi); r8 is the place of a turn's first channel."""
        a = Doubles()
        a.move(R8, RAX)
        start = a.here
        turn(a)
        for register in (RDI, RDX, R10, R8):
            a.increase(register, 4 * LANES * self.vectors)
        a.increase(RCX, -1)
        a.jump_back_unless_zero(start)
        a.end()
        return bytes(a.code)

    def _over(self, a: Doubles, count: int, step: int, body: Callable[[], None], *places: tuple[int, int]) -> None:
        """Run the body for groups or pixels, of which the operands tell the count. places: registers that go along, and
        where they begin."""
        a.move(RAX, (RSI, count))
        nothing = a.jump_if_zero(RAX)
        for register, first in places:
            a.move(register, first)
        start = a.here
        body()
        for register, _ in places:
            a.increase(register, step)
        a.increase(RAX, -1)
        a.jump_back_unless_zero(start)
        a.land(nothing)

    def _point(self, a: Doubles, operand: int) -> None:
        """r11 to a turn's channels."""
        a.move(R11, (RSI, operand))
        a.add_integer(R11, R8)


@dataclass(frozen=True)
class Forward(_Turns):
    channels: int
    has_gamma: bool
    has_beta: bool
    has_mean: bool
    has_var: bool

    def code(self) -> bytes:
        return self._over_channels(self._turn)

    def _turn(self, a: Doubles) -> None:
        lines = [range(first, first + self.vectors) for first in range(0, 4 * self.vectors, self.vectors)]
        means, squares, between, spares = lines
        places = [4 * LANES * n for n in range(self.vectors)]
        row = 4 * self.channels
        spare = spares[0]
        for n in (*means, *squares, *between):
            a.zero(n)

        def add_means() -> None:
            for mean, own, place in zip(means, spares, places, strict=True):
                a.widen(own, (R9, place))
                a.add_doubles(mean, mean, own)

        self._over(a, _GROUPS, 2 * row, add_means, (R9, R10))
        a.broadcast_double(spare, (RSI, _SUMMANDS))
        for mean in means:
            a.multiply_doubles(mean, mean, spare)
        self._over(a, _PIXELS, row, add_means, (R9, RDI))
        a.broadcast_double(spare, (RSI, _PART))
        for mean in means:
            a.multiply_doubles(mean, mean, spare)

        def add_squares_to(sums: range, source: int) -> None:
            for mean, total, own, place in zip(means, sums, spares, places, strict=True):
                a.widen(own, (source, place))
                a.subtract_doubles(own, own, mean)
                a.multiply_doubles(own, own, own)
                a.add_doubles(total, total, own)

        def add_groups() -> None:
            add_squares_to(between, R9)
            for total, own, place in zip(squares, spares, places, strict=True):
                a.widen(own, (R9, row + place))
                a.add_doubles(total, total, own)

        self._over(a, _GROUPS, 2 * row, add_groups, (R9, R10))
        a.broadcast_double(spare, (RSI, _SUMMANDS))
        for total, own in zip(squares, between, strict=True):
            a.multiply_doubles(own, own, spare)
            a.add_doubles(total, total, own)
        self._over(a, _PIXELS, row, lambda: add_squares_to(squares, R9), (R9, RDI))
        a.broadcast_double(spare, (RSI, _PART))
        for total in squares:
            a.multiply_doubles(total, total, spare)
        if self.has_mean:
            self._move_on(a, _RUNNING_MEAN, means, between, spare, _ONE)
        if self.has_var:
            self._move_on(a, _RUNNING_VAR, squares, between, spare, _UNBIASED)
        self._finish(a, means, squares, between, spares)

    def _move_on(self, a: Doubles, operand: int, new: range, spares: range, number: int, factor: int) -> None:
        """running += momentum · (factor · new − running)."""
        self._point(a, operand)
        for n, (value, held) in enumerate(zip(new, spares, strict=True)):
            a.broadcast_double(number, (RSI, factor))
            a.multiply_doubles(held, value, number)
            a.widen(number, (R11, 4 * LANES * n))
            a.subtract_doubles(held, held, number)
            a.broadcast_double(number, (RSI, _MOMENTUM))
            a.multiply_doubles(held, held, number)
            a.widen(number, (R11, 4 * LANES * n))
            a.add_doubles(held, held, number)
            a.store_floats((R11, 4 * LANES * n), held)

    def _finish(self, a: Doubles, means: range, variances: range, others: range, spares: range) -> None:
        one, spare = spares[0], spares[1]
        row = 4 * self.channels
        for n, (mean, inverse, other) in enumerate(zip(means, variances, others, strict=True)):
            place = 4 * LANES * n
            a.broadcast_double(one, (RSI, _EPS))
            a.add_doubles(inverse, inverse, one)
            a.square_roots(inverse, inverse)
            a.broadcast_double(one, (RSI, _ONE))
            a.divide_doubles(inverse, one, inverse)
            self._point(a, _MEAN)
            a.store_floats((R11, place), mean, spare)
            self._point(a, _INVERSE)
            a.store_floats((R11, place), inverse, spare)
            if self.has_gamma:
                self._point(a, _GAMMA)
                a.widen(other, (R11, place))
                a.multiply_doubles(inverse, inverse, other)
            self._point(a, _FACTORS)
            a.store_floats((R11, place), inverse, spare)
            a.widen(inverse, (R11, place))  # as it is rounded, so that the mean of the result is β
            a.multiply_doubles(inverse, inverse, mean)
            a.zero(other)
            if self.has_beta:
                self._point(a, _BETA)
                a.widen(other, (R11, place))
                self._point(a, _FACTORS)
            a.subtract_doubles(other, other, inverse)
            a.store_floats((R11, row + place), other, spare)


@dataclass(frozen=True)
class Backward(_Turns):
    channels: int
    has_gamma: bool

    def code(self) -> bytes:
        return self._over_channels(self._turn)

    def _turn(self, a: Doubles) -> None:
        lines = [range(first, first + self.vectors) for first in range(0, 4 * self.vectors, self.vectors)]
        of_beta, of_gamma, means, spares = lines
        row, spare = 4 * self.channels, spares[0]
        self._point(a, _MEAN)
        for n, mean in enumerate(means):
            a.widen(mean, (R11, 4 * LANES * n))
        for n in (*of_beta, *of_gamma):
            a.zero(n)

        def add_groups() -> None:
            for n, own in enumerate(spares):
                for sums, place in ((of_beta, 0), (of_gamma, row)):
                    a.widen(own, (R9, place + 4 * LANES * n))
                    a.add_doubles(sums[n], sums[n], own)

        def add_pixels() -> None:
            for n, own in enumerate(spares):
                other = spares[n - 1]
                a.widen(own, (R11, 4 * LANES * n))
                a.add_doubles(of_beta[n], of_beta[n], own)
                a.widen(other, (R9, 4 * LANES * n))
                a.subtract_doubles(other, other, means[n])
                a.multiply_doubles(other, other, own)
                a.add_doubles(of_gamma[n], of_gamma[n], other)

        self._over(a, _GROUPS, 2 * row, add_groups, (R9, R10))
        self._over(a, _PIXELS, row, add_pixels, (R9, RDI), (R11, RDX))
        for n, (beta, gamma, mean) in enumerate(zip(of_beta, of_gamma, means, strict=True)):
            self._finish(a, 4 * LANES * n, (beta, gamma, mean), (spare, spares[1]))

    def _finish(self, a: Doubles, place: int, values: tuple[int, int, int], spares: tuple[int, int]) -> None:
        """Finish some channels; the values are overwritten."""
        (beta, gamma, mean), (spare, scale) = values, spares
        row = 4 * self.channels
        self._point(a, _INVERSE)
        a.widen(scale, (R11, place))
        a.multiply_doubles(gamma, gamma, scale)
        for sums, operand in ((gamma, _OF_GAMMA), (beta, _OF_BETA)):
            self._point(a, operand)
            a.store_floats((R11, place), sums, spare)
        a.multiply_doubles(gamma, gamma, scale)  # over the deviation again
        if self.has_gamma:
            self._point(a, _GAMMA)
            a.widen(spare, (R11, place))
            a.multiply_doubles(scale, scale, spare)
        self._point(a, _FACTORS)
        a.store_floats((R11, 2 * row + place), scale, spare)
        a.broadcast_double(spare, (RSI, _MINUS))
        a.multiply_doubles(scale, scale, spare)
        a.multiply_doubles(gamma, gamma, scale)
        a.multiply_doubles(beta, beta, scale)
        a.store_floats((R11, place), gamma, spare)
        a.widen(gamma, (R11, place))  # as it is rounded: nothing is left of its rounding
        a.multiply_doubles(gamma, gamma, mean)
        a.subtract_doubles(beta, beta, gamma)
        a.store_floats((R11, row + place), beta, spare)
