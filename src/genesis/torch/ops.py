"""conv_bn_relu as an op of PyTorch: with gradients, on its streams and memory, and opaque to torch.compile.

Eager calls go to the backend directly. A compiler sees torch.ops.genesis.conv_bn_relu and its backward, of which it
knows the shapes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor

from genesis import activations
from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState, SavedConvNorm, is_output, record
from genesis.torch.backend import dtype_of
from genesis.torch.bridge import call, call_arrays
from genesis.torch.opaque import define, laid_out
from genesis.torch.results import current, kept_result
from genesis.torch.second_gradients import Again, Given, as_given, backward_of, of_conv_bn_relu, passes, with_given
from genesis.torch.shapes import empty_images, empty_output, geometry_of, in_channels_last, in_order, order_of
from genesis.torch.signatures import (
    Array,
    BackwardArguments,
    Context,
    ForwardArguments,
    FusedArguments,
    FusedContext,
    Gradients,
    Operands,
    PreparedArguments,
    PreparedContext,
    Results,
    TracedContext,
)
from genesis.torch.signatures import How as How

_increment_version = torch._C._increment_version  # what torch.autograd.graph.increment_version calls, in half the time
T = TypeVar("T")
_NUM_TENSORS: Final = 8  # of the traced op: input, weight, bias, gamma, beta, mean, var, residual


def conv_bn_relu(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None,
    options: NormOptions, geometry: ConvGeometry, activation: str | None,
) -> Tensor:  # fmt: skip
    """activation(batch_norm(conv2d(input, weight, bias)) + residual) with gradients; arguments have been checked.

    The norm's count of batches grows by 1 in training, not under a compiler.
    """
    if torch.compiler.is_compiling():
        tensors = (input, weight, bias, *norm[:4], residual)
        return torch.ops.genesis.conv_bn_relu(*tensors, *options, *geometry, activation)[0]
    how = How(norm, None, True, options, geometry, activation)
    return _ConvBNReLU.apply(input, weight, bias, *norm[:2], residual, how, None)


def conv_bn_relu_and_input(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None,
    options: NormOptions, geometry: ConvGeometry, activation: str | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result of conv_bn_relu, and a view of the input; for eager calls only.

    Later uses of the input take the view: its gradient arrives in the op's backward, which adds it to the input's
    without a pass over memory.
    """
    how = How(norm, None, True, options, geometry, activation)
    return _ConvBNReLUAndInput.apply(input, weight, bias, *norm[:2], residual, how, None)


def conv_bn_begin(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, norm: NormState[Tensor], options: NormOptions,
    geometry: ConvGeometry,
) -> BegunConvNorm[Array]:  # fmt: skip
    """The convolution and its statistics, as the backend's arrays, which have changed the running ones in training."""
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        begun: BegunConvNorm[Array] = call_arrays("conv_bn_begin", input, weight, bias, norm, options, geometry)
        return begun
    finally:
        torch._C._set_grad_enabled(enabled)


def conv_bn_relu_values(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None,
    options: NormOptions, geometry: ConvGeometry, activation: str | None,
) -> Tensor:  # fmt: skip
    """conv_bn_relu() in training where nothing needs a gradient."""
    y: Tensor = call("conv_bn_relu", input, weight, bias, norm, residual, options, geometry, activation)[0]
    return y


def conv_bn_relu_inference(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None, eps: float,
    geometry: ConvGeometry, activation: str | None,
) -> Tensor:  # fmt: skip
    """The same with the running statistics as they are now; the backend casts the weight to the input's dtype."""
    y: Tensor = call("conv_bn_relu_inference", input, weight, bias, norm, residual, eps, geometry, activation)
    return y


def conv_bn_finish_values(
    begun: BegunConvNorm[Array], input: Tensor, weight: Tensor | None, norm: NormState[Tensor],
    residual: Tensor | None, eps: float, activation: str | None,
) -> Tensor:  # fmt: skip
    """Normalize the result of conv_bn_begin, where nothing needs a gradient."""
    return _finish(begun, input, weight, norm, residual, eps, activation)[0]


def _finish(
    begun: BegunConvNorm[Array], input: Tensor, weight: Tensor | None, norm: NormState[Tensor],
    residual: Tensor | None, eps: float, activation: str | None,
) -> Results:  # fmt: skip
    """Each array that is handed on costs the host time: those are left out that say nothing new."""
    if begun.mean is not None:
        norm = NormState(norm.gamma, norm.beta, None, None)
    if is_output(begun.kept):
        weight = None
    results: Results = call("conv_bn_finish", input, weight, norm, begun, residual, eps, activation)
    return results


def _note_changes(*statistics: Tensor | None) -> None:
    changed = [x for x in statistics if x is not None]
    if changed:
        _increment_version(changed)


def _first(values: Tensor | None, tensor: T) -> Tensor | T:
    return tensor if values is None else values


class _Fused(torch.autograd.Function):
    @staticmethod
    def backward(ctx: FusedContext, grad: Tensor | None, addend: Tensor | None = None) -> Gradients:
        return backward_of("conv_bn_relu", _gradients, _gradients_again, ctx, grad, addend)


class _ConvBNReLU(_Fused):
    """Called eagerly: straight to the backend, with one output, and all that has no gradient in two tuples."""

    @staticmethod
    def forward(ctx: FusedContext, *args: *FusedArguments) -> Tensor:
        input, weight, bias, gamma, beta, residual, how, values = args
        norm, begun, counts, options, geometry, activation = how
        ctx.parameter_dtype = (input if weight is None else weight).dtype
        cast = None if values is None or values[2] is weight else as_given(weight, bias)
        if values is not None:
            input, residual = _first(values[0], input), _first(values[1], residual)
            weight, bias = values[2:]
        results: Results
        if begun is not None:
            results = _finish(begun, input, weight, norm, residual, options.eps, activation)
        else:
            assert weight is not None
            results = call("conv_bn_relu", input, weight, bias, norm, residual, options, geometry, activation)
            if counts and options.training:
                _note_changes(*norm[2:])
        y, *saved = results
        saved[-1], ctx.result = kept_result(y, saved[-1], activation)
        _begin(ctx, _read_only_by_shape(ctx, (input, weight, bias, gamma, beta), results[3]), saved)
        ctx.options = options.training, geometry, activation
        ctx.again = options.eps, residual is not None, cast
        return y


def _gradients(ctx: FusedContext, grad: Tensor, addend: Tensor | None, needs: tuple[bool, ...]) -> Gradients:
    saved = current(record(SavedConvNorm, ctx.saved_tensors), ctx.result)
    grads: Gradients = call("conv_bn_relu_backward", grad, saved, *ctx.options, needs, False, addend)
    return *in_dtype(grads, ctx.parameter_dtype, grad.dtype), None, None


def _gradients_again(ctx: FusedContext, grad: Tensor) -> Gradients | None:
    (training, geometry, activation), (eps, has_residual, cast) = ctx.options, ctx.again
    saved = with_given(record(SavedConvNorm, ctx.saved_tensors), cast)
    how = Again(eps if training else None, geometry, activation, has_residual)
    return of_conv_bn_relu(saved, how, ctx.needs_input_grad, grad, lambda: passes(_gradients, ctx, grad))


def in_dtype(grads: Gradients, dtype: torch.dtype, computed: torch.dtype) -> Gradients:
    """With those of weight and bias in the dtype of the parameters."""
    if dtype is computed:
        return grads
    grad_input, grad_weight, grad_bias, *others = grads
    return grad_input, _cast(grad_weight, dtype), _cast(grad_bias, dtype), *others


def _cast(grad: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if grad is None else grad.to(dtype)


class _ConvBNReLUAndInput(_Fused):
    """With the input as the second output, of which PyTorch makes a view."""

    @staticmethod
    def forward(ctx: FusedContext, *args: *FusedArguments) -> tuple[Tensor, Tensor]:
        return _ConvBNReLU.forward(ctx, *args), args[0]


# Without Function.apply's looks at each argument for transforms, which there are none of.
_apply = super(torch.autograd.Function, _ConvBNReLU).apply
_apply_and_input = super(torch.autograd.Function, _ConvBNReLUAndInput).apply


class _OfPrepared(torch.autograd.Function):
    @staticmethod
    def backward(ctx: PreparedContext, grad: Tensor | None, addend: Tensor | None = None) -> Gradients:
        return backward_of("conv_bn_relu", _prepared_gradients, _prepared_again, ctx, grad, addend)


class _Prepared(_OfPrepared):
    """The same where prepared.Chain has computed the result already."""

    @staticmethod
    def forward(ctx: PreparedContext, *args: *PreparedArguments) -> Tensor:
        _, weight, _, gamma, beta, residual, (begun, x, activation, y) = args
        ctx.how = begun.chain, residual is not None, activation, weight.dtype
        values = begun.weight
        unchanged: tuple[Tensor, ...] = ()  # though what is read of it again is a copy
        cast: Given | None = None
        needs = ctx.needs_input_grad
        if not (needs[0] or needs[1] or needs[2]) and is_output(begun.kept):
            x, values = x.data, values.data  # their shapes are all that is asked: they may change as they like
        elif values is not weight:
            if weight.dtype is x.dtype:
                unchanged = (weight,)
            else:
                cast = as_given(weight, None)
        ctx.cast = cast
        ctx.save_for_backward(x, values, gamma, beta, begun.kept, begun.block, *unchanged)
        ctx.set_materialize_grads(False)
        return y


class _PreparedAndInput(_OfPrepared):
    @staticmethod
    def forward(ctx: PreparedContext, *args: *PreparedArguments) -> tuple[Tensor, Tensor]:
        return _Prepared.forward(ctx, *args), args[0]


def _prepared_gradients(
    ctx: PreparedContext, grad: Tensor, addend: Tensor | None, needs: tuple[bool, ...]
) -> Gradients:
    chain, has_residual, activation, dtype = ctx.how
    saved = ctx.saved_tensors[:6]
    grads = chain.backward(grad, saved, has_residual, activation, needs, addend)
    if grads is None:
        x, weight, gamma, beta, kept, block = saved
        found = (*chain.statistics(block), kept, chain.passed(block, has_residual, activation))
        whole = SavedConvNorm(x, weight, chain.bias_like(kept), gamma, beta, *found)
        options = (True, chain.geometry, activation, needs, False, addend)
        grads = call("conv_bn_relu_backward", grad, whole, *options)
    return *in_dtype(grads, dtype, grad.dtype), None


def _prepared_again(ctx: PreparedContext, grad: Tensor) -> Gradients | None:
    chain, has_residual, activation, _ = ctx.how
    x, values, gamma, beta, kept, block, *unchanged = ctx.saved_tensors
    weight = unchanged[0] if unchanged else values
    saved = SavedConvNorm(x, weight, None, gamma, beta, *chain.statistics(block), kept, None)
    saved = with_given(saved, ctx.cast)
    how = Again(chain.eps, chain.geometry, activation, has_residual)
    return of_conv_bn_relu(saved, how, ctx.needs_input_grad, grad, lambda: passes(_prepared_gradients, ctx, grad))


_apply_prepared = super(torch.autograd.Function, _Prepared).apply
_apply_prepared_and_input = super(torch.autograd.Function, _PreparedAndInput).apply


def apply_prepared(hands_on: bool, *args: *PreparedArguments) -> tuple[Tensor, Tensor | None]:
    """The result with its backward, and a view of the input if it hands that on."""
    return _apply_prepared_and_input(*args) if hands_on else (_apply_prepared(*args), None)


def apply(hands_on: bool, *args: *FusedArguments) -> tuple[Tensor, Tensor | None]:
    """conv_bn_relu and None, or conv_bn_relu_and_input."""
    return _apply_and_input(*args) if hands_on else (_apply(*args), None)


class _TracedConvBNReLU(torch.autograd.Function):
    """Under a compiler, and where torch.ops.genesis.conv_bn_relu is called: every array of the backend is an output."""

    @staticmethod
    def forward(ctx: TracedContext, *args: *ForwardArguments) -> tuple[Tensor, ...]:
        ctx.weight_order = order_of(args[1])
        input, weight, residual = map(in_channels_last, (args[0], args[1], args[7]))
        args = (input, weight, *args[2:7], residual, *args[8:])
        with torch._C._AutoDispatchBelowAutograd():
            outputs = torch.ops.genesis.conv_bn_relu(*args)
        y, *saved, passed = outputs
        if passed.numel() == 0 and passed.dtype is y.dtype:
            passed = y  # which the layer that takes it in keeps too
        _begin(ctx, args[:_NUM_TENSORS], [*saved, passed])
        ctx.options = args[8], *args[11:]  # training; momentum and eps are of no use then
        ctx.order = order_of(y)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: TracedContext, grad: Tensor | None, *_: Tensor | None) -> Gradients:
        needs = _needs(ctx)
        if grad is None:
            return (None,) * (_NUM_TENSORS + 8)
        grad = grad.contiguous(memory_format=ctx.order)  # a copy that a compiler makes part of what computes it
        grads = torch.ops.genesis.conv_bn_relu_backward(grad, *ctx.saved_tensors, *ctx.options, needs)
        wanted = [g if needed else None for g, needed in zip(grads, needs, strict=True)]
        wanted[1] = in_order(wanted[1], ctx.weight_order)
        return (*_by_tensor(wanted), *(None,) * 8)


def _read_only_by_shape(ctx: FusedContext, operands: Operands, kept: Tensor) -> Operands:
    """The operands, those whose shapes are all that the backward asks as aliases that may change as they like."""
    if any(ctx.needs_input_grad[:3]) or not is_output(kept):
        return operands
    input, weight, *others = operands
    return input.data, None if weight is None else weight.data, *others


def _begin(ctx: Context, tensors: Sequence[Tensor | None], saved: Sequence[Tensor | None]) -> None:
    """Keep what the backward wants: saved are mean, inverse deviation, the convolution's output, and what passed."""
    ctx.save_for_backward(*tensors[:5], *saved)
    ctx.set_materialize_grads(False)


def _needs(ctx: Context) -> tuple[bool, ...]:
    """Whether input, weight, bias, gamma, beta and residual need a gradient."""
    wanted = ctx.needs_input_grad
    return (*wanted[:5], wanted[7])


def _by_tensor(grads: Sequence[Tensor | None]) -> Gradients:
    """Gradients of all tensors among the arguments, from those of input, weight, bias, gamma, beta, residual."""
    *first, grad_residual = grads
    return (*first, None, None, grad_residual)


# --- for compilers ---
def _opaque_forward(*args: *ForwardArguments) -> tuple[Tensor, ...]:
    """y, mean, inverse deviation, and what the backward wants: bytes, an empty y for y itself, empty bytes for None."""
    input, weight, bias, gamma, beta, running_mean, running_var, residual = args[:_NUM_TENSORS]
    norm = NormState(gamma, beta, running_mean, running_var)
    how = (NormOptions(*args[8:11]), geometry_of(*args[11:15]), args[15])
    results: Results = call("conv_bn_relu", input, weight, bias, norm, residual, *how)
    y, mean, inverse_std, kept, passed = results
    if passed is None:
        passed = torch.empty(0, dtype=torch.uint8, device=y.device)
    elif passed is y:
        passed = torch.empty(0, dtype=y.dtype, device=y.device)
    if mean is running_mean:  # an op's result is no argument
        mean = torch.clone(mean)
    kept, passed = (
        laid_out(each, empty_images(each.shape, each)) if each.ndim == 4 else each for each in (kept, passed)
    )
    return laid_out(y, empty_images(y.shape, y)), mean, inverse_std, kept, passed


def _backward(grad: Tensor, *args: *BackwardArguments, addend: Tensor | None = None) -> list[Tensor]:
    """Gradients of input, weight, bias, gamma, beta, residual; an empty tensor where none is wanted."""
    passed, needs = args[8], args[15]
    whole = SavedConvNorm(*args[:8], passed if passed.numel() else None)
    how = (args[9], geometry_of(*args[10:14]), args[14], tuple(needs), False, addend)
    grads: Gradients = call("conv_bn_relu_backward", grad, whole, *how)
    nothing = grad.new_empty(0)
    return [nothing if x is None else x for x in grads]


def opaque_backward(grad: Tensor, *args: *BackwardArguments, addend: Tensor | None = None) -> list[Tensor]:
    """_backward() in the layouts that shapes_backward() promises."""
    originals = (*args[:5], grad)
    grads = _backward(grad, *args, addend=addend)
    grads = [
        x if like is None or x.numel() == 0 else laid_out(x, like) for x, like in zip(grads, originals, strict=True)
    ]
    return [x.clone() if x is grad else x for x in grads]  # an op's result is no argument


def _shapes_forward(*args: *ForwardArguments) -> tuple[Tensor, ...]:
    """The results of _opaque_forward without values."""
    input, weight, residual, activation = args[0], args[1], args[7], args[-1]
    training, (stride, padding, dilation, groups) = args[8], args[11:15]
    y = empty_output(input, weight, stride, padding, dilation)
    num_outputs = weight.shape[0]
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    statistics = [input.new_empty(num_outputs, dtype=wide) for _ in range(2)]
    kept = torch.empty_like(y)
    passed = y.new_empty(0, dtype=torch.uint8)
    if not input.is_cuda and activation is not None:
        passed = (
            y.new_empty(0) if activations.result_suffices(activation, residual is not None) else torch.empty_like(y)
        )
    if input.is_cuda:
        from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1 as wide_conv_bn_relu

        shapes, geometry = (tuple(input.shape), tuple(weight.shape)), geometry_of(stride, padding, dilation, groups)
        has_state = training and wide_conv_bn_relu.supports(dtype_of(input), *shapes, geometry)
        if has_state:
            kept = input.new_empty(wide_conv_bn_relu.state_shape(weight.shape[1], num_outputs), dtype=torch.float32)
        writes = residual is not None
        if has_state:
            writes = wide_conv_bn_relu.writes_passed(num_outputs, activation, writes)
        if activation is not None and writes:
            rows = y.shape[0] * y.shape[2] * y.shape[3]
            is_relu = activation == "relu"
            passed = (
                input.new_empty((rows, -(-num_outputs // 8)), dtype=torch.uint8) if is_relu else torch.empty_like(y)
            )
    return y, *statistics, kept, passed


def shapes_backward(grad: Tensor, *args: *BackwardArguments) -> list[Tensor]:
    input, weight, bias, gamma, beta = args[:5]
    originals = (input, weight, bias, gamma, beta, grad)
    return [
        grad.new_empty(0) if x is None or not needed else torch.empty_like(x)
        for x, needed in zip(originals, args[-1], strict=True)
    ]


GEOMETRY = "int[2] stride, int[2] padding, int[2] dilation, int groups, str? activation"
define(
    "conv_bn_relu(Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor(a!)? running_mean, "
    f"Tensor(b!)? running_var, Tensor? residual, bool training, float momentum, float eps, {GEOMETRY}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _opaque_forward,
    _shapes_forward,
    _TracedConvBNReLU.apply,
)
define(
    "conv_bn_relu_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, "
    f"Tensor mean, Tensor inverse_std, Tensor kept, Tensor passed, bool training, {GEOMETRY}, bool[] needs) "
    "-> Tensor[]",
    opaque_backward,
    shapes_backward,
)
