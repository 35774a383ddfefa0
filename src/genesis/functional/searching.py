"""Comparisons of whole tensors, and what is found by sorting: places, counts and distinct values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from genesis import shapes
from genesis.autograd import Tensor
from genesis.callsite import no_complex
from genesis.dtypes import Number, bool_, float32, float64, int32, int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_ints, require_tensors
from genesis.functional.comparison import eq, isfinite, isnan, le, logical_and, logical_not, logical_or, ne
from genesis.functional.conversion import cast
from genesis.functional.dimensions import movedim
from genesis.functional.elementwise import add, floor_divide, mul, remainder, sub, where
from genesis.functional.extremes import ValuesAndIndices, argmax
from genesis.functional.extremes import all as every
from genesis.functional.indexing import getitem
from genesis.functional.joining import cat
from genesis.functional.keywords import also
from genesis.functional.reduction import sum as total
from genesis.functional.selection import gather, index_select, nonzero
from genesis.functional.shape import reshape, unsqueeze
from genesis.functional.sorting import argsort, sort
from genesis.functional.unary import abs as absolute
from genesis.ndarray import NDArray, ops

__all__ = [
    "allclose", "argwhere", "bincount", "bucketize", "equal", "histc", "isclose", "isin", "isneginf", "isposinf",
    "isreal", "logical_xor", "mode", "searchsorted", "unique", "unique_consecutive",
    "unravel_index",
]  # fmt: skip

Unique: TypeAlias = "Tensor | tuple[Tensor, ...]"


# --- comparisons ------------------------------------------------------------------------------------------------------


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether |input − other| ≤ atol + rtol · |other|, element by element.

    Args:
        input, other: tensors whose shapes broadcast, of one dtype.
        rtol, atol: at least 0.
        equal_nan: NaN is close to NaN.
    Returns: the common shape, bool.
    Raises: DTypeError: the dtypes differ. ValueError: a negative tolerance.
    Example: >>> F.isclose(genesis.tensor([1.0]), genesis.tensor([1.0000001])).tolist()
    [True]
    """
    require_tensors("isclose", input=input, other=other)
    if input.array.dtype is not other.array.dtype:
        raise DTypeError(describe("isclose", "other", f"{input.array.dtype}, as input", other.array.dtype))
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance < 0:
            raise ValueError(describe("isclose", name, "at least 0", tolerance))
    x, y = input.detach(), other.detach()
    close = eq(x, y)
    if equal_nan and x.array.dtype.is_floating_point:
        close = logical_or(close, logical_and(isnan(x), isnan(y)))
    if rtol == 0 == atol:
        return close
    if x.array.dtype is bool_:
        x, y = cast(x, int64), cast(y, int64)
    distance, allowed = absolute(sub(x, y)), add(mul(absolute(y), rtol), atol)
    if x.array.dtype.is_floating_point:
        distance = where(isfinite(distance), distance, math.inf)
        return logical_or(close, logical_and(le(distance, allowed), isfinite(distance)))
    return logical_or(close, le(distance, allowed))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close. See `F.isclose`."""
    return bool(every(isclose(input, other, rtol, atol, equal_nan)).item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have one shape and equal elements.

    Args:
        input, other: of any shapes and dtypes.
    Example: >>> F.equal(genesis.ones(2), genesis.ones(2)), F.equal(genesis.ones(2), genesis.ones(1))
    (True, False)
    """
    require_tensors("equal", input=input, other=other)
    return input.array.shape == other.array.shape and bool(every(eq(input, other)).item())


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is ∞. See `F.isinf`."""
    return eq(input.detach(), math.inf) if input.array.dtype.is_floating_point else _nowhere(input)


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is −∞. See `F.isinf`."""
    return eq(input.detach(), -math.inf) if input.array.dtype.is_floating_point else _nowhere(input)


def isreal(input: Tensor) -> Tensor:
    """True where the imaginary part is 0. See `F.isinf`."""
    if input.array.dtype.is_complex:
        return eq(input.detach().imag, 0)
    return logical_not(_nowhere(input))


def _nowhere(input: Tensor) -> Tensor:
    if input.array.dtype.is_complex:
        raise no_complex(input.array.dtype)
    return input._like(input.array.full_like(0, dtype=bool_))


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """Whether exactly one of two is not 0.

    Args:
        input, other: tensors whose shapes broadcast, any dtypes.
    Returns: the common shape, bool.
    Raises: ValueError: the shapes don't broadcast.
    Example: >>> F.logical_xor(genesis.tensor([1, 1]), genesis.tensor([0, 1])).tolist()
    [True, False]
    """
    require_tensors("logical_xor", input=input, other=other)
    return ne(ne(input, 0), ne(other, 0))


def argwhere(input: Tensor) -> Tensor:
    """The indices of the elements that are not 0. See `F.nonzero`."""
    return nonzero(input)


# --- places in sorted values ------------------------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Tensor, input: Tensor | Number, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The places of values in a sorted sequence: how many of it are less, or with right=True not greater.

    Args:
        sorted_sequence: (…, N), ascending along the last dimension.
        input: (…, M), or any shape if sorted_sequence is a vector; a number too.
        out_int32: int32 instead of int64.
        right: behind equal values, not before them.
        side: "left" or "right", another way to say it.
        sorter: (…, N), int64: the order that sorts sorted_sequence.
    Returns: the shape of input.
    Raises: ShapeError: the first dimensions differ. ValueError: side contradicts right.
    Example: >>> F.searchsorted(genesis.tensor([1, 3, 5]), genesis.tensor([0, 3, 9])).tolist()
    [0, 1, 3]
    """
    require_tensors("searchsorted", sorted_sequence=sorted_sequence)
    if side is not None:
        if side not in ("left", "right"):
            raise ValueError(describe("searchsorted", "side", "'left' or 'right'", repr(side)))
        if right and side == "left":
            raise ValueError(describe("searchsorted", "side", "'right', as right is True", "'left'"))
        right = side == "right"
    sequence = sorted_sequence.array
    if sorter is not None:
        if sorter.array.dtype is not int64 or sorter.array.shape != sequence.shape:
            expected = f"int64 of shape {sequence.shape}"
            raise ShapeError(describe("searchsorted", "sorter", expected, f"{sorter.array.dtype} {sorter.array.shape}"))
        sequence = ops.gather(sequence, max(sequence.ndim - 1, 0), sorter.array)
    values = input.array if isinstance(input, Tensor) else sequence.full_like(input, ())
    if sequence.ndim == 0:
        raise ShapeError(describe("searchsorted", "sorted_sequence", "at least 1 dimension", "a 0-d tensor"))
    if sequence.ndim > 1 and sequence.shape[:-1] != values.shape[:-1]:
        expected = f"the first dimensions of sorted_sequence, of shape {sequence.shape}"
        raise ShapeError(describe("searchsorted", "input", expected, f"shape {values.shape}"))
    places = _places(sequence, values, right)
    return sorted_sequence._like(places.to(int32 if out_int32 else int64))


def _places(sequence: NDArray, values: NDArray, right: bool) -> NDArray:
    """By halving: the number of elements before each value, in as many steps as the length has bits."""
    if sequence.dtype is not values.dtype:
        raise DTypeError(describe("searchsorted", "input", f"{sequence.dtype}, as the sequence", values.dtype))
    length, shape = sequence.shape[-1], values.shape
    flat = values if sequence.ndim > 1 else values.reshape((-1,) if values.numel else (0,))
    dim = flat.ndim - 1
    low = flat.full_like(0, dtype=int64)
    if not length or not flat.numel:
        return low.reshape(shape)
    step = 1 << (length.bit_length() - 1)
    while step:
        far = low.add(step)
        found = ops.gather(sequence, dim, far.sub(1).minimum(length - 1))
        before = found.le(flat) if right else found.lt(flat)
        if sequence.dtype.is_floating_point:  # NaN is the greatest
            nan = flat.isnan()
            before = before.logical_or(nan if right else nan.logical_and(found.isnan().logical_not()))
        low = before.logical_and(far.le(length)).where(far, low)
        step >>= 1
    return low.reshape(shape)


def bucketize(
    input: Tensor | Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:  # fmt: skip
    """The number of the interval between boundaries in which each value lies. See `F.searchsorted`."""
    require_tensors("bucketize", boundaries=boundaries)
    if boundaries.array.ndim != 1:
        raise ShapeError(describe("bucketize", "boundaries", "a vector", f"shape {boundaries.array.shape}"))
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


# --- counts -----------------------------------------------------------------------------------------------------------


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, 2 … is among the elements, or the sum of their weights.

    Args:
        input: a vector of integers, none below 0.
        weights: of the elements, in the shape of input; the result is float64, or float32 of float32.
        minlength: the least length of the result.
    Returns: (greatest element + 1,), int64 without weights.
    Raises: ShapeError: no vector. ValueError: an element or minlength below 0. DTypeError: no integers.
    Example: >>> F.bincount(genesis.tensor([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    require_tensors("bincount", input=input)
    if input.array.dtype.is_floating_point or input.array.dtype is bool_:
        raise DTypeError(describe("bincount", "input", "integers", input.array.dtype))
    if input.array.ndim != 1:
        raise ShapeError(describe("bincount", "input", "a vector", f"shape {input.array.shape}"))
    if minlength < 0:
        raise ValueError(describe("bincount", "minlength", "at least 0", minlength))
    if weights is not None and weights.array.shape != input.array.shape:
        raise ShapeError(describe("bincount", "weights", f"shape {input.array.shape}", f"shape {weights.array.shape}"))
    places = input.array.to(int64)
    size = minlength
    if places.numel:
        if ops.amin(places, (0,)).item() < 0:
            raise ValueError(describe("bincount", "input", "no element below 0", "one"))
        size = max(size, int(ops.amax(places, (0,)).item()) + 1)
    if weights is None:
        values = places.full_like(1)
    else:
        values = weights.array.to(float32 if weights.array.dtype is float32 else float64)
    return input._like(ops.index_add(values.full_like(0, (size,)), 0, places, values))


def histc(input: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """How many elements are in each of equal intervals; those outside are left out.

    Args:
        input: any shape, floating.
        bins: how many intervals.
        min, max: the bounds; the extremes of input if they are equal.
    Returns: (bins,), dtype of input.
    Raises: ValueError: bins < 1, max < min, or bounds that are not finite.
    Example: >>> F.histc(genesis.tensor([1.0, 2.0, 1.0]), bins=2, min=0, max=3).tolist()
    [2.0, 1.0]
    """
    require_tensors("histc", input=input)
    if bins < 1:
        raise ValueError(describe("histc", "bins", "at least 1", bins))
    x = input.array.reshape((-1,)) if input.array.numel else input.array.full_like(0, (0,))
    low, high = float(min), float(max)
    if low == high and x.numel:
        low, high = float(ops.amin(x, (0,)).item()), float(ops.amax(x, (0,)).item())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(describe("histc", "max", "finite bounds", (low, high)))
    if low > high:
        raise ValueError(describe("histc", "max", f"at least min ({low})", high))
    place = x.sub(low).mul(bins).div(high - low).floor().clamp(0, bins - 1)
    inside = x.ge(low).logical_and(x.le(high))
    place = inside.where(place, 0.0).to(int64)
    return input._like(ops.index_add(x.full_like(0, (bins,)), 0, place, inside.to(x.dtype)))


@also(element="elements", test_element="test_elements")
def isin(
    elements: Tensor | Number, test_elements: Tensor | Number, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:  # fmt: skip
    """Whether each element is among others.

    Args:
        elements: any shape, or a number.
        test_elements: any shape, or a number.
        assume_unique: accepted for PyTorch's sake.
        invert: whether it is not.
    Returns: the shape of elements, bool.
    Raises: DTypeError: both are numbers.
    Example: >>> F.isin(genesis.tensor([1, 2]), genesis.tensor([2, 3])).tolist()
    [False, True]
    """
    known = elements if isinstance(elements, Tensor) else test_elements
    if not isinstance(known, Tensor):
        raise DTypeError(describe("isin", "elements", "a tensor, or one as test_elements", "two numbers"))
    x = elements if isinstance(elements, Tensor) else known._like(known.array.full_like(elements, ()))
    y = test_elements if isinstance(test_elements, Tensor) else known._like(known.array.full_like(test_elements, ()))
    x, y = x.detach(), y.detach()
    if not y.array.numel:
        return _nowhere(x) if not invert else logical_not(_nowhere(x))
    found = ops.any(eq(unsqueeze(x, -1), reshape(y, (-1,))).array, (x.array.ndim,))
    return known._like(found.logical_not() if invert else found)


# --- distinct values --------------------------------------------------------------------------------------------------


def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Unique:  # fmt: skip
    """The distinct elements, or slices along dim, in ascending order.

    Args:
        input: any shape and dtype.
        sorted: accepted for PyTorch's sake: they are sorted in any case.
        return_inverse: also which of them each element is.
        return_counts: also how often each of them is there.
        dim: compare slices along this dimension.
    Returns: a vector, or a tensor like input with another size in dim; then what is asked for, int64.
    Raises: IndexError: no such dimension.
    Example: >>> F.unique(genesis.tensor([3, 1, 3])).tolist()
    [1, 3]
    """
    require_tensors("unique", input=input)
    x, at = _slices("unique", input, dim)
    order = _order(x)
    return _distinct(index_select(x, 0, order), input, at, return_inverse, return_counts, order)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:  # fmt: skip
    """Drop elements, or slices along dim, that are equal to the one before. See `F.unique`."""
    require_tensors("unique_consecutive", input=input)
    x, at = _slices("unique_consecutive", input, dim)
    return _distinct(x, input, at, return_inverse, return_counts, None)


def _slices(op: str, input: Tensor, dim: int | None) -> tuple[Tensor, int | None]:
    """The slices that are compared, along dimension 0."""
    x = input.detach()
    if dim is None:
        return (reshape(x, (-1,)) if x.array.numel else x._like(x.array.full_like(0, (0,)))), None
    at = shapes.normalize_dim(op, dim, x.array.ndim)
    return movedim(x, at, 0), at


def _order(x: Tensor) -> Tensor:
    """The lexicographic order of slices: sorted by their elements, the last one first."""
    if x.array.ndim == 1:
        return argsort(x, 0, stable=True)
    size = x.array.shape[0]
    order = x._like(NDArray.arange(0, 1, size, int64, x.array.device))
    columns = reshape(x, (size, -1)) if x.array.numel else x
    if x.array.numel:
        for column in range(columns.array.shape[1] - 1, -1, -1):
            keys = index_select(getitem(columns, (slice(None), column)), 0, order)
            order = index_select(order, 0, argsort(keys, 0, stable=True))
    return order


def _distinct(
    x: Tensor, input: Tensor, dim: int | None, inverse: bool, counts: bool, order: Tensor | None
) -> Unique:  # fmt: skip
    size = x.array.shape[0]
    rows = reshape(x, (size, -1)) if x.array.numel else reshape(x, (size, 0)) if size == 0 else x._like(
        x.array.full_like(0, (size, 0))
    )  # fmt: skip
    late, early = getitem(rows, slice(1, None)), getitem(rows, slice(None, -1))
    first = x.array.full_like(1, (min(size, 1),), bool_)
    begins = x._like(ops.cat([first, ops.any(ne(late, early).array, (1,))], 0)) if size else x._like(first)
    places = reshape(nonzero(begins), (-1,))
    values = index_select(x, 0, places)
    results = [values if dim is None else movedim(values, 0, dim)]
    if inverse:
        number = begins.array.to(int64)
        number = ops.cumsum(number, 0).sub(1) if size else number
        if order is not None and size:
            number = ops.scatter(number.full_like(0), 0, order.array, number)
        results.append(x._like(number.reshape(input.array.shape) if dim is None else number))
    if counts:
        end = x._like(places.array.full_like(size, (min(size, 1),)))
        results.append(sub(cat([getitem(places, slice(1, None)), end]), places))
    return results[0] if len(results) == 1 else tuple(results)


@also(axis="dim", keepdims="keepdim")
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The most frequent value along dim, the least of several, and the index of its last occurrence.

    Args:
        input: any shape and dtype.
        dim: one dimension.
        keepdim: keep dim, with size 1.
    Returns: (values, indices), the shape of input without dim.
    Raises: IndexError: no such dimension, or an empty one.
    Grad: input.
    Example: >>> F.mode(genesis.tensor([1, 2, 2, 3])).values.item()
    2
    """
    require_tensors("mode", input=input)
    x = input if input.array.ndim else reshape(input, (1,))
    dim = shapes.normalize_dim("mode", dim, x.array.ndim)
    if not x.array.shape[dim]:
        raise IndexError(describe("mode", "input", f"at least one element in dimension {dim}", x.array.shape))
    ordered = sort(x.detach(), dim, stable=True)
    often = total(eq(unsqueeze(ordered.values, dim), unsqueeze(ordered.values, dim + 1)), dim + 1)
    at = argmax(often, dim, True)
    count = gather(often, dim, at)
    places = gather(ordered.indices, dim, sub(add(at, count), 1))
    values = gather(x, dim, places)
    if not keepdim or not input.array.ndim:
        shape = [size for number, size in enumerate(x.array.shape) if number != dim]
        values, places = reshape(values, shape), reshape(places, shape)
    return ValuesAndIndices(values, places)


def unravel_index(indices: Tensor, shape: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """Coordinates, in a tensor of a shape, of elements counted in row-major order.

    Args:
        indices: any shape, integers.
        shape: (…,), sizes of the tensor that they count in.
    Returns: a tensor for each dimension, in the shape and dtype of indices.
    Raises: ValueError: a size below 0. TypeError: indices that are not integers; a shape that has none.
    Example: >>> F.unravel_index(genesis.tensor([5, 3]), (2, 4))
    (tensor([1, 0]), tensor([1, 3]))
    """
    op = "unravel_index"
    require_tensors(op, indices=indices)
    if indices.array.dtype.is_floating_point or indices.array.dtype is bool_:
        raise DTypeError(describe(op, "indices", "an integer dtype", indices.array.dtype))
    found = shape.tolist() if isinstance(shape, Tensor) else shape
    sizes = (found,) if isinstance(found, int) else tuple(found)
    require_ints(op, **{f"shape[{number}]": size for number, size in enumerate(sizes)})
    if any(size < 0 for size in sizes):
        raise ValueError(describe(op, "shape", "sizes of 0 or more", sizes))
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(remainder(indices, size))
        indices = floor_divide(indices, size)
    return tuple(reversed(coordinates))
