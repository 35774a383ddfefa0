"""The same elements in another shape: reordered, repeated; views where the strides allow them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis import shapes
from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.arguments import int_tuple, require_ints
from genesis.functional.conversion import clone
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = [
    "broadcast_to", "diagonal", "expand", "flatten", "flip", "movedim", "permute", "repeat", "reshape", "roll",
    "squeeze", "swapaxes", "t", "tile", "transpose", "tril", "triu", "unflatten", "unsqueeze", "view",
]  # fmt: skip

# --- another shape, same order ----------------------------------------------------------------------------------------


def reshape(input: Tensor, shape: Sequence[int]) -> Any:
    """input in another shape; one size may be -1. A view where the strides allow one, else a copy.

    Example:
        >>> F.reshape(genesis.arange(6), (2, -1)).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    return Reshape.apply(input, shape=shapes.infer_reshape("reshape", input.array.shape, int_tuple("reshape", shape)))


class Reshape(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, shape: Shape) -> NDArray:
        ctx.shape = x.shape
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad.reshape(ctx.shape)


def view(input: Tensor, shape: Sequence[int]) -> Any:
    """input's memory in another shape; an error where only a copy could show it.

    A tensor whose channels come last in memory, as after a convolution, first moves to row-major memory, so that both
    share that. Where it cannot move (it is a view itself or has some, is a leaf that requires grad, or shares its
    memory with another library), the result is a copy.
    """
    array = input.array
    target = shapes.infer_reshape("view", array.shape, int_tuple("view", shape))
    if shapes.view_strides(array.shape, array.strides, target) is None:
        if not shapes.channels_innermost(array.shape, array.strides):
            raise ShapeError(
                f"view: shape {array.shape} with strides {array.strides} cannot be seen as {target} without a copy; "
                "use .reshape()"
            )
        if array.is_alone and not (input.is_leaf and input.requires_grad):
            array.make_contiguous()
    return Reshape.apply(input, shape=target)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    """The dimensions start_dim … end_dim as one."""
    shape = input.array.shape
    first = shapes.normalize_dim("flatten", start_dim, len(shape), "start_dim")
    last = shapes.normalize_dim("flatten", end_dim, len(shape), "end_dim")
    if first > last:
        raise ShapeError(describe("flatten", "start_dim", f"at most end_dim ({end_dim})", start_dim))
    return reshape(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Any:
    """dim as several dimensions; one of sizes may be -1."""
    shape = input.array.shape
    dim = shapes.normalize_dim("unflatten", dim, len(shape))
    if not sizes:
        raise ShapeError(describe("unflatten", "sizes", "at least one size", tuple(sizes)))
    split = shapes.infer_reshape("unflatten", shape[dim : dim + 1], int_tuple("unflatten", sizes))
    return reshape(input, (*shape[:dim], *split, *shape[dim + 1 :]))


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Any:
    """Without the dimensions of size 1 (or only without those of dim)."""
    shape = input.array.shape
    chosen = () if dim == () else shapes.normalize_dims("squeeze", dim, len(shape))
    return view(input, tuple(size for i, size in enumerate(shape) if size != 1 or i not in chosen))


def unsqueeze(input: Tensor, dim: int) -> Any:
    """With a new dimension of size 1 at dim."""
    dim = shapes.normalize_dim("unsqueeze", dim, input.array.ndim + 1)
    return Unsqueeze.apply(input, dim=dim)


class Unsqueeze(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dim: int) -> NDArray:
        ctx.shape = x.shape
        return x.unsqueeze(dim)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad.reshape(ctx.shape)


# --- another order ----------------------------------------------------------------------------------------------------


def permute(input: Tensor, dims: Sequence[int]) -> Any:
    """The dimensions in another order, as a view.

    Example:
        >>> F.permute(genesis.zeros(2, 3, 4), (2, 0, 1)).shape
        (4, 2, 3)
    """
    ndim = input.array.ndim
    order = tuple(shapes.normalize_dim("permute", dim, ndim, "dims") for dim in int_tuple("permute", dims, "dims"))
    if sorted(order) != list(range(ndim)):
        raise ShapeError(describe("permute", "dims", f"each of the {ndim} dimensions once", tuple(dims)))
    return Permute.apply(input, dims=order)


class Permute(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape) -> NDArray:
        ctx.dims = dims
        return x.permute(dims)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad.permute(sorted(range(len(ctx.dims)), key=ctx.dims.__getitem__))


def transpose(input: Tensor, dim0: int, dim1: int) -> Any:
    """Two dimensions swapped, as a view."""
    ndim = input.array.ndim
    first = shapes.normalize_dim("transpose", dim0, ndim, "dim0")
    second = shapes.normalize_dim("transpose", dim1, ndim, "dim1")
    order = list(range(ndim))
    if ndim:
        order[first], order[second] = second, first
    return Permute.apply(input, dims=tuple(order))


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Any:
    """NumPy's name of transpose."""
    return transpose(input, axis0, axis1)


def t(input: Tensor) -> Any:
    """The transpose of a matrix; vectors and 0-d tensors as they are."""
    if input.array.ndim > 2:
        raise ShapeError(describe("t", "input", "at most 2 dimensions; use .mT or .transpose()", input.array.ndim))
    return permute(input, tuple(reversed(range(input.array.ndim))))


def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """The dimensions source moved to the places destination; the others keep their order."""
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


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The diagonal of the plane (dim1, dim2) as the last dimension, as a view; offset > 0 lies above the main one."""
    ndim = input.array.ndim
    first = shapes.normalize_dim("diagonal", dim1, ndim, "dim1")
    second = shapes.normalize_dim("diagonal", dim2, ndim, "dim2")
    require_ints("diagonal", offset=offset)
    if first == second:
        raise ShapeError(describe("diagonal", "dim2", f"another dimension than dim1 ({dim1})", dim2))
    return Diagonal.apply(input, dims=(first, second), offset=offset)


class Diagonal(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: tuple[int, int], offset: int) -> NDArray:
        ctx.shape, ctx.dims, ctx.offset = x.shape, dims, offset
        return x.diagonal(*dims, offset)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        whole = grad.full_like(0, ctx.shape)
        dim1, dim2 = ctx.dims
        whole.diagonal(dim1, dim2, ctx.offset).copy_into(grad)
        return whole


def flip(input: Tensor, dims: int | Sequence[int]) -> Any:
    """dims in reverse order; a copy."""
    chosen = () if dims == () or dims == [] else shapes.normalize_dims("flip", dims, input.array.ndim, "dims")
    return Flip.apply(input, dims=chosen)


class Flip(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape) -> NDArray:
        ctx.dims = dims
        return ops.flip(x, dims)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return ops.flip(grad, ctx.dims)


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Any:
    """Elements shifted along dims; what leaves at the end comes in at the start. Without dims, in the flattened input.

    Example:
        >>> F.roll(genesis.arange(4), 1).tolist()
        [3, 0, 1, 2]
    """
    array = input.array
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims is None or dims == ():
        if len(steps) != 1:
            raise ShapeError(describe("roll", "shifts", "one shift, as no dims are given", shifts))
        return reshape(roll(reshape(input, (-1,)), steps, 0), array.shape) if array.numel else clone(input)
    if not array.ndim:
        raise ShapeError(describe("roll", "dims", "no dims, as input is 0-d", dims))
    chosen = [dims] if isinstance(dims, int) else list(dims)
    if len(chosen) != len(steps):
        raise ShapeError(describe("roll", "shifts", f"{len(chosen)} shifts, one for each of dims", len(steps)))
    chosen = [shapes.normalize_dim("roll", dim, array.ndim, "dims") for dim in chosen]
    return Roll.apply(input, shifts=tuple(steps), dims=tuple(chosen))


class Roll(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, shifts: Shape, dims: Shape) -> NDArray:
        ctx.shifts, ctx.dims = shifts, dims
        return _rolled(x, shifts, dims)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return _rolled(grad, tuple(-shift for shift in ctx.shifts), ctx.dims)


def _rolled(x: NDArray, shifts: Shape, dims: Shape) -> NDArray:
    y = x
    for shift, dim in zip(shifts, dims, strict=True):
        size = y.shape[dim]
        if size > 1 and shift % size:
            cut = size - shift % size
            y = ops.cat([y.narrow(dim, cut, size - cut), y.narrow(dim, 0, cut)], dim)
    return x.clone() if y is x else y


# --- repeated ---------------------------------------------------------------------------------------------------------


def expand(input: Tensor, size: Sequence[int]) -> Any:
    """input repeated to size without a copy; -1 keeps a size."""
    shape = input.array.shape
    lead = len(size) - len(shape)
    for i, length in enumerate(int_tuple("expand", size, "size")):
        if length < -1 or (length == -1 and i < lead):
            raise ShapeError(describe("expand", "size", "sizes of at least 0, or -1 for a dimension of input", size))
    return _expanded("expand", input, tuple(shape[i - lead] if n == -1 else n for i, n in enumerate(size)))


def broadcast_to(input: Tensor, size: Sequence[int]) -> Any:
    """input repeated to size without a copy, by the rule of broadcasting."""
    return expand(input, size)


def _expanded(op: str, input: Tensor, size: Shape) -> Any:
    shapes.broadcast_strides(op, input.array.shape, input.array.strides, size)
    return Expand.apply(input, shape=size)


class Expand(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, shape: Shape) -> NDArray:
        return x.view(shape, shapes.broadcast_strides("expand", x.shape, x.strides, shape))

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad  # the walk sums over what was repeated


def repeat(input: Tensor, repeats: Sequence[int]) -> Any:
    """input laid out repeats[i] times along each dimension; more repeats than dimensions add dimensions in front."""
    times = int_tuple("repeat", repeats, "repeats")
    if len(times) < input.array.ndim:
        raise ShapeError(describe("repeat", "repeats", f"at least {input.array.ndim} numbers", times))
    if any(count < 0 for count in times):
        raise ShapeError(describe("repeat", "repeats", "numbers of at least 0", times))
    return Repeat.apply(input, repeats=times)


class Repeat(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, repeats: Shape) -> NDArray:
        shape = (1,) * (len(repeats) - x.ndim) + x.shape
        ctx.pairs = tuple(size for pair in zip(repeats, shape, strict=True) for size in pair)
        ones = tuple(size for length in shape for size in (1, length))
        ctx.shape = x.shape
        tiled = x.reshape(ones).expand(ctx.pairs).clone()
        return tiled.contiguous().reshape(tuple(n * size for n, size in zip(repeats, shape, strict=True)))

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        folded = grad.reshape(ctx.pairs)
        return (ops.sum(folded, tuple(range(0, folded.ndim, 2))) if folded.ndim else folded).reshape(ctx.shape)


def tile(input: Tensor, dims: Sequence[int]) -> Any:
    """As repeat, but fewer numbers than dimensions count for the last ones."""
    times = int_tuple("tile", dims, "dims")
    return repeat(input, (1,) * (input.array.ndim - len(times)) + times)


# --- triangles --------------------------------------------------------------------------------------------------------


def tril(input: Tensor, diagonal: int = 0) -> Any:
    """The lower triangle of each matrix, with the diagonals up to this one; zero above."""
    require_ints("tril", diagonal=diagonal)
    _require_matrix("tril", input)
    return Triangle.apply(input, op=ops.tril, diagonal=diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Any:
    """The upper triangle of each matrix, with the diagonals from this one on; zero below."""
    require_ints("triu", diagonal=diagonal)
    _require_matrix("triu", input)
    return Triangle.apply(input, op=ops.triu, diagonal=diagonal)


class Triangle(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, op: Callable[..., NDArray], diagonal: int) -> NDArray:
        ctx.op, ctx.diagonal = op, diagonal
        return op(x, diagonal)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return ctx.op(grad, ctx.diagonal)


def _require_matrix(op: str, input: Tensor) -> None:
    if input.array.ndim < 2:
        raise ShapeError(describe(op, "input", "at least 2 dimensions", input.array.ndim))
