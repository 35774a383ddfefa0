"""Activations that overwrite their input, by PyTorch's names with an underscore."""

from __future__ import annotations

from genesis.autograd import Tensor
from genesis.functional.activation import elu, hardtanh, leaky_relu, relu

__all__ = ["elu_", "hardtanh_", "leaky_relu_", "relu_"]


def relu_(input: Tensor) -> Tensor:
    """relu in place.

    Args:
        input: any shape and dtype of numbers. It is changed.
    Returns: input.
    Grad: input. Saves the result.
    Example: >>> x = genesis.tensor([-2.0, 3.0])
    >>> F.relu_(x) is x, x.tolist()
    (True, [0.0, 3.0])
    """
    return relu(input, inplace=True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """leaky_relu in place.

    Args:
        input: any shape and floating dtype. It is changed.
        negative_slope: the slope below 0.
    Returns: input.
    Grad: input. Saves the result.
    Example: >>> F.leaky_relu_(genesis.tensor([-2.0, 3.0]), 0.5).tolist()
    [-1.0, 3.0]
    """
    return leaky_relu(input, negative_slope, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """elu in place.

    Args:
        input: any shape and floating dtype. It is changed.
        alpha: the negative limit, −alpha, as x → −∞.
    Returns: input.
    Grad: input. Saves the result.
    Example: >>> F.elu_(genesis.tensor([-genesis.inf, 3.0])).tolist()
    [-1.0, 3.0]
    """
    return elu(input, alpha, inplace=True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """hardtanh in place.

    Args:
        input: any shape, numbers. It is changed.
        min_val, max_val: the bounds.
    Returns: input.
    Raises: ValueError: min_val > max_val.
    Grad: input. Saves the former input.
    Example: >>> F.hardtanh_(genesis.tensor([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return hardtanh(input, min_val, max_val, inplace=True)
