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
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale gradients in place so that their total norm, over all of them as one vector, is at most max_norm.

        g ← g · min(1, max_norm / (norm + 1e-6))

    Args:
        parameters: one tensor or several, of any shapes, dtypes and devices; those without a gradient are skipped.
        max_norm: upper bound of the norm.
        norm_type: order of the norm; may be infinity.
        error_if_nonfinite: raise if the norm is infinite or NaN, and change nothing.
        foreach: PyTorch's; results are the same.
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
    op = "clip_grad_norm_"
    groups = _gradients(op, parameters)
    total = _total_norm(op, groups, float(norm_type), error_if_nonfinite)
    _scale(groups, float(max_norm), total)
    return Tensor(total)


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """PyTorch's deprecated name of `genesis.nn.utils.clip_grad_norm_`. See `genesis.nn.utils.clip_grad_norm_`."""
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of tensors as one vector.

    Args:
        tensors: one or several, of any shapes, floating dtypes and devices.
        norm_type: order of the norm; may be infinity.
        error_if_nonfinite: raise if the norm is infinite or NaN.
        foreach: PyTorch's; results are the same.
    Returns: the norm, 0-d, in the widest of the dtypes.
    Raises: RuntimeError: the norm is not finite and error_if_nonfinite is set; DTypeError: one is not a Tensor.

    Example:
        >>> genesis.nn.utils.get_total_norm([genesis.tensor([3.0]), genesis.tensor([[4.0]])]).item()
        5.0
    """
    op = "get_total_norm"
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    groups = _grouped([_checked(op, "tensors", index, tensor).array for index, tensor in enumerate(listed)])
    return Tensor(_total_norm(op, groups, float(norm_type), error_if_nonfinite))


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale gradients in place by min(1, max_norm / (total_norm + 1e-6)).

    Args:
        parameters: one tensor or several, of any shapes, dtypes and devices; those without a gradient are skipped.
        max_norm: upper bound of the norm.
        total_norm: 0-d, as get_total_norm gives it.
        foreach: PyTorch's; results are the same.
    Raises: DTypeError: a parameter is not a Tensor.

    Example:
        >>> p = genesis.zeros(2, requires_grad=True)
        >>> p.grad = genesis.tensor([3.0, 4.0])
        >>> genesis.nn.utils.clip_grads_with_norm_(p, 1.0, genesis.tensor(10.0))
        >>> [round(value, 4) for value in p.grad.tolist()]
        [0.3, 0.4]
    """
    _scale(_gradients("clip_grads_with_norm_", parameters), float(max_norm), total_norm.array)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clip the elements of gradients in place to [−clip_value, clip_value].

    Args:
        parameters: one tensor or several, of any shapes and dtypes; those without a gradient are skipped.
        clip_value: upper bound of the absolute value.
        foreach: PyTorch's; results are the same.
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


def _checked(op: str, argument: str, index: int, tensor: object) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise DTypeError(describe(op, f"{argument}[{index}]", "a Tensor", type(tensor).__name__))
    return tensor


def _gradients(op: str, parameters: Tensor | Iterable[Tensor]) -> list[list[NDArray]]:
    """The gradients that have elements, in lists of one dtype and device each."""
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    checked = [_checked(op, "parameters", index, parameter) for index, parameter in enumerate(listed)]
    return _grouped([parameter.grad.array for parameter in checked if parameter.grad is not None])


def _grouped(arrays: Iterable[NDArray]) -> list[list[NDArray]]:
    groups: dict[tuple[DType, Device], list[NDArray]] = {}
    for array in arrays:
        if array.numel:
            groups.setdefault((array.dtype, array.device), []).append(array)
    return list(groups.values())


def _scale(groups: list[list[NDArray]], max_norm: float, total: NDArray) -> None:
    if groups:
        factor = ops.div(max_norm, total.add(1e-6)).clamp(None, 1.0)
        for grads in groups:
            ops.scale_into(grads, factor.to_device(grads[0].device))


def _total_norm(op: str, groups: list[list[NDArray]], norm_type: float, error_if_nonfinite: bool) -> NDArray:
    """The norm of all arrays together, 0-d, in the widest of their dtypes: the norm of their norms."""
    if not groups:
        return NDArray.full((), 0, dtypes.get_default_dtype(), CPU)
    norms = [ops.norms(arrays, norm_type) for arrays in groups]
    widest = functools.reduce(dtypes.promote, [norm.dtype for norm in norms])
    joined = ops.cat([norm.to(widest).to_device(norms[0].device) for norm in norms], 0)
    total = ops.norms([joined], norm_type).reshape(())
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"{op}: the norm of order {norm_type:g} of the gradients is {total.item()}, so they cannot be "
            "clipped; error_if_nonfinite=False scales them anyway"
        )
    return total
