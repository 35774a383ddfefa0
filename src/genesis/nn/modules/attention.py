"""Multi-head attention and the gated feed-forward network of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import functional as F
from genesis.creation import DeviceLike, empty, full, zeros
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
    """Multi-head attention: each head attends over its own projection of query, key and value.

    Args:
        embed_dim: E, feature size of query and output; a multiple of num_heads.
        num_heads: H, number of parallel heads, each of E / H features.
        dropout: dropout probability of the attention weights, in training.
        bias: whether the projections have biases.
        add_bias_kv: append a learned key and value to the sequence.
        add_zero_attn: append a key and value of zeros to the sequence.
        kdim, vdim: feature sizes of key and value; E by default.
        batch_first: inputs and output are (N, L, E) instead of (L, N, E).
        device, dtype: of the parameters.
    Raises: ShapeError: embed_dim is not a multiple of num_heads.
    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = genesis.ones(1, 5, 8)
        >>> y, weights = attention(x, x, x)
        >>> y.shape, weights.shape
        ((1, 5, 8), (1, 5, 5))
    """

    q_proj_weight: Parameter | None  # these three, where key or value has another size than E,
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_weight: Parameter | None  # or this one
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: DeviceLike = None, dtype: DType | None = None,
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
        """Draw the projections by xavier_uniform_, bias_k and bias_v by xavier_normal_; other biases are zero.

        Example:
            >>> attention = nn.MultiheadAttention(4, 2)
            >>> attention.reset_parameters()
            >>> attention.out_proj.bias.tolist()
            [0.0, 0.0, 0.0, 0.0]
        """
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def _reset_parameters(self) -> None:  # PyTorch's name, which models that initialise their layers call
        self.reset_parameters()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attend from query to key and value.

        Args:
            query: (L, N, E), (N, L, E) with batch_first, or (L, E) without a batch.
            key: (S, N, kdim), (N, S, kdim) or (S, kdim), alike.
            value: (S, N, vdim), (N, S, vdim) or (S, vdim), alike.
            key_padding_mask: (N, S) or (S,); bool, True excludes the key, or floating, added to the scores.
            need_weights: also return the attention weights; without them a faster kernel is used.
            attn_mask: (L, S) or (N · H, L, S); bool, True excludes the key, or floating, added to the scores.
            average_attn_weights: return the mean of the weights over the heads, (N, L, S), instead of (N, H, L, S).
            is_causal: without attn_mask, query i attends to keys 0 … i; with attn_mask, asserts that it is causal.
        Returns: the output, in the shape of query, and the weights or None.
        Raises: ShapeError: a rank, a feature size or a mask's shape does not fit.
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
            assert self.bias_v is not None, "the two are registered together"
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

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """query, key and value, each after its own linear projection to size E."""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                q, k, v = F.chunk(F.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1)
                return q, k, v
            weights: Sequence[Tensor] = F.chunk(self.in_proj_weight, 3)
        else:
            assert self.q_proj_weight is not None
            assert self.k_proj_weight is not None
            assert self.v_proj_weight is not None
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        no_biases = (None, None, None)
        biases: Sequence[Tensor | None] = no_biases if self.in_proj_bias is None else F.chunk(self.in_proj_bias, 3)
        q, k, v = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        """(N, L, E) as (N, H, L, D)."""
        return F.transpose(F.reshape(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim)), 1, 2)

    def _mask(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor | None:
        """All masks combined into one that is added to the scores, (N or 1, H or 1, L or 1, S); None without any."""
        N, L, S = q.shape[0], q.shape[1], k.shape[1]
        if attn_mask is None and is_causal:
            attn_mask = F.triu(full((L, S), True, device=q.device), 1)
        mask: Tensor | None = None
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

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p), None
        scores = F.matmul(q * (1 / math.sqrt(self.head_dim)), F.transpose(k, -2, -1))
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        weights = F.dropout(weights, p) if p else weights
        return F.matmul(weights, v), weights


class FeedForwardSwiGLU(Module):
    """Gated feed-forward network of transformers, SwiGLU: y = down(silu(gate(x)) · up(x)).

    Args:
        dim: feature size of input and output.
        hidden_dim: feature size between; by default 8/3 · dim, rounded up to a multiple of 8, which has as many
            parameters as an ungated network with 4 · dim.
        bias: whether the three projections have biases.
        device, dtype: of the parameters.
    Shape: (…, dim) → (…, dim).
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
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = -(-8 * dim // 24) * 8 if hidden_dim is None else hidden_dim
        self.gate = Linear(dim, hidden_dim, bias=bias, device=device, dtype=dtype)
        self.up = Linear(dim, hidden_dim, bias=bias, device=device, dtype=dtype)
        self.down = Linear(hidden_dim, dim, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(input)) * self.up(input))


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """The mask in like's dtype, to be added to the scores; a bool mask becomes −∞ where it is True."""
    if mask.dtype.is_floating_point:
        return mask.to(like.dtype)
    return F.masked_fill(zeros(mask.shape, dtype=like.dtype, device=like.device), mask, -math.inf)


def _extended(
    k: Tensor, v: Tensor, mask: Tensor | None, last_k: Tensor, last_v: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values with one more of each at the end, which every query sees."""
    k = F.cat((k, F.expand(last_k, (k.shape[0], 1, -1))), 1)
    v = F.cat((v, F.expand(last_v, (v.shape[0], 1, -1))), 1)
    return k, v, None if mask is None else F.pad(mask, (0, 1))
