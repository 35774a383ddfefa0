"""Scaled dot-product attention: torch's fused kernel where it takes the case, else the formula."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    probabilities = _probabilities(query, key, mask, is_causal, scale)
    return torch.matmul(probabilities, value), probabilities


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, y: Tensor, saved: Tensor,
    is_causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    # y = P·v, P = softmax(S), S = scale·q·kᵀ: dS = P ∘ (dP − rowsum(dP ∘ P))
    probabilities = saved
    grad_value = probabilities.transpose(-2, -1) @ grad
    grad_probabilities = grad @ value.transpose(-2, -1)
    grad_scores = torch.ops.aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype)
    grad_query = grad_scores @ key * scale
    grad_key = grad_scores.transpose(-2, -1) @ query * scale
    return grad_query, grad_key, grad_value


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
