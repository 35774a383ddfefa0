"""Scaled dot-product attention: torch's fused kernel where it takes the case, else the formula.

The fused kernel's exponentials are a few units in the last place off. So what PyTorch computes by the formula is
computed so here, too, unless that would take much memory: all that is not 4-d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.records import SavedAttention

aten = torch.ops.aten

_MOST_SCORES = 1 << 20


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    if _fused_takes(query, key, value):
        q, k, v = (_heads(x) for x in (query, key, value))
        y, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=_additive(mask, q.dtype), scale=scale
        )
        return y.reshape(*query.shape[:-1], value.shape[-1]), log_sum_exp
    probabilities = _probabilities(query, key, mask, is_causal, scale)
    return torch.matmul(probabilities, value), probabilities


def attention_backward(
    grad: Tensor, saved: SavedAttention[Tensor, Tensor], is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, mask, y, softmax = saved
    if _fused_takes(query, key, value):
        g, q, k, v, out = (_heads(x) for x in (grad, query, key, value, y))
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, out, softmax, 0.0, is_causal, attn_mask=_additive(mask, q.dtype), scale=scale
        )
        return tuple(grad.reshape(x.shape) for grad, x in zip(grads, (query, key, value), strict=True))
    # y = P·v, P = softmax(S), S = scale·q·kᵀ: dS = P ∘ (dP − rowsum(dP ∘ P))
    probabilities = softmax
    grad_value = probabilities.transpose(-2, -1) @ grad
    grad_probabilities = grad @ value.transpose(-2, -1)
    grad_scores = torch.ops.aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype)
    grad_query = grad_scores @ key * scale
    grad_key = grad_scores.transpose(-2, -1) @ query * scale
    return grad_query, grad_key, grad_value


def _fused_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    if query.ndim != 4 and query.shape[:-1].numel() * key.shape[-2] <= _MOST_SCORES:
        return False
    return query.shape[-1] == value.shape[-1] and 0 not in query.shape and 0 not in key.shape


def _heads(x: Tensor) -> Tensor:
    """(…, L, E) as (batch, heads, L, E) with the last dimension dense: what the fused kernel reads, unchecked."""
    x = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
    return x if x.ndim == 4 else x.reshape(-1, 1, *x.shape[-2:])


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
    return _heads(mask)


def _probabilities(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        rows, columns = scores.shape[-2:]
        future = torch.ones(rows, columns, dtype=torch.bool).triu_(1)
        scores.masked_fill_(future, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    # A row without any admitted key gives zeros, not NaN.
    return torch.softmax(scores, -1).masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
