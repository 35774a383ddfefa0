"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from genesis import functional as F
from genesis.errors import DTypeError, ShapeError, describe
from genesis.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Join parameters, flattened, into one vector; gradients flow through.

    Args:
        parameters: tensors of any shapes, on one device.
    Returns: (Σ elements,).

    Example:
        >>> nn.utils.parameters_to_vector([genesis.ones(2), genesis.zeros(1, 1)]).tolist()
        [1.0, 1.0, 0.0]
    """
    return F.cat([F.reshape(parameter, (-1,)) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of a vector into parameters, in their order.

    Args:
        vec: (N,), N the elements of all; its memory is shared with the parameters then.
        parameters: tensors of any shapes.
    Raises: DTypeError: vec is not a Tensor. ShapeError: it has too few elements; nothing has changed.

    Example:
        >>> weight = nn.Parameter(genesis.zeros(2, 1))
        >>> nn.utils.vector_to_parameters(genesis.tensor([1.0, 2.0]), [weight])
        >>> weight.tolist()
        [[1.0], [2.0]]
    """
    op = "vector_to_parameters"
    if not isinstance(vec, Tensor):
        raise DTypeError(describe(op, "vec", "a Tensor", type(vec).__name__))
    listed = list(parameters)
    if vec.ndim != 1 or vec.numel() < sum(parameter.numel() for parameter in listed):
        needed = sum(parameter.numel() for parameter in listed)
        raise ShapeError(describe(op, "vec", f"a vector of {needed} elements", f"shape {vec.shape}"))
    start, flat = 0, vec.detach()
    for parameter in listed:
        part = F.narrow(flat, 0, start, parameter.numel())
        parameter.data = F.reshape(part, parameter.shape)
        start += parameter.numel()
