"""Copies of a tensor in which some elements are others: on a diagonal, in a slice, at indices, under a mask."""

from __future__ import annotations

import operator
from collections.abc import Callable

from genesis import shapes
from genesis.autograd import Tensor
from genesis.autograd.modes import checks_values
from genesis.dtypes import Number, int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.conversion import clone
from genesis.functional.elementwise import where
from genesis.functional.indexing import getitem, index_put
from genesis.functional.keywords import also
from genesis.functional.scattering import scatter
from genesis.functional.selection import index_select, masked_fill
from genesis.functional.shape import diagonal, expand, reshape
from genesis.ndarray import NDArray, ops

__all__ = [
    "diagonal_scatter",
    "index_copy",
    "index_fill",
    "masked_scatter",
    "put",
    "select",
    "select_scatter",
    "slice_scatter",
    "take",
]


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of input with src on a diagonal.

    Args:
        input: at least 2 dimensions.
        src: the shape of that diagonal, dtype of input.
        offset, dim1, dim2: as of `F.diagonal`.
    Returns: shape and dtype of input.
    Raises: ShapeError: src has another shape.
    Grad: input, src.
    Example: >>> F.diagonal_scatter(genesis.zeros(2, 2), genesis.ones(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def part(tensor: Tensor) -> Tensor:
        return diagonal(tensor, offset, dim1, dim2)

    return _scattered("diagonal_scatter", input, src, part)


@also(axis="dim")
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of input with src at an index of dim.

    Args:
        input: at least 1 dimension.
        src: the shape of input without dim, dtype of input.
        dim: a dimension.
        index: a position in it.
    Returns: shape and dtype of input.
    Raises: ShapeError: src has another shape. IndexError: no such position.
    Grad: input, src.
    Example: >>> F.select_scatter(genesis.zeros(2, 2), genesis.ones(2), 0, 1).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def part(tensor: Tensor) -> Tensor:
        return select(tensor, dim, index)

    return _scattered("select_scatter", input, src, part)


@also(axis="dim")
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of input with src in a slice of dim.

    Args:
        input: at least 1 dimension.
        src: the shape of that slice, dtype of input.
        dim: a dimension.
        start, end, step: of the slice.
    Returns: shape and dtype of input.
    Raises: ShapeError: src has another shape.
    Grad: input, src.
    Example: >>> F.slice_scatter(genesis.zeros(3), genesis.ones(1), 0, 1, 2).tolist()
    [0.0, 1.0, 0.0]
    """

    def part(tensor: Tensor) -> Tensor:
        at = shapes.normalize_dim("slice_scatter", dim, tensor.array.ndim)
        return getitem(tensor, (*(slice(None),) * at, slice(start, end, step)))

    return _scattered("slice_scatter", input, src, part)


@also(axis="dim")
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice at an index of dim, a view.

    Args:
        input: at least 1 dimension.
        dim: a dimension.
        index: a position in it.
    Returns: the shape of input without dim.
    Raises: IndexError: no such dimension or position.
    Grad: input. Saves nothing.
    Example: >>> F.select(genesis.tensor([[1, 2], [3, 4]]), 1, 0).tolist()
    [1, 3]
    """
    require_tensors("select", input=input)
    if not input.array.ndim:
        raise ShapeError(describe("select", "input", "at least 1 dimension", "a 0-d tensor"))
    at = shapes.normalize_dim("select", dim, input.array.ndim)
    return getitem(input, (*(slice(None),) * at, operator.index(index)))


@also(axis="dim")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """A copy of input with value at some indices of dim.

    Args:
        input: any shape.
        dim: a dimension.
        index: (N,), int64.
        value: a number, or a 0-d tensor.
    Returns: shape and dtype of input.
    Raises: IndexError: no such dimension or position. ShapeError: value has dimensions.
    Grad: input, value.
    Example: >>> F.index_fill(genesis.zeros(3), 0, genesis.tensor([0, 2]), 1).tolist()
    [1.0, 0.0, 1.0]
    """
    require_tensors("index_fill", input=input, index=index)
    if isinstance(value, Tensor) and value.array.ndim:
        raise ShapeError(describe("index_fill", "value", "a number or a 0-d tensor", f"shape {value.array.shape}"))
    at = shapes.normalize_dim("index_fill", dim, input.array.ndim)
    if index.array.dtype.name != "int64":
        raise DTypeError(describe("index_fill", "index", "int64", index.array.dtype))
    if not input.array.ndim:
        return reshape(index_fill(reshape(input, (1,)), 0, index, value), ())
    mask = _marked(input, at, reshape(index, (-1,)))
    return masked_fill(input, mask, value)


@also(axis="dim")
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of input with the slices of source at some indices of dim.

    Args:
        input: any shape.
        dim: a dimension.
        index: (N,), int64.
        source: (…, N, …), dtype of input.
    Returns: shape and dtype of input.
    Raises: ShapeError: sizes that don't fit. IndexError: no such dimension or position.
    Grad: input, source.
    Example: >>> F.index_copy(genesis.zeros(3), 0, genesis.tensor([2, 0]), genesis.tensor([1.0, 2.0])).tolist()
    [2.0, 0.0, 1.0]
    """
    require_tensors("index_copy", input=input, index=index, source=source)
    at = shapes.normalize_dim("index_copy", dim, input.array.ndim)
    if index.array.dtype.name != "int64":
        raise DTypeError(describe("index_copy", "index", "int64", index.array.dtype))
    if source.array.dtype is not input.array.dtype:
        raise DTypeError(describe("index_copy", "source", f"{input.array.dtype}, as input", source.array.dtype))
    if not input.array.ndim:
        return reshape(index_copy(reshape(input, (1,)), 0, reshape(index, (-1,)), reshape(source, (1,))), ())
    shape = [index.array.numel if number == at else size for number, size in enumerate(input.array.shape)]
    if index.array.ndim > 1 or (source.array.ndim and tuple(shape) != source.array.shape):
        raise ShapeError(describe("index_copy", "source", f"shape {tuple(shape)}", f"shape {source.array.shape}"))
    places = reshape(index, [-1 if number == at else 1 for number in range(input.array.ndim)])
    return scatter(input, at, expand(places, shape), expand(source, shape))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of input whose masked elements are those of source, in order.

    Args:
        input: any shape.
        mask: bool, broadcasts with input.
        source: dtype of input; at least as many elements as are masked.
    Returns: the common shape.
    Raises: DTypeError: mask is not bool, or dtypes differ. ValueError: source has too few elements (on
        CUDA once the device has come to it).
    Grad: input, source.
    Example: >>> F.masked_scatter(genesis.zeros(2), genesis.tensor([False, True]), genesis.ones(1)).tolist()
    [0.0, 1.0]
    """
    require_tensors("masked_scatter", input=input, mask=mask, source=source)
    if mask.array.dtype.name != "bool":
        raise DTypeError(describe("masked_scatter", "mask", "bool", mask.array.dtype))
    if source.array.dtype is not input.array.dtype:
        raise DTypeError(describe("masked_scatter", "source", f"{input.array.dtype}, as input", source.array.dtype))
    shape = shapes.broadcast("masked_scatter", input.array.shape, mask.array.shape, names=("input", "mask"))
    flat, marked = reshape(expand(input, shape), (-1,)), reshape(expand(mask, shape), (-1,))
    running = ops.cumsum(marked.array.to(int64), 0)  # no nonzero(), whose shape no recording can follow
    available, size = source.array.numel, marked.array.numel
    if size and checks_values():
        expected = "at least as many elements as are masked"
        is_short = running.narrow(0, size - 1, 1).gt(available)
        ops.refuse(is_short, describe("masked_scatter", "source", expected, available))
    if not available or not size:
        return reshape(flat, shape).clone()
    values = index_select(reshape(source, (-1,)), 0, input._like(running.sub(1).clamp(0, available - 1)))
    return reshape(where(marked, values, flat), shape)


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at positions of the flattened input.

    Args:
        input: any shape.
        index: any shape, int64; counts from the end if negative.
    Returns: the shape of index, dtype of input.
    Raises: IndexError: no such position. DTypeError: index is not int64.
    Grad: input.
    Example: >>> F.take(genesis.tensor([[1, 2], [3, 4]]), genesis.tensor([0, -1])).tolist()
    [1, 4]
    """
    require_tensors("take", input=input, index=index)
    if index.array.dtype.name != "int64":
        raise DTypeError(describe("take", "index", "int64", index.array.dtype))
    if not input.array.numel and index.array.numel:
        raise IndexError(describe("take", "index", "no position, as input is empty", f"shape {index.array.shape}"))
    return reshape(getitem(reshape(input, (-1,)), reshape(index, (-1,))), index.array.shape)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of input with source at positions of the flattened input.

    Args:
        input: any shape.
        index: any shape, int64; counts from the end if negative.
        source: as many elements as index, dtype of input.
        accumulate: add to what is there.
    Returns: shape and dtype of input.
    Raises: IndexError: no such position. DTypeError: other dtypes. ShapeError: numbers differ.
    Grad: input, source.
    Example: >>> F.put(genesis.zeros(3), genesis.tensor([1]), genesis.ones(1)).tolist()
    [0.0, 1.0, 0.0]
    """
    require_tensors("put", input=input, index=index, source=source)
    if index.array.dtype.name != "int64":
        raise DTypeError(describe("put", "index", "int64", index.array.dtype))
    if source.array.dtype is not input.array.dtype:
        raise DTypeError(describe("put", "source", f"{input.array.dtype}, as input", source.array.dtype))
    if index.array.numel != source.array.numel:
        raise ShapeError(describe("put", "source", f"{index.array.numel} elements, as index", source.array.numel))
    if not input.array.numel and index.array.numel:
        raise IndexError(describe("put", "index", "no position, as input is empty", f"shape {index.array.shape}"))
    flat = reshape(input, (-1,))
    return reshape(index_put(flat, (reshape(index, (-1,)),), reshape(source, (-1,)), accumulate), input.array.shape)


def _scattered(op: str, input: Tensor, src: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of input with src where part looks: both are taken by their positions in memory."""
    require_tensors(op, input=input, src=src)
    count = input.array.numel
    places = NDArray.arange(0, 1, count, int64, input.array.device).reshape(input.array.shape)
    seen = part(input._like(places))
    if src.array.shape != seen.array.shape:
        raise ShapeError(describe(op, "src", f"shape {seen.array.shape}", f"shape {src.array.shape}"))
    if src.array.dtype is not input.array.dtype:
        raise DTypeError(describe(op, "src", f"{input.array.dtype}, as input", src.array.dtype))
    flat = scatter(reshape(clone(input), (-1,)), 0, reshape(seen, (-1,)), reshape(src, (-1,)))
    return reshape(flat, input.array.shape)


def _marked(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """A mask that broadcasts with input: true at these indices of dim."""
    size = input.array.shape[dim]
    mask = NDArray.full((size,), 0, int64, input.array.device)
    mask = ops.index_add(mask, 0, index.array.remainder(size) if size else index.array, index.array.full_like(1))
    shape = [size if number == dim else 1 for number in range(input.array.ndim)]
    return input._like(mask.ne(0).reshape(tuple(shape)))
