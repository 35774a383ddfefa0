"""Composed: an optimizer whose update is a formula on arrays, and so runs on every device."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import ClassVar, Literal, NamedTuple, TypeVar

from genesis import dtypes
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.interrupts import Call, at_once
from genesis.ndarray import NDArray, call_of, ops
from genesis.optim.arrays import zeros_like
from genesis.optim.batch import Batch, State
from genesis.optim.capturable import is_number
from genesis.optim.optimizer import Optimizer
from genesis.optim.options import Entries, Group, as_number, require_number
from genesis.tensor import Tensor

Record = TypeVar("Record", bound=tuple[object, ...])
Scalar = float | NDArray  # of a formula; 0-d on the device where a CUDA graph reads it


class Update(NamedTuple):
    """The next value of a parameter, and the arrays of its state that change."""

    param: NDArray
    state: dict[str, NDArray]


class Scalars(NamedTuple):
    """The values that a formula is computed with.

    Attributes:
        values: a NamedTuple; its numbers are read anew by replays of a CUDA graph, which fixes all else.
        state: the entries of the state that are numbers, after the step.
    """

    values: tuple[object, ...]
    state: Entries


class Composed(Optimizer):
    """Base class: a subclass names the entries of a parameter's state and computes the next values of one parameter.

    Numbers are computed on the host, once for all parameters, and arrays by formulas: so a CUDA graph of the arrays
    only needs the numbers of the step that it replays. float16 and bfloat16 are computed in float32; states keep the
    parameter's dtype.
    """

    _Options: ClassVar[type[tuple[object, ...]]]  # a NamedTuple of the options that _scalars reads
    reads_numbers, counts_on_host = True, True

    def _entries(self, group: Group) -> Sequence[str]:
        """Names of the state's entries; "step" counts steps."""
        raise NotImplementedError

    def _initial(self, name: str, group: Group, array: NDArray) -> object:
        """An entry of a new state, a Tensor or a number."""
        return 0 if name == "step" else Tensor(zeros_like(array))

    def _scalars(self, s: Entries, options: tuple[object, ...], like: NDArray) -> Scalars:
        """The scalars of a step from numbers s of a state; like: one of the parameters."""
        raise NotImplementedError

    def _next(self, p: NDArray, g: NDArray, s: Entries, scalars: tuple[object, ...]) -> Update:
        """The next values of a parameter p with gradient g and state s, none of which it changes."""
        raise NotImplementedError

    def _options(self, group: Group) -> tuple[object, ...]:
        return chosen(self._Options, group)

    def _history(self, state: State) -> Hashable:
        return tuple([state.get(name) for name in self._NUMBERS])

    def replayed_options(self, batch: Batch, steps_before: int) -> tuple[object, ...]:
        """The scalars of the next step, or of a later one. See `optim.Optimizer.step`."""
        options = self._options(batch.group)
        scalars = self._scalars_of(batch, options)
        for _ in range(steps_before):
            scalars = self._scalars({**batch.states[0], **scalars.state}, options, batch.params[0])
        return (*scalars.values, bool(batch.group.get("maximize")))

    def replayed_dtype(self, batch: Batch) -> DType:
        """The dtype that the formula is computed in. See `optim.Optimizer.step`."""
        return _dtype_of(batch.params[0])

    def count(self, batch: Batch) -> None:
        """Write the numbers of the state after a step that a replay has made. See `optim.Optimizer.step`."""
        counted = self._scalars_of(batch, self._options(batch.group)).state
        at_once([(state.update, counted) for state in batch.states])

    def _scalars_of(self, batch: Batch, options: tuple[object, ...]) -> Scalars:
        return self._scalars({"step": 0, **batch.states[0]}, options, batch.params[0])

    def _missing_state(self, group: Group, array: NDArray, state: State) -> State:
        return {name: self._initial(name, group, array) for name in self._entries(group) if name not in state}

    def _update(self, batch: Batch) -> None:
        scalars = self._scalars_of(batch, batch.options)
        values = scalars.values
        if batch.inputs.numbers is not None:
            values = _on_device(values, batch.inputs.numbers)
        calls: list[Call] = []
        for param, grad, state in zip(batch.params, batch.grads, batch.states, strict=True):
            grad = grad.neg() if batch.group.get("maximize") else grad
            arrays = {name: _precise(entry.array) for name, entry in state.items() if isinstance(entry, Tensor)}
            update = self._next(_precise(param), _precise(grad), arrays, values)
            calls.append(call_of(ops.copy_into, param, update.param))
            calls += [call_of(ops.copy_into, state[name].array, value) for name, value in update.state.items()]
            if not batch.captured:
                calls.append((state.update, scalars.state))
        at_once([*calls, *batch.after])


def _on_device(values: Record, numbers: NDArray) -> Record:
    """The values with the elements of an array in place of the numbers."""
    places = itertools.count()
    made: Record = type(values)._make(  # type: ignore[attr-defined]
        [numbers.select(0, next(places)) if is_number(value) else value for value in values]
    )
    return made


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


class Decay(NamedTuple):
    """Weight decay: of what, and the factor of p that is added to the gradient, or that the weights keep."""

    of: Literal["", "gradient", "weights"]
    factor: float


def decay(weight_decay: float, lr: float = 0.0, decoupled: bool = False) -> Decay:
    """An L2 penalty, or the decay of the weights themselves, as AdamW applies it."""
    if decoupled:
        return Decay("weights", 1 - lr * weight_decay)
    return Decay("gradient" if weight_decay else "", weight_decay)


def decayed(p: NDArray, g: NDArray, of: str, factor: Scalar) -> tuple[NDArray, NDArray]:
    """Parameter and gradient with weight decay."""
    if of == "weights":
        return p.mul(factor), g
    return p, g.add(p.mul(factor)) if of else g


def lerp(start: NDArray, end: NDArray, weight: Scalar) -> NDArray:
    """start + weight·(end − start)."""
    return start.add(end.sub(start).mul(weight))


def either(flag: Scalar, yes: NDArray, no: NDArray | float) -> NDArray | float:
    """yes where the flag is not 0, else no."""
    if isinstance(flag, NDArray):
        return flag.ne(0).where(yes, no)
    return yes if flag else no


def _dtype_of(array: NDArray) -> DType:
    """The dtype that an array is computed in."""
    return dtypes.float32 if array.dtype.itemsize < 4 else array.dtype


def _precise(array: NDArray) -> NDArray:
    return array.to(_dtype_of(array))
