"""Translations: shapes, views and what is written through them, joining, indexing by slices and arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from genesis import dtypes, shapes
from genesis.dtypes import Number
from genesis.export.graph import Array, Emitter, Input, Operand
from genesis.export.registry import NamedOp, translates
from genesis.export.sizes import Dim, Shape, Size
from genesis.functional.indexing import Cut

if TYPE_CHECKING:
    import onnx_ir as ir

END = 2**63 - 1


# --- shapes -----------------------------------------------------------------------------------------------------------


def reshape_to(e: Emitter, x: Input, old: Shape, shape: Shape) -> ir.Value:
    """x in another shape; of its dynamic sizes, those that stay in their places are 0, and one is -1."""
    if 0 in shape or 0 in old:
        return e.op("Reshape", x, e.sizes(shape), allowzero=1)
    wanted: list[Dim] = [
        0 if isinstance(dim, Size) and axis < len(old) and old[axis] == dim else dim for axis, dim in enumerate(shape)
    ]
    dynamic = [axis for axis, dim in enumerate(wanted) if isinstance(dim, Size)]
    if dynamic:
        wanted[dynamic[-1]] = -1
    return e.op("Reshape", x, e.sizes(tuple(wanted)))


@translates("Reshape")
def reshape(e: Emitter, x: Operand, shape: Shape) -> ir.Value:
    return reshape_to(e, x, x.shape, shape)


@translates("view")
def view(
    e: Emitter, x: Operand, shape: Shape, strides: Shape, offset: Dim, of_strides: Shape, of_offset: Dim
) -> ir.Value:
    """A view by its strides: a reshape, or else the places that it shows, of sizes that stay."""
    if offset == of_offset and _is_reshape(x.shape, of_strides, shape, strides):
        return reshape_to(e, x, x.shape, shape)
    if any(isinstance(each, Size) for each in (*x.shape, *shape, *strides, *of_strides, offset, of_offset)):
        raise e.refused_size("a view of an array, which the export follows through fixed sizes only")
    addresses = _addresses(x.shape, of_strides, of_offset).reshape(-1)
    order = np.argsort(addresses, kind="stable")
    wanted = _addresses(shape, strides, offset)
    found = np.minimum(np.searchsorted(addresses, wanted, sorter=order), len(order) - 1)
    places = order[found]
    if not np.array_equal(addresses[places], wanted):
        raise e.refuse("shows memory beside its operand's")
    return e.op("Gather", e.op("Reshape", x, e.ints([-1])), e.array(places.astype(np.int64)), axis=0)


def _addresses(shape: Shape, strides: Shape, offset: Dim) -> Array:
    assert isinstance(offset, int)
    found = np.full((), offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        assert isinstance(size, int)
        assert isinstance(stride, int)
        found = found[..., None] + np.arange(size) * stride
    return found


def _is_reshape(old: Shape, old_strides: Shape, new: Shape, new_strides: Shape) -> bool:
    """Whether the same elements are shown in the same order, in each of the runs."""
    dims = (*old, *old_strides, *new, *new_strides)
    num_runs = max([len(dim.runs) for dim in dims if isinstance(dim, Size)], default=1)
    for run in range(num_runs):
        a, b, c, d = (
            tuple([int(dim.runs[run]) if isinstance(dim, Size) else dim for dim in each])
            for each in (old, old_strides, new, new_strides)
        )
        if shapes.numel(a) != shapes.numel(c):
            return False
        fitting = shapes.view_strides(a, b, c)
        if fitting is None or any(n > 1 and s != t for n, s, t in zip(c, fitting, d, strict=True)):
            return False
    return True


@translates("Unsqueeze")
def unsqueeze(e: Emitter, x: Operand, dim: int) -> ir.Value:
    return e.op("Unsqueeze", x, e.ints([dim]))


@translates("Permute")
def permute(e: Emitter, x: Operand, dims: Sequence[int]) -> ir.Value:
    return e.op("Transpose", x, perm=list(dims)) if dims else e.op("Identity", x)


@translates("Expand")
def expand(e: Emitter, x: Operand, shape: Shape) -> ir.Value:
    return e.op("Expand", x, e.sizes(shape)) if shape else e.op("Identity", x)


@translates("Clone", "PinMemory", "copy")
def same(e: Emitter, x: Operand, *strides: object) -> ir.Value:
    return e.op("Identity", x)


@translates("Contiguous")
def contiguous(e: Emitter, x: Operand, channels_last: bool) -> ir.Value:
    return e.op("Identity", x)


@translates("ToDevice")
def to_device(e: Emitter, x: Operand, device: object, non_blocking: bool) -> ir.Value:
    return e.op("Identity", x)


@translates("Flip", "flip")
def flip(e: Emitter, x: Operand, dims: Sequence[int]) -> ir.Value:
    n = len(dims)
    if not n or not x.ndim:
        return e.op("Identity", x)
    return e.op("Slice", x, e.ints([-1] * n), e.ints([-END] * n), e.ints(dims), e.ints([-1] * n))


@translates("Roll")
def roll(e: Emitter, x: Operand, shifts: Sequence[int], dims: Sequence[int]) -> ir.Value:
    y = e.op("Identity", x)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        by = shift % size if isinstance(size, int) and size else shift
        if not by or size == 0:
            continue
        tail = e.op("Slice", y, e.ints([-by]), e.ints([END]), e.ints([dim]))
        head = e.op("Slice", y, e.ints([0]), e.ints([-by]), e.ints([dim]))
        y = e.op("Concat", tail, head, axis=dim)
    return y


@translates("Repeat")
def repeat(e: Emitter, x: Operand, repeats: Shape) -> ir.Value:
    lead = len(repeats) - x.ndim
    if not repeats:
        return e.op("Identity", x)
    value = e.op("Unsqueeze", x, e.ints(range(lead))) if lead else x.value
    return e.op("Tile", value, e.sizes(repeats))


@translates("Triangle")
def triangle(e: Emitter, x: Operand, op: NamedOp, diagonal: int) -> ir.Value:
    return _triangle(e, x, op.__name__, diagonal)


translates("tril")(lambda e, x, diagonal: _triangle(e, x, "tril", diagonal))
translates("triu")(lambda e, x, diagonal: _triangle(e, x, "triu", diagonal))


def _triangle(e: Emitter, x: Operand, op: str, diagonal: int) -> ir.Value:
    direct = x.dtype.name in ("float32", "float64", "int64", "bool")
    value = x.value if direct else e.convert(x.value, dtypes.float64)
    y = e.op("Trilu", value, e.number(diagonal, dtypes.int64), upper=int(op == "triu"))
    return y if direct else e.convert(y, x.dtype)


@translates("Diagonal")
def diagonal(e: Emitter, x: Operand, dims: tuple[int, int], offset: int) -> ir.Value:
    rows, columns = (e.fixed(x.shape[dim], "a size of the plane") for dim in dims)
    rest = [dim for dim in range(x.ndim) if dim not in dims]
    moved = e.op("Transpose", x, perm=[*rest, *dims])
    flat = reshape_to(e, moved, (), (*[x.shape[dim] for dim in rest], rows * columns))
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = max(min(rows - first_row, columns - first_column), 0)
    places = (np.arange(length) + first_row) * columns + np.arange(length) + first_column
    return e.op("Gather", flat, e.array(places.astype(np.int64)), axis=len(rest))


# --- joining and parting ----------------------------------------------------------------------------------------------


@translates("Cat")
def cat(e: Emitter, *arrays: Operand, dim: int, shape: Shape) -> ir.Value:
    filled = [array for array in arrays if array.shape != (0,)] or arrays[:1]
    return e.op("Concat", *[e.cast(array, e.dtype) for array in filled], axis=dim)


@translates("cat")
def cat_arrays(e: Emitter, arrays: Sequence[Operand], dim: int) -> ir.Value:
    return e.op("Concat", *arrays, axis=dim)


@translates("Split")
def split(e: Emitter, x: Operand, dim: int, sections: Shape) -> tuple[ir.Value, ...]:
    return e.ops("Split", len(sections), x, e.sizes(sections), axis=dim)


@translates("Unbind")
def unbind(e: Emitter, x: Operand, dim: int) -> tuple[ir.Value, ...]:
    return tuple([e.op("Gather", x, e.number(i, dtypes.int64), axis=dim) for i in range(len(e.results))])


@translates("Narrow")
def narrow(e: Emitter, x: Operand, dim: int, start: Dim, length: Dim) -> ir.Value:
    plan: list[Dim | Cut | None] = [Cut(0, 1, size) for size in x.shape]  # type: ignore[arg-type]
    plan[dim] = Cut(start, 1, length)  # type: ignore[arg-type]
    return _seen(e, x, plan)


# --- indices ----------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """The range that Slice takes of one dimension."""

    axis: int
    start: ir.Value
    end: ir.Value
    step: int


Plan = Sequence[Dim | Cut | None]


def _window(e: Emitter, axis: int, cut: Cut, size: Dim) -> Window | None:
    """None: all of it."""
    start: Dim = cut.start
    length: Dim = cut.length
    if start == 0 and cut.step == 1 and length == size:
        return None
    first = _edge(e, start, size)
    if isinstance(length, int) and isinstance(start, int):
        end = e.ints([start + max(length - 1, 0) * cut.step + min(length, 1)])
    elif (left := _left(size, start, length, cut.step)) is not None and (left == 0 or cut.step == 1):
        end = e.ints([-left or END])
    else:  # behind the last element
        steps = e.op("Mul", e.op("Sub", e.size(length), e.ints([1])), e.ints([cut.step]))
        end = e.op("Add", e.op("Add", e.size(start), steps), e.ints([1]))
    return Window(axis, first, end, cut.step)


def _edge(e: Emitter, place: Dim, size: Dim) -> ir.Value:
    """A place in a dimension, counted from its end where it moves with that."""
    if isinstance(place, Size):
        from_end = place.minus(size)
        if from_end is not None and from_end < 0:
            return e.ints([from_end])
    return e.size(place)


def _left(size: Dim, start: Dim, length: Dim, step: int) -> int | None:
    """How many elements a slice leaves behind its last that it could have taken, if that is the same in all runs."""
    num_runs = max(len(dim.runs) for dim in (size, start, length) if isinstance(dim, Size))
    runs = [dim.runs if isinstance(dim, Size) else (dim,) * num_runs for dim in (size, start, length)]
    left = {-(-(int(n) - int(first)) // step) - int(count) for n, first, count in zip(*runs, strict=True)}
    found = left.pop()
    return found if not left and found >= 0 else None


def _seen(e: Emitter, x: Operand, plan: Plan) -> ir.Value:
    """The view that a plan describes, see genesis.functional.indexing."""
    windows: list[Window] = []
    picked: list[tuple[int, Dim]] = []
    added: list[int] = []
    axis = 0
    for place, item in enumerate(plan):
        if item is None:
            added.append(place - len(picked))
            continue
        if isinstance(item, Cut):
            window = _window(e, axis, item, x.shape[axis])
            windows += [window] if window is not None else []
        else:
            picked.append((axis, item))
        axis += 1
    y = _sliced(e, x.value, windows)
    for at, index in reversed(picked):
        place_of = e.op("Squeeze", _edge(e, index, x.shape[at]), e.ints([0])) if isinstance(index, Size) else None
        y = e.op("Gather", y, e.number(index, dtypes.int64) if isinstance(index, int) else place_of, axis=at)
    return e.op("Unsqueeze", y, e.ints(added)) if added else y


def _sliced(e: Emitter, x: ir.Value, windows: Sequence[Window]) -> ir.Value:
    if not windows:
        return e.op("Identity", x)
    starts, ends = (_joined(e, [window[i] for window in windows]) for i in (1, 2))
    return e.op(
        "Slice",
        x,
        starts,
        ends,
        e.ints([window.axis for window in windows]),
        e.ints([window.step for window in windows]),
    )


def _joined(e: Emitter, parts: Sequence[ir.Value]) -> ir.Value:
    if all(part.const_value is not None for part in parts):
        return e.ints([int(part.const_value.numpy()[0]) for part in parts])
    return parts[0] if len(parts) == 1 else e.op("Concat", *parts, axis=0)


@translates("GetItem")
def getitem(e: Emitter, x: Operand, index: tuple[Plan, Sequence[Operand | None]]) -> ir.Value:
    plan, arrays = index
    view = _seen(e, x, plan)
    return take(e, view, arrays, _shape_of(x, plan)) if arrays else view


def _shape_of(x: Operand, plan: Plan) -> Shape:
    return tuple([1 if item is None else item.length for item in plan if item is None or isinstance(item, Cut)])


translates("take")(lambda e, x, indices: take(e, x.value, indices, x.shape))


def take(e: Emitter, x: ir.Value, arrays: Sequence[Operand | None], shape: Shape) -> ir.Value:
    """NumPy's x[arrays]: int64 arrays that broadcast, None keeps a dimension."""
    chosen = [axis for axis, array in enumerate(arrays) if array is not None]
    if len(chosen) == 1:
        return e.op("Gather", x, arrays[chosen[0]], axis=chosen[0])
    rest = [axis for axis in range(len(arrays)) if axis not in chosen]
    front = e.op("Transpose", x, perm=[*chosen, *rest]) if chosen != list(range(len(chosen))) else x
    places, ndim = _positions(e, [array for array in arrays if array is not None])
    found = e.op("GatherND", front, places)
    adjacent = chosen == list(range(chosen[0], chosen[-1] + 1))
    if not adjacent or chosen[0] == 0:
        return found
    lead = chosen[0]  # the dimensions of the arrays stand where the first was
    order = [*range(ndim, ndim + lead), *range(ndim), *range(ndim + lead, ndim + len(rest))]
    return e.op("Transpose", found, perm=order)


def _positions(e: Emitter, arrays: Sequence[Operand]) -> tuple[ir.Value, int]:
    """Index arrays, broadcast, as the positions that GatherND and ScatterND take; and their rank."""
    zero = e.number(0, dtypes.int64)
    values = [array.value for array in arrays]
    common = e.op("Sum", *[e.convert(e.op("Mul", value, zero), dtypes.float32) for value in values])
    like = e.op("Shape", common)
    spread = [e.op("Unsqueeze", e.op("Expand", value, like), e.ints([-1])) for value in values]
    return e.op("Concat", *spread, axis=-1), max(array.ndim for array in arrays)


# --- writing ----------------------------------------------------------------------------------------------------------


@translates("SetItem")
def setitem(
    e: Emitter, x: Operand, value: Operand | Number, index: tuple[Plan, Sequence[Operand | None]], accumulate: bool
) -> ir.Value:
    """x with x[index] = value: by the flat places of what is written."""
    plan, arrays = index
    where = getitem(e, _places(e, x.shape), (plan, arrays))
    return _put(e, x, where, value, accumulate)


def _places(e: Emitter, shape: Shape) -> Operand:
    """An array of this shape that holds the flat place of each of its elements."""
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(sizes) == len(shape):
        places = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
        return Operand(e.array(places), shape, dtypes.int64)
    zero, one = e.number(0, dtypes.int64), e.number(1, dtypes.int64)
    counted = e.op("Range", zero, e.count(shape, dtypes.int64), one)
    return Operand(e.op("Reshape", counted, e.sizes(shape)), shape, dtypes.int64)


def _put(e: Emitter, x: Operand, where: ir.Value, value: Operand | Number, accumulate: bool) -> ir.Value:
    """x with value at the flat places `where`."""
    flat = e.op("Reshape", x, e.ints([-1]))
    places = e.op("Reshape", where, e.ints([-1]))
    updates = e.op("Reshape", e.op("Expand", e.cast(value, x.dtype), e.op("Shape", where)), e.ints([-1]))
    attributes = {"reduction": "add"} if accumulate else {}
    written = e.op("ScatterElements", flat, places, updates, axis=0, **attributes)
    return e.op("Reshape", written, e.sizes(x.shape), allowzero=1)


@translates("copy_into")
def copy_into(e: Emitter, target: Operand, source: Operand | Number) -> ir.Value:
    value = e.cast(source, target.dtype)
    return value if isinstance(source, Operand) and source.shape == target.shape else _spread(e, value, target)


@translates("add_into")
def add_into(e: Emitter, target: Operand, source: Operand | Number) -> ir.Value:
    return e.op("Add", target, e.cast(source, target.dtype))


@translates("put")
def put(
    e: Emitter, x: Operand, indices: Sequence[Operand | None], values: Operand | Number, accumulate: bool
) -> ir.Value:
    plan = tuple([Cut(0, 1, size) for size in x.shape])  # type: ignore[arg-type]
    return setitem(e, x, values, (plan, indices), accumulate)


def _spread(e: Emitter, value: ir.Value, target: Operand) -> ir.Value:
    return e.op("Expand", value, e.sizes(target.shape)) if target.ndim else e.op("Identity", value)


def write_back(
    e: Emitter, op: str, old: Operand, new: Operand, result: int, args: Sequence[object], kwargs: dict[str, object]
) -> ir.Value:
    """Return `old` with its view, the result of `op`, replaced by `new`."""
    if op in ("Reshape", "Unsqueeze"):
        return reshape_to(e, new, new.shape, old.shape)
    if op == "Permute":
        dims = kwargs["dims"]
        assert isinstance(dims, tuple)
        return e.op("Transpose", new, perm=sorted(range(len(dims)), key=dims.__getitem__))
    views = {
        "GetItem": getitem, "Narrow": narrow, "Split": split, "Unbind": unbind, "Diagonal": diagonal, "view": view,
    }  # fmt: skip
    if op not in views:
        raise e.refuse("what is changed in place is a view that ONNX cannot write through")
    seen = views[op](e, _places(e, old.shape), *args, **kwargs)  # type: ignore[operator]
    where = seen[result] if isinstance(seen, tuple) else seen
    return _put(e, old, where, new, False)
