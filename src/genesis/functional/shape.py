"""The same elements in another shape: reordered, repeated; views where the strides allow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.arguments import int_tuple, require_ints
from genesis.functional.conversion import clone
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = [
    "diagonal",
    "expand",
    "flip",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "transpose",
    "tril",
    "triu",
    "unsqueeze",
    "view",
]

# --- another shape, same order ----------------------------------------------------------------------------------------


def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape.

    Args:
        input: any shape and dtype.
        shape: sizes; one may be -1, for what is left.
    Returns: a view where the strides allow one, else a copy.
    Raises: ShapeError: shape has another number of elements.
    Grad: input. Saves nothing.
    Example: >>> F.reshape(genesis.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return Reshape.apply(input, shape=shapes.infer_reshape("reshape", input.array.shape, int_tuple("reshape", shape)))


class Reshape(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, shape: Shape) -> NDArray:
        ctx.shape = x.shape
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.reshape(ctx.shape)


def view(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The same memory in another shape.

    A tensor whose channels come last in memory, as after a convolution, first moves to row-major memory, so that both
    share that. Where it cannot move (it is a view itself or has some, is a leaf that requires grad, or shares its
    memory with another library), the result is a copy.

    Args:
        input: any shape and dtype.
        shape: sizes; one may be -1, for what is left.
    Returns: a view.
    Raises: ShapeError: only a copy could show it; shape has another number of elements.
    Grad: input. Saves nothing.
    Example: >>> x = genesis.zeros(2, 3)
    >>> F.view(x, (6,)).data_ptr() == x.data_ptr()
    True
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


def unsqueeze(input: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Insert a dimension of size 1 at dim.

    Args:
        input: any shape and dtype.
        dim, axis: place of the new dimension, from −ndim − 1 to ndim.
    Returns: a view.
    Raises: IndexError: dim is out of range.
    Grad: input. Saves nothing.
    Example: >>> F.unsqueeze(genesis.zeros(2), 1).shape
    (2, 1)
    """
    place = dim if axis is None else axis
    dim = shapes.normalize_dim("unsqueeze", place, input.array.ndim + 1)  # type: ignore[arg-type]  # None is refused
    return Unsqueeze.apply(input, dim=dim)


class Unsqueeze(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int) -> NDArray:
        ctx.shape = x.shape
        return x.unsqueeze(dim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.reshape(ctx.shape)


# --- another order ----------------------------------------------------------------------------------------------------


def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """The dimensions in another order.

    Args:
        input: any shape and dtype.
        dims: each dimension once.
    Returns: a view.
    Raises: ShapeError: dims are no permutation.
    Grad: input. Saves nothing.
    Example: >>> F.permute(genesis.zeros(2, 3, 4), (2, 0, 1)).shape
    (4, 2, 3)
    """
    ndim = input.array.ndim
    order = tuple(shapes.normalize_dim("permute", dim, ndim, "dims") for dim in int_tuple("permute", dims, "dims"))
    if sorted(order) != list(range(ndim)):
        raise ShapeError(describe("permute", "dims", f"each of the {ndim} dimensions once", tuple(dims)))
    return Permute.apply(input, dims=order)


class Permute(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape) -> NDArray:
        ctx.dims = dims
        return x.permute(dims)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.permute(sorted(range(len(ctx.dims)), key=ctx.dims.__getitem__))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions.

    Args:
        input: any shape and dtype.
        dim0, dim1: the dimensions to swap; negative ones count from the end.
    Returns: a view.
    Raises: IndexError: a dimension is out of range.
    Grad: input. Saves nothing.
    Example: >>> F.transpose(genesis.zeros(2, 3, 4), 0, 2).shape
    (4, 3, 2)
    """
    ndim = input.array.ndim
    first = shapes.normalize_dim("transpose", dim0, ndim, "dim0")
    second = shapes.normalize_dim("transpose", dim1, ndim, "dim1")
    order = list(range(ndim))
    if ndim:
        order[first], order[second] = second, first
    return Permute.apply(input, dims=tuple(order))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of the plane (dim1, dim2) as the last dimension; offset > 0 lies above the main one.

    Args:
        input: at least 2 dimensions.
        offset: 0 for the main diagonal, k for the k-th above it, −k for the k-th below.
        dim1, dim2: the two dimensions of the planes.
    Returns: a view.
    Raises: ShapeError: dim1 is dim2. DTypeError: offset is no int.
    Grad: input. Saves nothing.
    Example: >>> F.diagonal(genesis.arange(4).reshape(2, 2)).tolist()
    [0, 3]
    """
    ndim = input.array.ndim
    first = shapes.normalize_dim("diagonal", dim1, ndim, "dim1")
    second = shapes.normalize_dim("diagonal", dim2, ndim, "dim2")
    require_ints("diagonal", offset=offset)
    if first == second:
        raise ShapeError(describe("diagonal", "dim2", f"another dimension than dim1 ({dim1})", dim2))
    return Diagonal.apply(input, dims=(first, second), offset=offset)


class Diagonal(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: tuple[int, int], offset: int) -> NDArray:
        ctx.shape, ctx.dims, ctx.offset = x.shape, dims, offset
        return x.diagonal(*dims, offset)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        whole = grad.full_like(0, ctx.shape)
        dim1, dim2 = ctx.dims
        whole.diagonal(dim1, dim2, ctx.offset).copy_into(grad)
        return whole


def flip(input: Tensor, dims: int | Sequence[int]) -> Tensor:
    """Reverse the order along dims.

    Args:
        input: any shape and dtype.
        dims: one or several dimensions.
    Returns: a copy.
    Grad: input. Saves nothing.
    Example: >>> F.flip(genesis.arange(3), 0).tolist()
    [2, 1, 0]
    """
    chosen = () if dims == () or dims == [] else shapes.normalize_dims("flip", dims, input.array.ndim, "dims")
    return Flip.apply(input, dims=chosen)


class Flip(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape) -> NDArray:
        ctx.dims = dims
        return ops.flip(x, dims)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return ops.flip(grad, ctx.dims)


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Shift elements along dims, in a circle; without dims, those of the flattened input.

    Args:
        input: any shape and dtype.
        shifts: one for each of dims.
        dims: one or several dimensions; None rolls the flattened input.
    Returns: a copy.
    Raises: ShapeError: shifts and dims differ in number.
    Grad: input. Saves nothing.
    Example: >>> F.roll(genesis.arange(4), 1).tolist()
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
    def forward(ctx: Context, x: NDArray, *, shifts: Shape, dims: Shape) -> NDArray:
        ctx.shifts, ctx.dims = shifts, dims
        return _rolled(x, shifts, dims)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
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


def expand(input: Tensor, size: Sequence[int]) -> Tensor:
    """Repeat dimensions of size 1, without a copy.

    Args:
        input: any shape and dtype.
        size: further dimensions come first; -1 keeps a size.
    Returns: a view, whose elements share memory.
    Raises: ShapeError: input does not broadcast to size.
    Grad: input, summed over what is repeated. Saves nothing.
    Example: >>> F.expand(genesis.arange(2), (2, -1)).tolist()
    [[0, 1], [0, 1]]
    """
    shape = input.array.shape
    lead = len(size) - len(shape)
    for i, length in enumerate(int_tuple("expand", size, "size")):
        if length < -1 or (length == -1 and i < lead):
            raise ShapeError(describe("expand", "size", "sizes of at least 0, or -1 for a dimension of input", size))
    return _expanded("expand", input, tuple(shape[i - lead] if n == -1 else n for i, n in enumerate(size)))


def _expanded(op: str, input: Tensor, size: Shape) -> Tensor:
    shapes.broadcast_strides(op, input.array.shape, input.array.strides, size)
    return Expand.apply(input, shape=size)


class Expand(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, shape: Shape) -> NDArray:
        return x.view(shape, shapes.broadcast_strides("expand", x.shape, x.strides, shape))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad  # the walk sums over what was repeated


def repeat(input: Tensor, repeats: Sequence[int]) -> Tensor:
    """Lay out input repeats[i] times along each dimension; further repeats add dimensions in front.

    Args:
        input: any shape and dtype.
        repeats: numbers of copies, at least one per dimension.
    Returns: a copy.
    Raises: ShapeError: fewer repeats than dimensions, or negative ones.
    Grad: input. Saves nothing.
    Example: >>> F.repeat(genesis.arange(2), (2,)).tolist()
    [0, 1, 0, 1]
    """
    times = int_tuple("repeat", repeats, "repeats")
    if len(times) < input.array.ndim:
        raise ShapeError(describe("repeat", "repeats", f"at least {input.array.ndim} numbers", times))
    if any(count < 0 for count in times):
        raise ShapeError(describe("repeat", "repeats", "numbers of at least 0", times))
    return Repeat.apply(input, repeats=times)


class Repeat(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, repeats: Shape) -> NDArray:
        shape = (1,) * (len(repeats) - x.ndim) + x.shape
        ctx.pairs = tuple(size for pair in zip(repeats, shape, strict=True) for size in pair)
        ones = tuple(size for length in shape for size in (1, length))
        ctx.shape = x.shape
        tiled = x.reshape(ones).expand(ctx.pairs).clone()
        return tiled.contiguous().reshape(tuple(n * size for n, size in zip(repeats, shape, strict=True)))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        folded = grad.reshape(ctx.pairs)
        return (ops.sum(folded, tuple(range(0, folded.ndim, 2))) if folded.ndim else folded).reshape(ctx.shape)


# --- triangles --------------------------------------------------------------------------------------------------------


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of each matrix, up to this diagonal; zero above.

    Args:
        input: (…, M, N).
        diagonal: 0 for the main one, k for the k-th above it.
    Returns: a copy.
    Raises: ShapeError: fewer than 2 dimensions.
    Grad: input. Saves nothing.
    Example: >>> F.tril(genesis.ones(2, 2)).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    require_ints("tril", diagonal=diagonal)
    _require_matrix("tril", input)
    return Triangle.apply(input, op=ops.tril, diagonal=diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of each matrix, from this diagonal on; zero below.

    Args:
        input: (…, M, N).
        diagonal: 0 for the main one, k for the k-th above it.
    Returns: a copy.
    Raises: ShapeError: fewer than 2 dimensions.
    Grad: input. Saves nothing.
    Example: >>> F.triu(genesis.ones(2, 2)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    require_ints("triu", diagonal=diagonal)
    _require_matrix("triu", input)
    return Triangle.apply(input, op=ops.triu, diagonal=diagonal)


class Triangle(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: Callable[[NDArray, int], NDArray], diagonal: int) -> NDArray:
        ctx.op, ctx.diagonal = op, diagonal
        return op(x, diagonal)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return ctx.op(grad, ctx.diagonal)


def _require_matrix(op: str, input: Tensor) -> None:
    if input.array.ndim < 2:
        raise ShapeError(describe(op, "input", "at least 2 dimensions", input.array.ndim))
