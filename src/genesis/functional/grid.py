"""Sampling of images along a grid: affine_grid and grid_sample, as in spatial transformers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import hardtanh
from genesis.functional.arguments import int_tuple
from genesis.functional.comparison import eq, ge, le, logical_and
from genesis.functional.conversion import cast
from genesis.functional.elementwise import add, div, floor_divide, mul, remainder, sub, where
from genesis.functional.indexing import getitem
from genesis.functional.linalg import bmm
from genesis.functional.selection import gather
from genesis.functional.shape import expand, reshape, transpose
from genesis.functional.unary import abs, floor, round
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["affine_grid", "grid_sample"]

CUBIC = -0.75  # the a of the cubic convolution kernel


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The points to which an affine map takes those of an image, for grid_sample.

    Args:
        theta: (N, 2, 3) for images, (N, 3, 4) for volumes; a floating dtype.
        size: (N, C, H, W) or (N, C, D, H, W) of the output.
        align_corners: whether −1 and 1 are the centres of the outermost pixels, or their edges (False, None).
    Returns: (N, H, W, 2) or (N, D, H, W, 3): coordinates (x, y) or (x, y, z) in [−1, 1].
    Raises: ShapeError: theta does not fit size. DTypeError: theta is not floating.
    Grad: theta.
    Source: Jaderberg et al. 2015, arXiv:1506.02025.

    Example:
        >>> identity = genesis.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> F.affine_grid(identity, (1, 1, 1, 2), align_corners=True).tolist()
        [[[[-1.0, 0.0], [1.0, 0.0]]]]
    """
    op = "affine_grid"
    _require_floating(op, "theta", theta)
    sizes = int_tuple(op, size, "size")
    spatial = len(sizes) - 2
    if spatial not in (2, 3) or min(sizes) < 1:
        raise ShapeError(describe(op, "size", "4 or 5 sizes of at least 1", sizes))
    expected = (sizes[0], spatial, spatial + 1)
    if theta.array.shape != expected:
        raise ShapeError(describe(op, "theta", f"shape {expected} for size {sizes}", theta.array.shape))
    points = BasePoints.apply(theta.detach(), sizes=sizes[2:], align_corners=bool(align_corners))
    points = expand(points, (sizes[0], *points.array.shape[1:]))
    return reshape(bmm(points, transpose(theta, 1, 2)), (sizes[0], *sizes[2:], spatial))


class BasePoints(ArrayFunction):
    """(1, points, dimensions + 1): the coordinates (x, y, …, 1) of all points of a grid, in the dtype of x."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, sizes: Shape, align_corners: bool) -> NDArray:
        ndim = len(sizes)
        coordinates = []
        for dim in reversed(range(ndim)):
            count = sizes[dim]
            steps = NDArray.arange(0, 1, count, dtypes.float64, x.device)
            line = steps.mul(2 / max(count - 1, 1)).sub(1) if count > 1 else steps
            line = line if align_corners else line.mul((count - 1) / count)
            coordinates.append(line.reshape((1,) * dim + (count,) + (1,) * (ndim - 1 - dim)).expand(sizes))
        coordinates.append(coordinates[0].full_like(1))
        return _stacked(coordinates).to(x.dtype)


def _stacked(arrays: list[NDArray]) -> NDArray:
    """(1, points, arrays)."""
    columns = [array.reshape((1, array.numel, 1)) for array in arrays]
    return ops.cat(columns, 2)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The values of an image at the points of a grid.

    Args:
        input: (N, C, H, W) or (N, C, D, H, W), a floating dtype.
        grid: (N, P, Q, 2), coordinates (x, y), or (N, O, P, Q, 3), (x, y, z); dtype of input. The image has [−1, 1].
        mode: "bilinear" (of volumes trilinear), "nearest" or "bicubic" (images only).
        padding_mode: beyond the image are "zeros", its "border", or its "reflection".
        align_corners: as in `F.affine_grid`.
    Returns: (N, C, P, Q) or (N, C, O, P, Q).
    Raises: ShapeError: shapes that do not fit. ValueError: another mode. DTypeError: dtypes that differ.
    Grad: input, grid.
    Source: Jaderberg et al. 2015, arXiv:1506.02025.

    Example:
        >>> image = genesis.tensor([[[[0.0, 1.0]]]])
        >>> F.grid_sample(image, genesis.tensor([[[[0.0, 0.0]]]])).item()
        0.5
    """
    _check_grid(input, grid, mode, padding_mode)
    dtype = input.array.dtype
    if dtype.itemsize < 4:  # coordinates need the precision
        input, grid = cast(input, dtypes.float32), cast(grid, dtypes.float32)
    image = _Image(input, padding_mode, bool(align_corners))
    spatial = len(image.sizes)
    pixels = [image.pixels(getitem(grid, (..., spatial - 1 - dim)), dim) for dim in range(spatial)]
    if mode == "bicubic":
        return cast(_bicubic(image, *pixels), dtype)
    pixels = [image.inside(each, dim) for dim, each in enumerate(pixels)]
    if mode == "nearest":
        return cast(image.at([round(each) for each in pixels]), dtype)
    return cast(_linear(image, pixels), dtype)


class _Image:
    """An image to take values from, with what lies beyond it."""

    def __init__(self, input: Tensor, padding_mode: str, align_corners: bool) -> None:
        self.batch, self.channels, *self.sizes = input.array.shape
        self.planes = reshape(input, (self.batch, self.channels, shapes.numel(self.sizes)))
        self.padding_mode, self.align_corners = padding_mode, align_corners

    def pixels(self, coordinate: Tensor, dim: int) -> Tensor:
        """A coordinate in [−1, 1] as one in pixels."""
        size = self.sizes[dim]
        if self.align_corners:
            return mul(add(coordinate, 1), (size - 1) / 2)
        return div(sub(mul(add(coordinate, 1), size), 1), 2)

    def inside(self, pixels: Tensor, dim: int) -> Tensor:
        """The coordinate in the image that stands for one beyond it; with zeros there, the coordinate itself."""
        last = self.sizes[dim] - 1
        if self.padding_mode == "zeros":
            return pixels
        if self.padding_mode == "reflection":
            low, span = (0.0, float(last)) if self.align_corners else (-0.5, last + 1.0)
            if span == 0:
                pixels = mul(pixels, 0)
            else:
                way = abs(sub(pixels, low))
                extra = remainder(way, span)
                is_even = eq(remainder(floor_divide(way.detach(), span), 2), 0)
                pixels = add(where(is_even, extra, sub(span, extra)), low)
        return hardtanh(pixels, 0.0, float(last)) if last else mul(pixels, 0)

    def at(self, pixels: Sequence[Tensor]) -> Tensor:
        """(N, C, …): the values at these whole coordinates (N, …), one for each dimension; zero beyond the image."""
        pixels = [each.detach() for each in pixels]
        known, position = _within(pixels[0], self.sizes[0]), pixels[0]
        for each, size in zip(pixels[1:], self.sizes[1:], strict=True):
            known, position = logical_and(known, _within(each, size)), add(mul(position, size), each)
        index = cast(where(known, position, 0.0), dtypes.int64)
        points = shapes.numel(index.array.shape[1:])
        index = expand(reshape(index, (self.batch, 1, points)), (self.batch, self.channels, points))
        values = reshape(gather(self.planes, 2, index), (self.batch, self.channels, *known.array.shape[1:]))
        return where(_planes(known), values, 0.0)


def _within(pixels: Tensor, size: int) -> Tensor:
    return logical_and(ge(pixels, 0), le(pixels, size - 1))


def _planes(x: Tensor) -> Tensor:
    """(N, …) as (N, 1, …)."""
    batch, *sizes = x.array.shape
    return reshape(x, (batch, 1, *sizes))


def _linear(image: _Image, pixels: Sequence[Tensor]) -> Tensor:
    """The neighbouring pixels, each with its share."""
    lower = [floor(each.detach()) for each in pixels]
    upper_shares = [sub(each, low) for each, low in zip(pixels, lower, strict=True)]
    shares = [(sub(1, share), share) for share in upper_shares]
    parts = []
    for corner in itertools.product((0, 1), repeat=len(pixels)):
        weight = functools.reduce(mul, [both[side] for both, side in zip(shares, corner, strict=True)])
        values = image.at([add(low, side) for low, side in zip(lower, corner, strict=True)])
        parts.append(mul(values, _planes(weight)))
    return functools.reduce(add, parts)


def _bicubic(image: _Image, y: Tensor, x: Tensor) -> Tensor:
    left, top = floor(x.detach()), floor(y.detach())
    across, down = _cubic(sub(x, left)), _cubic(sub(y, top))
    total: Tensor | None = None
    for j, row_weight in enumerate(down):
        row = image.inside(add(top, j - 1), 0)
        for i, weight in enumerate(across):
            values = image.at([row, image.inside(add(left, i - 1), 1)])
            part = mul(values, _planes(mul(weight, row_weight)))
            total = part if total is None else add(total, part)
    assert total is not None
    return total


def _cubic(t: Tensor) -> list[Tensor]:
    """The weights of the pixels at −1, 0, 1 and 2 for a point at t in [0, 1)."""

    def near(d: Tensor) -> Tensor:  # |d| ≤ 1: ((a + 2)·d − (a + 3))·d² + 1
        return add(mul(mul(sub(mul(d, CUBIC + 2), CUBIC + 3), d), d), 1)

    def far(d: Tensor) -> Tensor:  # 1 < |d| < 2: ((a·d − 5a)·d + 8a)·d − 4a
        return sub(mul(add(mul(sub(mul(d, CUBIC), 5 * CUBIC), d), 8 * CUBIC), d), 4 * CUBIC)

    rest = sub(1, t)
    return [far(add(t, 1)), near(t), near(rest), far(add(rest, 1))]


def _check_grid(input: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    op = "grid_sample"
    _require_floating(op, "input", input)
    require_tensor(op, "grid", grid)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(describe(op, "mode", '"bilinear", "nearest" or "bicubic"', repr(mode)))
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(describe(op, "padding_mode", '"zeros", "border" or "reflection"', repr(padding_mode)))
    if grid.array.dtype is not input.array.dtype:
        raise DTypeError(describe(op, "grid", f"the dtype of input, {input.array.dtype}", grid.array.dtype))
    x, g = input.array.shape, grid.array.shape
    if len(x) not in (4, 5) or 0 in x[1:]:
        raise ShapeError(describe(op, "input", "4 or 5 dimensions, of which only the batch may be empty", f"shape {x}"))
    if len(g) != len(x) or g[0] != x[0] or g[-1] != len(x) - 2:
        outputs = "P, Q" if len(x) == 4 else "O, P, Q"
        raise ShapeError(describe(op, "grid", f"shape ({x[0]}, {outputs}, {len(x) - 2})", g))
    if mode == "bicubic" and len(x) != 4:
        raise ShapeError(describe(op, "input", '4 dimensions for mode "bicubic"', f"shape {x}"))


def _require_floating(op: str, name: str, value: Tensor) -> None:
    require_tensor(op, name, value)
    if not value.array.dtype.is_floating_point:
        raise DTypeError(describe(op, name, "a floating dtype", value.array.dtype))
