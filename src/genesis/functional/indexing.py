"""Indexing and assignment: x[index], x[index] = value.

An index is taken apart once: its integers, slices, None and Ellipsis become a *view plan* (one entry for each
dimension), its tensors and lists become index arrays for the dimensions of that view. Without index arrays the result
is a view.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import NamedTuple, TypeAlias

import numpy as np

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.autograd.modes import state
from genesis.dtypes import HostArray, Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.masked_assignment import fill, mask_of
from genesis.functional.shape import reshape
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

Slice: TypeAlias = "slice[object, object, object]"
Item: TypeAlias = "int | Slice | EllipsisType | Tensor | Sequence[object] | HostArray | None"
Indices: TypeAlias = "Item | tuple[Item, ...]"  # what may stand in x[…]
Part: TypeAlias = "int | Slice | EllipsisType | NDArray | None"  # an item, by the few kinds that there are
__all__ = ["getitem", "index_put", "index_put_", "setitem"]


class Cut(NamedTuple):
    """A slice with its numbers worked out for one dimension."""

    start: int
    step: int
    length: int


class Index(NamedTuple):
    """An index, taken apart for one shape."""

    plan: tuple[int | Cut | None, ...]  # for each dimension: one element, a slice, or (None) a new dimension of size 1
    arrays: tuple[NDArray | None, ...]  # for each dimension of the view: an int64 array, or None for all of it


EVERYTHING = slice(None)


# --- reading ----------------------------------------------------------------------------------------------------------


def getitem(input: Tensor, index: Indices) -> Tensor:
    """input[index], by NumPy's rules.

    Args:
        input: any shape and dtype.
        index: integers, slices, None, Ellipsis, bools, tensors or lists of integers or bools, or a tuple of them.
    Returns: a view without tensors and lists in index, else a copy.
    Raises: IndexError: too many indices, or one out of range. DTypeError: another index. ValueError: a step < 1.
    Grad: input. Saves index.
    Example: >>> x = genesis.arange(6).reshape(2, 3)
    >>> x[1, ::2].tolist(), x[x > 3].tolist(), x[:, [2, 0]].tolist()
    ([3, 5], [4, 5], [[2, 0], [5, 3]])
    """
    return GetItem.apply(input, index=parse("getitem", input.array, index))


class GetItem(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, index: Index) -> NDArray:
        ctx.shape, ctx.plan = x.shape, index.plan
        if index.arrays:
            ctx.save(*index.arrays)
        return _read(x, index)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        whole = grad.full_like(0, ctx.shape)
        _write(whole, Index(ctx.plan, ctx.saved), grad, accumulate=True)  # both gradients of what was read twice
        return whole


# --- writing ----------------------------------------------------------------------------------------------------------


def setitem(input: Tensor, index: Indices, value: Tensor | Number) -> None:
    """input[index] = value, in place. Where gradients are recorded, input becomes part of value's graph.

    Args:
        input: any shape and dtype.
        index: as for getitem.
        value: a tensor that broadcasts to input[index], cast to its dtype; or a number.
    Returns: None.
    Raises: IndexError, DTypeError, ValueError: as getitem. ShapeError: value does not broadcast. GraphError: input is
        a leaf that requires grad, or a view in the graph.
    Grad: input and value. Saves index.
    Example: >>> x = genesis.zeros(2, 2)
    >>> x[:, 0] = 1
    >>> x.tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    mask = mask_of(input, index, value)
    if mask is not None:
        input._change(fill, mask, _one_value("setitem", input, value))
    else:
        _assign("setitem", input, parse("setitem", input.array, index), value, accumulate=False)


def index_put(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of input with input[indices] = values, or += with accumulate.

    Args:
        input: any shape and dtype.
        indices: a tensor for each dimension; None for all of it.
        values: a tensor that broadcasts to input[indices]; it is cast.
        accumulate: add instead of assigning; repeated indices add up.
    Returns: the shape and dtype of input.
    Raises: as setitem.
    Grad: input, values. Saves indices.
    Example: >>> F.index_put(genesis.zeros(3), [genesis.tensor([0, 0])], genesis.ones(1), accumulate=True).tolist()
    [2.0, 0.0, 0.0]
    """
    index = parse("index_put", input.array, _index_tensors(indices))
    return SetItem.apply(input, _assignable("index_put", input, index, values), index=index, accumulate=accumulate)


def index_put_(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """index_put in place.

    Args:
        input: any shape and dtype. It is changed.
        indices: a tensor for each dimension; None for all of it.
        values: a tensor that broadcasts to input[indices]; it is cast.
        accumulate: add instead of assigning; repeated indices add up.
    Returns: input.
    Raises: as setitem.
    Grad: input, values. Saves indices.
    Example: >>> F.index_put_(genesis.zeros(3), [genesis.tensor([2])], genesis.ones(1)).tolist()
    [0.0, 0.0, 1.0]
    """
    index = _index_tensors(indices)
    mask = None if accumulate else mask_of(input, index, values)
    if mask is not None:
        input._change(fill, mask, _one_value("index_put_", input, values))
    else:
        _assign("index_put_", input, parse("index_put_", input.array, index), values, accumulate)
    return input


def _index_tensors(indices: Sequence[Tensor | None]) -> tuple[Item, ...]:
    return tuple(EVERYTHING if index is None else index for index in indices)


def _assign(op: str, input: Tensor, index: Index, value: Tensor | Number, accumulate: bool) -> None:
    value = _assignable(op, input, index, value)
    is_recorded = state.recording and (input.requires_grad or (isinstance(value, Tensor) and value.requires_grad))
    if is_recorded or state.observer is not None:  # who observes sees what is assigned where
        input._change(_set, value, index, accumulate)
        return
    array = value.array if isinstance(value, Tensor) else value
    if isinstance(array, NDArray) and array.is_view_of(input.array):
        array = array.clone()  # it may overlap with what is written
    _write(input.array, index, array, accumulate)


def _set(input: Tensor, value: Tensor | Number, index: Index, accumulate: bool) -> Tensor:
    return SetItem.apply(input, value, index=index, accumulate=accumulate)


_set.__name__ = "setitem"  # as errors call it


def _assignable(op: str, input: Tensor, index: Index, value: Tensor | Number) -> Tensor | Number:
    """value as a number, or as a tensor that broadcasts to what is written; checked."""
    if not isinstance(value, Tensor):
        return _one_value(op, input, value)
    shape = value.array.shape
    target = _result_shape(input.array, index)
    extra = max(0, len(shape) - len(target))
    if set(shape[:extra]) <= {1}:  # leading ones may be more than the target has
        fits = all(a in (1, b) for a, b in zip(reversed(shape[extra:]), reversed(target), strict=False))
        if fits:
            return reshape(value, shape[extra:]) if extra else value
    raise ShapeError(describe(op, "value", f"a shape that broadcasts to {target}", shape))


def _one_value(op: str, input: Tensor, value: object) -> Tensor | Number:
    """A number as input's dtype holds it; a tensor as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, bool | int | float | complex):
        raise DTypeError(describe(op, "value", "a tensor or a number", type(value).__name__))
    return dtypes.number(op, "value", value, input.array.dtype, rounds=True)  # type: ignore[arg-type]


class SetItem(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, value: NDArray | Number, *, index: Index, accumulate: bool) -> NDArray:
        ctx.plan, ctx.accumulate = index.plan, accumulate
        if index.arrays or _seen(x, index.plan).shape != x.shape:  # then backward runs once, as PyTorch's
            ctx.save(*index.arrays, None)
        y = x.clone()
        _write(y, index, value, accumulate)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        needs_x, needs_value = ctx.needs_input_grad
        index = Index(ctx.plan, ctx.saved[:-1])
        grad_value = _read(grad, index) if needs_value else None
        if not needs_x or ctx.accumulate:
            return grad, grad_value
        rest = grad.clone()
        _write(rest, index, 0, accumulate=False)  # what was overwritten has no part in the result
        return rest, grad_value


# --- on arrays --------------------------------------------------------------------------------------------------------


def _seen(x: NDArray, plan: Sequence[int | Cut | None]) -> NDArray:
    """The view that a plan describes."""
    strides, offset, dim = x.strides, x.offset, 0
    view_shape, view_strides = [], []
    for item in plan:
        if item is None:
            view_shape.append(1)
            view_strides.append(1)
            continue
        if isinstance(item, Cut):
            offset += item.start * strides[dim] if item.length else 0  # an empty view may not start past the end
            view_shape.append(item.length)
            view_strides.append(item.step * strides[dim])
        else:
            offset += item * strides[dim]
        dim += 1
    return x.view(tuple(view_shape), tuple(view_strides), offset)


def _read(x: NDArray, index: Index) -> NDArray:
    view = _seen(x, index.plan)
    return ops.take(view, index.arrays) if index.arrays else view


def _write(x: NDArray, index: Index, value: NDArray | Number, accumulate: bool) -> None:
    view = _seen(x, index.plan)
    if index.arrays:
        view.require_writable()
        ops.put(view, index.arrays, value.to(x.dtype) if isinstance(value, NDArray) else value, accumulate)
    elif accumulate:
        view.copy_into(view.add(value))
    else:
        view.copy_into(value)


def _result_shape(x: NDArray, index: Index) -> Shape:
    shape = _seen(x, index.plan).shape
    if not index.arrays:
        return shape
    chosen = [i for i, array in enumerate(index.arrays) if array is not None]
    broadcast = shapes.broadcast("index", *[array.shape for array in index.arrays if array is not None])
    rest = [size for i, size in enumerate(shape) if i not in chosen]
    first = (
        chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0
    )  # NumPy's rule: adjacent ones stay in place
    return (*rest[:first], *broadcast, *rest[first:])


# --- taking an index apart --------------------------------------------------------------------------------------------


_parsed: dict[tuple[object, ...], Index] = {}
_MOST_PARSED = 4096


def parse(op: str, x: NDArray, index: Indices) -> Index:
    """The plan and the index arrays of an index into x; every error of an index is found here.

    Indices that are plain are taken apart once for a shape.
    """
    plain = _plain(index)
    if plain is None:
        return _parse(op, x, index)
    key = (x.shape, plain)
    found = _parsed.get(key)
    if found is None:
        found = _parse(op, x, index)
        if len(_parsed) >= _MOST_PARSED:
            _parsed.clear()
        _parsed[key] = found
    return found


_NUMBERS = (int, type(None))  # what a plain slice is made of


def _plain(index: Indices) -> tuple[object, ...] | None:
    """A hashable key of an index of integers, slices, None and Ellipsis; None for all others."""
    marks: list[object] = []
    for item in index if type(index) is tuple else (index,):
        if item is None or item is Ellipsis or type(item) is int:
            marks.append(item)
        elif type(item) is slice:
            start, stop, step = ends = item.start, item.stop, item.step
            if not (type(start) in _NUMBERS and type(stop) in _NUMBERS and type(step) in _NUMBERS):
                return None
            marks.append(ends)
        else:
            return None
    return tuple(marks)


def _parse(op: str, x: NDArray, index: Indices) -> Index:
    items = [_normal(op, x, item) for item in (index if isinstance(index, tuple) else (index,))]
    used = sum(_dims_used(item) for item in items)
    if used > x.ndim:
        raise IndexError(describe(op, "index", f"at most {x.ndim} indices, one for each dimension", used))
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError(describe(op, "index", "at most one '...'", len(dots)))
    fill = [EVERYTHING] * (x.ndim - used)
    items = [*items[: dots[0]], *fill, *items[dots[0] + 1 :]] if dots else [*items, *fill]
    plan: list[int | Cut | None] = []
    arrays: list[NDArray | None] = []
    dim = 0
    for item in items:
        if item is None:
            plan.append(None)
            arrays.append(None)
        elif isinstance(item, bool):  # a new dimension, of which one element or none is chosen
            plan.append(None)
            arrays.append(NDArray.full((int(item),), 0, dtypes.int64, x.device))
        elif isinstance(item, int):
            plan.append(_position(op, item, dim, x.shape[dim]))
            dim += 1
        elif isinstance(item, slice):
            plan.append(_cut(op, item, x.shape[dim]))
            arrays.append(None)
            dim += 1
        elif isinstance(item, NDArray):
            found = _index_arrays(op, item, dim, x)
            plan += [Cut(0, 1, size) for size in x.shape[dim : dim + len(found)]]
            arrays += found
            dim += len(found)
    if all(array is None for array in arrays):
        return Index(tuple(plan), ())
    shapes.broadcast(op, *[array.shape for array in arrays if array is not None], names=("index",))
    return Index(tuple(plan), tuple(arrays))


def _normal(op: str, x: NDArray, item: object) -> Part:
    """One part of an index as None, Ellipsis, a bool, an int, a slice, or an array of integers or bools."""
    if item is None or item is Ellipsis or isinstance(item, bool | slice):
        return item
    if isinstance(item, np.bool):
        return bool(item)
    if isinstance(item, list | range):
        item = np.array(item if len(item) else np.empty(0, np.int64))
    if isinstance(item, Tensor):
        array = item.array
    elif isinstance(item, np.ndarray) and item.dtype.kind in "biu" and item.dtype.name in dtypes.BY_NAME:
        array = NDArray.from_numpy(item, dtypes.BY_NAME[item.dtype.name]).to_device(x.device)
    else:
        try:
            return operator.index(item)  # type: ignore[arg-type]  # else it raises
        except TypeError:
            kind = f"an array of {item.dtype}" if isinstance(item, np.ndarray) else f"{type(item).__name__} {item!r}"
            raise DTypeError(describe(op, "index", _ALLOWED, kind)) from None
    if array.dtype.is_floating_point or array.dtype is dtypes.uint8:
        raise DTypeError(describe(op, "index", _ALLOWED, f"a tensor of {array.dtype}"))
    if array.ndim == 0:
        value = array.item()
        return value if isinstance(value, bool) else int(value)
    return array.to_device(x.device)


_ALLOWED = "integers, slices, None, '...', bools, or tensors or lists of integers or bools"


def _dims_used(item: Part) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, NDArray) and item.dtype is dtypes.bool_ else 1


def _position(op: str, index: int, dim: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"{op}: index {index} is out of bounds for dimension {dim} of size {size}")
    return index % size


def _cut(op: str, item: Slice, size: int) -> Cut:
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError):
        raise DTypeError(describe(op, "index", "a slice of integers with a step that is not 0", item)) from None
    if step < 0:
        raise ValueError(describe(op, "index", "a slice with a step of at least 1; use .flip()", f"step {step}"))
    return Cut(start, step, len(range(start, stop, step)))


def _index_arrays(op: str, item: NDArray, dim: int, x: NDArray) -> list[NDArray]:
    """int64 arrays for the dimensions that item indexes: one, or as many as a mask has."""
    if item.dtype is not dtypes.bool_:
        return [item.to(dtypes.int64)]
    covered = x.shape[dim : dim + item.ndim]
    if item.shape != covered:
        raise IndexError(f"{op}: a mask of shape {item.shape} does not fit the dimensions {covered} from {dim} on")
    positions = ops.nonzero(item)
    return [positions.select(1, i) for i in range(item.ndim)]
