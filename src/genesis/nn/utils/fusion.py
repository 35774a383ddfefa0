"""A batch norm folded into the layer before it, for evaluation."""

from __future__ import annotations

import copy
from typing import TypeVar

from genesis import functional as F
from genesis.creation_like import ones_like, zeros_like
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import _BatchNorm
from genesis.nn.modules.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from genesis.nn.modules.linear import Linear
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

ConvT = TypeVar("ConvT", Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d)


def fuse_conv_bn_eval(conv: ConvT, bn: _BatchNorm, transpose: bool = False) -> ConvT:
    """A copy of a convolution that also does what the batch norm after it does in evaluation.

    Args:
        conv: in eval mode.
        bn: in eval mode, with running statistics.
        transpose: whether conv is a transposed convolution.
    Returns: a convolution with a bias.
    Raises: ValueError: one of them is in training mode.

    Example:
        >>> conv, norm = nn.Conv2d(1, 2, 1).eval(), nn.BatchNorm2d(2).eval()
        >>> fused, x = nn.utils.fuse_conv_bn_eval(conv, norm), genesis.ones(1, 1, 2, 2)
        >>> bool((fused(x) - norm(conv(x))).abs().max() < 1e-6)
        True
    """
    fused, statistics = _copied("fuse_conv_bn_eval", conv, bn)
    assert fused.weight is not None
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, *statistics, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a convolution that also does what a batch norm does in evaluation.

    Args:
        conv_w: (K, C, …), or (C, K, …) of a transposed convolution.
        conv_b, bn_rm, bn_rv, bn_w, bn_b: (K,): its bias, mean, variance, weight and bias of the norm; None: left out.
        bn_eps: added to the variance.
        transpose: whether it is a transposed convolution.
    Returns: the weight in the shape of conv_w, and a bias (K,).

    Example:
        >>> weight, one = genesis.ones(1, 1, 1, 1), genesis.ones(1)
        >>> [x.tolist() for x in nn.utils.fuse_conv_bn_weights(weight, None, one, one, 0.0, one * 3, one)]
        [[[[[3.0]]]], [-2.0]]
    """
    scale, bias = _folded(conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    weight = (conv_w.detach() * F.reshape(scale, shape)).to(conv_w.dtype)
    return (
        Parameter(weight, conv_w.requires_grad),
        Parameter(bias.to(conv_w.dtype), conv_w.requires_grad if conv_b is None else conv_b.requires_grad),
    )


def fuse_linear_bn_eval(linear: Linear, bn: _BatchNorm) -> Linear:
    """A copy of a linear layer that also does what the batch norm after it does in evaluation.

    Args:
        linear: in eval mode.
        bn: in eval mode, of as many features, or of one.
    Returns: a linear layer with a bias.
    Raises: ValueError: one of them is in training mode, or their features differ.

    Example:
        >>> linear, norm = nn.Linear(3, 2).eval(), nn.BatchNorm1d(2).eval()
        >>> fused, x = nn.utils.fuse_linear_bn_eval(linear, norm), genesis.ones(4, 3)
        >>> bool((fused(x) - norm(linear(x))).abs().max() < 1e-6)
        True
    """
    fused, statistics = _copied("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (linear.out_features, 1):
        expected = f"{linear.out_features} features, as linear has, or 1"
        raise ValueError(describe("fuse_linear_bn_eval", "bn", expected, bn.num_features))
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, *statistics, bn.eps, bn.weight, bn.bias)
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a linear layer that also does what a batch norm does in evaluation.

    Args:
        linear_w: (K, C).
        linear_b, bn_rm, bn_rv, bn_w, bn_b: (K,): its bias, mean, variance, weight and bias of the norm; None: left out.
        bn_eps: added to the variance.
    Returns: the weight, (K, C), and a bias, (K,).

    Example:
        >>> one = genesis.ones(1)
        >>> [x.tolist() for x in nn.utils.fuse_linear_bn_weights(genesis.ones(1, 1), one, one, one, 0.0, one * 3, one)]
        [[[3.0]], [1.0]]
    """
    scale, bias = _folded(linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    weight = (linear_w.detach() * F.reshape(scale, (-1, 1))).to(linear_w.dtype)
    return (
        Parameter(weight, linear_w.requires_grad),
        Parameter(bias.to(linear_w.dtype), linear_w.requires_grad if linear_b is None else linear_b.requires_grad),
    )


M = TypeVar("M", bound=Module)


def _copied(op: str, layer: M, bn: _BatchNorm) -> tuple[M, tuple[Tensor, Tensor]]:
    for argument, module in (("layer", layer), ("bn", bn)):
        if module.training:
            raise ValueError(describe(op, argument, "a module in eval mode", "one in training mode"))
    if bn.running_mean is None or bn.running_var is None:
        raise ValueError(describe(op, "bn", "running statistics", "none"))
    return copy.deepcopy(layer), (bn.running_mean, bn.running_var)


def _folded(
    bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The factor of each output, and the bias after the norm."""
    weight = ones_like(mean) if weight is None else weight.detach()
    shift = zeros_like(mean) if shift is None else shift.detach()
    bias = zeros_like(mean) if bias is None else bias.detach()
    scale = weight * F.rsqrt(variance + eps)
    return scale, (bias - mean) * scale + shift
