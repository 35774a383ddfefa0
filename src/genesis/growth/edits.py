"""What happens to one tensor when the channels of a group change, and to all that hangs on it.

Parameters stay the same objects and get another array, so that whoever holds them (an optimizer, tied layers, hooks)
goes on holding them. No array is changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis import dtypes, shapes
from genesis.dtypes import DType
from genesis.growth.channel_map import Site
from genesis.ndarray import Device, NDArray
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

NEW = -1  # in Choice.sources: a unit without an original


class Choice(NamedTuple):
    """The units of a group after a change: where each comes from, and its share of what the original gave."""

    sources: Sequence[int]
    shares: Sequence[float]


class Edit(NamedTuple):
    """What a Choice means for one dimension of one tensor, element by element."""

    dim: int
    sources: np.ndarray  # (new size,) int64, NEW where there is no original
    shares: np.ndarray  # (new size,) float64
    splits: bool
    fresh: str
    copies: np.ndarray  # (new size,) bool: not the first with its source


def edit_of(site: Site, group: int, choice: Choice) -> Edit:
    """The change of a site's dimension when a group becomes choice; other parts of it stay."""
    sources: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    copies: list[np.ndarray] = []
    units = np.asarray(choice.sources, np.int64)
    again = np.ones(len(units), bool)
    again[np.unique(units, return_index=True)[1]] = False
    start = 0
    for part in site.parts:
        if part.group == group:
            within = np.arange(part.width)
            elements = np.where(units[:, None] == NEW, NEW, start + units[:, None] * part.width + within)
            sources.append(elements.reshape(-1))
            shares.append(np.repeat(np.asarray(choice.shares, np.float64), part.width))
            copies.append(np.repeat(again & (units != NEW), part.width))
        else:
            sources.append(start + np.arange(part.size))
            shares.append(np.ones(part.size))
            copies.append(np.zeros(part.size, bool))
        start += part.size
    return Edit(
        site.dim, np.concatenate(sources), np.concatenate(shares), site.splits, site.fresh, np.concatenate(copies)
    )


# --- arrays -----------------------------------------------------------------------------------------------------------


class Sent:
    """Indices and factors on the device, sent once for all the tensors of a group: they are mostly the same."""

    def __init__(self) -> None:
        self._known: dict[Any, NDArray] = {}

    def __call__(self, values: np.ndarray, dtype: DType, device: Device) -> NDArray:
        key = (values.tobytes(), values.dtype, values.shape, dtype, device)
        if key not in self._known:
            self._known[key] = _on_device(values, dtype, device)
        return self._known[key]


def edited(array: NDArray, edit: Edit, factors: np.ndarray | None, fresh: NDArray | None, send: Sent) -> NDArray:
    """A new array: the chosen elements of dimension edit.dim times factors; fresh (or 0) where there is no original."""
    dim, device = edit.dim, array.device
    is_new = edit.sources == NEW
    result = array.index_select(dim, send(np.where(is_new, 0, edit.sources), dtypes.int64, device))
    along = [1] * array.ndim
    along[dim] = len(edit.sources)
    if factors is not None and not np.all(factors == 1):
        result = result.mul(send(factors, array.dtype, device).reshape(along))
    if is_new.any():
        mask = send(is_new, dtypes.bool_, device).reshape(along)
        result = mask.where(result.full_like(0) if fresh is None else fresh, result)
    return in_memory_order_of(array, result)


def in_memory_order_of(old: NDArray, new: NDArray) -> NDArray:
    """new, dense, with its dimensions in memory in the order of old's."""
    order = sorted(range(old.ndim), key=lambda dim: -old.strides[dim])
    ordered = NDArray.empty(new.shape, old.dtype, old.device, shapes.strides_in_order(new.shape, order))
    ordered.copy_into(new)
    return ordered


def _on_device(values: np.ndarray, dtype: DType, device: Device) -> NDArray:
    """numpy's values in a dtype on a device; 16-bit floats by way of float32."""
    kind = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    sent = NDArray.from_numpy(np.ascontiguousarray(values, kind.name), kind)
    return sent.to_device(device).to(dtype)


def fresh_values(array: NDArray, edit: Edit, generator: np.random.Generator) -> NDArray | None:
    """What elements without an original begin with, in the shape of the whole result; None is zeros."""
    if edit.splits or edit.fresh == "zero" or not (edit.sources == NEW).any():
        return None
    old = array.numpy_values().astype(np.float64)
    size = list(array.shape)
    size[edit.dim] = len(edit.sources)
    if edit.fresh == "mean":
        return _on_device(np.full(size, old.mean()), array.dtype, array.device)
    return _on_device(generator.normal(0.0, max(float(old.std()), 1e-8), size), array.dtype, array.device)


def noise(array: NDArray, edit: Edit, amount: float, generator: np.random.Generator) -> NDArray | None:
    """What makes copies of weights differ: normal, `amount` times as wide as the weights are; None where nothing is."""
    if not amount or edit.splits or edit.fresh != "normal" or not edit.copies.any():
        return None
    old = array.numpy_values()
    size = list(array.shape)
    size[edit.dim] = len(edit.sources)
    along = [1] * array.ndim
    along[edit.dim] = len(edit.sources)
    drawn = generator.normal(0.0, amount * float(old.std()), size) * edit.copies.reshape(along)
    return _on_device(drawn, array.dtype, array.device)


# --- tensors with what hangs on them ----------------------------------------------------------------------------------


def change(
    tensors: Iterable[Tensor],
    edit: Edit,
    optimizers: Sequence[Optimizer],
    amount: float,
    generator: np.random.Generator,
    send: Sent,
) -> None:
    """Give the first tensor (of the model) and the others (the same one of averaged copies) their new arrays."""
    first, *others = tensors
    fresh = fresh_values(first.array, edit, generator)
    jitter = noise(first.array, edit, amount, generator)
    factors = edit.shares if edit.splits else None
    for tensor in (first, *others):
        old = tensor.array
        new = edited(old, edit, factors, None if fresh is None else fresh.to_device(old.device).to(old.dtype), send)
        replace(tensor, new if jitter is None else in_memory_order_of(old, new.add(jitter.to_device(old.device))))
        if tensor.grad is not None:
            replace(tensor.grad, edited(tensor.grad.array, edit, None if edit.splits else edit.shares, None, send))
        for optimizer in optimizers:
            _change_state(optimizer, tensor, old, edit, send)


def rescale(tensor: Tensor, factor: float, optimizers: Sequence[Optimizer]) -> None:
    """Multiply a parameter whose every use is to be divided by factor; its gradient is smaller by as much."""
    replace(tensor, tensor.array.mul(factor))
    if tensor.grad is not None:
        replace(tensor.grad, tensor.grad.array.mul(1 / factor))
    for optimizer in optimizers:
        state = optimizer.state.get(tensor, {})
        for name, entry in list(state.items()):
            if isinstance(entry, Tensor) and entry.shape == tensor.shape:
                state[name] = Tensor(entry.array.mul(factor ** (-2 if name.endswith("_sq") else -1)))


def replace(tensor: Tensor, array: NDArray) -> None:
    """The one place where a tensor gets another array."""
    tensor.array = array


def _change_state(optimizer: Optimizer, parameter: Tensor, old: NDArray, edit: Edit, send: Sent) -> None:
    """Move what an optimizer keeps for a parameter as the gradient moves, of which it is a mean.

    A copy of a channel gets its share of the channel's gradient; a weight that takes the copy gets the gradient of the
    weight that takes the original. Means of squares (their names end with _sq) get the square of the share.
    """
    if parameter not in optimizer.state:
        return
    state = optimizer.state[parameter]
    for name, entry in list(state.items()):
        if not isinstance(entry, Tensor) or entry.shape != old.shape:
            continue
        is_square = name.endswith("_sq")
        factors = None if edit.splits else edit.shares ** (2 if is_square else 1)
        fresh = None
        if is_square and (edit.sources == NEW).any():  # no history yet: steps of the size that the others have
            mean = float(entry.array.numpy_values().mean(dtype=np.float64))
            fresh = entry.array.full_like(mean, _resized(old.shape, edit))
        moved = in_memory_order_of(old, edited(entry.array, edit, factors, fresh, send))
        state[name] = Tensor(moved)


def _resized(shape: tuple[int, ...], edit: Edit) -> tuple[int, ...]:
    return (*shape[: edit.dim], len(edit.sources), *shape[edit.dim + 1 :])
