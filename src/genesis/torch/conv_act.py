"""conv_act as an op of PyTorch: with gradients of any order, and opaque to torch.compile."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from genesis import activations as known
from genesis.records import ConvGeometry
from genesis.torch import activations
from genesis.torch.bridge import call
from genesis.torch.modes import versions_of
from genesis.torch.opaque import define, laid_out
from genesis.torch.ops import GEOMETRY, in_dtype
from genesis.torch.second_gradients import COPIED, by_layers, refused
from genesis.torch.shapes import empty_images, empty_output, geometry_of, in_channels_last, in_order, order_of
from genesis.torch.signatures import (
    ActivatedArguments,
    ActivatedContext,
    ConvActArguments,
    ConvActBackwardArguments,
    Gradients,
    TracedActivatedContext,
)

if TYPE_CHECKING:
    from genesis.torch.prepared_act import Activated
    from genesis.torch.unprepared import Unprepared


class How(NamedTuple):
    """The arguments of the differentiable op beside the tensors. keeps: as the backend's op takes it."""

    geometry: ConvGeometry
    activation: str | None
    keeps: str | None


class Values(NamedTuple):
    """Values that the differentiable op computes with: the operands in the dtype and order of memory of the kernels.

    added: the summand; prepared: the launches for them; found: the result of those, with what the backward wants and
    the weight's values.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    added: Tensor | None
    prepared: Activated | Unprepared
    found: tuple[Tensor, Tensor, Tensor] | None


@functools.cache
def kept_by(activation: str | None, inplace: bool) -> str | None:
    """The array that conv_act keeps for its backward: the result where PyTorch's layers do, as others may change it."""
    if activation is None:
        return None
    is_kept = known.keeps_result(activation) or (inplace and known.is_known_by_result(activation))
    return "result" if is_kept else "input"


def conv_act_values(
    input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, geometry: ConvGeometry,
    activation: str | None,
) -> Tensor:  # fmt: skip
    """activation(conv2d(input, weight, bias) + residual) where nothing needs a gradient."""
    y: Tensor = call("conv_act", input, weight, bias, geometry, activation, None, residual)[0]
    return y


class _ConvAct(torch.autograd.Function):
    """Called eagerly: straight to the backend."""

    @staticmethod
    def forward(ctx: ActivatedContext, *args: *ActivatedArguments) -> Tensor:
        _, weight, bias, _, how, (x, weight_values, bias_values, added, prepared, found) = args
        unchanged: tuple[Tensor, ...] = ()  # though what is read of it again is a copy
        if found is None:
            y, kept = call("conv_act", x, weight_values, bias_values, *how, added)
        else:
            y, kept, weight_values = found[0], found[1] if how.keeps else None, found[2]
            if weight_values is not weight and weight_values.dtype is weight.dtype:
                unchanged = (weight,)
        ctx.save_for_backward(x, weight_values, kept, *unchanged)
        ctx.set_materialize_grads(False)
        ctx.how, ctx.dtype, ctx.prepared, ctx.adds = how, weight.dtype, prepared, added is not None
        # Beside what PyTorch saves, for second gradients only: these may change if nobody wants such.
        ctx.parameters = (None if weight is weight_values else weight), bias
        ctx.versions = versions_of(*ctx.parameters)
        return y

    @staticmethod
    def backward(ctx: ActivatedContext, grad: Tensor | None, addend: Tensor | None = None) -> Gradients:
        if grad is None:
            return addend, None, None, None, None, None
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, grad, addend), None, None
        return *_gradients(ctx, grad, addend), None, None


class _ConvActAndInput(_ConvAct):
    """With the input as the second output, of which PyTorch makes a view."""

    @staticmethod
    def forward(ctx: ActivatedContext, *args: *ActivatedArguments) -> tuple[Tensor, Tensor]:
        return _ConvAct.forward(ctx, *args), args[0]


def _gradients(ctx: ActivatedContext, grad: Tensor, addend: Tensor | None) -> Gradients:
    (x, weight, kept), needs = ctx.saved_tensors[:3], ctx.needs_input_grad[:4]
    geometry, activation, _ = ctx.how
    saved = (x, weight) if kept is None else (x, weight, kept)
    grads: Gradients | None = ctx.prepared.backward(grad, saved, needs, addend)
    if grads is None:
        grads = call("conv_act_backward", grad, x, weight, kept, geometry, activation, needs, addend)
    elif activation is None and needs[3]:
        grads = (*grads[:3], grad)
    return in_dtype(grads, ctx.dtype, grad.dtype)


def _differentiable_gradients(ctx: ActivatedContext, grad: Tensor, addend: Tensor | None) -> Gradients:
    """By PyTorch's layers, which are run again: their gradients can be differentiated."""
    x, weight, kept = ctx.saved_tensors[:3]
    assert x is not None
    given, bias = ctx.parameters
    if ctx.versions != versions_of(given, bias):
        raise RuntimeError("conv_act: weight or bias changed in place before its gradient was differentiated")
    needs, (geometry, activation, _), dtype = ctx.needs_input_grad, ctx.how, x.dtype
    come, own_activation = grad, activation
    if ctx.adds:  # without an activation, or ReLU: its second derivative is zero, which PyTorch hands on too
        own_activation = None
        if kept is not None:
            with torch.enable_grad():
                come = torch.ops.aten.threshold_backward(grad, kept, 0)

    def layers(*operands: Tensor | None) -> Tensor:
        y = torch.conv2d(*(None if each is None else each.to(dtype) for each in operands), *geometry)
        return activations.apply(y, own_activation)

    grads = by_layers(layers, (x, weight if given is None else given, bias), needs, come)
    if grads is None:
        with torch.no_grad():
            found = _gradients(ctx, grad, addend)
        return refused("conv_act", COPIED, found, (grad, addend, *ctx.saved_tensors), ctx)
    if addend is not None and grads[0] is not None:
        grads[0] = grads[0] + addend
    return *grads, come if needs[3] else None


# Without Function.apply's looks at each argument for transforms, which there are none of.
_apply = super(torch.autograd.Function, _ConvAct).apply
_apply_and_input = super(torch.autograd.Function, _ConvActAndInput).apply


def apply(hands_on: bool, *args: *ActivatedArguments) -> tuple[Tensor, Tensor | None]:
    """The result, and None; with hands_on a view of the input, whose gradient the op's backward adds to the input's.

    args: input, weight, bias, residual; How; and Values.
    """
    return _apply_and_input(*args) if hands_on else (_apply(*args), None)


# --- for compilers ---
class _TracedConvAct(torch.autograd.Function):
    """Under a compiler, and where torch.ops.genesis.conv_act is called."""

    @staticmethod
    def forward(ctx: TracedActivatedContext, *args: *ConvActArguments) -> tuple[Tensor, Tensor]:
        ctx.weight_order = order_of(args[1])
        input, weight, residual = map(in_channels_last, (args[0], args[1], args[3]))
        args = (input, weight, args[2], residual, *args[4:])
        with torch._C._AutoDispatchBelowAutograd():
            y, kept = torch.ops.genesis.conv_act(*args)
        ctx.save_for_backward(args[0], args[1], y if args[9] == "result" else kept)
        ctx.set_materialize_grads(False)
        ctx.how = args[4:9]
        ctx.order = order_of(y)
        ctx.mark_non_differentiable(kept)
        return y, kept

    @staticmethod
    def backward(ctx: TracedActivatedContext, grad: Tensor | None, _: Tensor | None) -> Gradients:
        needs, activation = list(ctx.needs_input_grad[:4]), ctx.how[4]
        if grad is None:
            return (None,) * 10
        added = grad if activation is None and needs[3] else None
        needs[3] = needs[3] and activation is not None
        grad = grad.contiguous(memory_format=ctx.order)  # a copy that a compiler makes part of what computes it
        grad_bias = None
        if needs[2] and activation is None:  # a sum, likewise
            needs[2], grad_bias = False, grad.sum((0, 2, 3))
        grads = torch.ops.genesis.conv_act_backward(grad, *ctx.saved_tensors, *ctx.how, needs)
        wanted = [each if needed else None for each, needed in zip(grads, needs, strict=True)]
        wanted[1] = in_order(wanted[1], ctx.weight_order)
        wanted[2] = wanted[2] if grad_bias is None else grad_bias
        return *wanted[:3], wanted[3] if added is None else added, *(None,) * 6


def _opaque_forward(*args: *ConvActArguments) -> tuple[Tensor, Tensor]:
    """y, and what the backward wants: empty where that is y, or where there is none."""
    input, weight, bias, residual, *_, activation, keeps = args
    how = (geometry_of(*args[4:8]), activation, keeps, residual)
    found: tuple[Tensor, Tensor] = call("conv_act", input, weight, bias, *how)
    y, kept = found
    kept = y.new_empty(0) if keeps != "input" else laid_out(kept, empty_images(kept.shape, kept))
    return laid_out(y, empty_images(y.shape, y)), kept


def _shapes_forward(*args: *ConvActArguments) -> tuple[Tensor, Tensor]:
    y = empty_output(*args[:2], *args[4:7])
    return y, y.new_empty(0) if args[9] != "input" else torch.empty_like(y)


def _opaque_backward(*args: *ConvActBackwardArguments) -> list[Tensor]:
    """Gradients of input, weight, bias, residual; an empty tensor where none is wanted."""
    grad, input, weight, kept = args[:4]
    how = (geometry_of(*args[4:8]), args[8], tuple(args[9]))
    grads: Gradients = call("conv_act_backward", grad, input, weight, kept, *how)
    likes = (input, weight, None, grad)
    return [
        grad.new_empty(0) if x is None else x if like is None else laid_out(x, like)
        for x, like in zip(grads, likes, strict=True)
    ]


def _shapes_backward(*args: *ConvActBackwardArguments) -> list[Tensor]:
    grad, input, weight = args[:3]
    shapes = [torch.empty_like(input), torch.empty_like(weight), weight.new_empty(weight.shape[0])]
    shapes.append(torch.empty_like(grad))
    return [x if needed else grad.new_empty(0) for x, needed in zip(shapes, args[9], strict=True)]


define(
    f"conv_act(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, {GEOMETRY}, str? keeps) "
    "-> (Tensor, Tensor)",
    _opaque_forward,
    _shapes_forward,
    _TracedConvAct.apply,
)
define(
    f"conv_act_backward(Tensor grad, Tensor input, Tensor weight, Tensor kept, {GEOMETRY}, bool[] needs) -> Tensor[]",
    _opaque_backward,
    _shapes_backward,
)
