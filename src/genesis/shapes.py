"""Arithmetic on shapes and strides (counted in elements). Pure functions; every layer may use them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeAlias, overload

from genesis.errors import ShapeError, describe

Shape = tuple[int, ...]
Slice: TypeAlias = "slice[SupportsIndex | None, SupportsIndex | None, SupportsIndex | None]"


class Size(tuple[int, ...]):
    """A shape, as `x.shape` and `x.size()` are.

    Args:
        sizes: ints.

    Example:
        >>> genesis.Size([2, 3]).numel(), genesis.ones(2, 3, 4).shape[1:].numel()
        (6, 12)
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[SupportsIndex] = ()) -> Size:
        return super().__new__(cls, [size.__index__() for size in sizes])

    def numel(self) -> int:
        """Number of elements of a tensor of this shape. See `genesis.Size`."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: Slice) -> Size: ...
    def __getitem__(self, index: SupportsIndex | Slice) -> int | Size:
        found = _item(self, index)
        return _size(Size, found) if index.__class__ is slice else found  # type: ignore[arg-type,return-value]


_item, _size = tuple.__getitem__, tuple.__new__


def numel(shape: Sequence[int]) -> int:
    return math.prod(shape)


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides.

    Example:
        >>> contiguous_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def channels_last_strides(shape: Sequence[int]) -> Shape:
    """Strides that keep the channels (dimension 1) innermost: NHWC in memory, NCHW in shape."""
    order = (0, *range(2, len(shape)), 1)
    return strides_in_order(shape, order)


def strides_in_order(shape: Sequence[int], order: Sequence[int]) -> Shape:
    """Dense strides where order lists the dimensions from the outermost in memory to the innermost."""
    strides = [1] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return equivalent(shape, strides, contiguous_strides(shape))


def normalize_dim(op: str, dim: int, ndim: int, argument: str = "dim") -> int:
    """dim counted from the front; 0-d arrays take 0 and -1, as in PyTorch."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"{op}: argument '{argument}': expected an int, got {type(dim).__name__}")
    dim = dim.__index__()
    limit = max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(f"{op}: argument '{argument}': expected a dimension in [{-limit}, {limit - 1}], got {dim}")
    return dim % limit


def normalize_dims(op: str, dims: int | Iterable[int] | None, ndim: int, argument: str = "dim") -> Shape:
    """Sorted dimensions without repeats; None and () mean all of them."""
    if dims is None:
        return tuple(range(ndim))
    chosen = list(dims) if isinstance(dims, Iterable) else [dims]
    if not chosen:
        return tuple(range(ndim))
    normal = [normalize_dim(op, dim, ndim, argument) for dim in chosen]
    if len(set(normal)) != len(normal):
        raise ShapeError(f"{op}: argument '{argument}': expected distinct dimensions, got {tuple(chosen)}")
    return tuple(sorted(normal)) if ndim else ()


def broadcast(op: str, *shapes: Sequence[int], names: Sequence[str] = ("input", "other")) -> Shape:
    """The common shape of all, by NumPy's rule; names are those of the arguments that have these shapes.

    Example:
        >>> broadcast("add", (3, 1), (2,))
        (3, 2)
    """
    first = tuple(shapes[0])
    if all(tuple(shape) == first for shape in shapes[1:]):
        return first
    ndim = max(map(len, shapes))
    result = [1] * ndim
    for number, shape in enumerate(shapes):
        for i, size in enumerate(shape, ndim - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    others = " and ".join(str(tuple(other)) for other in shapes[:number])
                    expected = f"a shape that broadcasts with {others}"
                    raise ShapeError(describe(op, names[min(number, len(names) - 1)], expected, tuple(shape)))
                result[i] = size
    return tuple(result)


def broadcast_strides(op: str, shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Shape:
    """Strides that broadcast an array of this shape to target: 0 where a dimension is repeated."""
    lead = len(target) - len(shape)
    if lead < 0:
        expected = f"at most {len(target)} dimensions, as {tuple(target)} has"
        raise ShapeError(describe(op, "input", expected, tuple(shape)))
    result = [0] * lead
    for i, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == target[lead + i]:
            result.append(stride)
        elif size == 1:
            result.append(0)
        else:
            raise ShapeError(describe(op, "input", f"a shape that broadcasts to {tuple(target)}", tuple(shape)))
    return tuple(result)


def reduced(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> Shape:
    """The shape after reducing dims."""
    gone = set(dims)
    if keepdim:
        return tuple(1 if i in gone else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def infer_reshape(op: str, shape: Sequence[int], target: Sequence[int]) -> Shape:
    """target with its -1 filled in."""
    target = tuple(int(size) for size in target)
    unknown = [i for i, size in enumerate(target) if size == -1]
    if len(unknown) > 1 or any(size < -1 for size in target):
        raise ShapeError(f"{op}: argument 'shape': expected sizes >= 0 and at most one -1, got {target}")
    count = numel(shape)
    if unknown:
        rest = math.prod(size for size in target if size != -1)
        if rest == 0 or count % rest:
            raise ShapeError(f"{op}: shape {target} is invalid for an input of {count} elements {tuple(shape)}")
        target = tuple(count // rest if size == -1 else size for size in target)
    elif math.prod(target) != count:
        raise ShapeError(f"{op}: shape {target} is invalid for an input of {count} elements {tuple(shape)}")
    return target


def view_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Shape | None:
    """Strides that view the same elements as target; None if that takes a copy."""
    if numel(shape) == 0:
        return contiguous_strides(target)
    # Merge the old dimensions into runs that are evenly strided, then cut the runs anew.
    runs: list[list[int]] = []  # [elements, innermost stride]
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == stride * size:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    result = [1] * len(target)
    run = len(runs) - 1
    left = runs[run][0] if runs else 1
    step = runs[run][1] if runs else 1
    for i in range(len(target) - 1, -1, -1):
        if target[i] == 1:
            result[i] = step
            continue
        if left == 1:
            run -= 1
            left, step = runs[run]
        if left % target[i]:
            return None
        result[i] = step
        left //= target[i]
        step *= target[i]
    return tuple(result)


@functools.lru_cache(maxsize=4096)
def channels_innermost(shape: Shape, strides: Shape) -> bool:
    """Whether some neighbouring dimensions are innermost in memory and the others in order, like the channels in NHWC.

    Example:
        >>> channels_innermost((2, 3, 4, 5), channels_last_strides((2, 3, 4, 5)))
        True
    """
    dims = [dim for dim, size in enumerate(shape) if size != 1]
    if len(shape) < 3 or not dims or any(strides[dim] == 0 for dim in dims):
        return False
    order = sorted(dims, key=lambda dim: -strides[dim])
    same = next((i for i, (dim, other) in enumerate(zip(dims, order, strict=True)) if dim != other), len(dims))
    first = order[same:].index(dims[same]) if same < len(dims) else 0
    return first > 0 and order[same:] == [*dims[len(dims) - first :], *dims[same : len(dims) - first]]


def equivalent(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two strides place the elements of this shape alike (dimensions of size 1 don't matter)."""
    if strides == others or numel(shape) == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, others, strict=True))
