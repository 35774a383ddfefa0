"""The choice for a convolution's weight gradient: oneDNN's kernel, or one product with columns."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu import columns
from genesis.backends.cpu.x86 import choices, machine
from genesis.backends.cpu.x86.choices import WEIGHT_GRAD, ConvBench, ConvChoice
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import host
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

Plain = Callable[[Tensor, Tensor, Shape, ConvGeometry], Tensor]  # of grad, input, weight_shape, geometry


def by_columns(grad: Tensor, input_shape: Shape, weight_shape: Shape, geometry: ConvGeometry, plain: Plain) -> bool:
    """Whether columns are the faster way; plain: the other one."""
    if grad.dtype is not torch.float32 or geometry.groups != 1:
        return False
    key = tuple(grad.shape), tuple(input_shape), tuple(weight_shape), geometry
    return _choose(*key, torch.get_num_threads(), get_float32_precision(), host.epoch(), plain) == choices.COLUMNS


@functools.lru_cache(1024)
def _choose(
    grad_shape: Shape, input_shape: Shape, weight_shape: Shape, geometry: ConvGeometry, num_threads: int,
    precision: str, epoch: int, plain: Plain,
) -> str:  # fmt: skip
    guess = choices.COLUMNS if columns.pays(grad_shape, weight_shape) else choices.PLAIN
    if 0 in (*grad_shape, *input_shape):
        return guess
    _, channels, height, width = input_shape
    strides = channels * height * width, 1, channels * width, channels
    problem = Problem(input_shape, strides, weight_shape, geometry, False, False, None)
    choice = ConvChoice(WEIGHT_GRAD, problem, guess, machine.vectors(), num_threads, precision)
    return host.chosen(choice, lambda: _bench(problem, plain))


def _bench(problem: Problem, plain: Plain) -> ConvBench:
    stride, padding, dilation, _ = problem.geometry
    x, shape = choices.operands(problem)["x"], problem.weight_shape
    grad = torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(1))
    grad = grad.contiguous(memory_format=torch.channels_last)

    def runs(name: str) -> Callable[[], Tensor]:
        if name == choices.COLUMNS:
            return lambda: columns.weight_grad(grad, x, shape, stride, padding, dilation)
        return lambda: plain(grad, x, shape, problem.geometry)

    return ConvBench(runs, lambda: plain(grad.double(), x.double(), shape, problem.geometry), x)
