"""torch.ops.genesis.avg_pool2d: average pooling whose gradient is right where PyTorch's kernel on CUDA is wrong.

That kernel forgets the padding of channels-last images: each pixel gets the gradient of the one so far above and left
of it (PyTorch up to 2.13, https://github.com/pytorch/pytorch/issues/188344). Its forward is right, and runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from genesis.records import Windows
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out
from genesis.torch.shapes import suggests_channels_last


def is_forgotten(input: Tensor, padding: object) -> bool:
    """Return whether the padding of a tensor, no subclass, would be forgotten in the gradient of PyTorch's op."""
    if type(input) is not Tensor or not input.is_cuda or padding in (0, (0, 0), [0, 0]):
        return False
    if not (input.requires_grad and torch.is_grad_enabled() and input.dim() == 4):
        return False
    return suggests_channels_last(input.shape, input.stride())


class _Context(Protocol):
    """The context of both functions: PyTorch's, and the attribute that they add."""

    how: tuple[object, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


class _AvgPool2d(torch.autograd.Function):
    """The autograd of torch.ops.genesis.avg_pool2d: a compiler sees PyTorch's op, whose backward is another."""

    @staticmethod
    def forward(
        ctx: _Context, input: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
        ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Tensor:  # fmt: skip
        ctx.how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        ctx.save_for_backward(input)  # for its shape and order; PyTorch's op saves it too
        ctx.set_materialize_grads(False)
        return _forward(input, *ctx.how)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 7
        return torch.ops.genesis.avg_pool2d_backward(grad, *ctx.saved_tensors, *ctx.how), *(None,) * 6


class _AvgPool2dBackward(torch.autograd.Function):
    """The autograd of torch.ops.genesis.avg_pool2d_backward, which is linear: the gradient of its grad is pooled."""

    @staticmethod
    def forward(ctx: _Context, grad: Tensor, input: Tensor, *how: object) -> Tensor:
        ctx.how = how
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.genesis.avg_pool2d_backward(grad, input, *how)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        return torch.ops.genesis.avg_pool2d(grad, *ctx.how), *(None,) * 7


def _forward(input: Tensor, *how: object) -> Tensor:
    return functional.avg_pool2d(input, *how)  # type: ignore[arg-type]


def _backward(
    grad: Tensor, input: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    kernel, step, pad = ((sizes[0], sizes[1]) for sizes in (kernel_size, stride, padding))
    windows = Windows(kernel, step, pad, (1, 1), ceil_mode)
    grad_input: Tensor = call("avg_pool2d_backward", grad, input, windows, count_include_pad, divisor_override)
    return laid_out(grad_input, _empty_like(input))


def _shapes_backward(grad: Tensor, input: Tensor, *how: object) -> Tensor:
    """Promise the result of _backward, without values."""
    return _empty_like(input)


def _empty_like(input: Tensor) -> Tensor:
    """An uninitialized tensor in the order of memory of PyTorch's gradient."""
    order = torch._prims_common.suggest_memory_format(input)
    return torch.empty_like(input, memory_format=order)


_HOW = (
    "int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override"
)
define(f"avg_pool2d(Tensor input, {_HOW}) -> Tensor", _forward, _forward, _AvgPool2d.apply)
define(
    f"avg_pool2d_backward(Tensor grad, Tensor input, {_HOW}) -> Tensor",
    _backward,
    _shapes_backward,
    _AvgPool2dBackward.apply,
)
