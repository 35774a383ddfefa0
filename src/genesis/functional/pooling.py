"""Pooling in one and two dimensions. One dimension is a plane of height 1."""

from __future__ import annotations

from typing import Any, Literal, overload

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.windows import as_planes, from_planes, per_dimension, planar, remembered, require_tensor
from genesis.ndarray import NDArray, ops
from genesis.records import Pair, Windows
from genesis.shapes import Shape

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "max_pool1d",
    "max_pool2d",
]  # fmt: skip

Size = int | tuple[int, ...]
OutputSize = int | None | tuple[int | None, ...]


@overload
def max_pool1d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def max_pool1d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, *, return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def max_pool1d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def max_pool1d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maximum of each window of a signal.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        kernel_size, stride, padding, dilation, ceil_mode, return_indices: as in `F.max_pool2d`.
    Returns: (N, C, Q) or (C, Q); with return_indices a pair.
    Raises: as F.max_pool2d.
    Grad: input. Saves where each value was found.
    Example: >>> F.max_pool1d(genesis.arange(4.0).reshape(1, 4), 2).tolist()
    [[1.0, 3.0]]
    """
    windows = _check_windows("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return MaxPool2d.apply(input, spatial=1, windows=windows, return_indices=bool(return_indices))


@overload
def max_pool2d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def max_pool2d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, *, return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def max_pool2d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def max_pool2d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maximum of each window.

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype.
        kernel_size: (R, S), or one number for both.
        stride: None for kernel_size.
        padding: how far windows reach over the edge; at most half of kernel_size.
        dilation: distance between the elements of a window.
        ceil_mode: also windows that begin inside and end outside.
        return_indices: also return where in its H·W plane each value was found, int64.
    Returns: (N, C, P, Q) or (C, P, Q), with P = ⌊(H + 2·padding − dilation·(R − 1) − 1) / stride⌋ + 1 (⌈…⌉ with
        ceil_mode); with return_indices a pair.
    Raises: ValueError: padding more than half of kernel_size; the output would be empty.
    Grad: input. Saves where in its window each value was found.

    Example:
        >>> F.max_pool2d(genesis.arange(4.0).reshape(1, 2, 2), 2).tolist()
        [[[3.0]]]
    """
    windows = _check_windows("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return MaxPool2d.apply(input, spatial=2, windows=windows, return_indices=bool(return_indices))


class MaxPool2d(ArrayFunction):
    @staticmethod
    def forward(
        ctx: Context, x: NDArray, *, spatial: int, windows: Windows, return_indices: bool
    ) -> Any:  # one array, or with return_indices two
        differentiable = any(ctx.needs_input_grad)
        find = "indices" if return_indices else "places" if differentiable else None
        planes = as_planes(x, spatial)
        y, found = ops.max_pool2d(planes, windows, find)
        if differentiable:
            ctx.save(found)
            ctx.spatial, ctx.windows, ctx.ndim, ctx.planes_shape = spatial, windows, x.ndim, planes.shape
        y = from_planes(y, spatial, x.ndim)
        return (y, from_planes(found, spatial, x.ndim)) if return_indices and found is not None else y

    @staticmethod
    def backward(ctx: Context, grad: NDArray, grad_indices: None = None) -> NDArray:
        (found,) = ctx.saved
        grad_x = ops.max_pool2d_backward(as_planes(grad, ctx.spatial), ctx.planes_shape, found, ctx.windows)
        return from_planes(grad_x, ctx.spatial, ctx.ndim)


def avg_pool1d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean of each window of a signal.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        kernel_size, stride, padding, ceil_mode, count_include_pad: as in `F.avg_pool2d`.
    Returns: (N, C, Q) or (C, Q).
    Raises: as F.avg_pool2d.
    Grad: input. Saves input's layout.
    Example: >>> F.avg_pool1d(genesis.arange(4.0).reshape(1, 4), 2).tolist()
    [[0.5, 2.5]]
    """
    windows = _check_windows("avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    count_include_pad = bool(count_include_pad)
    return AvgPool2d.apply(
        input, spatial=1, windows=windows, count_include_pad=count_include_pad, divisor_override=None
    )  # fmt: skip


def avg_pool2d(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window.

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype.
        kernel_size: (R, S), or one number for both.
        stride: None for kernel_size.
        padding: zeros on each side; at most half of kernel_size.
        ceil_mode: also windows that begin inside and end outside.
        count_include_pad: the padding's zeros count in the mean.
        divisor_override: divide the sums by this instead.
    Returns: (N, C, P, Q) or (C, P, Q), with P = ⌊(H + 2·padding − R) / stride⌋ + 1 (⌈…⌉ with ceil_mode).
    Raises: ValueError: padding more than half of kernel_size; divisor_override is 0; the output would be empty.
    Grad: input. Saves input's layout.

    Example:
        >>> F.avg_pool2d(genesis.arange(4.0).reshape(1, 2, 2), 2).tolist()
        [[[1.5]]]
    """
    if divisor_override == 0:
        raise ValueError(describe("avg_pool2d", "divisor_override", "a number other than 0", 0))
    windows = _check_windows("avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    count_include_pad = bool(count_include_pad)
    return AvgPool2d.apply(
        input, spatial=2, windows=windows, count_include_pad=count_include_pad, divisor_override=divisor_override
    )  # fmt: skip


class AvgPool2d(ArrayFunction):
    @staticmethod
    def forward(
        ctx: Context, x: NDArray, *, spatial: int, windows: Windows, count_include_pad: bool,
        divisor_override: int | None,
    ) -> NDArray:  # fmt: skip
        ctx.save_layouts(x)
        ctx.spatial, ctx.how = spatial, (windows, count_include_pad, divisor_override)
        return from_planes(ops.avg_pool2d(as_planes(x, spatial), *ctx.how), spatial, x.ndim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        grad_x = ops.avg_pool2d_backward(as_planes(grad, ctx.spatial), as_planes(x, ctx.spatial), *ctx.how)
        return from_planes(grad_x, ctx.spatial, x.ndim)


def adaptive_avg_pool1d(input: Tensor, output_size: OutputSize) -> Tensor:
    """The means of output_size windows of equal length; see adaptive_avg_pool2d.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        output_size: Q; None keeps the input's size.
    Returns: (N, C, output_size) or (C, output_size).
    Raises: DTypeError: input is not floating. ShapeError: its rank, an empty signal, or several sizes.
    Grad: input. Saves input's layout.
    Example: >>> F.adaptive_avg_pool1d(genesis.arange(4.0).reshape(1, 4), 2).tolist()
    [[0.5, 2.5]]
    """
    return _adaptive_avg_pool("adaptive_avg_pool1d", 1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: OutputSize) -> Tensor:
    """The means of the windows that cut each plane into output_size parts: window i is [⌊i·H/P⌋, ⌈(i + 1)·H/P⌉).

    Args:
        input: (N, C, H, W) or (C, H, W).
        output_size: (P, Q), or one number for both; None keeps the input's size.
    Returns: (N, C, P, Q) or (C, P, Q).
    Raises: DTypeError: input is not floating. ShapeError: its rank, an empty plane, or more than two sizes.
    Grad: input. Saves input's layout.

    Example:
        >>> F.adaptive_avg_pool2d(genesis.arange(4.0).reshape(1, 2, 2), (1, None)).tolist()
        [[[1.0, 2.0]]]
    """
    return _adaptive_avg_pool("adaptive_avg_pool2d", 2, input, output_size)


def _adaptive_avg_pool(op: str, spatial: int, input: Tensor, output_size: OutputSize) -> Tensor:
    size = _check_output_size(op, spatial, input, output_size)
    return AdaptiveAvgPool2d.apply(input, spatial=spatial, size=size)


class AdaptiveAvgPool2d(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, spatial: int, size: tuple[int, int]) -> NDArray:
        ctx.save_layouts(x)
        ctx.spatial = spatial
        return from_planes(ops.adaptive_avg_pool2d(as_planes(x, spatial), size), spatial, x.ndim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        grad_x = ops.adaptive_avg_pool2d_backward(as_planes(grad, ctx.spatial), as_planes(x, ctx.spatial))
        return from_planes(grad_x, ctx.spatial, x.ndim)


@overload
def adaptive_max_pool2d(input: Tensor, output_size: OutputSize, return_indices: Literal[False] = False) -> Tensor: ...
@overload
def adaptive_max_pool2d(
    input: Tensor, output_size: OutputSize, return_indices: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d(
    input: Tensor, output_size: OutputSize, return_indices: bool
) -> Tensor | tuple[Tensor, Tensor]: ...
def adaptive_max_pool2d(
    input: Tensor, output_size: OutputSize, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each of the windows of adaptive_avg_pool2d.

    Args:
        input: (N, C, H, W) or (C, H, W).
        output_size: (P, Q), or one number for both; None keeps the input's size.
        return_indices: give as well where in its H·W plane each value was found.
    Returns: (N, C, P, Q) or (C, P, Q); with return_indices a pair.
    Raises: DTypeError: input is not floating. ShapeError: its rank, an empty plane, or more than two sizes.
    Grad: input. Saves input and the indices.

    Example:
        >>> F.adaptive_max_pool2d(genesis.arange(4.0).reshape(1, 2, 2), 1).item()
        3.0
    """
    size = _check_output_size("adaptive_max_pool2d", 2, input, output_size)
    y, indices = AdaptiveMaxPool2d.apply(input, size=size)
    return (y, indices) if return_indices else y


class AdaptiveMaxPool2d(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, size: tuple[int, int]) -> tuple[NDArray, NDArray]:
        y, indices = ops.adaptive_max_pool2d(as_planes(x, 2), size)
        ctx.save(x, indices)
        return from_planes(y, 2, x.ndim), from_planes(indices, 2, x.ndim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray, grad_indices: None) -> NDArray:
        x, indices = ctx.saved
        grad_x = ops.adaptive_max_pool2d_backward(as_planes(grad, 2), as_planes(x, 2), indices)
        return from_planes(grad_x, 2, x.ndim)


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_planes(op: str, spatial: int, input: Tensor) -> None:
    require_tensor(op, "input", input)
    shape = input.array.shape
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    if len(shape) not in (spatial + 1, spatial + 2):
        expected = f"{spatial + 2} dimensions, or {spatial + 1} without a batch"
        raise ShapeError(describe(op, "input", expected, f"shape {shape}"))
    if 0 in shape[-spatial - 1 :]:
        raise ShapeError(describe(op, "input", "sizes >= 1 but for the batch", f"shape {shape}"))


def _check_windows(
    op: str, spatial: int, input: Tensor, kernel_size: Size, stride: Size | None, padding: Size, dilation: Size,
    ceil_mode: bool,
) -> Windows:  # fmt: skip
    """The windows on planes, when the input and the output they lead to are right."""
    _check_planes(op, spatial, input)
    return _windows(op, input.array.shape[-spatial:], kernel_size, stride, padding, dilation, ceil_mode)


@remembered
def _windows(
    op: str, sizes: Shape, kernel_size: Size, stride: Size | None, padding: Size, dilation: Size, ceil_mode: bool
) -> Windows:
    spatial = len(sizes)
    kernel_size = per_dimension(op, "kernel_size", kernel_size, spatial, least=1)
    no_stride = stride is None or stride in ((), [])
    stride = kernel_size if no_stride else per_dimension(op, "stride", stride, spatial, least=1)
    padding = per_dimension(op, "padding", padding, spatial, least=0)
    dilation = per_dimension(op, "dilation", dilation, spatial, least=1)
    for size, k, s, p, d in zip(sizes, kernel_size, stride, padding, dilation, strict=True):
        if 2 * p > k:
            raise ShapeError(describe(op, "padding", f"at most half of kernel_size {k}", p))
        room = size + 2 * p - d * (k - 1) - 1
        windows = (-(-room // s) if ceil_mode else room // s) + 1
        if windows - (ceil_mode and (windows - 1) * s >= size + p) < 1:
            expected = f"a size, with padding, of at least the window's {d * (k - 1) + 1}"
            raise ShapeError(describe(op, "input", expected, size + 2 * p))
    return Windows(
        planar(kernel_size, 1), planar(stride, 1), planar(padding, 0), planar(dilation, 1), bool(ceil_mode)
    )  # fmt: skip


def _check_output_size(op: str, spatial: int, input: Tensor, output_size: OutputSize) -> Pair:
    _check_planes(op, spatial, input)
    given = tuple(output_size) if isinstance(output_size, list | tuple) else (output_size,) * spatial
    if len(given) != spatial:
        raise ShapeError(describe(op, "output_size", f"1 or {spatial} numbers", output_size))
    kept = [size if out is None else out for out, size in zip(given, input.array.shape[-spatial:], strict=True)]
    return planar(per_dimension(op, "output_size", kept, spatial, least=0), 1)
