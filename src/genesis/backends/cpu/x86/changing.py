"""Convolutions whose weights change from call to call, as in training: they are packed anew each time."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu.x86 import depthwise, direct, machine, winograd
from genesis.backends.cpu.x86.packed import is_supported
from genesis.backends.cpu.x86.plans import planned, widths_of
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry

_LEAST_PIXELS = 400  # of the result: with fewer, packing takes too long


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Tensor | None:
    """The convolution of an x that is channels-last; None where this is not the fastest way."""
    if not is_supported(weight.dtype, weight.shape, geometry.groups) or not x.numel():
        return None
    key = tuple(x.shape), x.stride(), tuple(weight.shape), geometry, bias is not None
    return _plan(key, machine.vectors() == "avx512", torch.get_num_threads()).run(x, weight, bias)


def input_grad(grad: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor | None:
    """The gradient of the input, without a stride: a convolution with the weight turned around; None as for forward."""
    stride, padding, dilation, groups = geometry
    out_channels, in_channels, *kernel = weight.shape
    turned = tuple(d * (k - 1) - p for k, d, p in zip(kernel, dilation, padding, strict=True))
    is_depthwise = groups != 1
    shape = weight.shape if is_depthwise else (in_channels, out_channels)
    if stride != (1, 1) or min(turned) < 0 or not is_supported(weight.dtype, shape, groups):
        return None
    weight = weight.flip(2, 3) if max(kernel) > 1 else weight
    weight = weight if is_depthwise else weight.transpose(0, 1)
    return forward(grad, weight, None, ConvGeometry((1, 1), (turned[0], turned[1]), dilation, groups))


def pays(x: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> bool:
    """Whether there are enough pixels for each weight to be packed; those of a depthwise convolution are few."""
    pixels = x.shape[0] * x.shape[2] * x.shape[3] // math.prod(geometry.stride)
    return geometry.groups == weight_shape[0] > 1 or (pixels >= _LEAST_PIXELS and weight_shape[1] > 1)


@functools.lru_cache(512)
def _plan(key: tuple[Shape, Shape, Shape, ConvGeometry, bool], wide: bool, num_threads: int) -> _Plan:
    return _Plan(Problem(*key, False, None), wide, num_threads)


class _Plan:
    def __init__(self, problem: Problem, wide: bool, num_threads: int) -> None:
        self._is_depthwise = problem.geometry.groups != 1
        self._lanes = 16 if wide else 8
        self._shape = shape = problem.output_shape
        self._strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
        self._widths = [each * self._lanes for each in widths_of(shape[1], wide)]
        self._parts = direct.parts_of(problem.weight_shape)
        self.job, self._by_tiles, self.scratch_bytes = planned(problem, wide, num_threads)

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight, bias = self.packed(weight, bias)
        y = x.new_empty_strided(self._shape, self._strides)
        scratch = x.new_empty(self.scratch_bytes, dtype=torch.uint8)
        place = 0 if bias is None else bias.data_ptr()
        self.job.run(x.data_ptr(), weight.data_ptr(), y.data_ptr(), place, 0, scratch.data_ptr())
        return y

    def packed(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both as the kernels read them."""
        if self._is_depthwise:
            packed = depthwise.packed(weight, self._lanes)
        elif self._by_tiles:
            packed = winograd.packed(weight, self._widths)
        else:
            packed = direct.packed(weight, self._widths, self._parts)
        return packed, None if bias is None else torch.nn.functional.pad(bias, (0, -bias.shape[0] % self._lanes))
