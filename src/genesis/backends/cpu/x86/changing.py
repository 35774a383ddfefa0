"""Convolutions whose weights change from call to call, as in training: they are packed anew each time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.x86 import choices, depthwise, direct, machine, pages, winograd
from genesis.backends.cpu.x86.choices import FORWARD, INPUT_GRAD, ConvBench, ConvChoice
from genesis.backends.cpu.x86.packed import is_supported
from genesis.backends.cpu.x86.plans import guess, planned, widths_of
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import host
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

_LEAST_PIXELS = 400  # of the result: with fewer, packing is expected to take too long,
_LEAST_PIXELS_OF_ONE_COPY = 150  # unless the kernel is 1×1, and its weight packed by one copy
_MOST_WEIGHTS_OF_ONE_COPY = 1 << 19  # or one that is already transposed, as for an input's gradient

Key = tuple[Shape, Shape, Shape, ConvGeometry, bool]  # x, its strides, weight, geometry, is there a bias
PlainForward = Callable[[Tensor, Tensor, Tensor | None, ConvGeometry], Tensor]  # by oneDNN: of x, weight, bias
PlainInputGrad = Callable[[Tensor, Tensor, Shape, ConvGeometry], Tensor]  # of grad, weight, the input's shape
Plain = PlainForward | PlainInputGrad


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, plain: PlainForward
) -> Tensor | None:
    """The convolution of an x that is channels-last; None where plain is the fastest way, or the only one.

    plain: what computes it instead.
    """
    if weight.dtype is not torch.float32 or not is_supported(weight.dtype, weight.shape, geometry.groups):
        return None
    key = tuple(x.shape), x.stride(), tuple(weight.shape), geometry, bias is not None
    plan = _plan(FORWARD, key, machine.vectors(), torch.get_num_threads(), get_float32_precision(), host.epoch(), plain)
    return None if plan is None else plan.run(x, weight, bias)


def input_grad(grad: Tensor, weight: Tensor, geometry: ConvGeometry, plain: PlainInputGrad) -> Tensor | None:
    """The gradient of the input, without a stride: a convolution with the weight turned around; None as for forward."""
    stride, padding, dilation, groups = geometry
    out_channels, in_channels, *kernel = weight.shape
    turned = tuple(d * (k - 1) - p for k, d, p in zip(kernel, dilation, padding, strict=True))
    is_depthwise = groups != 1
    shape = tuple(weight.shape) if is_depthwise else (in_channels, out_channels, *kernel)
    if stride != (1, 1) or min(turned) < 0 or not is_supported(weight.dtype, shape, groups):
        return None
    inner = ConvGeometry((1, 1), (turned[0], turned[1]), dilation, groups)
    key = tuple(grad.shape), grad.stride(), shape, inner, False
    plan = _plan(
        INPUT_GRAD, key, machine.vectors(), torch.get_num_threads(), get_float32_precision(), host.epoch(), plain
    )
    return None if plan is None else plan.run(grad, turned_around(weight, is_depthwise), None)


def turned_around(weight: Tensor, is_depthwise: bool) -> Tensor:
    """The weight with which grad is convolved."""
    weight = weight.flip(2, 3) if max(weight.shape[2:]) > 1 else weight
    return weight if is_depthwise else weight.transpose(0, 1)


def pays(shape: Shape, weight_shape: Shape, geometry: ConvGeometry) -> bool:
    """Whether there are enough pixels for each weight to be packed; those of a depthwise convolution are few."""
    pixels = shape[0] * shape[2] * shape[3] // math.prod(geometry.stride)
    return geometry.groups == weight_shape[0] > 1 or (pixels >= _LEAST_PIXELS and weight_shape[1] > 1)


@functools.lru_cache(1024)
def _plan(
    direction: str, key: Key, vectors: str | None, num_threads: int, precision: str, epoch: int, plain: Plain
) -> Repacked | None:
    """None: oneDNN's is chosen."""
    problem, wide = Problem(*key, False, None), vectors == "avx512"
    if not math.prod(problem.input_shape) or not math.prod(problem.output_shape):
        return None
    best = guess(problem, wide, num_threads) if _pays(direction, problem, wide) else choices.PLAIN
    choice = ConvChoice(direction, problem, best, vectors, num_threads, precision)
    name = host.chosen(choice, lambda: _bench(direction, problem, wide, num_threads, plain))
    return None if name == choices.PLAIN else Repacked(problem, wide, num_threads, name)


def _pays(direction: str, problem: Problem, wide: bool) -> bool:
    shape = problem.weight_shape
    if direction == INPUT_GRAD and problem.geometry.groups == 1:
        shape = shape[1], shape[0]
    if pays(problem.input_shape, shape, problem.geometry):
        return True
    out_channels, in_channels, *kernel = problem.weight_shape
    pixels = problem.output_shape[0] * math.prod(problem.output_shape[2:])
    if max(kernel) > 1 or pixels < _LEAST_PIXELS_OF_ONE_COPY or in_channels == 1 or out_channels % (16 if wide else 8):
        return False
    is_one_copy = len({*widths_of(out_channels, wide)}) == len({*direct.parts_of(problem.weight_shape)}) == 1
    return is_one_copy and (direction == INPUT_GRAD or in_channels * out_channels <= _MOST_WEIGHTS_OF_ONE_COPY)


def _bench(direction: str, problem: Problem, wide: bool, num_threads: int, plain: Plain) -> ConvBench:
    given = choices.operands(problem)
    x, weight, bias = given["x"], given["weight"], given.get("bias")

    def runs(name: str) -> Callable[[], Tensor]:
        if name != choices.PLAIN:
            plan = Repacked(problem, wide, num_threads, name)
            return lambda: plan.run(x, weight, bias)
        if direction == FORWARD:
            return lambda: cast("PlainForward", plain)(x, weight, bias, problem.geometry)
        _, padding, dilation, groups = problem.geometry
        its = tuple(d * (k - 1) - p for k, d, p in zip(weight.shape[2:], dilation, padding, strict=True))
        geometry = ConvGeometry((1, 1), (its[0], its[1]), dilation, groups)
        original = turned_around(weight, groups != 1).contiguous(memory_format=torch.channels_last)
        return lambda: cast("PlainInputGrad", plain)(x, original, problem.output_shape, geometry)

    return ConvBench(runs, lambda: choices.reference(problem, given), x)


class Repacked:
    """A convolution whose weight is packed at each run."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int, algorithm: str) -> None:
        self._is_depthwise = problem.geometry.groups != 1
        self._lanes = 16 if wide else 8
        self._shape = shape = problem.output_shape
        self._strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
        self._widths = [each * self._lanes for each in widths_of(shape[1], wide)]
        self._parts = direct.parts_of(problem.weight_shape)
        self.job, self._by_tiles, self.scratch_bytes = planned(problem, wide, num_threads, algorithm)
        per_pair = 16 if self._by_tiles else math.prod(problem.weight_shape[2:])
        self._weight_floats = sum(self._widths) * problem.weight_shape[1] * per_pair
        self._weight_bytes = pages.whole_lines(4 * self._weight_floats)

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x.new_empty_strided(self._shape, self._strides)
        memory = pages.scratch(self._weight_bytes + self.scratch_bytes)
        its_weight, bias = self.packed(weight, bias, memory[: self._weight_floats])
        place, start = 0 if bias is None else bias.data_ptr(), memory.data_ptr()
        self.job.run(x.data_ptr(), its_weight.data_ptr(), y.data_ptr(), place, 0, start + self._weight_bytes)
        return y

    def packed(self, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Both as the kernels read them; out: memory for the weight."""
        if self._is_depthwise:
            packed = depthwise.packed(weight, self._lanes, out)
        elif self._by_tiles:
            packed = winograd.packed(weight, self._widths, out)
        else:
            packed = direct.packed(weight, self._widths, self._parts, out)
        return packed, None if bias is None else torch.nn.functional.pad(bias, (0, -bias.shape[0] % self._lanes))
