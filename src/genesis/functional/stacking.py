"""Tensors put side by side, cut apart, and brought to one shape or number of dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from genesis import shapes
from genesis.autograd import Tensor
from genesis.dtypes import int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.dimensions import movedim, unflatten
from genesis.functional.indexing import getitem
from genesis.functional.joining import cat, chunk, split, stack
from genesis.functional.keywords import also
from genesis.functional.selection import index_select
from genesis.functional.shape import expand, flip, permute, reshape, transpose, unsqueeze
from genesis.ndarray import NDArray
from genesis.shapes import Shape

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_shapes", "broadcast_tensors", "cartesian_prod",
    "column_stack", "combinations", "concat", "concatenate", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "hstack",
    "meshgrid", "moveaxis", "ravel", "repeat_interleave", "rot90", "row_stack", "split_with_sizes", "swapdims",
    "tensor_split", "unfold_windows", "unsafe_chunk", "unsafe_split", "vsplit", "vstack",
]  # fmt: skip

concat = concatenate = cat
unsafe_chunk, moveaxis, swapdims = chunk, movedim, transpose
unsafe_split = also(input="tensor", split_size="split_size_or_sections", axis="dim")(split)


def atleast_1d(*tensors: Tensor | Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Give tensors at least 1 dimension.

    Args:
        tensors: of any shapes, one by one or as one sequence.
    Returns: one tensor, or a tuple.
    Raises: TypeError: no tensors.
    Grad: tensors.
    Example: >>> F.atleast_1d(genesis.tensor(2.0)).shape
    (1,)
    """
    return _at_least("atleast_1d", tensors, lambda x: x if x.array.ndim else reshape(x, (1,)))


def atleast_2d(*tensors: Tensor | Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Give tensors at least 2 dimensions; a vector is a row. See `F.atleast_1d`."""
    return _at_least("atleast_2d", tensors, _rows)


def atleast_3d(*tensors: Tensor | Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Give tensors at least 3 dimensions; a matrix gets a last one. See `F.atleast_1d`."""
    return _at_least("atleast_3d", tensors, _planes)


def _rows(x: Tensor) -> Tensor:
    return x if x.array.ndim > 1 else reshape(x, (1, -1)) if x.array.numel else reshape(x, (1, 0))


def _planes(x: Tensor) -> Tensor:
    return x if x.array.ndim > 2 else unsqueeze(_rows(x), -1)


def _at_least(
    op: str, tensors: tuple[Tensor | Sequence[Tensor], ...], change: Callable[[Tensor], Tensor]
) -> Tensor | tuple[Tensor, ...]:
    if len(tensors) == 1 and not isinstance(tensors[0], Tensor):
        return tuple(change(each) for each in _listed(op, tensors[0]))
    made = tuple(change(each) for each in _listed(op, tensors))
    return made[0] if len(made) == 1 else made


def _listed(op: str, tensors: object) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise DTypeError(describe(op, "tensors", "a sequence of tensors", type(tensors).__name__))
    require_tensors(op, **{f"tensors[{number}]": tensor for number, tensor in enumerate(tensors)})
    return list(tensors)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors side by side: along dimension 1, vectors along 0.

    Args:
        tensors: shapes that differ in that dimension at most.
    Returns: their first dimensions, and the sum of the sizes.
    Raises: ShapeError: other sizes differ.
    Grad: tensors.
    Example: >>> F.hstack([genesis.ones(1), genesis.zeros(2)]).tolist()
    [1.0, 0.0, 0.0]
    """
    given = [x if x.array.ndim else reshape(x, (1,)) for x in _listed("hstack", tensors)]
    return cat(given, 1 if given and given[0].array.ndim > 1 else 0)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along dimension 0; vectors are rows. See `F.hstack`."""
    return cat([_rows(x) for x in _listed("vstack", tensors)])


row_stack = vstack


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along dimension 2; matrices are planes. See `F.hstack`."""
    return cat([_planes(x) for x in _listed("dstack", tensors)], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors side by side; vectors are columns. See `F.hstack`."""
    given = _listed("column_stack", tensors)
    return cat([x if x.array.ndim > 1 else reshape(x, (x.array.numel, 1)) for x in given], 1)


_PARTS = dict.fromkeys(("indices", "sections"), "indices_or_sections")


@also(axis="dim", tensor_indices_or_sections="indices_or_sections", **_PARTS)
def tensor_split(
    input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[Tensor, ...]:  # fmt: skip
    """Views of a tensor in several parts, which may differ in size.

    Args:
        input: at least 1 dimension.
        indices_or_sections: the number of parts, or where to cut; a tensor of them too.
        dim: a dimension.
    Returns: the parts; the first ones are longer by one where they differ.
    Raises: ValueError: fewer than 1 part. ShapeError: a 0-d tensor.
    Grad: input.
    Example: >>> [part.tolist() for part in F.tensor_split(genesis.arange(3), 2)]
    [[0, 1], [2]]
    """
    require_tensors("tensor_split", input=input)
    shape = input.array.shape
    if not shape:
        raise ShapeError(describe("tensor_split", "input", "at least 1 dimension", "a 0-d tensor"))
    dim, given = shapes.normalize_dim("tensor_split", dim, len(shape)), indices_or_sections
    if isinstance(given, Tensor):
        if given.array.dtype is not int64 or given.array.ndim > 1:
            raise DTypeError(describe("tensor_split", "indices_or_sections", "int64, 0-d or 1-d", given.array.dtype))
        given = given.array.tolist()
    size = shape[dim]
    if isinstance(given, int):
        if given < 1:
            raise ValueError(describe("tensor_split", "indices_or_sections", "at least 1", given))
        long, length = size % given, size // given
        cuts = [number * length + min(number, long) for number in range(1, given)]
    else:
        cuts = list(given)
    before = (slice(None),) * dim
    bounds = zip([None, *cuts], [*cuts, None], strict=True)
    return tuple(getitem(input, (*before, slice(start, end))) for start, end in bounds)


@also(**_PARTS)
def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a tensor along dimension 1, a vector along 0. See `F.tensor_split`."""
    return _split_at("hsplit", input, indices_or_sections, 1)


@also(**_PARTS)
def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a tensor of at least 2 dimensions along dimension 0. See `F.tensor_split`."""
    return _split_at("vsplit", input, indices_or_sections, 0)


@also(**_PARTS)
def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a tensor of at least 3 dimensions along dimension 2. See `F.tensor_split`."""
    return _split_at("dsplit", input, indices_or_sections, 2)


def _split_at(op: str, input: Tensor, given: int | Sequence[int], dim: int) -> tuple[Tensor, ...]:
    require_tensors(op, input=input)
    shape, least = input.array.shape, {"hsplit": 1, "vsplit": 2, "dsplit": 3}[op]
    if len(shape) < least:
        raise ShapeError(describe(op, "input", f"at least {least} dimensions", f"shape {shape}"))
    dim = 0 if len(shape) == 1 else dim
    if isinstance(given, int) and (given < 1 or shape[dim] % given):
        raise ValueError(describe(op, "indices_or_sections", f"a divisor of {shape[dim]}", given))
    return tensor_split(input, given, dim)


@also(axis="dim")
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of a tensor in parts of these sizes. See `F.split`."""
    return split(input, split_sizes, dim)


def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The shape that tensors of these shapes broadcast to.

    Args:
        shapes: sequences of sizes; an int is one size.
    Returns: a tuple.
    Raises: ValueError: they don't broadcast.
    Example: >>> F.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    result: Shape = ()
    for given in shapes:
        result = _broadcast(result, (given,) if isinstance(given, int) else tuple(given))
    return result


def _broadcast(x: Shape, y: Shape) -> Shape:
    if any(size < 0 for size in y):
        raise ValueError(describe("broadcast_shapes", "shapes", "sizes of at least 0", y))
    return shapes.broadcast("broadcast_shapes", x, y, names=("shapes", "shapes"))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of tensors in the shape that they broadcast to.

    Args:
        tensors: shapes that broadcast.
    Returns: views, all of one shape.
    Raises: ValueError: they don't broadcast.
    Grad: tensors.
    Example: >>> [x.shape for x in F.broadcast_tensors(genesis.ones(2, 1), genesis.ones(3))]
    [(2, 3), (2, 3)]
    """
    given = _listed("broadcast_tensors", tensors)
    shape = broadcast_shapes(*[tensor.array.shape for tensor in given])
    return tuple(expand(tensor, shape) for tensor in given)


def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Grids of coordinates: the n-th result has the n-th vector along its n-th dimension.

    Args:
        tensors: vectors or 0-d tensors of one dtype, one by one or as one sequence.
        indexing: "ij", or "xy": the first two dimensions of the results are swapped.
    Returns: a view for each tensor, all of one shape.
    Raises: ShapeError: more than 1 dimension. DTypeError: dtypes differ. ValueError: another indexing.
    Grad: tensors.
    Example: >>> [x.tolist() for x in F.meshgrid(genesis.arange(2), genesis.arange(2))]
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    given = _listed("meshgrid", tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors)
    if not given:
        raise ValueError(describe("meshgrid", "tensors", "at least one tensor", "none"))
    if indexing not in ("ij", "xy"):
        raise ValueError(describe("meshgrid", "indexing", "'ij' or 'xy'", repr(indexing)))
    for number, tensor in enumerate(given):
        if tensor.array.ndim > 1:
            raise ShapeError(describe("meshgrid", f"tensors[{number}]", "a vector", f"shape {tensor.array.shape}"))
        if tensor.array.dtype is not given[0].array.dtype:
            expected = f"{given[0].array.dtype}, as the first"
            raise DTypeError(describe("meshgrid", f"tensors[{number}]", expected, tensor.array.dtype))
    swaps = indexing == "xy" and len(given) > 1
    ordered = [given[1], given[0], *given[2:]] if swaps else given
    shape = [tensor.array.numel for tensor in ordered]
    places = [[-1 if number == at else 1 for at in range(len(shape))] for number in range(len(shape))]
    grids = [expand(reshape(x, place), shape) for x, place in zip(ordered, places, strict=True)]
    if swaps:
        grids = [grids[1], grids[0], *grids[2:]]
    return tuple(grids)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows.

    Args:
        tensors: vectors of one dtype.
    Returns: (product of the sizes, number of tensors); of one vector, itself.
    Raises: ShapeError: no vector.
    Grad: tensors.
    Example: >>> F.cartesian_prod(genesis.tensor([1, 2]), genesis.tensor([3])).tolist()
    [[1, 3], [2, 3]]
    """
    given = _listed("cartesian_prod", tensors)
    for number, tensor in enumerate(given):
        if tensor.array.ndim != 1:
            raise ShapeError(describe("cartesian_prod", f"tensors[{number}]", "a vector", tensor.array.shape))
    if len(given) == 1:
        return given[0]
    return stack([reshape(grid, (-1,)) for grid in meshgrid(given)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements in their order, as rows.

    Args:
        input: a vector.
        r: how many, at least 0.
        with_replacement: an element may be chosen again.
    Returns: (number of choices, r).
    Raises: ShapeError: no vector. ValueError: r < 0.
    Grad: input.
    Example: >>> F.combinations(genesis.tensor([1, 2, 3])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    require_tensors("combinations", input=input)
    if input.array.ndim != 1:
        raise ShapeError(describe("combinations", "input", "a vector", f"shape {input.array.shape}"))
    if r < 0:
        raise ValueError(describe("combinations", "r", "at least 0", r))
    if r == 0:
        return getitem(input, slice(0, 0))
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = list(choose(range(input.array.numel), r))
    places = [place for row in chosen for place in row]
    return reshape(index_select(input, 0, _positions(input, places)), (len(chosen), r))


def fliplr(input: Tensor) -> Tensor:
    """Reverse dimension 1 of at least 2. See `F.flip`."""
    _require_dims("fliplr", input, 2)
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Reverse dimension 0 of at least 1. See `F.flip`."""
    _require_dims("flipud", input, 1)
    return flip(input, 0)


def _require_dims(op: str, input: Tensor, least: int) -> None:
    require_tensors(op, input=input)
    if input.array.ndim < least:
        raise ShapeError(describe(op, "input", f"at least {least} dimensions", f"shape {input.array.shape}"))


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by k quarter turns, from the first of two dimensions toward the second.

    Args:
        input: at least 2 dimensions.
        k: how often; backwards if negative.
        dims: the two dimensions.
    Returns: input, rotated.
    Raises: ShapeError: not two different dimensions.
    Grad: input.
    Example: >>> F.rot90(genesis.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    _require_dims("rot90", input, 2)
    if len(dims) != 2:
        raise ShapeError(describe("rot90", "dims", "2 dimensions", tuple(dims)))
    first, second = (shapes.normalize_dim("rot90", dim, input.array.ndim, "dims") for dim in dims)
    if first == second:
        raise ShapeError(describe("rot90", "dims", "2 different dimensions", tuple(dims)))
    if k % 4 == 2:
        return flip(input, (first, second))
    if k % 2:
        return transpose(flip(input, second if k % 4 == 1 else first), first, second)
    return permute(input, range(input.array.ndim)).clone()


def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension: a view of a contiguous tensor, a copy of others. See `F.reshape`."""
    return reshape(input.contiguous(), (-1,))


@also(axis="dim")
def repeat_interleave(
    input: Tensor, repeats: int | Tensor | None = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Repeat each element, or each slice along dim, where it is.

    Args:
        input: any shape; alone, the repeats of 0, 1, 2, ….
        repeats: how often: a number, or a vector of int32 or int64 with one for each element.
        dim: a dimension; input is flattened if None.
        output_size: how many there will be, which saves a look at repeats.
    Returns: input with another size in dim.
    Raises: ValueError: a negative number. ShapeError: repeats has another size.
    Grad: input.
    Example: >>> F.repeat_interleave(genesis.tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    require_tensors("repeat_interleave", input=input)
    if repeats is None:
        return _positions_repeated(input, input, output_size)
    if dim is None:
        input, dim = reshape(input, (-1,)), 0
    elif not input.array.ndim:
        input = reshape(input, (1,))
    dim = shapes.normalize_dim("repeat_interleave", dim, input.array.ndim)
    size = input.array.shape[dim]
    if isinstance(repeats, Tensor):
        if repeats.array.numel == 1:
            repeats = expand(reshape(repeats, (1,)), (size,))
        if repeats.array.shape != (size,):
            raise ShapeError(describe("repeat_interleave", "repeats", f"shape ({size},)", repeats.array.shape))
        return index_select(input, dim, _positions_repeated(input, repeats, output_size))
    if repeats < 0:
        raise ValueError(describe("repeat_interleave", "repeats", "at least 0", repeats))
    wide = list(input.array.shape)
    wide.insert(dim + 1, repeats)
    wide_input = expand(unsqueeze(input, dim + 1), wide)
    wide[dim : dim + 2] = [size * repeats]
    repeated = reshape(wide_input, wide)
    is_view = shapes.view_strides(wide_input.array.shape, wide_input.array.strides, wide) is not None
    return repeated.clone() if is_view else repeated


def _positions_repeated(input: Tensor, repeats: Tensor, output_size: int | None) -> Tensor:
    if repeats.array.dtype.name not in ("int32", "int64"):
        raise DTypeError(describe("repeat_interleave", "repeats", "int32 or int64", repeats.array.dtype))
    if repeats.array.ndim != 1:
        raise ShapeError(describe("repeat_interleave", "repeats", "a vector", f"shape {repeats.array.shape}"))
    counts = repeats.array.tolist()
    if any(count < 0 for count in counts):
        raise ValueError(describe("repeat_interleave", "repeats", "at least 0", min(counts)))
    if output_size is not None and output_size != sum(counts):
        raise ShapeError(describe("repeat_interleave", "output_size", sum(counts), output_size))
    return _positions(input, [place for place, count in enumerate(counts) for _ in range(count)], repeats)


def _positions(input: Tensor, places: Sequence[int], like: Tensor | None = None) -> Tensor:
    """Numbers as a tensor on the device of input."""
    dtype = int64 if like is None else like.array.dtype
    values = NDArray.from_numpy(np.array(places, np.int64).reshape(-1), int64)
    return input._like(values.to(dtype).to_device(input.array.device))


def unfold_windows(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """All windows of a dimension, along a new last dimension: Tensor.unfold; a copy.

    Args:
        input: any shape.
        dimension: a dimension.
        size: of the windows, at most that of the dimension.
        step: from one to the next, at least 1.
    Returns: the shape of input with the number of windows in dimension, and a last size more.
    Raises: ShapeError: size is above that of the dimension. ValueError: step < 1 or size < 0.
    Grad: input.
    Example: >>> F.unfold_windows(genesis.arange(4), 0, 2, 1).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    require_tensors("unfold", input=input)
    x = input if input.array.ndim else reshape(input, (1,))
    dim = shapes.normalize_dim("unfold", dimension, x.array.ndim, "dimension")
    length = x.array.shape[dim]
    if size < 0 or step < 1:
        raise ValueError(describe("unfold", "step", "at least 1, and size at least 0", (size, step)))
    if size > length:
        raise ShapeError(describe("unfold", "size", f"at most {length}", size))
    count = (length - size) // step + 1
    places = [start * step + place for start in range(count) for place in range(size)]
    windows = unflatten(index_select(x, dim, _positions(x, places)), dim, (count, size))
    windows = movedim(windows, dim + 1, -1)
    return windows if input.array.ndim else reshape(windows, (size,))
