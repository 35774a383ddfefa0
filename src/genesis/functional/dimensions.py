"""Dimensions merged, split, dropped and moved: composed of reshape, view, permute, transpose, expand and repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import shapes
from genesis.autograd import Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.arguments import int_tuple
from genesis.functional.keywords import also
from genesis.functional.shape import expand, permute, repeat, reshape, transpose, view

__all__ = ["broadcast_to", "flatten", "movedim", "squeeze", "swapaxes", "t", "tile", "unflatten"]


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions start_dim to end_dim as one.

    Args:
        input: any shape and dtype.
        start_dim, end_dim: the first and the last dimension to merge; negative ones count from the end.
    Returns: a view where the strides allow one, else a copy; input itself if there is one dimension to merge.
    Raises: ShapeError: start_dim behind end_dim.
    Grad: input. Saves nothing.
    Example: >>> F.flatten(genesis.zeros(2, 3, 4), 1).shape
    (2, 12)
    """
    shape = input.array.shape
    first = shapes.normalize_dim("flatten", start_dim, len(shape), "start_dim")
    last = shapes.normalize_dim("flatten", end_dim, len(shape), "end_dim")
    if first > last:
        raise ShapeError(describe("flatten", "start_dim", f"at most end_dim ({end_dim})", start_dim))
    if first == last and shape:
        return input
    return reshape(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@also(axis="dim")
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """dim as several dimensions.

    Args:
        input: any shape and dtype.
        dim: the dimension to split.
        sizes: their product is dim's size; one may be -1.
    Returns: a view where the strides allow one, else a copy.
    Raises: ShapeError: no sizes, or another product.
    Grad: input. Saves nothing.
    Example: >>> F.unflatten(genesis.zeros(2, 12), 1, (3, -1)).shape
    (2, 3, 4)
    """
    shape = input.array.shape
    dim = shapes.normalize_dim("unflatten", dim, len(shape))
    if not sizes:
        raise ShapeError(describe("unflatten", "sizes", "at least one size", tuple(sizes)))
    split = shapes.infer_reshape("unflatten", shape[dim : dim + 1], int_tuple("unflatten", sizes))
    return reshape(input, (*shape[:dim], *split, *shape[dim + 1 :]))


def squeeze(
    input: Tensor, dim: int | Sequence[int] | None = None, *, axis: int | Sequence[int] | None = None
) -> Tensor:  # fmt: skip
    """Remove dimensions of size 1: all, or those of dim.

    Args:
        input: any shape and dtype.
        dim: one or several; those of another size stay.
        axis: NumPy's name of dim.
    Returns: a view.
    Grad: input. Saves nothing.
    Example: >>> F.squeeze(genesis.zeros(1, 2, 1)).shape
    (2,)
    """
    shape = input.array.shape
    dim = dim if axis is None else axis
    chosen = () if dim == () else shapes.normalize_dims("squeeze", dim, len(shape))
    return view(input, tuple(size for i, size in enumerate(shape) if size != 1 or i not in chosen))


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Swap two dimensions: transpose, by NumPy's name.

    Args:
        input: any shape and dtype.
        axis0, axis1: the dimensions to swap; negative ones count from the end.
    Returns: a view.
    Raises: IndexError: a dimension is out of range.
    Grad: input. Saves nothing.
    Example: >>> F.swapaxes(genesis.zeros(2, 3), 0, 1).shape
    (3, 2)
    """
    return transpose(input, axis0, axis1)


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and 0-d tensors as they are.

    Args:
        input: at most 2 dimensions.
    Returns: a view.
    Raises: ShapeError: more dimensions.
    Grad: input. Saves nothing.
    Example: >>> F.t(genesis.zeros(2, 3)).shape
    (3, 2)
    """
    if input.array.ndim > 2:
        raise ShapeError(describe("t", "input", "at most 2 dimensions; use .mT or .transpose()", input.array.ndim))
    return permute(input, tuple(reversed(range(input.array.ndim))))


def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move the dimensions source to the places destination; the others keep their order.

    Args:
        input: any shape and dtype.
        source: one or several dimensions.
        destination: their new places, as many.
    Returns: a view.
    Raises: ShapeError: source and destination differ in number, or repeat a dimension.
    Grad: input. Saves nothing.
    Example: >>> F.movedim(genesis.zeros(2, 3, 4), 0, -1).shape
    (3, 4, 2)
    """
    ndim = input.array.ndim
    sources, targets = (
        [shapes.normalize_dim("movedim", dim, ndim, name) for dim in ([dims] if isinstance(dims, int) else dims)]
        for name, dims in (("source", source), ("destination", destination))
    )
    if len(sources) != len(targets) or len({*sources}) != len(sources) or len({*targets}) != len(targets):
        raise ShapeError(
            describe("movedim", "destination", f"as many distinct dimensions as source ({source})", destination)
        )
    rest = iter([dim for dim in range(ndim) if dim not in sources])
    return permute(input, [sources[targets.index(i)] if i in targets else next(rest) for i in range(ndim)])


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """expand, by NumPy's name.

    Args:
        input: any shape and dtype.
        size: the new shape; dimensions of size 1 repeat, further ones come first.
    Returns: a view, whose elements share memory.
    Raises: ShapeError: input does not broadcast to size.
    Grad: input, summed over what is repeated. Saves nothing.
    Example: >>> F.broadcast_to(genesis.arange(2), (2, 2)).tolist()
    [[0, 1], [0, 1]]
    """
    return expand(input, size)


def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Repeat input dims[i] times along the last dimensions; dimensions without a number stay.

    Args:
        input: any shape and dtype.
        dims: numbers of copies.
    Returns: a copy.
    Raises: ShapeError: a negative number.
    Grad: input. Saves nothing.
    Example: >>> F.tile(genesis.arange(2).reshape(2, 1), (2,)).tolist()
    [[0, 0], [1, 1]]
    """
    times = int_tuple("tile", dims, "dims")
    return repeat(input, (1,) * (input.array.ndim - len(times)) + times)
