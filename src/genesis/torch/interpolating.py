"""torch.ops.genesis.interpolate: PyTorch's interpolation, with a gradient that gathers.

Compilers write an interpolation as reads at computed places, whose gradient is atomic additions: slow where an input is
read often, and in no order. Here each input collects what its outputs have for it, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear")


class _Context(Protocol):
    """PyTorch's context, and the attributes that the function adds."""

    how: tuple[object, ...]
    order: torch.memory_format  # of the gradients

    def set_materialize_grads(self, value: bool) -> None: ...


class _Interpolate(torch.autograd.Function):
    """The autograd of torch.ops.genesis.interpolate: a compiler sees PyTorch's op, whose backward is another."""

    @staticmethod
    def forward(
        ctx: _Context, input: Tensor, size: Sequence[int] | None, scale_factor: Sequence[float] | None, mode: str,
        align_corners: bool | None,
    ) -> Tensor:  # fmt: skip
        order = torch._prims_common.suggest_memory_format(input)
        if input.is_cuda and input.dim() == 4 and input.shape[1] > 1:
            order = torch.channels_last  # for which Genesis' kernel is two to seven times as fast
        ctx.how = (input.shape, order is not torch.contiguous_format, scale_factor, mode, bool(align_corners))
        ctx.order = order
        ctx.set_materialize_grads(False)
        return _forward(input, size, scale_factor, mode, align_corners)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        if torch._prims_common.suggest_memory_format(grad) is not ctx.order:
            grad = grad.contiguous(memory_format=ctx.order)  # a copy that a compiler makes part of what computes it
        return torch.ops.genesis.interpolate_backward(grad, *ctx.how), *(None,) * 4


def _forward(input: Tensor, *how: object) -> Tensor:
    return functional.interpolate(input, *how)  # type: ignore[arg-type]


def _backward(
    grad: Tensor, input_size: Sequence[int], channels_last: bool, scale_factor: Sequence[float] | None, mode: str,
    align_corners: bool,
) -> Tensor:  # fmt: skip
    scales = (None,) * (len(input_size) - 2) if scale_factor is None else tuple(scale_factor)
    found: Tensor = call("interpolate_backward", grad, tuple(input_size), mode, align_corners, scales)
    return laid_out(found, _empty(grad, input_size, channels_last))


def _shapes_backward(grad: Tensor, input_size: Sequence[int], channels_last: bool, *how: object) -> Tensor:
    """Promise the result of _backward, without values."""
    return _empty(grad, input_size, channels_last)


def _empty(grad: Tensor, input_size: Sequence[int], channels_last: bool) -> Tensor:
    order = (torch.channels_last, torch.channels_last_3d)[len(input_size) - 4] if channels_last else None
    return torch.empty(input_size, dtype=grad.dtype, device=grad.device, memory_format=order or torch.contiguous_format)


define(
    "interpolate(Tensor input, SymInt[]? size, float[]? scale_factor, str mode, bool? align_corners) -> Tensor",
    _forward,
    _forward,
    _Interpolate.apply,
)
define(
    "interpolate_backward(Tensor grad, SymInt[] input_size, bool channels_last, float[]? scale_factor, str mode, "
    "bool align_corners) -> Tensor",
    _backward,
    _shapes_backward,
)
