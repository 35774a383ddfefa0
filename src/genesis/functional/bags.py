"""Sums, means and maxima of bags of embeddings."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.conversion import cast
from genesis.functional.elementwise import div, mul, where
from genesis.functional.extremes import max as largest
from genesis.functional.indexing import getitem
from genesis.functional.reduction import sum
from genesis.functional.searching import searchsorted
from genesis.functional.selection import index_add, masked_fill
from genesis.functional.shape import reshape, unsqueeze
from genesis.functional.tables import embedding
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["embedding_bag"]


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The rows of weight that each bag names, reduced to one.

    Args:
        input: (B, N), a bag per row, or (N,), one bag after the other; int64 or int32, in [0, V).
        weight: (V, E).
        offsets: (B,), where each bag of (N,) begins, the first at 0; None for (B, N).
        max_norm, norm_type, scale_grad_by_freq, sparse: as in `F.embedding`.
        mode: "mean", "sum" or "max"; an empty bag gives zeros.
        per_sample_weights: the shape of input: multiplies each row; for "sum".
        include_last_offset: offsets has one more entry, the end of the last bag.
        padding_idx: a row that no bag counts, and that gets no gradient.
    Returns: (B, E).
    Raises: ShapeError: shapes that do not fit. DTypeError: indices that are not integers. ValueError: another mode;
        offsets out of order; options that the mode does not take.
    Grad: weight, per_sample_weights.

    Example:
        >>> table = genesis.tensor([[1.0], [2.0], [4.0]])
        >>> F.embedding_bag(genesis.tensor([0, 1, 2]), table, genesis.tensor([0, 2]), mode="sum").tolist()
        [[3.0], [4.0]]
    """
    op = "embedding_bag"
    _check(op, input, weight, offsets, per_sample_weights, mode)
    if mode == "max" and (scale_grad_by_freq or sparse):
        name = "scale_grad_by_freq" if scale_grad_by_freq else "sparse"
        raise ValueError(describe(op, name, 'False with mode "max"', True))
    if padding_idx is not None:
        rows = weight.array.shape[0]
        if not -rows <= padding_idx < rows:
            raise ValueError(describe(op, "padding_idx", f"a row in [{-rows}, {rows - 1}]", padding_idx))
        padding_idx %= rows
    found = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    dtype = weight.array.dtype
    found = cast(found, dtypes.float32) if dtype.itemsize < 4 else found  # sums are rounded once
    counted = _counted(input, padding_idx)
    if per_sample_weights is not None:
        found = mul(found, unsqueeze(cast(per_sample_weights, found.array.dtype), -1))
    found = where(unsqueeze(counted, -1), found, 0.0)
    if input.array.ndim == 1:
        assert offsets is not None  # _check has refused that
        starts = _starts(op, offsets, input.array.shape[0], include_last_offset)
        if mode == "max":
            found, counted = _in_rows(found, counted, starts)
        else:
            return cast(_by_offsets(found, counted, starts, mode), dtype)
    return cast(_of_rows(found, counted, mode), dtype)


def _of_rows(found: Tensor, counted: Tensor, mode: str) -> Tensor:
    """(B, N, E) → (B, E)."""
    if not found.array.shape[1]:
        return sum(found, 1)
    if mode == "max":
        values = largest(masked_fill(found, unsqueeze(counted, -1).logical_not(), -math.inf), 1)[0]
        return where(unsqueeze(counted, -1).any(1), values, 0.0)
    total = sum(found, 1)
    return total if mode == "sum" else div(total, sum(counted, 1, True).clamp(1))


def _by_offsets(found: Tensor, counted: Tensor, starts: Tensor, mode: str) -> Tensor:
    """(N, E) and (B,) → (B, E)."""
    length, width = found.array.shape
    places = _range(length, starts)
    bags = searchsorted(starts, places, right=True) - 1
    zeros = found._like(found.array.full_like(0, (starts.array.shape[0], width)))
    if not starts.array.shape[0]:
        return zeros + sum(found) * 0
    total = index_add(zeros, 0, bags, found)
    if mode == "sum":
        return total
    counts = index_add(starts * 0, 0, bags, cast(counted, dtypes.int64))
    return div(total, unsqueeze(counts.clamp(1), -1))


def _in_rows(found: Tensor, counted: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Bags that lie one after the other as rows of equal length: (B, most, E) and (B, most)."""
    length, bags = found.array.shape[0], starts.array.shape[0]
    begin = starts.tolist()
    most = max([end - start for start, end in zip(begin, [*begin[1:], length], strict=True)], default=0)
    ends = starts._like(NDArray.empty((bags,), dtypes.int64, starts.array.device))
    if bags:
        last = starts._like(starts.array.full_like(length, (1,)))
        ends = starts._like(ops.cat([starts.array.narrow(0, 1, bags - 1), last.array], 0))
    places = unsqueeze(starts, 1) + unsqueeze(_range(most, starts), 0)
    inside = places < unsqueeze(ends, 1)
    if not length:
        return reshape(found, (bags, 0, found.array.shape[1])), inside
    places = where(inside, places, 0)
    return getitem(found, places), getitem(counted, places).logical_and(inside)


def _range(count: int, like: Tensor) -> Tensor:
    return like._like(NDArray.arange(0, 1, count, dtypes.int64, like.array.device))


def _counted(input: Tensor, padding_idx: int | None) -> Tensor:
    """Return which indices count."""
    return input._like(input.array.ne(-1 if padding_idx is None else padding_idx))


def _starts(op: str, offsets: Tensor, length: int, include_last_offset: bool) -> Tensor:
    """(B,), int64: where bags begin."""
    starts = cast(offsets, dtypes.int64)
    values = starts.tolist()
    if include_last_offset and not values:
        raise ShapeError(describe(op, "offsets", "at least one entry, the end of the last bag", "none"))
    if values and values[0] != 0:
        raise ValueError(describe(op, "offsets", "0 as the first entry", values[0]))
    if values != sorted(values) or (values and values[-1] > length):
        raise ValueError(describe(op, "offsets", f"numbers that rise to at most {length}", values))
    return getitem(starts, slice(0, -1)) if include_last_offset else starts


def _check(
    op: str, input: Tensor, weight: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None, mode: str
) -> None:
    require_tensor(op, "input", input)
    require_tensor(op, "weight", weight)
    if mode not in ("mean", "sum", "max"):
        raise ValueError(describe(op, "mode", '"mean", "sum" or "max"', repr(mode)))
    if input.array.ndim not in (1, 2):
        raise ShapeError(describe(op, "input", "1 or 2 dimensions", f"shape {input.array.shape}"))
    if (input.array.ndim == 1) != (offsets is not None):
        expected = "a tensor, as input has 1 dimension" if offsets is None else "None, as input has 2 dimensions"
        raise ValueError(describe(op, "offsets", expected, "None" if offsets is None else "a tensor"))
    if offsets is not None:
        require_tensor(op, "offsets", offsets)
        if offsets.array.ndim != 1:
            raise ShapeError(describe(op, "offsets", "1 dimension", f"shape {offsets.array.shape}"))
        if offsets.array.dtype.name not in ("int64", "int32"):
            raise DTypeError(describe(op, "offsets", "int64 or int32", offsets.array.dtype))
    if per_sample_weights is not None:
        require_tensor(op, "per_sample_weights", per_sample_weights)
        if mode != "sum":
            raise ValueError(describe(op, "per_sample_weights", f"None with mode {mode!r}", "a tensor"))
        shape, dtype = per_sample_weights.array.shape, per_sample_weights.array.dtype
        if shape != input.array.shape:
            raise ShapeError(describe(op, "per_sample_weights", f"the shape of input, {input.array.shape}", shape))
        if dtype is not weight.array.dtype:
            raise DTypeError(describe(op, "per_sample_weights", f"the dtype of weight, {weight.array.dtype}", dtype))
