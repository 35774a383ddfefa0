"""Reductions."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.backends.contract import Shape


def sum(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.sum(x, dims, keepdim)


def mean(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.mean(x, dims, keepdim)


def prod(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    if not dims:
        return torch.prod(x)
    for dim in reversed(dims):  # torch takes one at a time
        x = torch.prod(x, dim, keepdim)
    return x


def amax(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.amax(x, dims, keepdim)


def amin(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.amin(x, dims, keepdim)


def all(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.all(x.bool(), dims, keepdim) if dims else x.ne(0)


def any(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.any(x.bool(), dims, keepdim) if dims else x.ne(0)


def argmax(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return torch.argmax(x, dim, keepdim)


def argmin(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return torch.argmin(x, dim, keepdim)


def var(x: Tensor, dims: Shape, correction: float, keepdim: bool = False) -> Tensor:
    return torch.var(x, dims, correction=correction, keepdim=keepdim)


def logsumexp(x: Tensor, dims: Shape, keepdim: bool = False) -> Tensor:
    return torch.logsumexp(x, dims, keepdim) if dims else x.clone()


def cumsum(x: Tensor, dim: int) -> Tensor:
    return torch.cumsum(x, dim)
