"""Images as matrices for the fused convolutions: a row per pixel, the channels side by side."""

from __future__ import annotations

from typing import Any

from genesis import dtypes
from genesis.backends.cuda import array
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.storage import copy
from genesis.dtypes import DType
from genesis.shapes import channels_last_strides, equivalent


def channels_last(x: Any) -> Any:
    """x, or a copy of it in NHWC; None stays None."""
    if x is None:
        return None
    strides = channels_last_strides(x.shape)
    return x if equivalent(x.shape, x.strides, strides) else copy(x, strides)


def dense(x: Any) -> Any:
    """A vector, or a copy of it without gaps; None stays None."""
    return x if x is None or x.strides == (1,) else copy(x, (1,))


def like(x: DeviceArray | None) -> DeviceArray | None:
    """A new array of x's shape, dtype and order; None stays None."""
    return None if x is None else array.empty(x.shape, x.dtype, x.device_index, x.strides)


def statistics_dtype(dtype: DType) -> DType:
    """The dtype that sums over an array of dtype are kept in."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
