"""How channels flow through each op: a table of rules. An op without a rule keeps its operands from growing.

A rule is called with the layouts so far and a recorded call, whose results it gives theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.autograd import Function
from genesis.backends.backend import Op
from genesis.functional import (
    activation,
    antialias,
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
from genesis.growth.layouts import Layouts
from genesis.recording import Call

Rule = Callable[[Layouts, Call], None]

RULES: dict[Op, Rule] = {
    conv.Conv2d: layers.convolution,
    conv.ConvTranspose2d: layers.transposed_convolution,
    dense.Linear: layers.linear,
    linalg.Matmul: layers.matmul,
    tables.Embedding: layers.embedding,
    normalization.BatchNorm: layers.batch_norm,
    normalization.GroupNorm: layers.group_norm,
    normalization.GroupNormAct: layers.group_norm,
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

_MANY: dict[Rule, tuple[Op, ...]] = {
    shapes.copied: (
        conversion.Cast, conversion.ToDevice, conversion.PinMemory, conversion.Clone, conversion.Contiguous,
    ),
    shapes.same_size: (
        pooling.MaxPool2d, pooling.AvgPool2d, pooling.AdaptiveAvgPool2d,
        pooling.AdaptiveMaxPool2d, interpolation.Interpolate, interpolation.InterpolateVolumeArea, padding.Pad,
        antialias.Antialiased,
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

_REFUSED: dict[Op, str] = {
    attention.Attention: "attention mixes all channels of a head with each other",
    fused.ConvPrepacked: "the layer's weight is folded together for inference; grow the network in training mode",
}


def apply_rule(layouts: Layouts, call: Call) -> None:
    """Apply the rule of a call's op; without one, keep its operands from growing. Element-wise Functions need none."""
    rule = RULES.get(call.function, shapes.elementwise if getattr(call.function, "elementwise", False) else None)
    if rule is not None:
        rule(layouts, call)
        return
    reason = _REFUSED.get(call.function, f"the channel map has no rule for the op {call.op}")
    for arg in call.args:
        layouts.fix(arg, reason)


def register_rule(function: type[Function], rule: Rule) -> None:
    """Teach the channel map what a Function of yours does with channels.

    Rules to choose from: `growth.elementwise` (any number of operands, broadcast; a Function whose class attribute
    `elementwise` is true has it already) and `growth.same_size` (dimensions that keep their size keep their channels:
    pooling, filters).

    Args:
        function: the Function.
        rule: rule(layouts, call) gives the results of a recorded call their layouts.

    Example:
        >>> from genesis import growth
        >>> class Cube(genesis.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * x * x
        >>> growth.register_rule(Cube, growth.elementwise)
        >>> class Cubed(nn.Linear):
        ...     def forward(self, input):
        ...         return Cube.apply(super().forward(input))
        >>> net = nn.Sequential(Cubed(2, 4), nn.Linear(4, 1))
        >>> growth.grow_width(net, "0", channels=6, example=genesis.ones(1, 2))
        step 0: grow_width 0 to 6 (17 → 25 parameters)
    """
    RULES[function] = rule
