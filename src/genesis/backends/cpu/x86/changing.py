"""Convolutions whose weights change from call to call, as in training: they are packed anew each time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.x86 import choices, depthwise, direct, machine, pages, product, winograd
from genesis.backends.cpu.x86.choices import FORWARD, INPUT_GRAD, STRIDED_INPUT_GRAD, ConvBench, ConvChoice
from genesis.backends.cpu.x86.packed import is_supported
from genesis.backends.cpu.x86.plans import guess, planned, widths_of
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.cpu.x86.product import InputGrad
from genesis.backends.engine import host
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

_LEAST_PIXELS = 400  # of the result: with fewer, packing is expected to take too long,
_LEAST_PIXELS_OF_FEW_WEIGHTS = 40  # unless there are few weights too,
_FEW_WEIGHTS = 640 << 10
_LEAST_PIXELS_OF_ONE_COPY = 150  # or the kernel is 1×1, and for an input's gradient already transposed

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


def input_grad(
    grad: Tensor, weight: Tensor, input_shape: Shape, geometry: ConvGeometry, plain: PlainInputGrad
) -> Tensor | None:
    """The gradient of the input; without a stride, a convolution with the weight turned around. None as for forward."""
    known = machine.vectors(), torch.get_num_threads(), get_float32_precision(), host.epoch(), plain
    if geometry.stride != (1, 1):
        strided = _strided_plan(tuple(input_shape), tuple(weight.shape), geometry, *known)
        return None if strided is None else strided.run(grad, weight, None)
    _, padding, dilation, groups = geometry
    out_channels, in_channels, *kernel = weight.shape
    turned = tuple(d * (k - 1) - p for k, d, p in zip(kernel, dilation, padding, strict=True))
    is_depthwise = groups != 1
    shape = tuple(weight.shape) if is_depthwise else (in_channels, out_channels, *kernel)
    if min(turned) < 0 or not is_supported(weight.dtype, shape, groups):
        return None
    inner = ConvGeometry((1, 1), (turned[0], turned[1]), dilation, groups)
    plan = _plan(INPUT_GRAD, (tuple(grad.shape), grad.stride(), shape, inner, False), *known)
    return None if plan is None else plan.run(grad, weight, None)


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
) -> AnyPlan | None:
    """None: oneDNN's is chosen."""
    problem, wide = Problem(*key, False, None), vectors == "avx512"
    if not math.prod(problem.input_shape) or not math.prod(problem.output_shape):
        return None
    choice = ConvChoice(direction, problem, choices.PLAIN, vectors, num_threads, precision)
    pays = _pays(direction, problem, wide)
    if choices.PRODUCT in choice.candidates and (direction == INPUT_GRAD or not pays):
        choice = replace(choice, guess=choices.PRODUCT)
    elif pays:
        best = guess(problem, wide, num_threads)
        if best == choices.TILES and _num_pixels(problem) < _LEAST_PIXELS:  # whose sums are longer than oneDNN's
            best = choices.WEIGHTS
        choice = replace(choice, guess=best)
    name = host.chosen(choice, lambda: _bench(direction, problem, wide, num_threads, plain))
    return None if name == choices.PLAIN else _by(direction, problem, wide, num_threads, name)


@functools.lru_cache(1024)
def _strided_plan(
    shape: Shape, weight_shape: Shape, geometry: ConvGeometry, vectors: str | None, num_threads: int, precision: str,
    epoch: int, plain: Plain,
) -> InputGrad | None:  # fmt: skip
    strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
    problem, wide = Problem(shape, strides, weight_shape, geometry, False, False, None), vectors == "avx512"
    pixels = shape[0] * math.prod(problem.output_shape[2:])
    if vectors is None or not product.has_input_grad(pixels, weight_shape, geometry.groups, wide):
        return None
    choice = ConvChoice(STRIDED_INPUT_GRAD, problem, choices.PRODUCT, vectors, num_threads, precision)
    name = host.chosen(choice, lambda: _strided_bench(problem, wide, num_threads, cast("PlainInputGrad", plain)))
    return None if name == choices.PLAIN else InputGrad(problem, wide, num_threads)


def _by(direction: str, problem: Problem, wide: bool, num_threads: int, name: str) -> AnyPlan:
    if name != choices.PRODUCT:
        return Repacked(problem, wide, num_threads, name, direction == INPUT_GRAD)
    if direction == FORWARD:
        return product.Forward(problem, wide, num_threads)
    shape = problem.output_shape
    channels, height, width = shape[1:]
    strides = channels * height * width, 1, channels * width, channels
    weight_shape = problem.weight_shape[1], channels, *problem.weight_shape[2:]
    geometry = _layers_own(problem)
    return InputGrad(Problem(shape, strides, weight_shape, geometry, False, False, None), wide, num_threads)


def _layers_own(problem: Problem) -> ConvGeometry:
    """The geometry of the layer, of whose gradient problem is the convolution."""
    _, padding, dilation, groups = problem.geometry
    its = tuple(d * (k - 1) - p for k, d, p in zip(problem.weight_shape[2:], dilation, padding, strict=True))
    return ConvGeometry((1, 1), (its[0], its[1]), dilation, groups)


def _num_pixels(problem: Problem) -> int:
    """The pixels of the result."""
    return problem.output_shape[0] * math.prod(problem.output_shape[2:])


def _pays(direction: str, problem: Problem, wide: bool) -> bool:
    shape = problem.weight_shape
    if direction == INPUT_GRAD and problem.geometry.groups == 1:
        shape = shape[1], shape[0]
    if pays(problem.input_shape, shape, problem.geometry):
        return True
    out_channels, in_channels, *kernel = problem.weight_shape
    pixels = _num_pixels(problem)
    if in_channels == 1 or out_channels % (16 if wide else 8):
        return False
    if direction == FORWARD:
        return pixels >= _LEAST_PIXELS_OF_FEW_WEIGHTS and math.prod(problem.weight_shape) <= _FEW_WEIGHTS
    return max(kernel) == 1 and pixels >= _LEAST_PIXELS_OF_ONE_COPY


def _bench(direction: str, problem: Problem, wide: bool, num_threads: int, plain: Plain) -> ConvBench:
    given = choices.operands(problem)
    x, weight, bias = given["x"], given["weight"], given.get("bias")
    if direction == INPUT_GRAD:
        weight = turned_around(weight, problem.geometry.groups != 1).contiguous(memory_format=torch.channels_last)

    def runs(name: str) -> Callable[[], Tensor]:
        if name != choices.PLAIN:
            plan = _by(direction, problem, wide, num_threads, name)
            return lambda: plan.run(x, weight, bias)
        if direction == FORWARD:
            return lambda: cast("PlainForward", plain)(x, weight, bias, problem.geometry)
        geometry = _layers_own(problem)
        return lambda: cast("PlainInputGrad", plain)(x, weight, problem.output_shape, geometry)

    return ConvBench(runs, lambda: choices.reference(problem, given), x)


def _strided_bench(problem: Problem, wide: bool, num_threads: int, plain: PlainInputGrad) -> ConvBench:
    weight, shape, geometry = choices.operands(problem)["weight"], problem.input_shape, problem.geometry
    grad = torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(1))
    grad = grad.contiguous(memory_format=torch.channels_last)

    def runs(name: str) -> Callable[[], Tensor]:
        if name == choices.PLAIN:
            return lambda: plain(grad, weight, shape, geometry)
        plan = InputGrad(problem, wide, num_threads)
        return lambda: plan.run(grad, weight, None)

    return ConvBench(runs, lambda: plain(grad.double(), weight.double(), shape, geometry), grad)


class Repacked:
    """A convolution whose weight is packed at each run; of_grad: one of grad, that gives an input's gradient."""

    def __init__(self, problem: Problem, wide: bool, num_threads: int, algorithm: str, of_grad: bool = False) -> None:
        self._is_depthwise, self._of_grad = problem.geometry.groups != 1, of_grad
        self._lanes = 16 if wide else 8
        self._shape = shape = problem.output_shape
        self._strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
        self._widths = [each * self._lanes for each in widths_of(shape[1], wide)]
        summands = direct.FEW_SUMMANDS if _num_pixels(problem) < _LEAST_PIXELS else direct.SUMMANDS
        self._parts = direct.parts_of(problem.weight_shape, summands)
        self.job, self._by_tiles, self.scratch_bytes = planned(problem, wide, num_threads, algorithm, summands)
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
        """Both as the kernels read them, of the layer's own weight; out: memory for it."""
        if self._of_grad:
            weight = turned_around(weight, self._is_depthwise)
        if self._is_depthwise:
            packed = depthwise.packed(weight, self._lanes, out)
        elif self._by_tiles:
            packed = winograd.packed(weight, self._widths, out)
        else:
            packed = direct.packed(weight, self._widths, self._parts, out)
        return packed, None if bias is None else torch.nn.functional.pad(bias, (0, -bias.shape[0] % self._lanes))


AnyPlan: TypeAlias = "Repacked | product.Forward | InputGrad"
