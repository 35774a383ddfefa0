"""Rules of layers: which of a parameter's dimensions make channels, which consume them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from genesis.growth import axes
from genesis.growth.axes import Axis
from genesis.growth.layouts import Layouts
from genesis.growth.rules_shapes import elementwise
from genesis.recording import Call, Value


def convolution(layouts: Layouts, call: Call) -> None:
    x, weight, bias = call.args[:3]
    groups, spatial = call.kwargs["geometry"][-1], weight.ndim - 2
    _count(layouts, call.outputs[0], weight, 0)
    out = _layer(layouts, x, weight, bias, groups, spatial, made=0, taken=1)
    _give(layouts, x, call.outputs[0], -1 - spatial, out)


def transposed_convolution(layouts: Layouts, call: Call) -> None:
    x, weight, bias = call.args[:3]
    groups, spatial = call.kwargs["geometry"][-1], weight.ndim - 2
    _count(layouts, x, weight, 0)
    out = _layer(layouts, x, weight, bias, groups, spatial, made=1, taken=0)
    _give(layouts, x, call.outputs[0], -1 - spatial, out)


def linear(layouts: Layouts, call: Call) -> None:
    x, weight, bias = call.args
    _count(layouts, call.outputs[0], weight, 0)
    out = _layer(layouts, x, weight, bias, 1, 0, made=0, taken=1)
    _give(layouts, x, call.outputs[0], -1, out)


def matmul(layouts: Layouts, call: Call) -> None:
    """x @ a parameter is a linear layer; two activations are attention's, or nobody's."""
    x, weight = call.args
    if layouts.owner(weight) is None or weight.ndim != 2 or layouts.owner(x) is not None:
        for arg in call.args:
            layouts.fix(arg, "a matrix product of two activations (attention) is not followed")
        return
    _count(layouts, call.outputs[0], weight, 1)
    _give(layouts, x, call.outputs[0], -1, _layer(layouts, x, weight, None, 1, 0, made=1, taken=0))


def _layer(
    layouts: Layouts, x: Value, weight: Value, bias: Value | None, groups: int, spatial: int, made: int, taken: int
) -> Axis | None:
    """The channels that a layer makes: dimension `made` of its weight; it takes those of dimension `taken`."""
    given = layouts.of(x)[-1 - spatial]
    if layouts.owner(weight) is None:
        reason = "the layer's weight is computed from something, not a parameter itself"
        for value in (weight, bias):
            layouts.fix(value, reason)
        axes.fix(given, reason)
        return None
    known = layouts.of(weight)[made]
    size = weight.shape[made]
    out: Axis | None
    if groups == 1:
        if given is not None:
            layouts.use(weight, taken, given, splits=True)
        out = axes.new_axis(size) if known is None else known
        layouts.use(weight, made, out, fresh="normal")
    else:
        in_block = x.shape[-1 - spatial] // groups
        out_block = size if made == 1 else size // groups
        straddle = "the blocks of a grouped convolution straddle a concatenation"
        if given is None:
            given = axes.new_axis(in_block * groups)
            axes.fix(given, "a grouped convolution takes channels that are fixed")
        out = axes.regroup(given, in_block, out_block, straddle)
        if out is None:
            layouts.fix(weight, straddle)
            layouts.fix(bias, straddle)
            return None
        # Channels that are taken and made come and go together, block by block; so weight has one axis, the first.
        first = out if made == 0 else axes.regroup(given, in_block, in_block, straddle)
        assert first is not None
        layouts.use(weight, 0, first, fresh="normal")
    layouts.use(bias, 0, out, fresh="zero")
    return out


def _give(layouts: Layouts, x: Value, output: Value, dim: int, made: Axis | None) -> None:
    """The layout of a layer's output: made at dim; what x has elsewhere must not be channels."""
    layout: list[Axis | None] = [None] * output.ndim
    for place, axis in enumerate(layouts.of(x)):
        if place - x.ndim != dim:
            if dim == -1:
                layout[place] = axis  # a linear layer leaves the other dimensions alone
            else:
                axes.fix(axis, "it is convolved along")
    layout[dim] = made
    layouts.set(output, tuple(layout))


def _count(layouts: Layouts, places: Value, weight: Value, dim: int) -> None:
    """Each element of places is multiplied with the weights of one index of dimension dim."""
    layouts.macs += places.numel * weight.numel // max(1, weight.shape[dim])


def embedding(layouts: Layouts, call: Call) -> None:
    index, weight = call.args
    known = layouts.of(weight)[1]
    axis = axes.new_axis(weight.shape[1]) if known is None else known
    layouts.use(weight, 1, axis, fresh="normal")
    layouts.set(call.outputs[0], (*((None,) * index.ndim), axis))


# --- norms ------------------------------------------------------------------------------------------------------------


def batch_norm(layouts: Layouts, call: Call) -> None:
    x, weight, bias = call.args
    layout = layouts.of(x)
    _use_norm(layouts, layout[1], weight, bias, call.kwargs["running"])
    layouts.set(call.outputs[0], layout)


def conv_bn_relu(layouts: Layouts, call: Call) -> None:
    gamma, beta, residual = call.args[3:6]
    convolution(layouts, call)
    _use_norm(layouts, layouts.of(call.outputs[0])[1], gamma, beta, call.kwargs["running"])
    if residual is not None:
        elementwise(layouts, dataclasses.replace(call, args=(call.outputs[0], residual)))


def group_norm(layouts: Layouts, call: Call) -> None:
    """Channels that are normalised together come and go together."""
    x, weight, bias = call.args
    layout = layouts.of(x)
    axis = layout[1]
    if axis is not None:
        block = x.shape[1] // call.kwargs["num_groups"]
        axis = axes.regroup(axis, block, block, "the groups of a group norm straddle a concatenation") or axis
    _use_norm(layouts, axis, weight, bias, call.kwargs.get("running", (None, None)))
    layouts.set(call.outputs[0], layout)


def _use_norm(
    layouts: Layouts, axis: Axis | None, weight: Value | None, bias: Value | None, running: Sequence[Value | None]
) -> None:
    if axis is not None:
        mean, var = running
        for value, fresh in ((weight, "mean"), (bias, "zero"), (mean, "zero"), (var, "mean")):
            layouts.use(value, 0, axis, fresh=fresh)


def layer_norm(layouts: Layouts, call: Call) -> None:
    """Mean and variance over the channels stay what they are if every channel is there equally often."""
    x, *affine = call.args
    layout = layouts.of(x)
    normalized = call.kwargs["normalized_ndim"]
    for dim in range(-normalized, 0):
        axis = layout[dim]
        if axis is None:
            continue
        if len(axis) > 1:
            axes.fix(axis, "a layer norm goes over a concatenation")
        for group in axes.groups_of(axis):
            group.uniform[:] = ["a layer norm goes over it"]
        for value, fresh in zip(affine, ("mean", "zero"), strict=False):
            layouts.use(value, normalized + dim, axis, fresh=fresh)
    layouts.set(call.outputs[0], layout)
