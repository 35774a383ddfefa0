"""torch.ops.genesis.linear: PyTorch's linear layer in full float32, on the tensor cores of a GPU.

Libraries multiply float32 of which all bits count without tensor cores. Genesis' kernels split each number into two of
16 bits there, and are as accurate: see docs/convolution-kernels.md.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from genesis.precision import float32_precision
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out
from genesis.torch.signatures import Context


class _Context(Context, Protocol):
    saved_tensors: tuple[Tensor, ...]


class _Linear(torch.autograd.Function):
    """The autograd of torch.ops.genesis.linear, whose gradients are such products too."""

    @staticmethod
    def forward(ctx: _Context, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.dim() != 2 or not input.t().is_contiguous():
            input = input.contiguous()  # a copy, if it is one, that a compiler makes part of what computes it
        ctx.save_for_backward(input, weight)
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.genesis.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        rows = grad.flatten(0, -2)
        grad_input = torch.ops.genesis.linear(grad, weight.t(), None) if needs_input else None
        # The rows that are added up lie side by side in both: as the weight's gradient of a convolution has them.
        grad_weight = torch.ops.genesis.linear(rows.t(), input.flatten(0, -2).t(), None) if needs_weight else None
        return grad_input, grad_weight, rows.sum(0) if needs_bias else None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with float32_precision("highest"):
        return laid_out(call("linear", input, weight, bias), _shapes(input, weight, bias))


def _shapes(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor", _linear, _shapes, _Linear.apply)
