"""Derivatives of sampled functions."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import dtypes
from genesis.autograd import Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.conversion import cast
from genesis.functional.joining import cat, narrow
from genesis.functional.keywords import also
from genesis.functional.shape import reshape
from genesis.shapes import normalize_dim, normalize_dims

__all__ = ["gradient"]

Spacing = Number | Tensor


@also(axis="dim")
def gradient(
    input: Tensor, *, spacing: Number | Sequence[Spacing] | None = None, dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The derivatives of a function along dimensions, from its values on a grid: central differences of second order.

    Args:
        input: values of the function, any shape; integers compute as the default float dtype.
        spacing: the distance of neighbours, 1 if None; or for each dimension its own, or a vector of its coordinates.
        dim: along which, all if None.
        edge_order: 1 or 2, of the one-sided differences at both ends.
    Returns: for each dimension a tensor of the shape of input, floating.
    Raises: ShapeError: a dimension has at most edge_order elements, or other coordinates than elements. ValueError:
        another edge_order, a dimension twice, or spacings for other dimensions. DTypeError: input is bool.
    Grad: input, and the coordinates.
    Source: Fornberg 1988, doi:10.1090/S0025-5718-1988-0935077-0.
    Example: >>> genesis.gradient(genesis.tensor([1.0, 4.0, 9.0, 16.0]))[0].tolist()
    [3.0, 4.0, 6.0, 7.0]
    """
    require_tensors("gradient", input=input)
    if input.array.dtype is dtypes.bool_:
        raise DTypeError(describe("gradient", "input", "numbers", "bool"))
    if edge_order not in (1, 2):
        raise ValueError(describe("gradient", "edge_order", "1 or 2", edge_order))
    x = input if input.array.dtype.is_differentiable else cast(input, dtypes.get_default_dtype())
    dims = _dims(dim, x.ndim)
    spacings = _spacings(spacing, len(dims))
    return tuple(_along(x, each, step, edge_order) for each, step in zip(dims, spacings, strict=True))


def _dims(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(ndim))
    given = (dim,) if isinstance(dim, int) else dim
    normalize_dims("gradient", given, ndim)
    return tuple(normalize_dim("gradient", each, ndim) for each in given)  # in the order of the spacings


def _spacings(spacing: Number | Sequence[Spacing] | None, count: int) -> Sequence[Spacing]:
    if spacing is None or isinstance(spacing, (int, float)):
        return [1 if spacing is None else spacing] * count
    if isinstance(spacing, Tensor) or len(spacing) != count:
        got = "a tensor" if isinstance(spacing, Tensor) else f"{len(spacing)}"
        raise ValueError(describe("gradient", "spacing", f"a number, or a sequence of {count}, one a dimension", got))
    return spacing


def _along(x: Tensor, dim: int, spacing: Spacing, edge_order: int) -> Tensor:
    size = x.array.shape[dim]
    if size <= edge_order:
        raise ShapeError(describe("gradient", "input", f"more than {edge_order} elements in dimension {dim}", size))
    left, right = _steps(spacing, x, dim)

    def at(place: int) -> Tensor:
        return narrow(x, dim, place % size, 1)

    def step(steps: Spacing, place: int) -> Spacing:
        return narrow(steps, dim, place % (size - 2), 1) if isinstance(steps, Tensor) else steps

    if size == 2:  # there is nothing between the ends
        slope = (at(1) - at(0)) / (spacing if not isinstance(spacing, Tensor) else spacing[1] - spacing[0])
        return cat([slope, slope], dim)
    before, here, after = (narrow(x, dim, start, size - 2) for start in range(3))
    inside = _slope(before, here, after, left, right)
    first, last = (step(left, 0), step(right, 0)), (step(left, -1), step(right, -1))
    if edge_order == 1:
        return cat([(at(1) - at(0)) / first[0], inside, (at(-1) - at(-2)) / last[1]], dim)
    # The parabola through the three values at an end: the third one is on the other side of the second.
    begin = _slope_at_end(at(0), at(1), at(2), *first)
    end = -_slope_at_end(at(-1), at(-2), at(-3), *reversed(last))
    return cat([begin, inside, end], dim)


def _steps(spacing: Spacing, x: Tensor, dim: int) -> tuple[Spacing, Spacing]:
    """The distances of each inner element to the one before and to the one behind."""
    if not isinstance(spacing, Tensor):
        return spacing, spacing
    size = x.array.shape[dim]
    if spacing.array.shape != (size,):
        raise ShapeError(describe("gradient", "spacing", f"coordinates of shape {(size,)}", spacing.array.shape))
    steps = reshape(spacing[1:] - spacing[:-1], [-1 if each == dim else 1 for each in range(x.ndim)])
    return narrow(steps, dim, 0, max(size - 2, 0)), narrow(steps, dim, 1, max(size - 2, 0))


def _slope(before: Tensor, here: Tensor, after: Tensor, left: Spacing, right: Spacing) -> Tensor:
    """The slope in the middle of the parabola through three values."""
    if not isinstance(left, Tensor):
        return (after - before) / (2 * left)
    both = left + right
    return after * (left / (right * both)) - before * (right / (left * both)) + here * ((right - left) / (left * right))


def _slope_at_end(end: Tensor, next: Tensor, third: Tensor, near: Spacing, far: Spacing) -> Tensor:
    """The slope at the end of the parabola through three values, towards the second one."""
    both = near + far
    return next * (both / (near * far)) - end * ((near + both) / (near * both)) - third * (near / (far * both))
