"""How channels flow through each op: a table of rules. An op without one fixes what it takes, with that reason.

A rule is called after the op with the recorder, the op's positional arguments, its keyword arguments and its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from genesis.functional import (
    activation,
    attention,
    conv,
    conversion,
    dense,
    extremes,
    fused,
    indexing,
    interpolation,
    joining,
    linalg,
    normalization,
    padding,
    pooling,
    reduction,
    shape,
    tables,
)
from genesis.growth import rules_layers as layers
from genesis.growth import rules_shapes as shapes

if TYPE_CHECKING:
    from genesis.growth.recorder import Recorder

Rule = Callable[["Recorder", Sequence[Any], dict[str, Any], list[Any]], None]

RULES: dict[Any, Rule] = {
    conv.Conv2d: layers.convolution,
    conv.ConvTranspose2d: layers.transposed_convolution,
    dense.Linear: layers.linear,
    linalg.Matmul: layers.matmul,
    tables.Embedding: layers.embedding,
    normalization.BatchNorm: layers.batch_norm,
    normalization.GroupNorm: layers.group_norm,
    normalization.LayerNorm: layers.layer_norm,
    normalization.RMSNorm: layers.layer_norm,
    fused.ConvBNReLU: layers.conv_bn_relu,
    joining.Cat: shapes.cat,
    joining.Split: shapes.split,
    joining.Narrow: shapes.narrow,
    indexing.GetItem: shapes.getitem,
    shape.Reshape: shapes.reshape,
    shape.Permute: shapes.permute,
    shape.Unsqueeze: shapes.unsqueeze,
    shape.Expand: shapes.elementwise,
    interpolation.PixelShuffle: shapes.pixel_shuffle,
    interpolation.PixelUnshuffle: shapes.pixel_unshuffle,
}

_MANY: dict[Rule, tuple[Any, ...]] = {
    shapes.copied: (
        conversion.Cast, conversion.ToDevice, conversion.PinMemory, conversion.Clone, conversion.Contiguous,
    ),
    shapes.same_size: (
        pooling.MaxPool2d, pooling.AvgPool2d, pooling.AdaptiveAvgPool2d,
        pooling.AdaptiveMaxPool2d, interpolation.Interpolate, interpolation.InterpolateVolumeArea, padding.Pad,
    ),
    shapes.reduced: (
        reduction.Sum, reduction.Mean, reduction.Prod, extremes.Extreme, extremes.ExtremeOfAll,
        extremes.ExtremeOfDim, extremes.ArgExtreme, reduction.Var, reduction.Std, extremes.Truth,
        reduction.LogSumExp, reduction.Norm,
    ),
    shapes.mixed: (activation.Softmax, activation.LogSoftmax, reduction.CumSum),
}  # fmt: skip
for _rule, _functions in _MANY.items():
    RULES |= dict.fromkeys(_functions, _rule)

_REFUSED = {
    attention.Attention: "attention mixes all channels of a head with each other",
    fused.ConvPrepacked: "the layer's weight is folded together for inference; grow the network in training mode",
}


def follow(recorder: Recorder, function: Any, args: tuple[Any, ...], options: dict[str, Any], outputs: Any) -> None:
    """Apply the rule of this op, or fix what it takes. What is element-wise needs no line of its own."""
    rule = RULES.get(function, shapes.elementwise if function.elementwise else None)
    if rule is not None:
        rule(recorder, args, options, outputs)
        return
    reason = _REFUSED.get(function, f"the channel map has no rule for the op {function.__name__}")
    for arg in args:
        recorder.fix(arg, reason)


def register_rule(function: Any, rule: Rule) -> None:
    """Teach the channel map an op: a Function of yours, and what it does with channels.

    Rules to choose from: `growth.elementwise` (any number of operands, broadcast; a Function whose class attribute
    `elementwise` is true has it already) and `growth.same_size` (dimensions that keep their size keep their channels:
    pooling, filters).

    Example:
        >>> from genesis import growth
        >>> class Cube(genesis.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * x * x
        >>> growth.register_rule(Cube, growth.elementwise)
    """
    RULES[function] = rule
