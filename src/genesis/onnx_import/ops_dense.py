"""Convolutions, matrix products and norms."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import functional as F
from genesis.onnx_import.registry import Node, computes
from genesis.tensor import Tensor

Sizes = tuple[int, ...]


def spatial_pads(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Sizes, Sizes]:
    """Padding before and after each spatial dimension, by pads or auto_pad."""
    spatial, auto = len(kernel), node.text("auto_pad", "NOTSET")
    pads = node.integers("pads", [0] * (2 * spatial))
    assert pads is not None
    if len(pads) != 2 * spatial:
        raise node.refuse(f"pads={pads} of {spatial} dimensions")
    if auto in ("NOTSET", "", "VALID"):
        return (pads[:spatial], pads[spatial:]) if auto != "VALID" else ((0,) * spatial, (0,) * spatial)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.refuse(f"auto_pad={auto!r}")
    strides, dilations = numbers(node, "strides", spatial), numbers(node, "dilations", spatial)
    less, more = list[int](), list[int]()
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (extent - 1) + 1 - size, 0)
        less.append(total // 2)
        more.append(total - total // 2)
    return (tuple(less), tuple(more)) if auto == "SAME_UPPER" else (tuple(more), tuple(less))


def numbers(node: Node, name: str, spatial: int) -> Sizes:
    """A number from 1 for each spatial dimension; 1 where the node says nothing."""
    found = node.integers(name, [1] * spatial)
    if found is None or len(found) != spatial or min(found) < 1:
        raise node.refuse(f"{name}={found}")
    return found


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    pads = [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]
    return F.pad(x, pads, value=value) if any(pads) else x


@computes("Conv")
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = weight.ndim - 2
    if spatial not in (1, 2):
        raise node.refuse(f"{spatial} spatial dimensions")
    strides, dilations = numbers(node, "strides", spatial), numbers(node, "dilations", spatial)
    before, after = spatial_pads(node, x.shape[2:], weight.shape[2:])
    if before != after:
        x, before = padded(x, before, after), (0,) * spatial
    function = F.conv1d if spatial == 1 else F.conv2d
    return function(x, weight, bias, strides, before, dilations, node.integer("group", 1))


@computes("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = weight.ndim - 2
    if spatial not in (1, 2):
        raise node.refuse(f"{spatial} spatial dimensions")
    if node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.integers("output_shape") is not None:
        raise node.refuse("auto_pad or output_shape")
    strides, dilations = numbers(node, "strides", spatial), numbers(node, "dilations", spatial)
    extra = node.integers("output_padding", [0] * spatial)
    before, after = spatial_pads(node, x.shape[2:], weight.shape[2:])
    assert extra is not None
    function = F.conv_transpose1d if spatial == 1 else F.conv_transpose2d
    groups = node.integer("group", 1)
    if before == after and all(more < max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)):
        return function(x, weight, bias, strides, before, extra, groups, dilations)
    y = function(x, weight, bias, strides, 0, 0, groups, dilations)  # all of it, and then what pads leave
    return padded(y, [-amount for amount in before], [more - cut for more, cut in zip(extra, after, strict=True)])


# --- matrix products --------------------------------------------------------------------------------------------------


@computes("MatMul")
def matmul(node: Node, x: Tensor, y: Tensor) -> Tensor:
    return F.matmul(x, y)


@computes("Gemm")
def gemm(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    alpha, beta = node.floating("alpha", 1.0), node.floating("beta", 1.0)
    x = x.t() if node.integer("transA", 0) else x
    weight = weight if node.integer("transB", 0) else weight.t()
    if alpha == 1 and beta == 1 and (bias is None or bias.ndim == 1) and weight.ndim == 2:
        return F.linear(x, weight, bias)
    y = F.matmul(x, weight.t())
    y = y if alpha == 1 else y * alpha
    return y if bias is None else y + (bias if beta == 1 else bias * beta)


@computes("Einsum")
def einsum(node: Node, *operands: Tensor) -> Tensor:
    return F.einsum(node.text("equation", ""), *operands)


# --- norms ------------------------------------------------------------------------------------------------------------


@computes("BatchNormalization")
def batch_norm(node: Node, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    eps = node.floating("epsilon", 1e-5)
    if node.integer("training_mode", 0):  # by the statistics of the batch, as a network's weights are standardized
        return F.batch_norm(x, None, None, scale, shift, True, 0.0, eps)
    return F.batch_norm(x, mean, var, scale, shift, False, 0.0, eps)


@computes("InstanceNormalization")
def instance_norm(node: Node, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.group_norm(x, x.shape[1], scale, shift, node.floating("epsilon", 1e-5))


@computes("GroupNormalization")
def group_norm(node: Node, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    groups, eps = node.integer("num_groups", 1), node.floating("epsilon", 1e-5)
    if node.opset < 21:  # a number for each group
        per_group = x.shape[1] // max(groups, 1)
        scale, shift = (each.reshape(-1, 1).expand(-1, per_group).reshape(-1) for each in (scale, shift))
    return F.group_norm(x, groups, scale, shift, eps)


@computes("LayerNormalization")
def layer_norm(node: Node, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    axis = node.integer("axis", -1) % max(x.ndim, 1)
    return F.layer_norm(x, x.shape[axis:], scale, shift, node.floating("epsilon", 1e-5))


@computes("RMSNormalization")
def rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axis = node.integer("axis", -1) % max(x.ndim, 1)
    return F.rms_norm(x, x.shape[axis:], scale, node.floating("epsilon", 1e-5))


@computes("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    return x / x.norm(node.integer("p", 2), node.integer("axis", -1), keepdim=True)
