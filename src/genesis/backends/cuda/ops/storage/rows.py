"""Images as matrices for the fused convolutions: a row per pixel, the channels side by side."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import overload

from genesis import dtypes
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.records import SavedConvNorm, record
from genesis.shapes import channels_last_strides, equivalent


@overload
def channels_last(x: DeviceArray) -> DeviceArray: ...
@overload
def channels_last(x: DeviceArray | None) -> DeviceArray | None: ...
def channels_last(x: DeviceArray | None) -> DeviceArray | None:
    """x, or a copy of it in NHWC; None stays None."""
    if x is None or is_channels_last(x._layout or x.layout):
        return x
    return copy(x, channels_last_strides(x.shape))


@functools.cache
def is_channels_last(layout: Layout) -> bool:
    return equivalent(layout.shape, layout.strides, channels_last_strides(layout.shape))


@overload
def dense(x: DeviceArray) -> DeviceArray: ...
@overload
def dense(x: DeviceArray | None) -> DeviceArray | None: ...
def dense(x: DeviceArray | None) -> DeviceArray | None:
    """A vector, or a copy of it without gaps; None stays None."""
    return x if x is None or x.strides == (1,) else copy(x, (1,))


def layout(x: DeviceArray | None) -> Layout | None:
    """Its layout; None stays None."""
    return None if x is None else x._layout or x.layout


def layouts(*arrays: DeviceArray | None) -> tuple[Layout | None, ...]:
    """Their layouts; None stays None."""
    return tuple([None if x is None else x._layout or x.layout for x in arrays])


def saved_layouts(saved: SavedConvNorm[DeviceArray]) -> SavedConvNorm[Layout]:
    """The layouts of what a backward needs."""
    input, weight, bias, gamma, beta, mean, inverse_std, kept, passed = saved
    vectors = (layout(bias), layout(gamma), layout(beta), mean.layout, inverse_std.layout)
    return record(SavedConvNorm, (input.layout, layout(weight), *vectors, kept.layout, layout(passed)))


def fresh(layout: Layout) -> Layout:
    """Layout of new arrays in the same shape, dtype and order."""
    return layout_of(layout.shape, layout.dtype, layout.device_index, layout.strides)


def new(layout: Layout | None, stream: int) -> DeviceArray | None:
    """A new array of a layout; None stays None."""
    return None if layout is None else layout.new(stream)


def all_new(layouts: Iterable[Layout | None], stream: int) -> tuple[DeviceArray | None, ...]:
    """New arrays of layouts; None stays None."""
    return tuple([None if layout is None else layout.new(stream) for layout in layouts])


def address(x: DeviceArray | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if x is None else x.data_pointer


def addresses(arrays: Iterable[DeviceArray | None]) -> tuple[int, ...]:
    """Addresses of the first elements; 0 for None."""
    return tuple([0 if x is None else x.data_pointer for x in arrays])


def statistics_dtype(dtype: DType) -> DType:
    """The dtype that sums over an array of dtype are kept in."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
