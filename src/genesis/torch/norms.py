"""group_norm and its activation as an op of PyTorch: with gradients, in the input's order of memory, and opaque to
torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from genesis import activations
from genesis.records import SavedGroupNorm
from genesis.torch import activations as torch_activations
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out
from genesis.torch.second_gradients import COPIED, by_layers, refused
from genesis.torch.shapes import FLOATS
from genesis.torch.signatures import Context, Gradients


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    activation: str | None = None,
) -> Tensor:  # fmt: skip
    """activation(torch.nn.functional.group_norm(input, …)) that runs Genesis' kernels for inputs on CUDA.

    The result keeps the input's order of memory: channels-last images, which PyTorch copies to channels first, stay
    channels last. Sums are added up in a fixed order. Under autocast it computes in float32, as PyTorch does. PyTorch's
    functions run for other devices and dtypes, subclasses of Tensor, arguments that it refuses, and gradients that are
    to be differentiated again.

    Args:
        input: (N, C, …).
        num_groups: divides C.
        weight, bias: (C,) or None.
        eps: added to the variance.
        activation: a name of `genesis.activations.NUMBERS`, such as "relu", "silu" or "leaky_relu(0.1)"; or None.
    Returns: the shape of input, and its dtype, or float32 under autocast.
    Raises: ValueError: it is no activation.

    Example:
        >>> import genesis.torch, torch
        >>> genesis.torch.group_norm(torch.tensor([[1.0, 3.0]]), 1, eps=1e-9, activation="relu").tolist()
        [[0.0, 1.0]]
    """
    activation = activations.checked("group_norm", activation)
    if not takes(input, num_groups, weight, bias):
        return torch_activations.apply(nn.functional.group_norm(input, num_groups, weight, bias, eps), activation)
    if torch.is_autocast_enabled(input.device.type) and input.dtype is not torch.float64:
        input, weight, bias = (None if each is None else each.float() for each in (input, weight, bias))
    y: Tensor = torch.ops.genesis.group_norm(input, num_groups, weight, bias, eps, activation)[0]
    return y


def takes(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Return whether these are tensors, no subclasses, which Genesis' kernels can normalize."""
    given = [each for each in (weight, bias) if each is not None]
    return (
        all(type(each) in (Tensor, nn.Parameter) for each in (input, *given))
        and has_kernels(input)
        and fits(input, num_groups, given)
    )


def has_kernels(input: Tensor) -> bool:
    return input.is_cuda and input.dtype in FLOATS


def fits(input: Tensor, num_groups: object, parameters: Sequence[Tensor]) -> bool:
    """Return whether PyTorch takes these arguments too; the parameters have the input's dtype, or both are float32."""
    if type(num_groups) is not int or num_groups < 1 or input.dim() < 2 or input.numel() == 0:
        return False
    channels = input.shape[1]
    if channels % num_groups or input.numel() == input.shape[0] * num_groups:
        return False
    kinds = {each.dtype for each in parameters}
    return (
        all(each.shape == (channels,) and each.device == input.device for each in parameters)
        and len(kinds) < 2
        and kinds <= {input.dtype, torch.float32}
    )


class _Context(Context, Protocol):
    """The context of the function: PyTorch's, and what it adds."""

    how: tuple[int, str | None]
    eps: float
    saved_tensors: tuple[Tensor | None, ...]


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float,
        activation: str | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        with torch._C._AutoDispatchBelowAutograd():
            y, mean, inverse_std = torch.ops.genesis.group_norm(input, num_groups, weight, bias, eps, activation)
        ctx.save_for_backward(input, weight, bias, mean, inverse_std)
        ctx.how, ctx.eps = (num_groups, activation), eps
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, inverse_std)
        return y, mean, inverse_std

    @staticmethod
    def backward(ctx: _Context, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        needs = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
        made = _differentiable_gradients(ctx, needs, grad) if torch.is_grad_enabled() else _gradients(ctx, needs, grad)
        return made[0], None, *made[1:], None, None


def _gradients(ctx: _Context, needs: list[bool], grad: Tensor) -> Gradients:
    grads = torch.ops.genesis.group_norm_backward(grad, *ctx.saved_tensors, *ctx.how, needs)
    return tuple(each if need else None for each, need in zip(grads, needs, strict=True))


def _differentiable_gradients(ctx: _Context, needs: list[bool], grad: Tensor) -> Gradients:
    """By PyTorch's layers, which are run again."""
    num_groups, activation = ctx.how

    def layers(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = nn.functional.group_norm(input, num_groups, weight, bias, ctx.eps)
        return torch_activations.apply(y, activation)

    found = by_layers(layers, ctx.saved_tensors[:3], needs, grad)
    if found is not None:
        return tuple(found)
    with torch.no_grad():
        grads = _gradients(ctx, needs, grad)
    return refused("group_norm", COPIED, grads, (grad, *ctx.saved_tensors), ctx)


# --- for compilers ---
def _forward(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, inverse_std = call("group_norm", input, num_groups, weight, bias, eps, activation)
    return laid_out(y, input), mean, inverse_std


def _shapes_forward(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of _forward without values."""
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    if input.device.type == "cpu":
        wide = input.dtype
    statistics = (input.new_empty((input.shape[0], num_groups), dtype=wide) for _ in range(2))
    return torch.empty_like(input), *statistics


_BackwardArguments: TypeAlias = tuple[
    Tensor, Tensor | None, Tensor | None, Tensor, Tensor, int, str | None, Sequence[bool]
]
"""Those of SavedGroupNorm, num_groups, activation, and whether input, weight and bias need a gradient."""


def _backward(grad: Tensor, *args: *_BackwardArguments) -> list[Tensor]:
    """Gradients of input, weight, bias; empty: not wanted."""
    saved, (num_groups, activation, needs) = SavedGroupNorm(*args[:5]), args[5:]
    found: tuple[Tensor | None, ...] = call("group_norm_backward", grad, saved, num_groups, tuple(needs), activation)
    empty = saved.input.new_empty(0)
    return [
        empty.clone() if each is None or like is None else laid_out(each, like)
        for each, like in zip(found, saved[:3], strict=True)
    ]


def _shapes_backward(grad: Tensor, *args: *_BackwardArguments) -> list[Tensor]:
    input, needs = args[0], args[-1]
    likes = zip(args[:3], needs, strict=True)
    return [torch.empty_like(like) if need and like is not None else input.new_empty(0) for like, need in likes]


define(
    "group_norm(Tensor input, int num_groups, Tensor? weight, Tensor? bias, float eps, str? activation) "
    "-> (Tensor, Tensor, Tensor)",
    _forward,
    _shapes_forward,
    _GroupNorm.apply,
)
define(
    "group_norm_backward(Tensor grad, Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor inverse_std, "
    "int num_groups, str? activation, bool[] needs) -> Tensor[]",
    _backward,
    _shapes_backward,
)
