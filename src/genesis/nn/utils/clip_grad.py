"""Gradient clipping."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from genesis import dtypes
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.ndarray import CPU, Device, NDArray, ops
from genesis.tensor import Tensor


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale gradients in place so that their total norm, over all of them as one vector, is at most max_norm.

        g ← g · min(1, max_norm / (norm + 1e-6))

    Args:
        parameters: one tensor or several, of any shapes, dtypes and devices; those without a gradient are skipped.
        max_norm: upper bound of the norm.
        norm_type: order of the norm; may be infinity.
        error_if_nonfinite: raise if the norm is infinite or NaN, and change nothing.
    Returns: the norm before clipping, 0-d, in the widest of the gradients' dtypes.
    Raises: RuntimeError: the norm is not finite and error_if_nonfinite is set; DTypeError: a parameter is not a Tensor.

    Example:
        >>> p = genesis.zeros(2, requires_grad=True)
        >>> p.grad = genesis.tensor([3.0, 4.0])
        >>> genesis.nn.utils.clip_grad_norm_([p], 1.0).item()
        5.0
        >>> [round(value, 4) for value in p.grad.tolist()]
        [0.6, 0.8]
    """
    norm_type, max_norm = float(norm_type), float(max_norm)
    groups = _gradients("clip_grad_norm_", parameters)
    if not groups:
        return Tensor(NDArray.full((), 0, dtypes.get_default_dtype(), CPU))
    total = _total_norm(groups, norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of order {norm_type:g} of the gradients is {total.item()}, so they cannot be "
            "clipped; error_if_nonfinite=False scales them anyway"
        )
    factor = ops.div(max_norm, total.add(1e-6)).clamp(None, 1.0)
    for grads in groups:
        ops.scale_into(grads, factor.to_device(grads[0].device))
    return Tensor(total)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clip the elements of gradients in place to [−clip_value, clip_value].

    Args:
        parameters: one tensor or several, of any shapes and dtypes; those without a gradient are skipped.
        clip_value: upper bound of the absolute value.
    Raises: DTypeError: a parameter is not a Tensor.

    Example:
        >>> p = genesis.zeros(2, requires_grad=True)
        >>> p.grad = genesis.tensor([3.0, -0.5])
        >>> genesis.nn.utils.clip_grad_value_(p, 1.0)
        >>> p.grad.tolist()
        [1.0, -0.5]
    """
    clip_value = float(clip_value)
    for grads in _gradients("clip_grad_value_", parameters):
        for grad in grads:
            grad.copy_into(grad.clamp(-clip_value, clip_value))


def _gradients(op: str, parameters: Tensor | Iterable[Tensor]) -> list[list[NDArray]]:
    """The gradients that have elements, in lists of one dtype and device each."""
    groups: dict[tuple[DType, Device], list[NDArray]] = {}
    for index, parameter in enumerate([parameters] if isinstance(parameters, Tensor) else parameters):
        if not isinstance(parameter, Tensor):
            raise DTypeError(describe(op, f"parameters[{index}]", "a Tensor", type(parameter).__name__))
        if parameter.grad is not None and parameter.grad.numel():
            grad = parameter.grad.array
            groups.setdefault((grad.dtype, grad.device), []).append(grad)
    return list(groups.values())


def _total_norm(groups: list[list[NDArray]], norm_type: float) -> NDArray:
    """The norm of all arrays together, 0-d, in the widest of their dtypes: the norm of their norms."""
    norms = [ops.norms(arrays, norm_type) for arrays in groups]
    widest = functools.reduce(dtypes.promote, [norm.dtype for norm in norms])
    joined = ops.cat([norm.to(widest).to_device(norms[0].device) for norm in norms], 0)
    return ops.norms([joined], norm_type).reshape(())
