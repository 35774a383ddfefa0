"""What layers do with channels: which of a parameter's dimensions make them, which take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genesis.growth import axes
from genesis.growth.axes import Axis
from genesis.growth.rules_shapes import elementwise

if TYPE_CHECKING:
    from genesis.growth.recorder import Recorder


def convolution(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    x, weight, bias = args[:3]
    groups, spatial = options["geometry"][-1], weight.array.ndim - 2
    _count(recorder, outputs[0], weight, 0)
    out = _layer(recorder, x, weight, bias, groups, spatial, made=0, taken=1)
    _give(recorder, x, outputs[0], -1 - spatial, out)


def transposed_convolution(
    recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]
) -> None:
    x, weight, bias = args[:3]
    groups, spatial = options["geometry"][-1], weight.array.ndim - 2
    _count(recorder, x, weight, 0)
    out = _layer(recorder, x, weight, bias, groups, spatial, made=1, taken=0)
    _give(recorder, x, outputs[0], -1 - spatial, out)


def linear(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    x, weight, bias = args
    _count(recorder, outputs[0], weight, 0)
    out = _layer(recorder, x, weight, bias, 1, 0, made=0, taken=1)
    _give(recorder, x, outputs[0], -1, out)


def matmul(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    """x @ a parameter is a linear layer; two activations are attention's, or nobody's."""
    x, weight = args
    if recorder.owner(weight.array) is None or weight.array.ndim != 2 or recorder.owner(x.array) is not None:
        for arg in args:
            recorder.fix(arg, "a matrix product of two activations (attention) is not followed")
        return
    _count(recorder, outputs[0], weight, 1)
    _give(recorder, x, outputs[0], -1, _layer(recorder, x, weight, None, 1, 0, made=1, taken=0))


def _layer(
    recorder: Recorder, x: Any, weight: Any, bias: Any, groups: int, spatial: int, made: int, taken: int
) -> Axis | None:
    """The channels that a layer makes: dimension `made` of its weight; it takes those of dimension `taken`."""
    given = recorder.layout(x)[-1 - spatial]
    if recorder.owner(weight.array) is None:
        reason = "the layer's weight is computed from something, not a parameter itself"
        for value in (weight, bias):
            recorder.fix(value, reason)
        axes.fix(given, reason)
        return None
    known = recorder.layout(weight)[made]
    size = weight.array.shape[made]
    out: Axis | None
    if groups == 1:
        if given is not None:
            recorder.use(weight, taken, given, splits=True)
        out = axes.new_axis(size) if known is None else known
        recorder.use(weight, made, out, fresh="normal")
    else:
        in_block = x.array.shape[-1 - spatial] // groups
        out_block = size if made == 1 else size // groups
        straddle = "the blocks of a grouped convolution straddle a concatenation"
        if given is None:
            given = axes.new_axis(in_block * groups)
            axes.fix(given, "a grouped convolution takes channels that are fixed")
        out = axes.regroup(given, in_block, out_block, straddle)
        if out is None:
            recorder.fix(weight, straddle)
            recorder.fix(bias, straddle)
            return None
        # Channels that are taken and made come and go together, block by block; so weight has one axis, the first.
        first = out if made == 0 else axes.regroup(given, in_block, in_block, straddle)
        assert first is not None
        recorder.use(weight, 0, first, fresh="normal")
    recorder.use(bias, 0, out, fresh="zero")
    return out


def _give(recorder: Recorder, x: Any, output: Any, dim: int, made: Axis | None) -> None:
    """The layout of a layer's output: made at dim; what x has elsewhere must not be channels."""
    layout: list[Axis | None] = [None] * output.array.ndim
    for place, axis in enumerate(recorder.layout(x)):
        if place - x.array.ndim != dim:
            if dim == -1:
                layout[place] = axis  # a linear layer leaves the other dimensions alone
            else:
                axes.fix(axis, "it is convolved along")
    layout[dim] = made
    recorder.set_layout(output, tuple(layout))


def _count(recorder: Recorder, places: Any, weight: Any, dim: int) -> None:
    """Each element of places is multiplied with the weights of one index of dimension dim."""
    recorder.macs += places.array.numel * weight.array.numel // max(1, weight.array.shape[dim])


def embedding(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    index, weight = args
    known = recorder.layout(weight)[1]
    axis = axes.new_axis(weight.array.shape[1]) if known is None else known
    recorder.use(weight, 1, axis, fresh="normal")
    recorder.set_layout(outputs[0], (*((None,) * index.array.ndim), axis))


# --- norms ------------------------------------------------------------------------------------------------------------


def batch_norm(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    x, weight, bias = args
    layout = recorder.layout(x)
    _use_norm(recorder, layout[1], weight, bias, options["running"])
    recorder.set_layout(outputs[0], layout)


def conv_bn_relu(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    x, weight, bias, gamma, beta, residual = args[:6]
    convolution(recorder, (x, weight, bias), options, outputs)
    _use_norm(recorder, recorder.layout(outputs[0])[1], gamma, beta, options["running"])
    if residual is not None:
        elementwise(recorder, (outputs[0], residual), {}, outputs)


def group_norm(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    """Channels that are normalised together come and go together."""
    x, weight, bias = args
    layout = recorder.layout(x)
    axis = layout[1]
    if axis is not None:
        block = x.array.shape[1] // options["num_groups"]
        axis = axes.regroup(axis, block, block, "the groups of a group norm straddle a concatenation") or axis
    _use_norm(recorder, axis, weight, bias, options.get("running", (None, None)))
    recorder.set_layout(outputs[0], layout)


def _use_norm(recorder: Recorder, axis: Axis | None, weight: Any, bias: Any, running: Sequence[Any]) -> None:
    if axis is not None:
        mean, var = running
        for value, fresh in ((weight, "mean"), (bias, "zero"), (mean, "zero"), (var, "mean")):
            recorder.use(value, 0, axis, fresh=fresh)


def layer_norm(recorder: Recorder, args: Sequence[Any], options: dict[str, Any], outputs: list[Any]) -> None:
    """Mean and variance over the channels stay what they are if every channel is there equally often."""
    x, *affine = args
    layout = recorder.layout(x)
    normalized = options["normalized_ndim"]
    for dim in range(-normalized, 0):
        axis = layout[dim]
        if axis is None:
            continue
        if len(axis) > 1:
            axes.fix(axis, "a layer norm goes over a concatenation")
        for group in axes.groups_of(axis):
            group.uniform[:] = ["a layer norm goes over it"]
        for value, fresh in zip(affine, ("mean", "zero"), strict=False):
            recorder.use(value, normalized + dim, axis, fresh=fresh)
    recorder.set_layout(outputs[0], layout)
