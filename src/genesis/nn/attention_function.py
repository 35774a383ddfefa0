"""F.multi_head_attention_forward: MultiheadAttention with the parameters among its arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from genesis import functional as F
from genesis.errors import ShapeError, describe
from genesis.functional.keywords import taking
from genesis.nn.module import Module
from genesis.nn.modules.attention import MultiheadAttention
from genesis.tensor import Tensor

__all__ = ["multi_head_attention_forward"]


@dataclass
class AttentionArguments:
    """The arguments of `F.multi_head_attention_forward`, under PyTorch's names and in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    embed_dim_to_check: int
    num_heads: int
    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    add_zero_attn: bool
    dropout_p: float
    out_proj_weight: Tensor
    out_proj_bias: Tensor | None
    training: bool = True
    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    use_separate_proj_weight: bool = False
    q_proj_weight: Tensor | None = None
    k_proj_weight: Tensor | None = None
    v_proj_weight: Tensor | None = None
    static_k: Tensor | None = None
    static_v: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False


@taking(AttentionArguments)
def multi_head_attention_forward(given: AttentionArguments) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention with the parameters of an `nn.MultiheadAttention` as arguments.

    Args:
        given: PyTorch's arguments, by position or name: see AttentionArguments, and `nn.MultiheadAttention`.
    Returns: the output, in the shape of query, and the weights or None.
    Raises: ShapeError: query's size is not embed_dim_to_check, or a shape does not fit.
        NotImplementedError: static_k or static_v.

    Example:
        >>> x, weight = genesis.ones(3, 1, 2), genesis.eye(2)
        >>> y, weights = F.multi_head_attention_forward(
        ...     x, x, x, 2, 1, genesis.cat([weight] * 3), None, None, None, False, 0.0, weight, None
        ... )
        >>> y.shape, weights.shape
        ((3, 1, 2), (1, 3, 3))
    """
    op = "multi_head_attention_forward"
    if given.static_k is not None or given.static_v is not None:
        raise NotImplementedError(f"{op}: static_k and static_v are not supported; give projections of your own")
    size = given.query.shape[-1]
    if size != given.embed_dim_to_check:
        raise ShapeError(describe(op, "query", f"{given.embed_dim_to_check} features", size))
    if given.num_heads < 1 or size % given.num_heads:
        raise ShapeError(describe(op, "query", f"a multiple of {given.num_heads} heads", size))
    return _WithParameters(given).forward(
        given.query, given.key, given.value, given.key_padding_mask, given.need_weights, given.attn_mask,
        given.average_attn_weights, given.is_causal,
    )  # fmt: skip


class _WithParameters(MultiheadAttention):
    """A layer whose parameters are tensors of the caller's."""

    def __init__(self, given: AttentionArguments) -> None:
        Module.__init__(self)
        own, size = vars(self), given.embed_dim_to_check
        separate = given.use_separate_proj_weight
        for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
            own[name] = getattr(given, name) if separate else None
        own["in_proj_weight"] = None if separate else given.in_proj_weight
        for name in ("in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "num_heads", "training"):
            own[name] = getattr(given, name)
        own["out_proj"] = functools.partial(F.linear, weight=given.out_proj_weight, bias=given.out_proj_bias)
        self.embed_dim, self.head_dim = size, size // given.num_heads
        self.kdim, self.vdim = given.key.shape[-1], given.value.shape[-1]
        self.dropout, self.batch_first = given.dropout_p, False
