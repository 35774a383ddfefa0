"""Quantiles."""

from __future__ import annotations

from genesis import shapes
from genesis.autograd import Tensor
from genesis.autograd.modes import checks_values
from genesis.dtypes import int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import lt
from genesis.functional.conversion import cast
from genesis.functional.dimensions import movedim
from genesis.functional.elementwise import add, mul, sub, where
from genesis.functional.keywords import also
from genesis.functional.selection import gather
from genesis.functional.shape import expand, reshape
from genesis.functional.sorting import sort
from genesis.functional.unary import ceil, floor
from genesis.functional.unary import round as nearest
from genesis.ndarray import ops

__all__ = ["nanquantile", "quantile"]

_ROUND = {"lower": floor, "higher": ceil, "nearest": nearest}


@also(axis="dim", keepdims="keepdim")
def quantile(
    input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:  # fmt: skip
    """The quantiles over dim; NaN where an element is.

    Args:
        input: any shape, float32 or float64.
        q: in [0, 1]; a number, or a vector of input's dtype, whose dimension comes first in the result.
        dim: one dimension; all if None.
        keepdim: keep dim, with size 1.
        interpolation: between neighbours: "linear", "lower", "higher", "nearest" or "midpoint".
    Returns: the shape of input without dim, after that of q.
    Raises: ValueError: q outside [0, 1], or another interpolation. DTypeError: another dtype. ShapeError: no element.
    Grad: input.
    Example: >>> F.quantile(genesis.tensor([1.0, 2.0, 3.0]), 0.25).item()
    1.5
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


@also(axis="dim", keepdims="keepdim")
def nanquantile(
    input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:  # fmt: skip
    """The quantiles of what is not NaN. See `F.quantile`."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(op: str, input: Tensor, q: Tensor | float, dim: int | None, keepdim: bool, between: str) -> Tensor:
    require_tensors(op, input=input)
    if input.array.dtype.name not in ("float32", "float64"):
        raise DTypeError(describe(op, "input", "float32 or float64", input.array.dtype))
    if between not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise ValueError(describe(op, "interpolation", "a kind that quantile knows", repr(between)))
    _require_ranks(op, input, q)
    ndim = input.array.ndim
    x = reshape(input, (-1,)) if dim is None else input if ndim else reshape(input, (1,))
    at = 0 if dim is None else shapes.normalize_dim(op, dim, x.array.ndim)
    ordered = movedim(sort(x, at).values, at, -1)
    axis = ordered.array.ndim - 1
    rank = _ranks(op, x, at, q, ordered.array.shape[:-1])
    rank = _ROUND[between](rank) if between in _ROUND else rank
    low = floor(rank.detach())
    found = gather(ordered, axis, cast(low, int64))
    if between not in _ROUND:
        above = gather(ordered, axis, cast(ceil(rank.detach()), int64))
        weight = sub(rank, low)
        if between == "midpoint":
            weight = mul(cast(weight.ne(0), input.array.dtype), 0.5)
        step = sub(above, found)
        found = where(lt(weight, 0.5), add(found, mul(step, weight)), sub(above, mul(step, sub(1, weight))))
    result = movedim(found, -1, 0)
    kept = [1] * ndim if dim is None else [1 if number == at else n for number, n in enumerate(x.array.shape)]
    shape = (kept if ndim else []) if keepdim else [*result.array.shape[1:]] if dim is not None and ndim else []
    several = isinstance(q, Tensor) and q.array.ndim
    return reshape(result, ([result.array.shape[0]] if several else []) + shape)


def _require_ranks(op: str, input: Tensor, q: Tensor | float) -> None:
    if isinstance(q, Tensor) and (q.array.dtype is not input.array.dtype or q.array.ndim > 1):
        raise DTypeError(describe(op, "q", f"a number or a vector of {input.array.dtype}", q.array.dtype))
    if not input.array.numel:
        raise ShapeError(describe(op, "input", "at least one element", f"shape {input.array.shape}"))
    if isinstance(q, Tensor) and not checks_values():
        return
    values = q.array.reshape((-1,)).tolist() if isinstance(q, Tensor) and q.array.numel else [q]
    if any(not 0 <= value <= 1 for value in values if not isinstance(value, Tensor)):
        raise ValueError(describe(op, "q", "values in [0, 1]", values))


def _ranks(op: str, x: Tensor, at: int, q: Tensor | float, before: shapes.Shape) -> Tensor:
    """The places of quantiles in the sorted values: between two of them."""
    size, missing = x.array.shape[at], x.array.isnan()
    given = q if isinstance(q, Tensor) else x._like(x.array.full_like(q, ()))
    given = reshape(given, (given.array.numel,))
    if op == "nanquantile":
        valid = ops.sum(missing.logical_not(), (at,), True).sub(1).maximum(0).to(x.array.dtype)
        rank = mul(given, movedim(x._like(valid), at, -1))
    else:
        some = movedim(x._like(ops.any(missing, (at,), True)), at, -1)
        rank = where(some, float(size - 1), mul(given, size - 1))
    return expand(rank, (*before, given.array.numel))
