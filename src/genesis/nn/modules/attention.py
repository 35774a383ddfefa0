"""Multi-head attention and the gated feed-forward network of transformers."""

from __future__ import annotations

import math
from typing import Any

from genesis import functional as F
from genesis.creation import empty, full, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.modules.linear import Linear
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["FeedForwardSwiGLU", "MultiheadAttention"]

# Sizes: N batch, L queries, S keys and values, H heads, E embed_dim, D = E / H.


class MultiheadAttention(Module):
    """Attention of num_heads heads, each over its own projection of query, key and value.

    Args:
        embed_dim: E, of query and output; a multiple of num_heads.
        dropout: on the attention weights, in training.
        bias: of the projections.
        add_bias_kv: a learned key and value at the end of the sequence.
        add_zero_attn: a key and value of zeros at the end of the sequence.
        kdim, vdim: sizes of key and value, E by default.
        batch_first: (N, L, E) instead of (L, N, E).
    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = genesis.ones(1, 5, 8)
        >>> y, weights = attention(x, x, x)
        >>> y.shape, weights.shape
        ((1, 5, 8), (1, 5, 5))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ShapeError(describe("MultiheadAttention", "embed_dim", f"a multiple of {num_heads} heads", embed_dim))
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.batch_first = batch_first

        def new(used: bool, *shape: int) -> Parameter | None:
            return Parameter(empty(shape, device=device, dtype=dtype)) if used else None

        joint = self.kdim == self.vdim == embed_dim
        self.register_parameter("q_proj_weight", new(not joint, embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", new(not joint, embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", new(not joint, embed_dim, self.vdim))
        self.register_parameter("in_proj_weight", new(joint, 3 * embed_dim, embed_dim))
        self.register_parameter("in_proj_bias", new(bias, 3 * embed_dim))
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", new(add_bias_kv, 1, 1, embed_dim))
        self.register_parameter("bias_v", new(add_bias_kv, 1, 1, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections by xavier_uniform_, biases zero."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attend from query to key and value.

        Args:
            query: (L, N, E), (N, L, E) with batch_first, or (L, E); key and value alike with S for L.
            key_padding_mask: (N, S) or (S,), bool (True: leave this key out) or added to the scores.
            need_weights: also return the attention weights; without them a faster kernel is used.
            attn_mask: (L, S) or (N · H, L, S), bool (True: leave out) or added to the scores.
            average_attn_weights: the weights averaged over heads, (N, L, S), instead of (N, H, L, S).
            is_causal: without attn_mask: query i sees keys 0 … i; with one, that it is the causal mask.
        Returns: the output in the shape of query, and the weights or None.
        """
        batched = query.ndim == 3
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            ranks = (query.ndim, key.ndim, value.ndim)
            raise ShapeError(describe("MultiheadAttention", "query", "3 (or 2) dimensions, as key and value", ranks))
        sizes = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for argument, (tensor, size) in sizes.items():
            if tensor.shape[-1] != size:
                raise ShapeError(describe("MultiheadAttention", argument, f"{size} features", tensor.shape[-1]))
        q, k, v = self._projected(query, key, value)
        if not batched:
            q, k, v = F.unsqueeze(q, 0), F.unsqueeze(k, 0), F.unsqueeze(v, 0)
        elif not self.batch_first:
            q, k, v = F.transpose(q, 0, 1), F.transpose(k, 0, 1), F.transpose(v, 0, 1)
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal)
        if self.bias_k is not None:
            k, v, mask = _extended(k, v, mask, self.bias_k, self.bias_v)
        if self.add_zero_attn:
            zero = zeros(1, 1, self.embed_dim, dtype=k.dtype, device=k.device)
            k, v, mask = _extended(k, v, mask, zero, zero)
        y, weights = self._attended(self._heads(q), self._heads(k), self._heads(v), mask, need_weights)
        y = self.out_proj(F.flatten(F.transpose(y, 1, 2), 2))
        if weights is not None and average_attn_weights:
            weights = F.mean(weights, 1)
        if not batched:
            return F.squeeze(y, 0), None if weights is None else F.squeeze(weights, 0)
        return (y if self.batch_first else F.transpose(y, 0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Any, Any, Any]:
        """query, key and value through their own linear layer, all of size E then."""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                return F.chunk(F.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1)
            weights = F.chunk(self.in_proj_weight, 3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else F.chunk(self.in_proj_bias, 3)
        projected = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
        return projected[0], projected[1], projected[2]

    def _heads(self, x: Tensor) -> Any:
        """(N, L, E) as (N, H, L, D)."""
        return F.transpose(F.reshape(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim)), 1, 2)

    def _mask(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Any:
        """All masks as one that is added to the scores, (N or 1, H or 1, L or 1, S); None without any."""
        N, L, S = q.shape[0], q.shape[1], k.shape[1]
        if attn_mask is None and is_causal:
            attn_mask = F.triu(full((L, S), True, device=q.device), 1)
        mask = None
        if attn_mask is not None:
            expected = ((L, S), (N * self.num_heads, L, S))
            if attn_mask.shape not in expected:
                text = f"shape {expected[0]} or {expected[1]}"
                raise ShapeError(describe("MultiheadAttention", "attn_mask", text, attn_mask.shape))
            shape = (1, 1, L, S) if attn_mask.ndim == 2 else (N, self.num_heads, L, S)
            mask = F.reshape(_additive(attn_mask, q), shape)
        if key_padding_mask is not None:
            if key_padding_mask.shape not in ((N, S), (S,)) or (key_padding_mask.ndim == 1 and N != 1):
                raise ShapeError(
                    describe("MultiheadAttention", "key_padding_mask", f"shape {(N, S)}", key_padding_mask.shape)
                )
            padding = F.reshape(_additive(key_padding_mask, q), (N, 1, 1, S))
            mask = padding if mask is None else mask + padding
        return mask

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, need_weights: bool) -> tuple[Any, Any]:
        p = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p), None
        scores = F.matmul(q * (1 / math.sqrt(self.head_dim)), F.transpose(k, -2, -1))
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        weights = F.dropout(weights, p) if p else weights
        return F.matmul(weights, v), weights


class FeedForwardSwiGLU(Module):
    """down(silu(gate(x)) · up(x)): the gated feed-forward network of transformers.

    Args:
        dim: of input and output.
        hidden_dim: 8/3 · dim by default, rounded up to a multiple of 8: as large as a plain network of 4 · dim.
        bias: of the three projections.
    Source: Shazeer 2020, arXiv:2002.05202.

    Example:
        >>> nn.FeedForwardSwiGLU(6)(genesis.ones(2, 6)).shape
        (2, 6)
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        bias: bool = False,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = -(-8 * dim // 24) * 8 if hidden_dim is None else hidden_dim
        self.gate = Linear(dim, hidden_dim, bias=bias, device=device, dtype=dtype)
        self.up = Linear(dim, hidden_dim, bias=bias, device=device, dtype=dtype)
        self.down = Linear(hidden_dim, dim, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Any:
        return self.down(F.silu(self.gate(input)) * self.up(input))


def _additive(mask: Tensor, like: Tensor) -> Any:
    """A bool mask as what is added to the scores: −∞ where it is True."""
    if mask.dtype.is_floating_point:
        return mask.to(like.dtype)
    return F.masked_fill(zeros(mask.shape, dtype=like.dtype, device=like.device), mask, -math.inf)


def _extended(k: Tensor, v: Tensor, mask: Any, last_k: Tensor, last_v: Tensor) -> tuple[Any, Any, Any]:
    """One more key and value for each sample, which every query sees."""
    k = F.cat((k, F.expand(last_k, (k.shape[0], 1, -1))), 1)
    v = F.cat((v, F.expand(last_v, (v.shape[0], 1, -1))), 1)
    return k, v, None if mask is None else F.pad(mask, (0, 1))
