"""Composed: an optimizer whose update is a formula on arrays, and so runs on every device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import setitem
from typing import ClassVar, NamedTuple, TypeVar

from genesis import dtypes
from genesis.errors import DTypeError, describe
from genesis.interrupts import Call, at_once
from genesis.ndarray import NDArray, call_of, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.capturable import count_apart, refusal_of_count
from genesis.optim.optimizer import Batch, Optimizer, State
from genesis.optim.options import Entries, Group, as_number, require_number
from genesis.tensor import Tensor

Record = TypeVar("Record", bound=tuple[object, ...])


class Update(NamedTuple):
    """The next value of a parameter, and the entries of its state that change."""

    param: NDArray
    state: Entries


class Composed(Optimizer):
    """Base class: a subclass names the entries of a parameter's state and computes the next values of one parameter.

    float16 and bfloat16 are computed in float32; states keep the parameter's dtype.
    """

    _Options: ClassVar[type[tuple[object, ...]]]  # a NamedTuple of the options that _next reads
    _computes_with_step: ClassVar[bool] = True  # is the number of the step part of the formula?

    def _entries(self, group: Group) -> Sequence[str]:
        """Names of the state's entries; "step" counts steps."""
        raise NotImplementedError

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        """An entry of a new state, a Tensor or a number."""
        return 0 if name == "step" else Tensor(zeros_like(array))

    def _next(self, p: NDArray, g: NDArray, s: Entries, options: tuple[object, ...]) -> Update:
        """The next values of a parameter p with gradient g and state s, none of which it changes."""
        raise NotImplementedError

    def _options(self, group: Group) -> tuple[object, ...]:
        return chosen(self._Options, group)

    def _history(self, state: State) -> Hashable:
        step = state.get("step")
        return id(step) if isinstance(step, Tensor) else step  # the device counts those together that it began with

    def refusal(self, batch: Batch) -> str:
        if not self._computes_with_step:
            return refusal_of_count(self, batch)
        return "the host computes with the number of the step: capture the gradients, and step after replay()"

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        return {name: self._initial(name, group, array) for name in self._entries(group) if name not in state}

    def _update(self, batch: Batch) -> None:
        updates = []
        for param, grad, state in zip(batch.params, batch.grads, batch.states, strict=True):
            grad = grad.neg() if batch.group.get("maximize") else grad
            arrays = {
                name: _precise(entry.array) if isinstance(entry, Tensor) else entry
                for name, entry in state.items()
                if name != "step" or not isinstance(entry, Tensor)
            }
            updates.append(self._next(_precise(param), _precise(grad), {"step": 0, **arrays}, batch.options))
        calls = self._counted_on_device(batch, updates)
        for param, state, update in zip(batch.params, batch.states, updates, strict=True):
            calls.append(call_of(ops.copy_into, param, update.param))
            for name, value in update.state.items():
                if isinstance(value, NDArray):
                    calls.append(call_of(ops.copy_into, state[name].array, value))
                else:
                    calls.append((setitem, state, name, value))
        at_once([*calls, *batch.after])

    def _counted_on_device(self, batch: Batch, updates: Sequence[Update]) -> list[Call]:
        """The call that counts a step, if the device counts, see capturable.py; no update counts it then."""
        count = batch.states[0].get("step")
        if not isinstance(count, Tensor):
            return []
        count_apart(self, batch)
        count = batch.states[0]["step"]
        for update in updates:
            del update.state["step"]
        return [call_of(ops.copy_into, count.array, count.array.add(1))]


def chosen(kind: type[Record], group: Group) -> Record:
    """The options of a group that a NamedTuple has fields for."""
    return kind(**{name: as_number(group[name]) for name in kind.__annotations__})


def require_betas(op: str, group: Group) -> None:
    """Raise unless group["betas"] are two numbers in [0, 1)."""
    betas = require_pair(op, group, "betas")
    for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
        require_number(op, {name: beta}, name, below=1.0)


def require_pair(op: str, group: Group, name: str) -> Sequence[float]:
    """group[name], which must be a pair of numbers."""
    pair: Sequence[float] = group[name]
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DTypeError(describe(op, name, "two numbers", repr(pair)))
    return pair


def decayed(p: NDArray, g: NDArray, weight_decay: float) -> NDArray:
    """The gradient with that of the penalty, g + weight_decay·p."""
    return g.add(p.mul(weight_decay)) if weight_decay else g


def penalized(p: NDArray, g: NDArray, lr: float, weight_decay: float, decoupled: bool) -> tuple[NDArray, NDArray]:
    """Parameter and gradient with weight decay, as AdamW applies it if decoupled."""
    return (p.mul(1 - lr * weight_decay), g) if decoupled else (p, decayed(p, g, weight_decay))


def lerp(start: NDArray, end: NDArray, weight: float) -> NDArray:
    """start + weight·(end − start)."""
    return start.add(end.sub(start).mul(weight))


def _precise(array: NDArray) -> NDArray:
    return array.to(dtypes.float32) if array.dtype.itemsize < 4 else array
