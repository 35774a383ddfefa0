"""Translations: convolution, pooling, resizing, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType
from genesis.export.graph import Array, Emitter, Input, Operand
from genesis.export.ops_activation import activated
from genesis.export.ops_dense import normalize
from genesis.export.ops_views import END, reshape_to
from genesis.export.registry import translates
from genesis.export.sizes import Dim, Shape, Size
from genesis.records import ConvGeometry, NormOptions, Pair, Windows

if TYPE_CHECKING:
    import onnx_ir as ir


def _batched(e: Emitter, x: Operand, spatial: int) -> Input:
    return e.op("Unsqueeze", x, e.ints([0])) if x.ndim == spatial + 1 else x


def _unbatched(e: Emitter, y: ir.Value, x: Operand, spatial: int) -> ir.Value:
    return e.op("Squeeze", y, e.ints([0])) if x.ndim == spatial + 1 else y


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(e: Emitter, x: Input, weight: Operand, bias: Input, geometry: ConvGeometry, extra: Pair = (0, 0)) -> ir.Value:
    spatial = weight.ndim - 2
    stride, padding, dilation, groups = geometry
    before, after = padding[-spatial:], [p + more for p, more in zip(padding[-spatial:], extra[-spatial:], strict=True)]
    return e.op(
        "Conv", x, weight, bias, strides=stride[-spatial:], pads=[*before, *after], dilations=dilation[-spatial:],
        group=groups, kernel_shape=[e.fixed(dim) for dim in weight.shape[2:]],
    )  # fmt: skip


@translates("Conv2d")
def conv2d(
    e: Emitter,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    geometry: ConvGeometry,
    extra: Pair,
    strides: object,
) -> ir.Value:
    spatial = weight.ndim - 2
    y = _conv(e, _batched(e, input, spatial), weight, bias, geometry, extra)
    return _unbatched(e, y, input, spatial)


@translates("conv_forward")
def conv_forward(e: Emitter, input: Operand, weight: Operand, bias: Operand | None, geometry: ConvGeometry) -> ir.Value:
    return _conv(e, input, weight, bias, geometry)


@translates("ConvTranspose2d")
def conv_transpose2d(
    e: Emitter, input: Operand, weight: Operand, bias: Operand | None, geometry: ConvGeometry, size: tuple[Dim, Dim],
    extra: Pair,
) -> ir.Value:  # fmt: skip
    spatial = weight.ndim - 2
    stride, padding, dilation = (pair[-spatial:] for pair in geometry[:3])
    kernel = [e.fixed(dim) for dim in weight.shape[2:]]
    output_padding = []
    for i in range(spatial):
        least = _minimal(input.shape[i - spatial], stride[i], padding[i], dilation[i], kernel[i])
        wanted = size[i - spatial]
        more = wanted.minus(least) if isinstance(wanted, Size) else None
        output_padding.append(more if more is not None else e.fixed(wanted) - e.fixed(least))
    x = _batched(e, input, spatial)
    if any(extra):  # output_padding of a whole stride and more: rows of zeros behind the input
        ends = extra[-spatial:]
        x = e.op("Pad", x, e.ints([0] * (spatial + 4) + [*ends]), e.number(0, input.dtype))
        output_padding = [more - n * s for more, n, s in zip(output_padding, ends, stride, strict=True)]
    y = e.op(
        "ConvTranspose", x, weight, bias, strides=stride, pads=[*padding, *padding], dilations=dilation,
        group=geometry.groups, kernel_shape=kernel, output_padding=output_padding,
    )  # fmt: skip
    return _unbatched(e, y, input, spatial)


def _minimal(size: Dim, stride: int, padding: int, dilation: int, kernel: int) -> Dim:
    """The output size of a transposed convolution without output_padding."""
    runs = size.runs if isinstance(size, Size) else (size,)
    sizes = tuple([(int(n) - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 for n in runs])
    return Size(sizes) if isinstance(size, Size) else sizes[0]


class Fused(TypedDict):
    """The named arguments of ConvBNReLU.forward."""

    running: tuple[Operand, Operand]
    count: Operand | None
    options: NormOptions
    geometry: ConvGeometry
    strides: object
    activation: str | None


@translates("ConvBNReLU")
def conv_bn_relu(
    e: Emitter, input: Operand, weight: Operand, bias: Operand | None, gamma: Operand | None, beta: Operand | None,
    residual: Operand | None, **settings: Unpack[Fused],
) -> ir.Value:  # fmt: skip
    if settings["options"].training:
        raise e.refuse("normalizes by the statistics of a batch; call .eval()")
    convolved = Operand(_conv(e, input, weight, bias, settings["geometry"]), e.shape, e.dtype)
    y = normalize(e, convolved, gamma, beta, *settings["running"], settings["options"].eps)
    if residual is not None:
        y = e.op("Add", y, e.cast(residual, e.dtype))
    return y if settings["activation"] is None else activated(e, y, settings["activation"])


@translates("ConvPrepacked")
def conv_prepacked(e: Emitter, *args: object, **kwargs: object) -> ir.Value:
    raise e.refuse(
        "a weight that was packed beforehand (F.conv_prepack) cannot be read back; export the layer with its own weight"
    )


# --- pooling ----------------------------------------------------------------------------------------------------------


@translates("MaxPool2d")
def max_pool2d(
    e: Emitter, x: Operand, spatial: int, windows: Windows, return_indices: bool
) -> ir.Value | tuple[ir.Value, ir.Value]:
    kernel, stride, padding, dilation = (pair[-spatial:] for pair in windows[:4])
    y, *found = e.ops(
        "MaxPool", 2 if return_indices else 1, _batched(e, x, spatial), kernel_shape=kernel, strides=stride,
        pads=[*padding, *padding], dilations=dilation, ceil_mode=int(windows.ceil_mode),
    )  # fmt: skip
    y = _unbatched(e, y, x, spatial)
    if not found:
        return y
    plane = e.count(x.shape[-spatial:], dtypes.int64)  # ONNX counts through the whole batch
    return y, _unbatched(e, e.op("Mod", found[0], plane), x, spatial)


@translates("AvgPool2d")
def avg_pool2d(
    e: Emitter, x: Operand, spatial: int, windows: Windows, count_include_pad: bool, divisor_override: int | None
) -> ir.Value:
    kernel, stride, padding = (pair[-spatial:] for pair in windows[:3])
    if divisor_override is not None:
        return _summed(e, x, kernel, stride, padding, divisor_override)
    y = e.op(
        "AveragePool", _batched(e, x, spatial), kernel_shape=kernel, strides=stride, pads=[*padding, *padding],
        ceil_mode=int(windows.ceil_mode), count_include_pad=int(count_include_pad),
    )  # fmt: skip
    return _unbatched(e, y, x, spatial)


def _summed(
    e: Emitter, x: Operand, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], divisor: int
) -> ir.Value:
    """The sums of windows / divisor: means of zeros, too, which stand all around and behind a last window."""
    spatial = len(kernel)
    behind = [*padding]
    for axis, count in enumerate(e.shape[-spatial:]):
        if isinstance(count, int) and isinstance(size := x.shape[axis - spatial], int):
            behind[axis] = max((count - 1) * stride[axis] + kernel[axis] - padding[axis] - size, 0)
    pads = e.ints([0, 0, *padding, 0, 0, *behind])
    padded = e.op("Pad", _batched(e, x, spatial), pads, e.number(0, x.dtype), mode="constant")
    y = e.op("AveragePool", padded, kernel_shape=kernel, strides=stride)
    return _unbatched(e, e.op("Mul", y, e.number(math.prod(kernel) / divisor, x.dtype)), x, spatial)


@translates("AdaptiveAvgPool2d")
def adaptive_avg_pool2d(e: Emitter, x: Operand, spatial: int, size: tuple[Dim, Dim]) -> ir.Value:
    return _averaged(e, x, size[-spatial:])


translates("adaptive_avg_pool2d")(lambda e, x, output_size: _averaged(e, x, output_size))


def _averaged(e: Emitter, x: Operand, wanted: Shape) -> ir.Value:
    y, spatial = x.value, len(wanted)
    if all(n == 1 for n in wanted):
        return e.op("ReduceMean", y, e.ints(range(-spatial, 0)), keepdims=1)
    for axis, n in zip(range(-spatial, 0), wanted, strict=True):
        if n == x.shape[axis]:
            continue
        if n == 1:
            y = e.op("ReduceMean", y, e.ints([axis]), keepdims=1)
            continue
        size, count = x.shape[axis], e.fixed(n)
        matrix = e.array(_means(size, count, x.dtype)) if isinstance(size, int) else _means_of(e, size, count, x.dtype)
        if axis == -1:
            y = e.op("MatMul", y, e.op("Transpose", matrix, perm=[1, 0]))
        else:
            y = e.op("MatMul", matrix, y)
    return y if y is not x.value else e.op("Identity", y)


def _means(size: int, count: int, dtype: DType) -> Array:
    """(count, size): each row takes the mean of what one output covers."""
    matrix = np.zeros((count, size))
    for i in range(count):
        start, end = i * size // count, -(-(i + 1) * size // count)
        matrix[i, start:end] = 1 / (end - start)
    return matrix.astype(dtype.name if dtype is not dtypes.bfloat16 else "float32")


def _means_of(e: Emitter, size: Size, count: int, dtype: DType) -> ir.Value:
    """The matrix of _means() where the size varies."""
    length, first = e.size(size), e.array(np.arange(count, dtype=np.int64)[:, None])
    divisor, one = e.ints([count]), e.number(1, dtypes.int64)
    starts = e.op("Div", e.op("Mul", first, length), divisor)
    behind = e.op("Add", e.op("Mul", e.op("Add", first, one), length), e.ints([count - 1]))
    ends = e.op("Div", behind, divisor)
    place = e.op("Range", e.number(0, dtypes.int64), e.op("Squeeze", length, e.ints([0])), one)
    inside = e.op("And", e.op("GreaterOrEqual", place, starts), e.op("Less", place, ends))
    return e.op("Div", e.convert(inside, dtype), e.convert(e.op("Sub", ends, starts), dtype))


@translates("AdaptiveMaxPool2d")
def adaptive_max_pool2d(e: Emitter, x: Operand, size: tuple[Dim, Dim]) -> tuple[ir.Value, ir.Value]:
    planes = _batched(e, x, 2)
    sizes = [e.fixed(dim, "a pooled size") for dim in x.shape[-2:]]
    counts = [e.fixed(n) for n in size]
    if any(n == 0 or size % n for size, n in zip(sizes, counts, strict=True)):
        y, found = _maxima_of_uneven(e, planes, sizes, counts)
        return _unbatched(e, y, x, 2), _unbatched(e, found, x, 2)
    kernel = [size // n for size, n in zip(sizes, counts, strict=True)]
    y, found = e.ops("MaxPool", 2, planes, kernel_shape=kernel, strides=kernel)
    indices = e.op("Mod", found, e.number(math.prod(sizes), dtypes.int64))
    return _unbatched(e, y, x, 2), _unbatched(e, indices, x, 2)


def _maxima_of_uneven(e: Emitter, x: ir.Value, sizes: list[int], counts: list[int]) -> tuple[ir.Value, ir.Value]:
    """Maxima of windows of several sizes: each has as many places as the largest, the last of it several times."""
    height, width = (_windows(size, count) for size, count in zip(sizes, counts, strict=True))
    places: Array = height[:, None, :, None] * sizes[1] + width[None, :, None, :]  # (P, Q, rows, columns)
    places = places.reshape(*counts, -1)
    flat = e.op("Reshape", x, e.ints([0, 0, -1]))
    seen = e.op("Gather", flat, e.array(places), axis=2)  # (N, C, P, Q, places)
    best = e.op("ArgMax", seen, axis=-1, keepdims=1)
    of_plane = e.op("Expand", e.array(places[None, None]), e.op("Shape", seen))
    found, y = (e.op("GatherElements", each, best, axis=-1) for each in (of_plane, seen))
    return e.op("Squeeze", y, e.ints([-1])), e.op("Squeeze", found, e.ints([-1]))


def _windows(size: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """(count, the largest window's size), int64: the places of each window."""
    ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    most = max((end - start for start, end in ends), default=0)
    rows = [[min(start + step, end - 1) for step in range(most)] for start, end in ends]
    return np.array(rows, np.int64).reshape(count, most)


# --- other sizes ------------------------------------------------------------------------------------------------------

_MODES = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


@translates("Interpolate", "interpolate")
def interpolate(
    e: Emitter, x: Operand, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
) -> ir.Value:
    options: dict[str, float | str] = {"mode": "nearest"}
    if mode == "nearest":
        options |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif mode == "nearest-exact":
        options |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    else:
        aligned = "align_corners" if align_corners else "half_pixel"
        options = {"mode": _MODES[mode], "coordinate_transformation_mode": aligned}
    if mode == "bicubic":
        options["cubic_coeff_a"] = -0.75
    given = [scale for scale in scales if scale is not None]
    if len(given) == len(scales) and not align_corners:
        factors = e.array(np.array([1, 1, *given], np.float32))
        return e.op("Resize", x, None, factors, **options)
    wanted = _scaled_sizes(e, x, given) if len(given) == len(size) else e.sizes(size)
    sizes = e.op("Concat", e.op("Shape", x, start=0, end=2), wanted, axis=0)
    return e.op("Resize", x, None, None, sizes, **options)


def _scaled_sizes(e: Emitter, x: Operand, scales: Sequence[float]) -> ir.Value:
    """⌊size · scale⌋ of each spatial dimension."""
    if not any(isinstance(dim, Size) for dim in x.shape[2:]):
        return e.sizes(e.shape[2:])
    sizes = e.convert(e.op("Shape", x, start=2), dtypes.float64)
    return e.convert(e.op("Floor", e.op("Mul", sizes, e.array(np.array(scales)))), dtypes.int64)


@translates("PixelShuffle")
def pixel_shuffle(e: Emitter, x: Operand, factor: int) -> ir.Value:
    planes = x.value if x.ndim == 4 else reshape_to(e, x, (), (-1, *x.shape[-3:]))
    y = e.op("DepthToSpace", planes, blocksize=factor, mode="CRD")
    return y if x.ndim == 4 else reshape_to(e, y, (), e.shape)


@translates("PixelUnshuffle")
def pixel_unshuffle(e: Emitter, x: Operand, factor: int) -> ir.Value:
    channels = e.fixed(x.shape[-3], "the number of channels")
    planes = x.value if x.ndim == 4 else reshape_to(e, x, (), (-1, *x.shape[-3:]))
    y = e.op("SpaceToDepth", planes, blocksize=factor)  # channels of equal places together; wanted: those of a channel
    order = np.arange(channels * factor**2).reshape(factor**2, channels).T.reshape(-1)
    y = e.op("Gather", y, e.array(order.astype(np.int64)), axis=1)
    return y if x.ndim == 4 else reshape_to(e, y, (), e.shape)


@translates("Pad", "pad")
def pad(e: Emitter, x: Operand, pads: tuple[tuple[Dim, Dim], ...], mode: str, value: float) -> ir.Value:
    if mode in ("reflect", "replicate"):  # of the whole input, also where it is cropped
        return _cropped(e, _padded(e, x.value, pads, mode, None), pads)
    fill = e.number(value, x.dtype) if mode == "constant" else None
    return _padded(e, _cropped(e, x.value, pads), pads, mode, fill)


def _padded(e: Emitter, y: ir.Value, pads: tuple[tuple[Dim, Dim], ...], mode: str, fill: ir.Value | None) -> ir.Value:
    """y with what the positive numbers add."""
    before, after = ([n if isinstance(n, Size) else max(n, 0) for n in side] for side in zip(*pads, strict=True))
    if all(n == 0 for n in (*before, *after)):
        return e.op("Identity", y)
    if mode == "circular" and e.opset < 19:
        return _wrapped(e, y, [e.fixed(n) for n in before], [e.fixed(n) for n in after])
    kind = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    return e.op("Pad", y, e.sizes((*before, *after)), fill, mode=kind)


def _cropped(e: Emitter, y: ir.Value, pads: tuple[tuple[Dim, Dim], ...]) -> ir.Value:
    """y without what the negative numbers take away."""
    ends = [[min(n, 0) if isinstance(n, int) else 0 for n in pair] for pair in pads]
    axes = [axis for axis, pair in enumerate(ends) if any(pair)]
    if not axes:
        return e.op("Identity", y)
    starts = e.ints([-ends[axis][0] for axis in axes])
    return e.op("Slice", y, starts, e.ints([ends[axis][1] or END for axis in axes]), e.ints(axes))


def _wrapped(e: Emitter, y: ir.Value, before: list[int], after: list[int]) -> ir.Value:
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        parts = [y]
        if first:
            parts.insert(0, e.op("Slice", y, e.ints([-first]), e.ints([END]), e.ints([axis])))
        if last:
            parts.append(e.op("Slice", y, e.ints([0]), e.ints([last]), e.ints([axis])))
        y = e.op("Concat", *parts, axis=axis) if len(parts) > 1 else y
    return y
