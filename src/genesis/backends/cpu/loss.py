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


def embedding_backward(
    grad: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    return aten.embedding_dense_backward(grad, indices, num_embeddings, padding_idx, scale_grad_by_freq)
