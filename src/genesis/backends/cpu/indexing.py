"""Selection and arrangement: gather and scatter, indexing, sorting, joining, padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.backends.contract import Number, Operand, Pair, Shape
from genesis.errors import describe


def cat(arrays: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(tuple(arrays), dim)


def flip(x: Tensor, dims: Shape) -> Tensor:
    return torch.flip(x, dims)


def tril(x: Tensor, diagonal: int) -> Tensor:
    return torch.tril(x, diagonal)


def triu(x: Tensor, diagonal: int) -> Tensor:
    return torch.triu(x, diagonal)


def pad(x: Tensor, pads: tuple[Pair, ...], mode: str, value: Number) -> Tensor:
    if mode == "constant":
        return torch.constant_pad_nd(x, _from_last(pads), value)  # numbers may be complex, as in F.pad they may not
    order = _memory_order(x)
    y = x.permute(order)
    for position, dim in enumerate(order):
        before, after = pads[dim]
        if before or after:
            y = y.index_select(position, _source_index(x.shape[dim], before, after, mode))
    return y.permute([order.index(dim) for dim in range(x.ndim)])


def pad_backward(grad: Tensor, shape: Shape, pads: tuple[Pair, ...], mode: str) -> Tensor:
    if mode == "constant":
        return F.pad(grad, _from_last(tuple((-before, -after) for before, after in pads)))
    order = _memory_order(grad)
    y = grad.permute(order)
    for position, dim in reversed(tuple(enumerate(order))):
        before, after = pads[dim]
        if before or after:
            index = _source_index(shape[dim], before, after, mode)
            smaller = (*y.shape[:position], shape[dim], *y.shape[position + 1 :])
            y = y.new_zeros(smaller).index_add_(position, index, y)
    return y.permute([order.index(dim) for dim in range(grad.ndim)])


def _memory_order(x: Tensor) -> list[int]:
    """The dimensions from the outermost in memory to the innermost: permuted so, a dense array is row-major."""
    return sorted(range(x.ndim), key=lambda dim: -x.stride(dim))


def _from_last(pads: tuple[Pair, ...]) -> list[int]:
    """torch's order: the last dimension first."""
    return [size for pair in reversed(pads) for size in pair]


def _source_index(size: int, before: int, after: int, mode: str) -> Tensor:
    """The source position of each position of the padded dimension."""
    index = torch.arange(-before, size + after)
    if mode == "replicate":
        return index.clamp(0, size - 1)
    if mode == "circular":  # what is left after cropping goes round
        start = max(-before, 0)
        return start + (index - start) % (size - start - max(-after, 0))
    index = index.abs()  # reflect, without the edge itself
    return torch.where(index >= size, 2 * (size - 1) - index, index)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.index_select(dim, index)


def index_select_each(
    arrays: Sequence[Tensor], dims: Sequence[int], index: Tensor, factors: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    made = []
    for x, dim, factor in zip(arrays, dims, factors, strict=True):
        selected = x.index_select(dim, index)
        made.append(selected if factor is None else selected.mul_(factor.view(-1, *[1] * (x.ndim - dim - 1))))
    return tuple(made)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.index_add(dim, index, source)


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return torch.gather(x, dim, index)


def scatter(x: Tensor, dim: int, index: Tensor, source: Operand) -> Tensor:
    return torch.scatter(x, dim, index, source)


def one_hot(index: Tensor, num_classes: int) -> Tensor:
    if index.numel():
        smallest, largest = map(int, torch.aminmax(index))
        if smallest < 0 or largest >= num_classes:
            raise ValueError(
                describe("one_hot", "tensor", f"class indices in [0, {num_classes})", f"{smallest} to {largest}")
            )
    return index.new_zeros((*index.shape, num_classes)).scatter_(-1, index.unsqueeze(-1), 1)


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return torch.scatter_add(x, dim, index, source)


def take(x: Tensor, indices: tuple[Tensor | None, ...]) -> Tensor:
    return torch.ops.aten.index(x, indices)


def put(x: Tensor, indices: tuple[Tensor | None, ...], values: Operand, accumulate: bool) -> None:
    source = values if isinstance(values, Tensor) else torch.tensor(values, dtype=x.dtype)
    torch.ops.aten.index_put_(x, indices, source.to(x.dtype), accumulate)


def refuse(wrong: Tensor, message: str) -> None:
    if wrong.any():
        raise ValueError(message)


def masked_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    return torch.masked_fill(x, mask, value)


def nonzero(x: Tensor) -> Tensor:
    return torch.nonzero(x)


def sort(x: Tensor, dim: int, descending: bool, stable: bool) -> tuple[Tensor, Tensor]:
    return tuple(torch.sort(x, dim=dim, descending=descending, stable=stable))


def topk(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    return tuple(torch.topk(x, k, dim, largest, True))


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return tuple(torch.cummax(x, dim))
