"""The choice for a convolution's weight gradient: our kernel, one product with columns, or oneDNN's kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu import columns
from genesis.backends.cpu.x86 import choices, depthwise_weight_grad, machine, weight_grad
from genesis.backends.cpu.x86.choices import WEIGHT_GRAD, ConvBench, ConvChoice
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import host
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

Plain = Callable[[Tensor, Tensor, Shape, ConvGeometry], Tensor]  # of grad, input, weight_shape, geometry

Key = tuple[Shape, Shape, Shape, Shape, ConvGeometry, str | None]  # grad, input, its strides, weight, …, vectors


def compute(grad: Tensor, x: Tensor, weight_shape: Shape, geometry: ConvGeometry, plain: Plain) -> Tensor | None:
    """The gradient from operands that are channels-last; None where plain is the fastest way, or the only one."""
    if grad.dtype is not torch.float32 or geometry.groups not in (1, weight_shape[0]):
        return None
    key = tuple(grad.shape), tuple(x.shape), x.stride(), tuple(weight_shape), geometry, machine.vectors()
    name = _choose(key, torch.get_num_threads(), get_float32_precision(), host.epoch(), plain)
    return None if name == choices.PLAIN else _run(name, grad, x, weight_shape, geometry)


def _run(name: str, grad: Tensor, x: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    if name == choices.DEPTHWISE:
        return depthwise_weight_grad.weight_grad(grad, x, weight_shape, geometry)
    if name == choices.TAPS:
        return weight_grad.weight_grad(grad, x, weight_shape, geometry)
    return columns.weight_grad(grad, x, weight_shape, geometry)


@functools.lru_cache(1024)
def _choose(key: Key, num_threads: int, precision: str, epoch: int, plain: Plain) -> str:
    grad_shape, input_shape, strides, weight_shape, geometry, vectors = key
    if 0 in (*grad_shape, *input_shape):
        return choices.PLAIN
    problem = Problem(input_shape, strides, weight_shape, geometry, False, False, None)
    wide = vectors == "avx512"
    if geometry.groups != 1:
        is_ours = vectors is not None and depthwise_weight_grad.is_supported(problem, wide)
        guess = choices.DEPTHWISE if is_ours else choices.PLAIN
    elif vectors is not None and weight_grad.is_supported(problem, wide) and weight_grad.pays(weight_shape, wide):
        guess = choices.TAPS
    else:
        guess = choices.COLUMNS if columns.pays(grad_shape, weight_shape) else choices.PLAIN
    choice = ConvChoice(WEIGHT_GRAD, problem, guess, vectors, num_threads, precision)
    return host.chosen(choice, lambda: _bench(problem, plain))


def _bench(problem: Problem, plain: Plain) -> ConvBench:
    x, shape = choices.operands(problem)["x"], problem.weight_shape
    grad = torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(1))
    grad = grad.contiguous(memory_format=torch.channels_last)

    def runs(name: str) -> Callable[[], Tensor]:
        if name == choices.PLAIN:
            return lambda: plain(grad, x, shape, problem.geometry)
        return lambda: _run(name, grad, x, shape, problem.geometry)

    return ConvBench(runs, lambda: plain(grad.double(), x.double(), shape, problem.geometry), x)
