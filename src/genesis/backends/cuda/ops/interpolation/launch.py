"""Interpolation, by tables: which inputs each output takes along an axis, with which weights.

Turned round, a table says for the backward where each input went: that gathers too, so its sums come in one order.
Tables are computed as PyTorch computes them, and kept on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import Value
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.planned import into_new, planned
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.interpolation import kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.storage.launch import from_cpu
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.capture import outside
from genesis.dtypes import DType, HostArray
from genesis.shapes import Shape, channels_last_strides, contiguous_strides

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Size = TypeVar("Size")
Filler = TypeVar("Filler")
Floats: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.float64]"
Integers: TypeAlias = "npt.NDArray[np.int64]"
Run = Callable[[DeviceArray], DeviceArray]

# Where channels lie side by side, a program has so many bytes of a row, 16 a thread: of as many rows as leave each
# multiprocessor _PROGRAMS, and of one row in the backward, 8 a thread: more threads to wait at the same time.
_BYTES, _BACKWARD_BYTES = 2048, 1024
_MOST_ROWS, _PROGRAMS = 16, 4
# Outputs that an input collects from at once; with more, each axis in turn is faster. On an H200, where channels lie
# side by side, with 400 it is twice as fast, with 256 slower; where they do not, with 64 twice as fast, with 4 slower.
_MOST_USES, _MOST_USES_APART = 320, 8
_TAPS = {"nearest": 1, "nearest-exact": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}


class Axis(NamedTuple):
    """All that decides a table. number: what weights are kept in."""

    size: int
    out_size: int
    mode: str
    align_corners: bool
    scale: float | None
    number: DType
    device: int


class _Tables(NamedTuple):
    """Tables of an axis, on the device; weights are None for the nearest modes."""

    indices: DeviceArray  # (output, tap)
    weights: DeviceArray | None
    starts: DeviceArray  # (input + 1): where an input's uses begin
    outputs: DeviceArray  # per use
    output_weights: DeviceArray | None
    most_uses: int


_tables: dict[Axis, _Tables] = {}
driver.forget_on_switch(_tables.clear)


@planned
def interpolate(x: Layout, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Run:
    if mode not in ("nearest", "nearest-exact") and not x.dtype.is_floating_point:
        raise NotImplementedError(f"interpolate has no cuda implementation for mode '{mode}' and {x.dtype.name}")
    out = _like(x, (*x.shape[:2], *size))
    tables = _of_axes(x.shape[2:], size, mode, align_corners, scales, x)
    indices, weights = [t.indices for t in tables], [t.weights for t in tables]
    if len(size) == 2 and _is_channels_last(out) and x.strides[1] == 1 and out.size:
        return _interpolate_rows(out, x, [*indices, *weights], _TAPS[mode])
    grid, constants = _cut(out, x)
    return _launched(
        kernels._interpolate_kernel, grid, out, x, [*_three(indices, None), *_three(weights, None)], out.size,
        out.shape[1], _three(size, 1), _five(x.strides), TAPS=_TAPS[mode], FIRST_AXIS=3 - len(size), **constants,
    )  # fmt: skip


def _interpolate_rows(out: Layout, x: Layout, tables: list[DeviceArray | None], taps: int) -> Run:
    """Channels lie side by side in both arrays."""
    images, channels, height, width = out.shape
    block, segments, wide = _cut_rows(out, x, _BYTES)
    programs = _PROGRAMS * driver.get().properties(out.device_index).multiprocessor_count
    rows_of_group = min(_MOST_ROWS, max(1, images * height * segments // programs))
    groups = -(-height // rows_of_group)
    return _launched(
        kernels._interpolate_rows_kernel, (images * groups * segments,), out, x, tables, segments, groups,
        rows_of_group, width * channels, channels, (height, width), (x.strides[0], *x.strides[2:]), TAPS=taps,
        COMPUTE=COMPUTE[out.dtype], WIDE=wide, BLOCK=block,
    )  # fmt: skip


@planned
def interpolate_backward(
    grad: Layout, input_shape: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
) -> Run:
    tables = _of_axes(input_shape[2:], grad.shape[2:], mode, align_corners, scales, grad)
    out = _like(grad, input_shape)
    most_uses = _MOST_USES if _are_side_by_side(out, grad) else _MOST_USES_APART
    if len(tables) > 1 and math.prod(each.most_uses for each in tables) > most_uses:
        return _along_each_axis(grad, input_shape, tables)
    return _gathered(out, grad, tables)


def _along_each_axis(grad: Layout, input_shape: Shape, tables: list[_Tables]) -> Run:
    """One axis after the other, the last one first: what is between them is not rounded."""
    passes, source, wide = [], grad, _number(grad)
    for axis in reversed(range(2, len(input_shape))):
        shape = (*source.shape[:axis], *input_shape[axis:])
        kept = [_on_device(Axis(size, size, "nearest", False, None, wide, grad.device_index)) for size in shape[2:]]
        kept[axis - 2] = tables[axis - 2]
        out = _like(source, shape, wide if axis > 2 else grad.dtype)
        passes.append(_gathered(out, source, kept))
        source = out

    def run(grad: DeviceArray) -> DeviceArray:
        for each in passes:
            grad = each(grad)
        return grad

    return run


def _gathered(out: Layout, grad: Layout, tables: list[_Tables]) -> Run:
    starts, outputs, weights = ([getattr(t, name) for t in tables] for name in ("starts", "outputs", "output_weights"))
    if _are_side_by_side(out, grad):
        return _interpolate_rows_backward(out, grad, [*starts, *outputs, *weights], tables[1].most_uses)
    grid, constants = _cut(out, grad)
    arrays = [*_three(starts, None), *_three(outputs, None), *_three(weights, None)]
    return _launched(
        kernels._interpolate_backward_kernel, grid, out, grad, arrays, out.size, out.shape[1],
        _three(out.shape[2:], 1), _three([t.most_uses for t in tables], 1), _five(grad.strides), **constants,
    )  # fmt: skip


def _are_side_by_side(out: Layout, grad: Layout) -> bool:
    """Whether the channels of images are, in both."""
    return len(out.shape) == 4 and _is_channels_last(out) and grad.strides[1] == 1 and grad.size > 0


def _interpolate_rows_backward(out: Layout, grad: Layout, tables: list[DeviceArray | None], most_uses: int) -> Run:
    """Channels lie side by side in both arrays."""
    images, channels, height, width = out.shape
    block, segments, wide = _cut_rows(out, grad, _BACKWARD_BYTES)
    return _launched(
        kernels._interpolate_rows_backward_kernel, (images * height * segments,), out, grad, tables, segments,
        most_uses, width * channels, channels, (height, width), (grad.strides[0], *grad.strides[2:]),
        COMPUTE=COMPUTE[out.dtype], WIDE=wide, BLOCK=block,
    )  # fmt: skip


def _launched(
    kernel: JITFunction, grid: tuple[int, ...], out: Layout, source: Layout, tables: Sequence[DeviceArray | None],
    *numbers: Value | tuple[int, ...], **constants: object,
) -> Run:  # fmt: skip
    """run(source), into a new array. It keeps the tables."""
    leading = (out, source, *[None if table is None else table.layout for table in tables])
    launch = prepare_raw(kernel, out.device_index, grid, leading, *numbers, **constants)
    run = into_new(launch, out)
    return lambda source: run(source, *tables)


def _cut(out: Layout, source: Layout) -> tuple[tuple[int], dict[str, object]]:
    """Grid and constants of a kernel with one lane per element of out."""
    block = min(1024, max(32, tiles.power_of_2(out.size)))
    constants = {
        "CHANNELS_LAST": _is_channels_last(out),
        "COMPUTE": COMPUTE[out.dtype],
        "WIDE": _is_wide(out, source, block),
        "BLOCK": block,
    }
    return (-(-out.size // block),), constants


def _cut_rows(out: Layout, source: Layout, num_bytes: int) -> tuple[int, int, bool]:
    """Cut rows of out: elements of a program, programs side by side, and whether offsets in a row need 64 bits."""
    row_size = out.shape[1] * out.shape[3]
    block = min(num_bytes // out.dtype.itemsize, max(32, tiles.power_of_2(row_size)))
    far = source.shape[3] * source.strides[3] + source.shape[1]
    return block, -(-row_size // block), max(row_size + block, far) >= 2**31


def _of_axes(
    size: Shape, out_size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...], x: Layout
) -> list[_Tables]:
    axes = zip(size, out_size, scales, strict=True)
    return [_on_device(Axis(i, o, mode, align_corners, scale, _number(x), x.device_index)) for i, o, scale in axes]


def _on_device(axis: Axis) -> _Tables:
    if axis not in _tables:
        with outside(axis.device):
            _tables[axis] = _upload(axis)
    return _tables[axis]


def _number(x: Layout) -> DType:
    """The dtype of weights and sums."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _upload(axis: Axis) -> _Tables:
    indices, weights = table(axis)
    starts, outputs, output_weights = turned_round(indices, weights, axis.size)

    def put(values: HostArray, dtype: DType) -> DeviceArray:
        return from_cpu(values.astype(dtype.name), dtype, axis.device)

    tables = _Tables(
        put(indices, dtypes.int32),
        None if weights is None else put(weights, axis.number),
        put(starts, dtypes.int32),
        put(outputs, dtypes.int32),
        None if output_weights is None else put(output_weights, axis.number),
        int(np.diff(starts).max(initial=1)),
    )
    # Other streams will use them too.
    driver.get().synchronize_stream(axis.device, streams.current_handle(axis.device))
    return tables


def table(axis: Axis) -> tuple[HostArray, HostArray | None]:
    """Indices and weights, each (output, tap).

    >>> indices, weights = table(Axis(2, 4, "linear", False, None, dtypes.float64, 0))
    >>> indices.astype(int).tolist(), weights.tolist()
    ([[0, 1], [0, 1], [0, 1], [1, 1]], [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25]])
    """
    # Which element is the nearest hangs on how PyTorch rounds; weights between elements are better not rounded yet.
    number = np.dtype(axis.number.name if axis.mode.startswith("nearest") else np.float64).type
    half = number(0.5)
    outputs = np.arange(axis.out_size).astype(number)
    scale = number(_scale(axis, number))
    last = axis.size - 1
    if axis.mode == "nearest":
        return np.minimum(np.floor((outputs * scale).astype(np.float32)), last)[:, None], None
    if axis.mode == "nearest-exact":
        positions = np.maximum(scale * (outputs + half) - half, 0) + half
        return np.minimum(np.floor(positions.astype(np.float32)), last)[:, None], None
    positions = outputs * scale if axis.align_corners else scale * (outputs + half) - half
    if axis.mode != "bicubic":
        positions = np.maximum(positions, 0)
        if axis.size == axis.out_size:
            positions = outputs
    first = np.minimum(np.floor(positions), last)
    part = np.clip(positions - first, 0, 1)
    if axis.mode != "bicubic":
        return np.stack([first, np.minimum(first + 1, last)], 1), np.stack([1 - part, part], 1)
    taps = np.clip(first[:, None] + np.arange(-1, 3), 0, last)
    near, far = 1 - part, part
    return taps, np.stack([_outer_cubic(far + 1), _inner_cubic(far), _inner_cubic(near), _outer_cubic(near + 1)], 1)


def _scale(axis: Axis, number: Callable[[float], np.float64]) -> float:
    """Input elements per output element, as its steps count."""
    if axis.align_corners:
        return number(axis.size - 1) / number(axis.out_size - 1) if axis.out_size > 1 else 0.0
    if axis.scale is not None and axis.scale > 0:
        return 1.0 / axis.scale
    return number(axis.size) / number(axis.out_size)


def _inner_cubic(x: Floats) -> Floats:
    """The cubic kernel with a = −3/4 for |x| ≤ 1. Source: Keys 1981, doi:10.1109/TASSP.1981.1163711."""
    return (1.25 * x - 2.25) * x * x + 1


def _outer_cubic(x: Floats) -> Floats:
    """The same for 1 < |x| < 2."""
    return ((-0.75 * x + 3.75) * x - 6) * x + 3


def turned_round(
    indices: HostArray, weights: HostArray | None, size: int
) -> tuple[Integers, Integers, HostArray | None]:
    """Input i is used by outputs[starts[i] : starts[i + 1]], with those weights.

    >>> starts, outputs, _ = turned_round(np.array([[0], [0], [2]]), None, 3)
    >>> starts.tolist(), outputs.tolist()
    ([0, 2, 2, 3], [0, 1, 2])
    """
    used = indices.astype(np.int64).reshape(-1)
    order = np.argsort(used, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(used, minlength=size))])
    return starts, order // indices.shape[1], None if weights is None else weights.reshape(-1)[order]


def _is_wide(out: Layout, source: Layout, block: int) -> bool:
    """Do offsets need 64 bits?"""
    far = sum(size * stride for size, stride in zip(source.shape, source.strides, strict=True))
    return max(out.size + block, far) >= 2**31


def _like(x: Layout, shape: Shape, dtype: DType | None = None) -> Layout:
    strides = channels_last_strides(shape) if _is_channels_last(x) else contiguous_strides(shape)
    return layout_of(shape, dtype or x.dtype, x.device_index, strides)


def _is_channels_last(x: Layout) -> bool:
    return len(x.shape) > 3 and x.shape[1] > 1 and x.strides[1] == 1 and x.strides[-1] >= x.shape[1]


def _three(values: Sequence[Size], filler: Filler) -> tuple[Size | Filler, ...]:
    """Depth, height, width: a filler for those that are not there."""
    return (*[filler] * (3 - len(values)), *values)


def _five(strides: Shape) -> Shape:
    return (*strides[:2], *_three(strides[2:], 0))
