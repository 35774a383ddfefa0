"""Pooling, forward and backward. Results keep the memory order of the input: NHWC stays NHWC."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pooling.kernels import max_pooling
from genesis.backends.cuda.ops.pooling.kernels import pooling as kernels
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.dtypes import DType
from genesis.shapes import Shape, channels_last_strides, contiguous_strides

_ONE, _NONE = (1, 1), (0, 0)
_TILE, _MOST_CHANNELS = 1024, 128  # elements of a program where channels lie side by side, and channels among them
_MOST_PLACES = 256  # that a byte tells apart
# The backward's code is unrolled where a window has at most so many elements, a pixel lies in at most so many windows,
# and there are at most so many pixels from one window to the next.
_MOST_UNROLLED, _MOST_STEPS = 25, 16


class _Rows(NamedTuple):
    """Of a program where channels lie side by side: pixels at a time, bytes of channels of each, and its warps."""

    pixels: int
    num_bytes: int
    warps: int

    def channels(self, x: DeviceArray) -> tuple[int, int]:
        """Those of a program, and the number of programs side by side."""
        block = min(self.num_bytes // x.dtype.itemsize, tiles.power_of_2(x.shape[-3]))
        return block, -(-x.shape[-3] // block)


# The fastest, or within a few percent of it, of those that were tried on an H200.
_MEAN_OF_FEW, _MEAN_OF_MANY = _Rows(32, 256, 2), _Rows(64, 512, 8)  # global average pooling, of 7² and of 28² pixels
_FEW = 256
_SPREAD = _Rows(16, 512, 1)  # adaptive pooling's gradient


def max_pool2d(
    x: DeviceArray, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool,
    find: str | None = "indices",
) -> tuple[DeviceArray, DeviceArray | None]:  # fmt: skip
    out_size = tuple(
        _out_size(x.shape[i - 2], kernel_size[i], stride[i], padding[i], dilation[i], ceil_mode) for i in (0, 1)
    )
    return _max_pool(x, out_size, kernel_size, stride, padding, dilation, adaptive=False, find=find)


def max_pool2d_backward(
    grad: DeviceArray, input_shape: Shape, found: DeviceArray, kernel_size: Pair, stride: Pair, padding: Pair,
    dilation: Pair, ceil_mode: bool,
) -> DeviceArray:  # fmt: skip
    reach = _reach(kernel_size, stride, dilation)
    return _max_pool_backward(grad, input_shape, found, kernel_size, stride, padding, dilation, reach, adaptive=False)


def avg_pool2d(
    x: DeviceArray, kernel_size: Pair, stride: Pair, padding: Pair, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> DeviceArray:  # fmt: skip
    out_size = tuple(_out_size(x.shape[i - 2], kernel_size[i], stride[i], padding[i], 1, ceil_mode) for i in (0, 1))
    return _avg_pool(x, out_size, kernel_size, stride, padding, divisor_override, count_include_pad, adaptive=False)


def avg_pool2d_backward(
    grad: DeviceArray, x: DeviceArray, kernel_size: Pair, stride: Pair, padding: Pair, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> DeviceArray:  # fmt: skip
    reach = _reach(kernel_size, stride, _ONE)
    return _avg_pool_backward(
        grad, x, kernel_size, stride, padding, reach, divisor_override, count_include_pad, adaptive=False
    )


def adaptive_avg_pool2d(x: DeviceArray, output_size: Pair) -> DeviceArray:
    return _avg_pool(x, output_size, _largest_windows(x, output_size), _ONE, _NONE, None, False, adaptive=True)


def adaptive_avg_pool2d_backward(grad: DeviceArray, x: DeviceArray) -> DeviceArray:
    return _avg_pool_backward(grad, x, _ONE, _ONE, _NONE, _adaptive_reach(grad, x), None, False, adaptive=True)


def adaptive_max_pool2d(x: DeviceArray, output_size: Pair) -> tuple[DeviceArray, DeviceArray]:
    windows = _largest_windows(x, output_size)
    y, indices = _max_pool(x, output_size, windows, _ONE, _NONE, _ONE, adaptive=True, find="indices")
    assert indices is not None
    return y, indices


def adaptive_max_pool2d_backward(grad: DeviceArray, x: DeviceArray, indices: DeviceArray) -> DeviceArray:
    reach = _adaptive_reach(grad, x)
    return _max_pool_backward(grad, x.shape, indices, _ONE, _ONE, _NONE, _ONE, reach, adaptive=True)


def has_small_places(kernel: Pair) -> bool:
    """Does a byte tell a window's elements apart? Then that is what max_pool2d finds for its backward, else indices."""
    return kernel[0] * kernel[1] <= _MOST_PLACES


def _max_pool(
    x: DeviceArray, out_size: Shape, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, adaptive: bool,
    find: str | None,
) -> tuple[DeviceArray, DeviceArray | None]:  # fmt: skip
    out = _like(x, out_size, x.dtype)
    places = find == "places" and has_small_places(kernel)
    found = None if find is None else _like(x, out_size, dtypes.uint8 if places else dtypes.int64)
    if (places or found is None) and not adaptive and _is_channels_last(out) and x.strides[1] == 1:
        _max_pool_pixels(out, found, x, kernel, stride, padding, dilation)
        return out, found
    grid, sizes, constants = _plan(out, x, out)
    launch(
        max_pooling._max_pool_kernel, grid, out, found, x, *sizes, kernel, stride, padding, dilation,
        _four(x.strides), **constants, PLACES=places, ADAPTIVE=adaptive, LOWEST=_lowest(x.dtype),
    )  # fmt: skip
    return out, found


def _max_pool_pixels(
    out: DeviceArray, places: DeviceArray | None, x: DeviceArray, kernel: Pair, stride: Pair, padding: Pair,
    dilation: Pair,
) -> None:  # fmt: skip
    """Channels lie side by side in all arrays."""
    images, channels, *out_size = out.shape
    pixels = images * out_size[0] * out_size[1]
    grid, blocks = _tiles(pixels, channels)
    wide = out.size + _TILE * channels >= 2**31 or _reaches_far(x)
    launch(
        max_pooling._max_pool_pixels_kernel, grid, out, places, x, pixels, channels, tuple(out_size), x.shape[2:],
        kernel, stride, padding, dilation, (x.strides[0], *x.strides[2:]), LOWEST=_lowest(x.dtype),
        COMPUTE=COMPUTE[x.dtype], WIDE=wide, **blocks,
    )  # fmt: skip


def _max_pool_backward(
    grad: DeviceArray, input_shape: Shape, found: DeviceArray, kernel: Pair, stride: Pair, padding: Pair,
    dilation: Pair, reach: Pair, adaptive: bool,
) -> DeviceArray:  # fmt: skip
    out = _like(found, input_shape[-2:], grad.dtype)
    places = found.dtype is dtypes.uint8
    few = max(math.prod(kernel), math.prod(reach)) <= _MOST_UNROLLED and math.prod(stride) <= _MOST_STEPS
    if places and few:
        arrays = (out, grad, found) if _is_channels_last(out) else tuple(map(_as_images, (out, grad, found)))
        if None not in arrays:
            _max_pool_backward_cells(arrays, kernel, stride, padding, dilation)
            return out
    grid, sizes, constants = _plan(out, out, grad)
    launch(
        max_pooling._max_pool_backward_kernel, grid, out, grad, found, *sizes, kernel, stride, padding, dilation,
        reach, _four(grad.strides), _four(found.strides), **constants, PLACES=places, ADAPTIVE=adaptive,
    )  # fmt: skip
    return out


def _as_images(x: DeviceArray) -> DeviceArray | None:
    """Each plane as an image of one channel; None where planes do not follow one another at equal distances."""
    *planes, height, width = x.shape
    images, channels = planes if len(planes) == 2 else (1, *planes)
    by_image, by_channel, *strides = _four(x.strides)
    if images > 1 and channels > 1 and by_image != channels * by_channel:
        return None
    distance = by_channel if channels > 1 else by_image
    return x.view((images * channels, 1, height, width), (distance, 1, *strides), x.offset)


def _max_pool_backward_cells(
    arrays: tuple[Any, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """arrays: out, grad, places."""
    out, grad, places = arrays
    images, channels, *size = out.shape
    cells = tuple(-(-(size[i] + padding[i]) // stride[i]) for i in (0, 1))
    num_cells = images * cells[0] * cells[1]
    grid, blocks = _tiles(num_cells, channels)
    launch(
        max_pooling._max_pool_backward_cells_kernel, grid, out, grad, places, num_cells, channels, cells,
        grad.shape[2:], tuple(size), grad.strides, places.strides, KERNEL=kernel, STRIDE=stride, PADDING=padding,
        DILATION=dilation, COMPUTE=COMPUTE[out.dtype],
        WIDE=any(_reaches_far(each) for each in (out, grad, places)), **blocks,
    )  # fmt: skip


def _tiles(num_pixels: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and blocks of a kernel whose programs have some pixels times some channels, side by side."""
    block_n = min(tiles.power_of_2(channels), _MOST_CHANNELS)
    block_m = _TILE // block_n
    return (-(-num_pixels // block_m), -(-channels // block_n)), {"BLOCK_M": block_m, "BLOCK_N": block_n}


def _avg_pool(
    x: DeviceArray, out_size: Shape, kernel: Pair, stride: Pair, padding: Pair, divisor: int | None,
    count_padding: bool, adaptive: bool,
) -> DeviceArray:  # fmt: skip
    array.require_float("adaptive_avg_pool2d" if adaptive else "avg_pool2d", x.dtype)
    if _is_whole_plane(x, out_size, kernel, padding, divisor):
        return _mean_of_plane(x)
    out = _like(x, out_size, x.dtype)
    grid, sizes, constants = _plan(out, x, out)
    launch(
        kernels._avg_pool_kernel, grid, out, x, *sizes, kernel, stride, padding, divisor, _four(x.strides),
        **constants, ADAPTIVE=adaptive, COUNT_PADDING=count_padding,
    )  # fmt: skip
    return out


def _is_whole_plane(x: DeviceArray, out_size: Shape, kernel: Pair, padding: Pair, divisor: int | None) -> bool:
    """Is there one window, which is the whole plane?"""
    whole = out_size == _ONE and kernel == x.shape[-2:] and 0 not in kernel
    return whole and padding == _NONE and divisor is None


def _mean_of_plane(x: DeviceArray) -> DeviceArray:
    if _is_channels_last(x) and x.strides[2] == x.shape[3] * x.strides[3]:
        rows = _MEAN_OF_FEW if x.shape[2] * x.shape[3] <= _FEW else _MEAN_OF_MANY
        block, num_blocks = rows.channels(x)
        if x.shape[0] * num_blocks >= driver.get().properties(x.device_index).multiprocessor_count:
            out = _like(x, _ONE, x.dtype)
            launch(
                kernels._plane_mean_kernel, (x.shape[0] * num_blocks,), out, x, num_blocks,
                x.shape[2] * x.shape[3], x.shape[1], x.strides[0], x.strides[3], COMPUTE=COMPUTE[x.dtype],
                BLOCK_M=rows.pixels, BLOCK_N=block, num_warps=rows.warps,
            )  # fmt: skip
            return out
    # Otherwise a plane's elements are shared out over many programs.
    return reduction.mean(x, (len(x.shape) - 2, len(x.shape) - 1), keepdim=True)


def _avg_pool_backward(
    grad: DeviceArray, x: DeviceArray, kernel: Pair, stride: Pair, padding: Pair, reach: Pair, divisor: int | None,
    count_padding: bool, adaptive: bool,
) -> DeviceArray:  # fmt: skip
    out = _like(x, x.shape[-2:], grad.dtype)
    windows_follow_from_sizes = adaptive or _is_whole_plane(x, grad.shape[-2:], kernel, padding, divisor)
    if windows_follow_from_sizes and _is_channels_last(out) and grad.size and not _reaches_far(grad):
        _spread(out, grad)
        return out
    grid, sizes, constants = _plan(out, x, grad)
    launch(
        kernels._avg_pool_backward_kernel, grid, out, grad, *sizes, kernel, stride, padding, reach, divisor,
        _four(grad.strides), **constants, ADAPTIVE=adaptive, COUNT_PADDING=count_padding,
    )  # fmt: skip
    return out


def _spread(out: DeviceArray, grad: DeviceArray) -> None:
    """Each grad shared out over its adaptive window, into an array whose channels lie side by side."""
    images, channels, *size = out.shape
    if grad.shape[-2:] == _ONE:
        size = [1, size[0] * size[1]]  # no pixel differs from another: one row, however long
    block, num_blocks = _SPREAD.channels(out)
    num_parts = -(-size[1] // _SPREAD.pixels)
    launch(
        kernels._adaptive_avg_pool_backward_pixels_kernel, (images * size[0] * num_parts * num_blocks,), out, grad,
        num_blocks, num_parts, channels, grad.shape[-2:], tuple(size), grad.strides, COMPUTE=COMPUTE[out.dtype],
        COLUMNS=_SPREAD.pixels, BLOCK=block, num_warps=_SPREAD.warps,
    )  # fmt: skip


def _plan(out: DeviceArray, x: DeviceArray, pooled: DeviceArray) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:
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


def _reach(kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """How many windows can contain one element, along each axis, gaps of dilated ones included."""
    return tuple(-(-((kernel[i] - 1) * dilation[i] + 1) // stride[i]) for i in (0, 1))  # type: ignore[return-value]


def _largest_windows(x: DeviceArray, out_size: Pair) -> Pair:
    def largest(size: int, out: int) -> int:
        i = np.arange(out)
        return int(np.max(-(-(i + 1) * size // out) - i * size // out, initial=0))

    return largest(x.shape[-2], out_size[0]), largest(x.shape[-1], out_size[1])


def _adaptive_reach(grad: DeviceArray, x: DeviceArray) -> Pair:
    return tuple(_most_windows(x.shape[i], grad.shape[i]) for i in (-2, -1))  # type: ignore[return-value]


def _most_windows(size: int, out_size: int) -> int:
    """How many adaptive windows an element can lie in, along an axis.

    >>> _most_windows(7, 1), _most_windows(64, 8), _most_windows(64, 6), _most_windows(2, 5)
    (1, 1, 2, 3)
    """
    common = max(math.gcd(size, out_size), 1)
    return 1 + -(-(out_size // common - 1) // max(size // common, 1))


def _like(x: DeviceArray, size: Shape, dtype: DType) -> DeviceArray:
    """An array of planes of another size, in x's memory order."""
    shape = (*x.shape[:-2], *size)
    strides = channels_last_strides(shape) if _is_channels_last(x) else contiguous_strides(shape)
    return array.empty(shape, dtype, x.device_index, strides)


def _is_channels_last(x: DeviceArray) -> bool:
    return len(x.shape) == 4 and x.shape[1] > 1 and x.strides[1] == 1 and x.strides[3] >= x.shape[1]


def _reaches_far(x: DeviceArray) -> bool:
    """Do offsets need 64 bits?"""
    return sum(size * stride for size, stride in zip(x.shape, x.strides, strict=True)) + 1024 >= 2**31


def _four(strides: Shape) -> Shape:
    """Of (N, C, H, W), for arrays with and without N."""
    return strides if len(strides) == 4 else (0, *strides)


def _lowest(dtype: DType) -> float | int:
    if dtype.is_floating_point:
        return float("-inf")
    return int(np.iinfo(dtype.name).min)
