"""Losses over class indices, and the gradient of an embedding table."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.backends.contract import Shape

aten = torch.ops.aten


def nll_loss(log_probs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    kept = target != ignore_index
    index = target.masked_fill(~kept, 0)
    if index.numel() and (index.amin() < 0 or index.amax() >= log_probs.shape[1]):
        raise IndexError(f"nll_loss: a target is out of range: expected a class in [0, {log_probs.shape[1] - 1}]")
    each = kept.to(log_probs.dtype) if weight is None else weight[index].masked_fill(~kept, 0)
    picked = log_probs.gather(1, index.unsqueeze(1)).squeeze(1)
    return torch.where(kept, -picked * each, picked.new_zeros(())), each


def nll_loss_backward(grad: Tensor, shape: Shape, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    kept = target != ignore_index
    index = target.masked_fill(~kept, 0)
    each = -grad if weight is None else -grad * weight[index]
    return grad.new_zeros(shape).scatter_(1, index.unsqueeze(1), each.masked_fill(~kept, 0).unsqueeze(1))


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float, reduction: str
) -> tuple[Tensor, Tensor | None, Tensor]:
    log_probs, weight = torch.log_softmax(logits, 1), _in(logits.dtype, weight)
    each, weights = nll_loss(log_probs, target, weight, ignore_index)
    if smoothing:
        spread = -(log_probs if weight is None else log_probs * weight).sum(1)
        spread = torch.where(target != ignore_index, spread, spread.new_zeros(()))
        each = each * (1 - smoothing) + spread * (smoothing / logits.shape[1])
    if reduction == "none":
        return each, None, log_probs
    wide = torch.promote_types(logits.dtype, torch.float32)
    total = weights.sum(dtype=wide) if reduction == "mean" else None
    loss = each.sum(dtype=wide)
    return (loss if total is None else loss / total).to(logits.dtype), total, log_probs


def cross_entropy_backward(
    grad: Tensor, log_probs: Tensor, target: Tensor, weight: Tensor | None, total: Tensor | None, ignore_index: int,
    smoothing: float,
) -> Tensor:  # fmt: skip
    weight = _in(log_probs.dtype, weight)
    each = (grad if total is None else (grad / total).to(grad.dtype)).expand(target.shape)
    result = nll_loss_backward(each * (1 - smoothing), log_probs.shape, target, weight, ignore_index)
    if smoothing:
        spread = each.masked_fill(target == ignore_index, 0).unsqueeze(1) * (smoothing / log_probs.shape[1])
        result = result - (spread if weight is None else spread * weight)
    return aten._log_softmax_backward_data(result, log_probs, 1, log_probs.dtype)


def _in(dtype: torch.dtype, weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.to(dtype)


def embedding_backward(
    grad: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    return aten.embedding_dense_backward(grad, indices, num_embeddings, padding_idx, scale_grad_by_freq)
