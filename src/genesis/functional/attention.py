"""Scaled dot-product attention."""

from __future__ import annotations

import math

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor, modes
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import softmax
from genesis.functional.comparison import ne
from genesis.functional.conversion import cast
from genesis.functional.dimensions import flatten
from genesis.functional.elementwise import add, mul, where
from genesis.functional.linalg import matmul
from genesis.functional.random import dropout
from genesis.functional.shape import expand, transpose, tril, unsqueeze
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.records import SavedAttention
from genesis.shapes import Shape

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query·keyᵀ·scale + mask)·value.

    Args:
        query: (…, L, E), any floating dtype.
        key: (…, S, E), dtype of query; the leading dimensions of all broadcast.
        value: (…, S, V), dtype of query.
        attn_mask: broadcasts to (…, L, S): bool (True takes part), or a number to add in the dtype of query.
        dropout_p: the probability with which each weight is dropped, whether training or not.
        is_causal: query l sees the keys 0 to l; without attn_mask.
        scale: 1/√E if None.
        enable_gqa: key and value have fewer heads (dimension −3); each serves as many of query's in turn.
    Returns: (…, L, V), dtype of query; zeros where a query may see no key.
    Raises: ValueError: sizes that don't fit; attn_mask beside is_causal. TypeError: the dtypes differ.
    Grad: query, key, value, and an additive attn_mask. Saves all of them, the result, and what the backend adds.
    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> q, k, v = genesis.zeros(1, 2), genesis.zeros(2, 2), genesis.tensor([[1.0], [3.0]])
        >>> F.scaled_dot_product_attention(q, k, v).item()
        2.0
    """
    op = "scaled_dot_product_attention"
    _check(op, query, key, value, attn_mask, dropout_p, is_causal)
    if enable_gqa:
        key, value = _repeated_heads(op, query, "key", key), _repeated_heads(op, query, "value", value)
    scores = _check_sizes(op, query, key, value)
    query, key, value = (
        x if x.array.shape[:-2] == scores[:-2] else expand(x, (*scores[:-2], *x.array.shape[-2:]))
        for x in (query, key, value)
    )
    scale = 1 / math.sqrt(query.array.shape[-1]) if scale is None else scale
    if attn_mask is not None:
        if attn_mask.array.shape != scores:
            common = shapes.broadcast(op, scores, attn_mask.array.shape, names=("query", "attn_mask"))
            attn_mask = expand(attn_mask, common)
        if attn_mask.array.shape != scores:
            raise ShapeError(describe(op, "attn_mask", f"a shape that broadcasts to {scores}", attn_mask.array.shape))
    if dropout_p > 0 or (attn_mask is not None and attn_mask.requires_grad):
        return _by_formula(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return Attention.apply(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


class Attention(ArrayFunction):
    autocast = "lower"

    @staticmethod
    def forward(
        ctx: Context,
        query: NDArray,
        key: NDArray,
        value: NDArray,
        mask: NDArray | None,
        *,
        is_causal: bool,
        scale: float,
    ) -> NDArray:
        _check_dtypes(query, key, value)
        if mask is not None and mask.dtype.name != "bool":
            mask = mask.to(query.dtype)
        y, saved = ops.attention(query, key, value, mask, is_causal, scale)
        if any(ctx.needs_input_grad):
            ctx.save(query, key, value, mask, y, saved)
            ctx.options = (is_causal, scale)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return *ops.attention_backward(grad, SavedAttention(*ctx.saved), *ctx.options), None


def _by_formula(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float
) -> Tensor:
    """The same from single functions, where weights are dropped or the mask has a gradient; in float32 at least."""
    if modes.state.autocast is not None:
        query, key, value = modes.state.autocast(Attention, (query, key, value))
    _check_dtypes(query.array, key.array, value.array)
    dtype = query.array.dtype
    wide = dtypes.promote(dtype, dtypes.float32)
    with modes.without_autocast():
        query, key, value = (cast(x, wide) for x in (query, key, value))
        scores = mul(matmul(query, transpose(key, -2, -1)), scale)
        seen = None
        if is_causal:
            rows, columns = scores.array.shape[-2:]
            seen = tril(scores._like(scores.array.full_like(True, (rows, columns), dtypes.bool_)))
        elif mask is not None and mask.array.dtype.name == "bool":
            seen = mask
        elif mask is not None:
            scores, seen = add(scores, cast(mask, wide)), ne(mask, -math.inf)
        if seen is None:
            weights = softmax(scores, -1)
        else:  # the lowest finite number, not −∞: a query that sees no key must give 0, not NaN
            weights = where(seen, softmax(where(seen, scores, -3e38), -1), 0.0)
        return cast(matmul(dropout(weights, dropout_p), value), dtype)


def _check_dtypes(query: NDArray, key: NDArray, value: NDArray) -> None:
    for argument, array in (("key", key), ("value", value)):
        if array.dtype is not query.dtype:
            expected = f"the dtype of query, {query.dtype}"
            raise DTypeError(describe("scaled_dot_product_attention", argument, expected, array.dtype))


def _repeated_heads(op: str, query: Tensor, argument: str, x: Tensor) -> Tensor:
    """(…, H, S, E) with each head repeated so that there are as many as query has."""
    if min(query.array.ndim, x.array.ndim) < 3:
        raise ShapeError(describe(op, argument, "at least 3 dimensions with enable_gqa", f"shape {x.array.shape}"))
    heads, *rest = x.array.shape[-3:]
    wanted = query.array.shape[-3]
    if wanted == heads:
        return x
    if heads == 0 or wanted % heads:
        raise ShapeError(describe(op, argument, f"a count of heads that divides query's {wanted}", heads))
    repeated = expand(unsqueeze(x, -3), (*x.array.shape[:-2], wanted // heads, *rest))
    return flatten(repeated, -4, -3)


def _check(
    op: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool
) -> None:
    for argument, x in (("query", query), ("key", key), ("value", value)):
        require_tensor(op, argument, x)
        if x.array.ndim < 2:
            raise ShapeError(describe(op, argument, "at least 2 dimensions", f"shape {x.array.shape}"))
        if not x.array.dtype.is_floating_point:
            raise DTypeError(describe(op, argument, "a floating dtype", x.array.dtype))
    if not 0 <= dropout_p <= 1:
        raise ValueError(describe(op, "dropout_p", "a probability in [0, 1]", dropout_p))
    if mask is not None:
        require_tensor(op, "attn_mask", mask)
        if is_causal:
            raise ValueError(describe(op, "attn_mask", "None beside is_causal", f"shape {mask.array.shape}"))
        if mask.array.dtype.name != "bool" and not mask.array.dtype.is_floating_point:
            raise DTypeError(describe(op, "attn_mask", "bool or a floating dtype", mask.array.dtype))


def _check_sizes(op: str, query: Tensor, key: Tensor, value: Tensor) -> Shape:
    """The shape of the scores, (…, L, S)."""
    q, k, v = query.array.shape, key.array.shape, value.array.shape
    if k[-1] != q[-1]:
        raise ShapeError(describe(op, "key", f"(…, S, {q[-1]}), as query's last size", k))
    if v[-2] != k[-2]:
        raise ShapeError(describe(op, "value", f"(…, {k[-2]}, V), as many rows as key has", v))
    return (*shapes.broadcast(op, q[:-2], k[:-2], v[:-2], names=("query", "key", "value")), q[-2], k[-2])
