"""What happens to one tensor when the channels of a group change, and to all that hangs on it.

Parameters stay the same objects and get another array, so that whoever holds them (an optimizer, tied layers, hooks)
goes on holding them. No array is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis import dtypes, shapes
from genesis.dtypes import DType
from genesis.growth.channel_map import Part, Site
from genesis.ndarray import Device, NDArray
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

NEW = -1  # in Choice.sources: a unit without an original


class Choice(NamedTuple):
    """The units of a group after a change: where each comes from, and its share of what the original gave."""

    sources: Sequence[int]
    shares: Sequence[float]


class Elements:
    """What a Choice does to an axis, element by element. Every device gets the arrays once, for all tensors alike.

    Attributes:
        sources: (new size,) int64, NEW where there is no original.
        shares: (new size,) float64.
        copies: (new size,) bool: not the first with its source.
    """

    def __init__(self, parts: Sequence[Part], group: int, choice: Choice) -> None:
        units = np.asarray(choice.sources, np.int64)
        again = np.ones(len(units), bool)
        again[np.unique(units, return_index=True)[1]] = False
        rows = []  # of sources, shares and copies
        start = 0
        for part in parts:
            kept = np.arange(start, start + part.size)
            if part.group == group:
                blocks = kept.reshape(-1, part.width)[units]
                blocks[units == NEW] = NEW
                shares = np.repeat(np.asarray(choice.shares, np.float64), part.width)
                rows.append((blocks.reshape(-1), shares, np.repeat(again & (units != NEW), part.width)))
            else:
                rows.append((kept, np.ones(part.size), np.zeros(part.size, bool)))
            start += part.size
        self.sources, self.shares, self.copies = map(np.concatenate, zip(*rows, strict=True))
        self.has_new, self._shared = bool((self.sources == NEW).any()), not np.all(self.shares == 1)
        self._sent: dict[Any, NDArray] = {}

    def __len__(self) -> int:
        return len(self.sources)

    def index(self, device: Device) -> NDArray:
        """Where each comes from; 0 where it has no original."""
        return self._on(device, "index", dtypes.int64, lambda: np.where(self.sources == NEW, 0, self.sources))

    def is_new(self, device: Device) -> NDArray:
        return self._on(device, "is_new", dtypes.bool_, lambda: self.sources == NEW)

    def factors(self, power: int, dtype: DType, device: Device) -> NDArray | None:
        """The shares to this power; None if all are 1."""
        return self._on(device, power, dtype, lambda: self.shares**power) if power and self._shared else None

    def _on(self, device: Device, key: Any, dtype: DType, make: Callable[[], np.ndarray]) -> NDArray:
        if (key, dtype, device) not in self._sent:
            self._sent[key, dtype, device] = _on_device(make(), dtype, device)
        return self._sent[key, dtype, device]


class Edit(NamedTuple):
    """What happens to one dimension of a tensor; splits and fresh are those of its site."""

    dim: int
    elements: Elements
    splits: bool
    fresh: str

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.dim], len(self.elements), *shape[self.dim + 1 :])


class Edits:
    """The edits by which a group becomes choice; other parts of the same dimensions stay."""

    def __init__(self, group: int, choice: Choice) -> None:
        self._group, self._choice = group, choice
        self._known: dict[Sequence[Part], Elements] = {}  # most dimensions that show a group show it alike

    def of(self, site: Site) -> Edit:
        if site.parts not in self._known:
            self._known[site.parts] = Elements(site.parts, self._group, self._choice)
        return Edit(site.dim, self._known[site.parts], site.splits, site.fresh)


# --- arrays -----------------------------------------------------------------------------------------------------------


def edited(array: NDArray, edit: Edit, power: int, fresh: NDArray | None) -> NDArray:
    """A new array in the order of memory of the old one: the chosen elements of dimension edit.dim, times their shares
    to this power; fresh (or 0) where there is no original."""
    elements, device = edit.elements, array.device
    along = [1] * array.ndim
    along[edit.dim] = len(elements)
    result = array.index_select(edit.dim, elements.index(device))
    factors = elements.factors(power, array.dtype, device)
    if factors is not None:
        result = result.mul(factors.reshape(along))
    if elements.has_new:
        mask = elements.is_new(device).reshape(along)
        result = mask.where(result.full_like(0) if fresh is None else fresh, result)
    return in_memory_order_of(array, result)


def in_memory_order_of(old: NDArray, new: NDArray) -> NDArray:
    """new, dense, with its dimensions in memory in the order of old's."""
    order = sorted(range(old.ndim), key=lambda dim: -old.strides[dim])
    strides = shapes.strides_in_order(new.shape, order)
    if new.strides == strides:
        return new
    ordered = NDArray.empty(new.shape, old.dtype, old.device, strides)
    ordered.copy_into(new)
    return ordered


def _on_device(values: np.ndarray, dtype: DType, device: Device) -> NDArray:
    """numpy's values in a dtype on a device; 16-bit floats by way of float32."""
    kind = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    sent = NDArray.from_numpy(np.ascontiguousarray(values, kind.name), kind)
    return sent.to_device(device).to(dtype)


def fresh_values(array: NDArray, edit: Edit, generator: np.random.Generator) -> NDArray | None:
    """What elements without an original begin with, in the shape of the whole result; None is zeros."""
    if edit.splits or edit.fresh == "zero" or not edit.elements.has_new:
        return None
    old, size = array.numpy_values().astype(np.float64), edit.shape_after(array.shape)
    if edit.fresh == "mean":
        return _on_device(np.full(size, old.mean()), array.dtype, array.device)
    return _on_device(generator.normal(0.0, max(float(old.std()), 1e-8), size), array.dtype, array.device)


def noise(array: NDArray, edit: Edit, amount: float, generator: np.random.Generator) -> NDArray | None:
    """What makes copies of weights differ: normal, `amount` times as wide as the weights are; None where nothing is."""
    if not amount or edit.splits or edit.fresh != "normal" or not edit.elements.copies.any():
        return None
    along = [1] * array.ndim
    along[edit.dim] = len(edit.elements)
    spread = amount * float(array.numpy_values().std())
    drawn = generator.normal(0.0, spread, edit.shape_after(array.shape)) * edit.elements.copies.reshape(along)
    return _on_device(drawn, array.dtype, array.device)


# --- tensors with what hangs on them ----------------------------------------------------------------------------------


def change(
    tensors: Iterable[Tensor], edit: Edit, optimizers: Sequence[Optimizer], amount: float,
    generator: np.random.Generator,
) -> None:  # fmt: skip
    """Give the first tensor (of the model) and the others (the same one of averaged copies) their new arrays."""
    first, *others = tensors
    fresh = fresh_values(first.array, edit, generator)
    jitter = noise(first.array, edit, amount, generator)
    for tensor in (first, *others):
        old = tensor.array
        its_fresh = None if fresh is None else fresh.to_device(old.device).to(old.dtype)
        new = edited(old, edit, 1 if edit.splits else 0, its_fresh)
        replace(tensor, new if jitter is None else in_memory_order_of(old, new.add(jitter.to_device(old.device))))
        if tensor.grad is not None:
            replace(tensor.grad, edited(tensor.grad.array, edit, 0 if edit.splits else 1, None))
        for optimizer in optimizers:
            _change_state(optimizer, tensor, old, edit)


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


def _change_state(optimizer: Optimizer, parameter: Tensor, old: NDArray, edit: Edit) -> None:
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
        fresh = None
        if is_square and edit.elements.has_new:  # no history yet: steps of the size that the others have
            mean = float(entry.array.numpy_values().mean(dtype=np.float64))
            fresh = entry.array.full_like(mean, edit.shape_after(old.shape))
        power = 0 if edit.splits else 2 if is_square else 1
        state[name] = Tensor(in_memory_order_of(old, edited(entry.array, edit, power, fresh)))
