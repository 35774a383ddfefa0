"""Recorder of a run that is to be replayed: what may be recorded, and the calls that a replay makes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from genesis import recording
from genesis.backends import Backend, contract
from genesis.backends.backend import Op
from genesis.callsite import user_line
from genesis.graphs.source import Recording
from genesis.ndarray import NDArray
from genesis.nn import Parameter
from genesis.recording import Call, Kind, Value, values_in
from genesis.tensor import Tensor


class Rules(NamedTuple):
    """What may be recorded."""

    refused: dict[str, str]  # by op, why it cannot be replayed
    fixed: tuple[Kind, ...]  # what may not change in place
    prepares: bool  # constants keep their values, so that they may be brought into their fastest form


# Ops whose result depends on values, leaves the arrays of the backend, or comes from outside.
_REFUSED = {
    "to_cpu": "reads values (item, numpy, tolist, printing, or a condition on a tensor)",
    "data_pointer": "asks where an array lies in memory",
    "nonzero": "has a result whose shape depends on values (nonzero, or a boolean index)",
    "from_dlpack": "takes memory from another library",
    # Those of an Optimizer are updates, whose options may change. These numbers would stay as they are now.
    "sgd_step": "takes an optimizer's step",
    "adam_step": "takes an optimizer's step",
}
_CHANGES_GRADIENTS = dict.fromkeys(("scale_into", "unscale_into"), "changes gradients in place")
_GIVEN = (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT)
INFERENCE = Rules(_REFUSED | _CHANGES_GRADIENTS, fixed=(Kind.INPUT, *_GIVEN), prepares=True)
STEP = Rules(_REFUSED, fixed=(Kind.INPUT,), prepares=False)

_TRAINS = {op: list(inspect.signature(getattr(contract, op)).parameters) for op in ("batch_norm", "conv_bn_relu")}


class Recorder:
    """Notes what the thread that made it asks of a backend, and makes a Recording of it.

    `refusal` says why the run cannot be replayed, if so; it goes on as it would have without the recorder.

    Args:
        arguments: the tensors that a replay is given anew and must not change.
        state: the parameters and buffers, whose arrays stay what they are.
        rules: INFERENCE or STEP.
        gradients: from before the run: a replay is given them anew and may change them.
        unseen: those of the state whose values others may change: nothing is prepared from them.
    """

    def __init__(
        self, arguments: Sequence[Tensor], state: Sequence[Tensor], rules: Rules = INFERENCE,
        gradients: Sequence[NDArray] = (), unseen: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        self.refusal = ""
        self.uses_packed_weights = False  # which were made before, of values that must stay what they were then
        self._rules = rules
        self._prepare: Callable[[str, Sequence[object]], Op | None] = lambda op, args: None  # the watched backend's
        self._recorder = recording.Recorder()
        self._arguments = [self._recorder.declare(Kind.INPUT, tensor.array.handle) for tensor in arguments]
        self._gradients = [self._recorder.declare(Kind.GRADIENT, grad.handle) for grad in gradients]
        for tensor in state:
            if self.value_of(tensor) is None:  # it may be an argument too
                kind = Kind.PARAMETER if isinstance(tensor, Parameter) else Kind.BUFFER
                self._recorder.declare(kind, tensor.array.handle)
        self._unseen = {id(tensor.array.handle) for tensor in unseen}
        self._calls: list[Call] = []  # with the constants themselves in their places

    def watch(self, backend: Backend) -> Backend:
        if self._rules.prepares:
            self._prepare = backend.prepare
        return self._recorder.tap(backend, self._check)

    def refuse(self, reason: str) -> None:
        """The run cannot be replayed: it `reason`. The first reason counts; the user's line stands with it."""
        self.refusal = self.refusal or f"{reason} ({user_line()})"

    def paused(self) -> AbstractContextManager[None]:
        """Inside, calls are not noted."""
        return self._recorder.paused()

    def note_update(self, function: Op, gradients: Sequence[object], changed: Sequence[object]) -> None:
        """A call that is no op: function(gradients) changes these handles in place."""
        self._check(self._recorder.note("update", function, (gradients,), {}, changed=changed), (gradients,))

    def value_of(self, tensor: Tensor) -> Value | None:
        return self._recorder.value_of(tensor.array.handle)

    def finish(self, outputs: Sequence[Value]) -> Recording:
        """What was noted, ready to be run again with the arguments and those of the gradients that it uses."""
        used = {value.number for value in (*outputs, *[each for call in self._calls for each in call.operands])}
        gradients = [value for value in self._gradients if value.number in used]
        return Recording(self._calls, [*self._arguments, *gradients], outputs)

    def _check(self, call: Call, args: Sequence[object]) -> None:
        if self.refusal:
            return
        if call.op in self._rules.refused:
            self.refuse(self._rules.refused[call.op])
        for value in call.operands:
            if value.memory.kind is Kind.CONSTANT:
                self.refuse(
                    f"uses a tensor of shape {value.shape} that is neither an argument nor a parameter or buffer; "
                    "register_buffer() makes it one"
                )
        fixed = self._rules.fixed
        if call.op in _TRAINS and args[_TRAINS[call.op].index("training")] and Kind.BUFFER in fixed:
            self.refuse("normalizes by the statistics of a batch")
        elif any(value.memory.kind in fixed for value in call.changed):
            parts = "an argument, a parameter or a buffer" if Kind.BUFFER in fixed else "an argument"
            self.refuse(f"changes {parts} in place")
        self._calls.append(self._prepared(call, args))

    def _prepared(self, call: Call, args: Sequence[object]) -> Call:
        """The call as a replay makes it: of a function of its first argument alone, where all else is constant."""
        places = tuple(map(self._constant, call.args))
        if call.op == "conv_prepacked" and not isinstance(places[1], Value):
            self.uses_packed_weights = True
        is_constant = not call.kwargs and not values_in(places[1:]) and self._unseen.isdisjoint(map(id, args))
        if places and isinstance(places[0], Value) and is_constant:
            prepared = self._prepare(call.op, args)
            if prepared is not None:
                return dataclasses.replace(call, function=prepared, args=places[:1])
        return dataclasses.replace(
            call, args=places, kwargs={name: self._constant(arg) for name, arg in call.kwargs.items()}
        )

    def _constant(self, place: object) -> object:
        """A place with parameters and buffers for their values."""
        if isinstance(place, Value):
            return self._recorder.given.get(place.number, place)
        if isinstance(place, list | tuple) and values_in(place):
            return list(map(self._constant, place))
        return place
