"""Arrays beside a parameter: entries of an optimizer's state."""

from __future__ import annotations

from genesis import shapes
from genesis.ndarray import NDArray
from genesis.ndarray.capturing import lasting, outside


def as_real(array: NDArray) -> NDArray:
    """Complex parameters and gradients as pairs of real numbers: every rule is applied to the parts, as in PyTorch."""
    return array.pairs() if array.dtype.is_complex else array


def zeros_like(array: NDArray) -> NDArray:
    """Zeros in the shape, dtype and memory order of array."""
    return full_like(array, 0)


def full_like(array: NDArray, value: float) -> NDArray:
    """An entry of a state, full of value; not that of a CUDA graph, which would make it anew in each replay."""
    with outside(array.device):
        full = NDArray.empty(array.shape, array.dtype, array.device, array.strides)
        full.copy_into(value)
    return lasting(full)


def in_order_of(array: NDArray, other: NDArray) -> NDArray:
    """array, or a copy of it whose elements have the memory order of other's."""
    strides = other.strides
    if array.strides == strides or shapes.equivalent(array.shape, array.strides, strides):
        return array
    ordered = NDArray.empty(array.shape, array.dtype, array.device, strides)
    ordered.copy_into(array)
    return ordered
