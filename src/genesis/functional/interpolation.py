"""Images in another size: interpolation, and pixel_shuffle, which trades channels for resolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.antialias import Antialiased
from genesis.functional.pooling import AdaptiveAvgPool2d
from genesis.functional.windows import Size, per_dimension, planar, require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["interpolate", "pixel_shuffle", "pixel_unshuffle"]

SPATIAL_DIMS = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3),
    "linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,),
}  # fmt: skip


def interpolate(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """input in another size.

    Args:
        input: (N, C, …) with 1 to 3 spatial dimensions, any floating dtype.
        size: the spatial sizes of the result, or one for all.
        scale_factor: instead of size, how often larger each spatial dimension becomes.
        mode: "nearest", "nearest-exact", "area" (the mean of what each output covers); "linear" with 1 spatial
            dimension, "bilinear" or "bicubic" with 2, "trilinear" with 3.
        align_corners: the outermost samples coincide, else the outermost edges; for the linear and cubic modes.
        recompute_scale_factor: positions follow from the rounded size, not from scale_factor itself.
        antialias: smooth what becomes smaller, as Pillow does: the filter covers all samples between two outputs, and
            "bicubic" uses a = −0.5 instead of −0.75; for "bilinear" and "bicubic".
    Returns: (N, C, …), dtype of input.
    Raises: ValueError: not exactly one of size and scale_factor; a mode of another rank; an empty result.
    Grad: input.

    Example:
        >>> F.interpolate(genesis.tensor([[[1.0, 2.0]]]), scale_factor=2).tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]
    """
    op = "interpolate"
    _check_mode(op, input, mode, align_corners, antialias)
    shape = input.array.shape[2:]
    sizes, scales = _target(op, shape, size, scale_factor, recompute_scale_factor)
    if 0 in input.array.shape[1:] or min(sizes) < 1:
        expected = f"sizes >= 1 but for the batch, before and after; {shape} became {sizes}"
        raise ShapeError(describe(op, "input", expected, f"shape {input.array.shape}"))
    if mode == "area" and len(sizes) == 3:
        return InterpolateVolumeArea.apply(input, size=sizes)
    if mode == "area":
        return AdaptiveAvgPool2d.apply(input, spatial=len(sizes), size=planar(sizes, 1))
    if antialias:
        return Antialiased.apply(input, size=sizes, mode=mode, align_corners=bool(align_corners), scales=scales)
    return Interpolate.apply(input, size=sizes, mode=mode, align_corners=bool(align_corners), scales=scales)


class Interpolate(ArrayFunction):
    @staticmethod
    def forward(
        ctx: Context, x: NDArray, *, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
    ) -> NDArray:
        ctx.shape, ctx.options = x.shape, (mode, align_corners, scales)
        return ops.interpolate(x, size, *ctx.options)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return ops.interpolate_backward(grad, ctx.shape, *ctx.options)


class InterpolateVolumeArea(ArrayFunction):
    """Means over boxes: over the planes (H, W) first, over the depth afterwards."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, size: Shape) -> NDArray:
        n, channels, depth, height, width = x.shape
        planes = x.reshape((n, channels * depth, height, width))
        columns = ops.adaptive_avg_pool2d(planes, (size[1], size[2])).reshape((n, channels, depth, size[1] * size[2]))
        ctx.save(planes, columns)
        ctx.shape = x.shape
        return ops.adaptive_avg_pool2d(columns, (size[0], columns.shape[3])).reshape((n, channels, *size))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        planes, columns = ctx.saved
        n, channels, depth, height, width = grad.shape
        grad = ops.adaptive_avg_pool2d_backward(grad.reshape((n, channels, depth, height * width)), columns)
        grad = ops.adaptive_avg_pool2d_backward(grad.reshape((*planes.shape[:2], height, width)), planes)
        return grad.reshape(ctx.shape)


def _check_mode(op: str, input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    require_tensor(op, "input", input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    if mode not in SPATIAL_DIMS:
        raise ValueError(describe(op, "mode", f"one of {', '.join(SPATIAL_DIMS)}", repr(mode)))
    if input.array.ndim - 2 not in SPATIAL_DIMS[mode]:
        expected = f"(N, C, …) with {' or '.join(map(str, SPATIAL_DIMS[mode]))} spatial dimensions for mode {mode!r}"
        raise ShapeError(describe(op, "input", expected, f"shape {input.array.shape}"))
    if align_corners is not None and len(SPATIAL_DIMS[mode]) == 3:
        raise ValueError(describe(op, "align_corners", f"None with mode {mode!r}", align_corners))
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(describe(op, "antialias", f"False with mode {mode!r}", antialias))


def _target(
    op: str,
    shape: Shape,
    size: Size | None,
    scale_factor: float | Sequence[float] | None,
    recompute_scale_factor: bool | None,
) -> tuple[Shape, tuple[float | None, ...]]:
    """The spatial sizes of the result, and the scale by which positions are found (None: the ratio of the sizes)."""
    if (size is None) == (scale_factor is None):
        expected = "either size or scale_factor"
        raise ValueError(describe(op, "size", expected, f"size={size}, scale_factor={scale_factor}"))
    if scale_factor is None:
        if recompute_scale_factor:
            raise ValueError(
                describe(op, "recompute_scale_factor", "None or False beside size", recompute_scale_factor)
            )
        return per_dimension(op, "size", size, len(shape), least=0), (None,) * len(shape)
    factors = tuple(scale_factor) if isinstance(scale_factor, Sequence) else (scale_factor,) * len(shape)
    if len(factors) != len(shape):
        raise ShapeError(describe(op, "scale_factor", f"1 or {len(shape)} numbers", scale_factor))
    scales = tuple(float(factor) for factor in factors)
    sizes = tuple(math.floor(size * scale) for size, scale in zip(shape, scales, strict=True))
    return sizes, (None,) * len(shape) if recompute_scale_factor else scales


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Trade channels for resolution: each r² channels become one plane that is r times higher and wider.

    Args:
        input: (…, C·r², H, W).
        upscale_factor: r.
    Returns: (…, C, H·r, W·r).
    Raises: DTypeError: upscale_factor is no int. ShapeError: its value; fewer than 3 dimensions; channels that r² does
        not divide.
    Grad: input.
    Source: Shi et al. 2016, arXiv:1609.05158.

    Example:
        >>> F.pixel_shuffle(genesis.arange(4.0).reshape(4, 1, 1), 2).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    op = "pixel_shuffle"
    factor = _check_factor(op, "upscale_factor", input, upscale_factor)
    channels = input.array.shape[-3]
    if channels % factor**2:
        raise ShapeError(describe(op, "input", f"channels divisible by {factor}²", channels))
    return PixelShuffle.apply(input, factor=factor)


class PixelShuffle(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, factor: int) -> NDArray:
        ctx.factor = factor
        return _apart(_shuffle(x, factor), x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return _unshuffle(grad, ctx.factor)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """The inverse of pixel_shuffle: resolution becomes channels.

    Args:
        input: (…, C, H·r, W·r).
        downscale_factor: r.
    Returns: (…, C·r², H, W).
    Raises: ShapeError: a size is no multiple of r; fewer than 3 dimensions.
    Grad: input. Saves nothing.
    Example: >>> F.pixel_unshuffle(genesis.arange(4.0).reshape(1, 2, 2), 2).tolist()
    [[[0.0]], [[1.0]], [[2.0]], [[3.0]]]
    """
    op = "pixel_unshuffle"
    factor = _check_factor(op, "downscale_factor", input, downscale_factor)
    if any(size % factor for size in input.array.shape[-2:]):
        raise ShapeError(describe(op, "input", f"height and width divisible by {factor}", input.array.shape[-2:]))
    return PixelUnshuffle.apply(input, factor=factor)


class PixelUnshuffle(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, factor: int) -> NDArray:
        ctx.factor = factor
        return _apart(_unshuffle(x, factor), x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return _shuffle(grad, ctx.factor)


def _apart(y: NDArray, x: NDArray) -> NDArray:
    """y in memory of its own, also where nothing had to move."""
    return y.clone() if y.is_view_of(x) else y


def _shuffle(x: NDArray, r: int) -> NDArray:
    *batch, channels, height, width = x.shape
    n = len(batch)
    split = x.reshape((*batch, channels // r**2, r, r, height, width))
    return split.permute((*range(n + 1), n + 3, n + 1, n + 4, n + 2)).reshape(
        (*batch, channels // r**2, height * r, width * r)
    )


def _unshuffle(x: NDArray, r: int) -> NDArray:
    *batch, channels, height, width = x.shape
    n = len(batch)
    split = x.reshape((*batch, channels, height // r, r, width // r, r))
    return split.permute((*range(n + 1), n + 2, n + 4, n + 1, n + 3)).reshape(
        (*batch, channels * r**2, height // r, width // r)
    )


def _check_factor(op: str, argument: str, input: Tensor, factor: int) -> int:
    require_tensor(op, "input", input)
    if input.array.ndim < 3:
        raise ShapeError(describe(op, "input", "at least 3 dimensions", f"shape {input.array.shape}"))
    return per_dimension(op, argument, factor, 1, least=1)[0]
