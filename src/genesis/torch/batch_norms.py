"""Batch norm of a batch's own statistics and its activation, without a convolution: an op of compiled graphs.

As of a concatenation in a dense block, or before the convolution of a pre-activation block. Eager code defers such
norms (norm_entries.py) and reaches the same kernels without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from genesis import activations
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm
from genesis.torch import bridge
from genesis.torch.bridge import call, call_arrays
from genesis.torch.opaque import define, laid_out
from genesis.torch.shapes import is_normalized
from genesis.torch.signatures import Context

_POINTS = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
_ForwardArguments: TypeAlias = tuple[
    Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, float, float, str | None
]
"""Input, gamma, beta, running mean and variance; momentum, eps, activation."""
_BackwardArguments: TypeAlias = tuple[
    Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor, str | None, Sequence[bool]
]
"""Input, gamma, beta, mean, inverse deviation, what passed; activation, and which of the first three need gradients."""


def takes(input: Tensor) -> bool:
    """Return whether the op is to normalize these images: on CUDA."""
    return bridge.activates(input) and is_normalized(input)


class _Context(Context, Protocol):
    """The context of the function: PyTorch's, and what it adds."""

    activation: str | None
    saved_tensors: tuple[Tensor | None, ...]


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, *args: *_ForwardArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            y, mean, inverse_std, passed = torch.ops.genesis.batch_norm(*args)
        ctx.activation = args[-1]
        ctx.save_for_backward(*args[:3], mean, inverse_std, y if _is_result(passed, y) else passed)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, inverse_std, passed)
        return y, mean, inverse_std, passed

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        needs = ctx.needs_input_grad[:3]
        grad = grad.contiguous(memory_format=torch.channels_last)  # a copy that a compiler makes part of its kernels
        grads = torch.ops.genesis.batch_norm_backward(grad, *ctx.saved_tensors, ctx.activation, needs)
        return *(each if need else None for each, need in zip(grads, needs, strict=True)), *(None,) * 5


def _is_result(passed: Tensor, y: Tensor) -> bool:
    """Does passed, which is empty, stand for y? Bytes stand for nothing."""
    return passed.numel() == 0 and passed.dtype is y.dtype


# --- for compilers ---
def _forward(*args: *_ForwardArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, inverse deviation; and what passed: an empty y for y itself, empty bytes for nothing."""
    input, gamma, beta, running_mean, running_var, momentum, eps, activation = args
    norm = NormState(gamma, beta, running_mean, running_var)
    begun = call_arrays("conv_bn_begin", input, None, None, norm, NormOptions(True, momentum, eps), _POINTS)
    state = NormState(gamma, beta, None, None)
    y, mean, inverse_std, _, passed = call("conv_bn_finish", input, None, state, begun, None, eps, activation)
    if passed is None or passed is y:
        passed = torch.empty(0, dtype=torch.uint8 if passed is None else y.dtype, device=y.device)
    return laid_out(y, input), mean, inverse_std, passed


def _shapes_forward(*args: *_ForwardArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of _forward without values."""
    input, activation = args[0], args[-1]
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    statistics = [input.new_empty(input.shape[1], dtype=wide) for _ in range(2)]
    passed = input.new_empty(0, dtype=torch.uint8)
    if not input.is_cuda and activation is not None:
        passed = input.new_empty(0) if activations.result_suffices(activation, False) else torch.empty_like(input)
    return torch.empty_like(input), *statistics, passed


def _backward(grad: Tensor, *args: *_BackwardArguments) -> list[Tensor]:
    """Gradients of input, gamma and beta; an empty tensor where none is wanted."""
    input, gamma, beta, mean, inverse_std, passed, activation, (needs_input, *needs) = args
    kept = passed if passed.numel() else None
    saved = SavedConvNorm(input, None, None, gamma, beta, mean, inverse_std, input, kept)
    which = (needs_input, False, False, *needs, False)
    grads = call("conv_bn_relu_backward", grad, saved, True, _POINTS, activation, which, False, None)
    found = zip((grads[0], *grads[3:5]), (input, gamma, beta), strict=True)
    return [grad.new_empty(0) if each is None or like is None else laid_out(each, like) for each, like in found]


def _shapes_backward(grad: Tensor, *args: *_BackwardArguments) -> list[Tensor]:
    likes = zip(args[:3], args[-1], strict=True)
    return [grad.new_empty(0) if x is None or not needed else torch.empty_like(x) for x, needed in likes]


define(
    "batch_norm(Tensor input, Tensor? gamma, Tensor? beta, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "float momentum, float eps, str? activation) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _shapes_forward,
    _BatchNorm.apply,
)
define(
    "batch_norm_backward(Tensor grad, Tensor input, Tensor? gamma, Tensor? beta, Tensor mean, Tensor inverse_std, "
    "Tensor passed, str? activation, bool[] needs) -> Tensor[]",
    _backward,
    _shapes_backward,
)
