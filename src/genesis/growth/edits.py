"""Edit a tensor, and all that depends on it, when the channels of a group change.

Parameters stay the same objects and get another array, so that whoever holds them (an optimizer, tied layers, hooks)
goes on holding them. No array is changed in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from genesis import shapes
from genesis.dtypes import DType
from genesis.growth.channel_map import Part, Site
from genesis.growth.elements import Choice, Elements, on_device
from genesis.ndarray import Device, NDArray, ops
from genesis.optim.batch import State
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor


class Edit(NamedTuple):
    """The change of one dimension of a tensor; splits and fresh are those of its site."""

    dim: int
    elements: Elements
    splits: bool
    fresh: str

    def along(self, values: NDArray, ndim: int) -> NDArray:
        """A value per element, shaped for arrays of so many dimensions."""
        return values.reshape(tuple([len(self.elements) if dim == self.dim else 1 for dim in range(ndim)]))

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


class Selections:
    """Selections of elements from arrays, collected first and then run together: a network has hundreds of arrays."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[int, Device, DType], list[tuple[NDArray, Edit, int, Callable[[NDArray], None]]]] = {}

    def add(self, array: NDArray, edit: Edit, power: int, use: Callable[[NDArray], None]) -> None:
        """use() is given the chosen elements of dimension edit.dim, times their shares to this power."""
        self._wanted.setdefault((id(edit.elements), array.device, array.dtype), []).append((array, edit, power, use))

    def make(self) -> None:
        for (_, device, dtype), wanted in self._wanted.items():
            elements = wanted[0][1].elements
            index = elements.index(device)
            if dtype.is_floating_point:
                made: Sequence[NDArray] = ops.index_select_each(
                    [array for array, *_ in wanted],
                    [edit.dim for _, edit, *_ in wanted],
                    index,
                    [elements.factors(power, dtype, device) for _, _, power, _ in wanted],
                )
            else:  # masks and counts, which are copied as they are
                made = [ops.index_select(array, edit.dim, index) for array, edit, *_ in wanted]
            for (*_, use), result in zip(wanted, made, strict=True):
                use(result)


def _divided(left: NDArray, edit: Edit) -> NDArray:
    """The copies' shares of the same weights, which add up to the weight exactly, rounding included.

    Of what is left, r, a copy takes r − fl(r − fl(s·r)) and leaves fl(r − fl(s·r)): one of the two is at least half of
    r, and a difference of floats within a factor of 2 of each other is exact (Sterbenz 1974).
    """
    for fractions, takes in edit.elements.cuts(left.dtype, left.device):
        after = left.sub(left.mul(edit.along(fractions, left.ndim)))
        left = edit.along(takes, left.ndim).where(left.sub(after), after)
    return left


def _filled(result: NDArray, edit: Edit, fresh: NDArray | None) -> NDArray:
    """Fill with fresh values, or 0, where there is no original."""
    if not edit.elements.has_new:
        return result
    mask = edit.along(edit.elements.is_new(result.device), result.ndim)
    return mask.where(result.full_like(0) if fresh is None else fresh, result)


def in_memory_order_of(old: NDArray, new: NDArray) -> NDArray:
    """new, dense, with its dimensions in memory in the order of old's."""
    strides = _strides_in_order_of(old.strides, new.shape)
    if new.strides == strides:
        return new
    ordered = NDArray.empty(new.shape, old.dtype, old.device, strides)
    ordered.copy_into(new)
    return ordered


@functools.lru_cache(maxsize=4096)
def _strides_in_order_of(old: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return shapes.strides_in_order(shape, sorted(range(len(old)), key=lambda dim: -old[dim]))


def fresh_values(array: NDArray, edit: Edit, generator: np.random.Generator) -> NDArray | None:
    """Initial values of elements without an original, in the shape of the whole result; None is zeros."""
    if edit.splits or edit.fresh == "zero" or not edit.elements.has_new:
        return None
    old, size = array.numpy_values().astype(np.float64), edit.shape_after(array.shape)
    if edit.fresh == "mean":
        return on_device(np.full(size, old.mean()), array.dtype, array.device)
    return on_device(generator.normal(0.0, max(float(old.std()), 1e-8), size), array.dtype, array.device)


def noise(array: NDArray, edit: Edit, amount: float, generator: np.random.Generator) -> NDArray | None:
    """Noise that makes copies differ: normal, its deviation `amount` times the weights'; None if there is none."""
    if not amount or edit.splits or edit.fresh != "normal" or not edit.elements.copies.any():
        return None
    along = [1] * array.ndim
    along[edit.dim] = len(edit.elements)
    spread = amount * float(array.numpy_values().std())
    drawn = generator.normal(0.0, spread, edit.shape_after(array.shape)) * edit.elements.copies.reshape(along)
    return on_device(drawn, array.dtype, array.device)


# --- tensors with what hangs on them ----------------------------------------------------------------------------------


def change(
    tensors: Iterable[Tensor], edit: Edit, optimizers: Sequence[Optimizer], amount: float,
    generator: np.random.Generator, selections: Selections,
) -> None:  # fmt: skip
    """Have the first tensor (of the model) and the others (the same one of averaged copies) given new arrays."""
    first, *others = tensors
    fresh = fresh_values(first.array, edit, generator)
    jitter = noise(first.array, edit, amount, generator)
    for tensor in (first, *others):
        selections.add(tensor.array, edit, 0, functools.partial(_renew, tensor, edit, fresh, jitter))
        if tensor.grad is not None:
            power = 0 if edit.splits else 1
            selections.add(tensor.grad.array, edit, power, functools.partial(_renew_gradient, tensor.grad, edit))
        for optimizer in optimizers:
            _change_state(optimizer, tensor, edit, selections)


def _renew(tensor: Tensor, edit: Edit, fresh: NDArray | None, jitter: NDArray | None, selected: NDArray) -> None:
    old = tensor.array
    fresh = None if fresh is None else fresh.to_device(old.device).to(old.dtype)
    new = _filled(_divided(selected, edit) if edit.splits else selected, edit, fresh)
    replace(tensor, in_memory_order_of(old, new if jitter is None else new.add(jitter.to_device(old.device))))


def _renew_gradient(grad: Tensor, edit: Edit, selected: NDArray) -> None:
    replace(grad, in_memory_order_of(grad.array, _filled(selected, edit, None)))


def rescale(tensor: Tensor, factor: float, optimizers: Sequence[Optimizer]) -> None:
    """Multiply a parameter whose every use is to be divided by factor; its gradient is smaller by as much."""
    replace(tensor, tensor.array.mul(factor))
    if tensor.grad is not None:
        replace(tensor.grad, tensor.grad.array.mul(1 / factor))
    for optimizer in optimizers:
        state = optimizer.state.get(tensor, {})
        for name, entry in list(state.items()):
            if name != "step" and isinstance(entry, Tensor) and entry.shape == optimizer.shape_of(name, tensor.shape):
                state[name] = Tensor(entry.array.mul(factor ** -optimizer.gradient_power(name)))


def replace(tensor: Tensor, array: NDArray) -> None:
    """The one place where a tensor gets another array."""
    tensor.array = array


def _change_state(optimizer: Optimizer, parameter: Tensor, edit: Edit, selections: Selections) -> None:
    """Move what an optimizer keeps for a parameter as the gradient moves, of which it is a mean.

    A copy of a channel gets its share of the channel's gradient; a weight that takes the copy gets the gradient of the
    weight that takes the original. Means of squares get the square of the share. What has the units of the parameter
    (steps, averages) is shared where the parameter is.
    """
    shape = parameter.shape
    longer = (*shape[: edit.dim], shape[edit.dim] + 1, *shape[edit.dim + 1 :])
    state = optimizer.state.get(parameter, {})
    for name, entry in state.items():
        own_shape = optimizer.shape_of(name, shape)
        if not isinstance(entry, Tensor) or entry.shape != own_shape or own_shape == optimizer.shape_of(name, longer):
            continue  # such as Adafactor's mean over this dimension
        fresh, power = None, optimizer.gradient_power(name)
        if power not in (0, 1) and edit.elements.has_new:
            # No history yet: steps of the size that the others have.
            mean = float(entry.array.numpy_values().mean(dtype=np.float64))
            fresh = entry.array.full_like(mean, edit.shape_after(entry.shape))
        like = parameter.array if entry.shape == shape else entry.array
        use = functools.partial(_renew_state, state, name, edit, like, fresh)
        selections.add(entry.array, edit, max(-power if edit.splits else power, 0), use)


def _renew_state(
    state: State, name: str, edit: Edit, like: NDArray, fresh: NDArray | None, selected: NDArray
) -> None:  # fmt: skip
    state[name] = Tensor(in_memory_order_of(like, _filled(selected, edit, fresh)))
