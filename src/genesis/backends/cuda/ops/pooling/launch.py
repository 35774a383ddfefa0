"""Pooling, forward and backward. Results keep the memory order of the input: NHWC stays NHWC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pooling.kernels import max_pooling
from genesis.backends.cuda.ops.pooling.kernels import pooling as kernels
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.records import Windows
from genesis.shapes import Shape, channels_last_strides, contiguous_strides

Pooled: TypeAlias = Run[DeviceArray]
MaxPooled: TypeAlias = Run[DeviceArray | tuple[DeviceArray, DeviceArray | None]]

_ONE, _NONE = (1, 1), (0, 0)
_TILE, _MOST_CHANNELS = 1024, 128  # elements of a program where channels lie side by side, and channels among them
_MOST_PLACES = 256  # that a byte tells apart
# The backward's code is unrolled where a window has at most so many elements, a pixel lies in at most so many windows,
# and there are at most so many pixels from one window to the next.
_MOST_UNROLLED, _MOST_STEPS = 25, 16


class _Rows(NamedTuple):
    """Rows of a program where channels lie side by side: pixels at a time, bytes of channels of each, and its warps."""

    pixels: int
    num_bytes: int
    warps: int

    def channels(self, x: Layout) -> tuple[int, int]:
        """Channels of a program, and the number of programs side by side."""
        block = min(self.num_bytes // x.dtype.itemsize, tiles.power_of_2(x.shape[-3]))
        return block, -(-x.shape[-3] // block)


# The fastest, or within a few percent of it, of those that were tried on an H200.
_MEAN_OF_FEW, _MEAN_OF_MANY = _Rows(32, 256, 2), _Rows(64, 512, 8)  # global average pooling, of 7² and of 28² pixels
_FEW = 256
_SPREAD = _Rows(16, 512, 1)  # adaptive pooling's gradient


class _Windows(NamedTuple):
    """Places of the windows; those of adaptive pooling the kernel computes from the sizes of input and output."""

    kernel: Pair = _ONE
    stride: Pair = _ONE
    padding: Pair = _NONE
    dilation: Pair = _ONE
    adaptive: bool = False

    @classmethod
    def of(cls, windows: Windows) -> _Windows:
        return cls(windows.kernel_size, windows.stride, windows.padding, windows.dilation)

    @property
    def reach(self) -> Pair:
        """How many can contain one element, along each axis, gaps of dilated ones included."""
        spans = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(self.kernel, self.dilation, strict=True)]
        return -(-spans[0] // self.stride[0]), -(-spans[1] // self.stride[1])

    def out_size(self, x: Layout, ceil_mode: bool) -> Shape:
        sides = zip(x.shape[-2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple(_out_size(*side, ceil_mode) for side in sides)


@planned
def max_pool2d(x: Layout, windows: Windows, find: str | None = "indices") -> MaxPooled:
    where = _Windows.of(windows)
    return _max_pool(x, where.out_size(x, windows.ceil_mode), where, find)


@planned
def max_pool2d_backward(grad: Layout, input_shape: Shape, found: Layout, windows: Windows) -> Pooled:
    where = _Windows.of(windows)
    return _max_pool_backward(grad, input_shape, found, where, where.reach)


@planned
def avg_pool2d(x: Layout, windows: Windows, count_include_pad: bool, divisor_override: int | None) -> Pooled:
    array.require_float("avg_pool2d", x.dtype)
    where = _Windows.of(windows)
    return _avg_pool(x, where.out_size(x, windows.ceil_mode), where, divisor_override, count_include_pad)


@planned
def avg_pool2d_backward(
    grad: Layout, x: Layout, windows: Windows, count_include_pad: bool, divisor_override: int | None
) -> Pooled:
    where = _Windows.of(windows)
    return _avg_pool_backward(grad, x, where, where.reach, divisor_override, count_include_pad)


@planned
def adaptive_avg_pool2d(x: Layout, output_size: Pair) -> Pooled:
    array.require_float("adaptive_avg_pool2d", x.dtype)
    return _avg_pool(x, output_size, _Windows(_largest_windows(x, output_size), adaptive=True), None, False)


@planned
def adaptive_avg_pool2d_backward(grad: Layout, x: Layout) -> Pooled:
    return _avg_pool_backward(grad, x, _Windows(adaptive=True), _adaptive_reach(grad.shape, x.shape), None, False)


@planned
def adaptive_max_pool2d(x: Layout, output_size: Pair) -> MaxPooled:
    return _max_pool(x, output_size, _Windows(_largest_windows(x, output_size), adaptive=True), "indices")


@planned
def adaptive_max_pool2d_backward(grad: Layout, x: Layout, indices: Layout) -> Pooled:
    reach = _adaptive_reach(grad.shape, x.shape)
    run = _max_pool_backward(grad, x.shape, indices, _Windows(adaptive=True), reach)
    return lambda grad, x, indices: run(grad, indices)


def has_small_places(kernel: Pair) -> bool:
    """Does a byte tell a window's elements apart? Then that is what max_pool2d finds for its backward, else indices."""
    return kernel[0] * kernel[1] <= _MOST_PLACES


# --- maxima -----------------------------------------------------------------------------------------------------------
def _max_pool(x: Layout, out_size: Shape, windows: _Windows, find: str | None) -> MaxPooled:
    """run(x): the maxima, and what was asked to be found of them."""
    out = _like(x, out_size, x.dtype)
    places = find == "places" and has_small_places(windows.kernel)
    found = None if find is None else _like(x, out_size, dtypes.uint8 if places else dtypes.int64)
    if (places or found is None) and not windows.adaptive and _is_channels_last(out) and x.strides[1] == 1:
        return into_new(_max_pool_pixels(out, found, x, windows), out, found)
    grid, sizes, constants = _cut(out, x, out)
    launch = prepare_raw(
        max_pooling._max_pool_kernel, x.device_index, grid, (out, found, x), *sizes, *windows[:4], _four(x.strides),
        **constants, PLACES=places, ADAPTIVE=windows.adaptive, LOWEST=_lowest(x.dtype),
    )  # fmt: skip
    return into_new(launch, out, found)


def _max_pool_pixels(out: Layout, places: Layout | None, x: Layout, windows: _Windows) -> RawLaunch:
    """Channels lie side by side in all arrays."""
    images, channels, *out_size = out.shape
    pixels = images * out_size[0] * out_size[1]
    grid, blocks = _tiles(pixels, channels)
    wide = out.size + _TILE * channels >= 2**31 or _reaches_far(x)
    return prepare_raw(
        max_pooling._max_pool_pixels_kernel, x.device_index, grid, (out, places, x), pixels, channels, tuple(out_size),
        x.shape[2:], *windows[:4], (x.strides[0], *x.strides[2:]), LOWEST=_lowest(x.dtype),
        COMPUTE=COMPUTE[x.dtype], WIDE=wide, **blocks,
    )  # fmt: skip


def _max_pool_backward(grad: Layout, input_shape: Shape, found: Layout, windows: _Windows, reach: Pair) -> Pooled:
    """run(grad, found)"""
    out = _like(found, input_shape[-2:], grad.dtype)
    places = found.dtype is dtypes.uint8
    few = max(math.prod(windows.kernel), math.prod(reach)) <= _MOST_UNROLLED
    if places and few and math.prod(windows.stride) <= _MOST_STEPS:
        arrays = (out, grad, found)
        images = arrays if _is_channels_last(out) else [each for each in map(_as_images, arrays) if each is not None]
        if len(images) == len(arrays):
            return into_new(_max_pool_backward_cells(images, windows), out)
    grid, sizes, constants = _cut(out, out, grad)
    launch = prepare_raw(
        max_pooling._max_pool_backward_kernel, out.device_index, grid, (out, grad, found), *sizes, *windows[:4],
        reach, _four(grad.strides), _four(found.strides), **constants, PLACES=places, ADAPTIVE=windows.adaptive,
    )  # fmt: skip
    return into_new(launch, out)


def _as_images(x: Layout) -> Layout | None:
    """Each plane as an image of one channel; None where planes do not follow one another at equal distances."""
    *planes, height, width = x.shape
    images, channels = planes if len(planes) == 2 else (1, *planes)
    by_image, by_channel, *strides = _four(x.strides)
    if images > 1 and channels > 1 and by_image != channels * by_channel:
        return None
    distance = by_channel if channels > 1 else by_image
    shape = (images * channels, 1, height, width)
    return layout_of(shape, x.dtype, x.device_index, (distance, 1, *strides), x.aligned)


def _max_pool_backward_cells(images: Sequence[Layout], windows: _Windows) -> RawLaunch:
    """images: out, grad, places."""
    out, grad, places = images
    num_images, channels, *size = out.shape
    cells = tuple(-(-(size[i] + windows.padding[i]) // windows.stride[i]) for i in (0, 1))
    num_cells = num_images * cells[0] * cells[1]
    grid, blocks = _tiles(num_cells, channels)
    return prepare_raw(
        max_pooling._max_pool_backward_cells_kernel, out.device_index, grid, images, num_cells, channels, cells,
        grad.shape[2:], tuple(size), grad.strides, places.strides, KERNEL=windows.kernel, STRIDE=windows.stride,
        PADDING=windows.padding, DILATION=windows.dilation, COMPUTE=COMPUTE[out.dtype],
        WIDE=any(map(_reaches_far, images)), **blocks,
    )  # fmt: skip


def _tiles(num_pixels: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and blocks of a kernel whose programs have some pixels times some channels, side by side."""
    block_n = min(tiles.power_of_2(channels), _MOST_CHANNELS)
    block_m = _TILE // block_n
    return (-(-num_pixels // block_m), -(-channels // block_n)), {"BLOCK_M": block_m, "BLOCK_N": block_n}


# --- means ------------------------------------------------------------------------------------------------------------
def _avg_pool(x: Layout, out_size: Shape, windows: _Windows, divisor: int | None, count_padding: bool) -> Pooled:
    if _is_whole_plane(x, out_size, windows, divisor):
        return _mean_of_plane(x)
    out = _like(x, out_size, x.dtype)
    grid, sizes, constants = _cut(out, x, out)
    launch = prepare_raw(
        kernels._avg_pool_kernel, x.device_index, grid, (out, x), *sizes, *windows[:3], divisor, _four(x.strides),
        **constants, ADAPTIVE=windows.adaptive, COUNT_PADDING=count_padding,
    )  # fmt: skip
    return into_new(launch, out)


def _is_whole_plane(x: Layout, out_size: Shape, windows: _Windows, divisor: int | None) -> bool:
    """Is there one window, which is the whole plane?"""
    whole = out_size == _ONE and windows.kernel == x.shape[-2:] and 0 not in windows.kernel
    return whole and windows.padding == _NONE and divisor is None


def _mean_of_plane(x: Layout) -> Pooled:
    if _is_channels_last(x) and x.strides[2] == x.shape[3] * x.strides[3]:
        rows = _MEAN_OF_FEW if x.shape[2] * x.shape[3] <= _FEW else _MEAN_OF_MANY
        block, num_blocks = rows.channels(x)
        if x.shape[0] * num_blocks >= driver.get().properties(x.device_index).multiprocessor_count:
            out = _like(x, _ONE, x.dtype)
            launch = prepare_raw(
                kernels._plane_mean_kernel, x.device_index, (x.shape[0] * num_blocks,), (out, x), num_blocks,
                x.shape[2] * x.shape[3], x.shape[1], x.strides[0], x.strides[3], COMPUTE=COMPUTE[x.dtype],
                BLOCK_M=rows.pixels, BLOCK_N=block, num_warps=rows.warps,
            )  # fmt: skip
            return into_new(launch, out)
    # Otherwise a plane's elements are shared out over many programs.
    dims = (len(x.shape) - 2, len(x.shape) - 1)
    return lambda x: reduction.mean(x, dims, keepdim=True)


def _avg_pool_backward(
    grad: Layout, x: Layout, windows: _Windows, reach: Pair, divisor: int | None, count_padding: bool
) -> Pooled:
    """run(grad, x), which looks at grad alone"""
    out = _like(x, x.shape[-2:], grad.dtype)
    windows_follow_from_sizes = windows.adaptive or _is_whole_plane(x, grad.shape[-2:], windows, divisor)
    if windows_follow_from_sizes and _is_channels_last(out) and grad.size and not _reaches_far(grad):
        run = into_new(_spread(out, grad), out)
    else:
        grid, sizes, constants = _cut(out, x, grad)
        launch = prepare_raw(
            kernels._avg_pool_backward_kernel, out.device_index, grid, (out, grad), *sizes, *windows[:3], reach,
            divisor, _four(grad.strides), **constants, ADAPTIVE=windows.adaptive, COUNT_PADDING=count_padding,
        )  # fmt: skip
        run = into_new(launch, out)
    return lambda grad, x: run(grad)


def _spread(out: Layout, grad: Layout) -> RawLaunch:
    """Each grad shared out over its adaptive window, into an array whose channels lie side by side."""
    images, channels, *size = out.shape
    if grad.shape[-2:] == _ONE:
        size = [1, size[0] * size[1]]  # no pixel differs from another: one row, however long
    block, num_blocks = _SPREAD.channels(out)
    num_parts = -(-size[1] // _SPREAD.pixels)
    return prepare_raw(
        kernels._adaptive_avg_pool_backward_pixels_kernel, out.device_index,
        (images * size[0] * num_parts * num_blocks,), (out, grad), num_blocks, num_parts, channels, grad.shape[-2:],
        tuple(size), grad.strides, COMPUTE=COMPUTE[out.dtype], COLUMNS=_SPREAD.pixels, BLOCK=block,
        num_warps=_SPREAD.warps,
    )  # fmt: skip


# --- sizes and layouts ------------------------------------------------------------------------------------------------
def _cut(out: Layout, x: Layout, pooled: Layout) -> tuple[tuple[int], tuple[int | Shape, ...], dict[str, object]]:
    """Grid, sizes and constants of a kernel with one lane per element of out."""
    block = min(1024, max(32, tiles.power_of_2(out.size)))
    sizes = (out.size, out.shape[-3], pooled.shape[-2:], x.shape[-2:])
    wide = any(_reaches_far(each) for each in (out, x, pooled))
    constants = {"CHANNELS_LAST": _is_channels_last(out), "COMPUTE": COMPUTE[out.dtype], "WIDE": wide, "BLOCK": block}
    return (-(-out.size // block),), sizes, constants


def _out_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """
    >>> _out_size(6, 3, 2, 0, 1, False), _out_size(6, 3, 2, 0, 1, True)
    (2, 3)
    """
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if (
        ceil_mode and (out - 1) * stride >= size + padding
    ):  # the last window starts inside the input or the left padding
        out -= 1
    return out


def _largest_windows(x: Layout, out_size: Pair) -> Pair:
    def largest(size: int, out: int) -> int:
        i = np.arange(out)
        return int(np.max(-(-(i + 1) * size // out) - i * size // out, initial=0))

    return largest(x.shape[-2], out_size[0]), largest(x.shape[-1], out_size[1])


def _adaptive_reach(grad: Shape, x: Shape) -> Pair:
    return _most_windows(x[-2], grad[-2]), _most_windows(x[-1], grad[-1])


def _most_windows(size: int, out_size: int) -> int:
    """How many adaptive windows an element can lie in, along an axis.

    >>> _most_windows(7, 1), _most_windows(64, 8), _most_windows(64, 6), _most_windows(2, 5)
    (1, 1, 2, 3)
    """
    common = max(math.gcd(size, out_size), 1)
    return 1 + -(-(out_size // common - 1) // max(size // common, 1))


def _like(x: Layout, size: Shape, dtype: DType) -> Layout:
    """Layout of an array of planes of another size, in x's memory order."""
    shape = (*x.shape[:-2], *size)
    strides = channels_last_strides(shape) if _is_channels_last(x) else contiguous_strides(shape)
    return layout_of(shape, dtype, x.device_index, strides)


def _is_channels_last(x: Layout) -> bool:
    return len(x.shape) == 4 and x.shape[1] > 1 and x.strides[1] == 1 and x.strides[3] >= x.shape[1]


def _reaches_far(x: Layout) -> bool:
    """Do offsets need 64 bits?"""
    return sum(size * stride for size, stride in zip(x.shape, x.strides, strict=True)) + 1024 >= 2**31


def _four(strides: Shape) -> Shape:
    """The four sizes (N, C, H, W), for arrays with and without N."""
    return strides if len(strides) == 4 else (0, *strides)


def _lowest(dtype: DType) -> float | int:
    if dtype.is_floating_point:
        return float("-inf")
    return int(np.iinfo(dtype.name).min)
