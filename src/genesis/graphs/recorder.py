"""Records a run for replay: what may be recorded, and which calls a replay makes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from genesis import recording
from genesis.backends import Backend
from genesis.backends.backend import Op
from genesis.backends.contract import TRAITS
from genesis.callsite import user_line
from genesis.graphs.source import Recording
from genesis.graphs.trace import untraced
from genesis.graphs.waits import Waits
from genesis.ndarray import NDArray, random
from genesis.nn import Parameter
from genesis.recording import Call, Kind, Value, values_in
from genesis.records import rebuilt
from genesis.tensor import Tensor


class Rules(NamedTuple):
    """The limits of a recorded run."""

    fixed: tuple[Kind, ...]  # memory that may not change in place
    prepares: bool  # constants keep their values, so backends may prepare (pack) them


_GIVEN = (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT)
INFERENCE = Rules(fixed=(Kind.INPUT, Kind.GRADIENT, *_GIVEN), prepares=True)
STEP = Rules(fixed=(Kind.INPUT,), prepares=False)


class Recorder:
    """Records the backend calls of the creating thread and turns them into a Recording.

    `refusal` is the reason why the run cannot be replayed, or ""; the run itself goes on unaffected.

    Args:
        arguments: tensors that each replay takes and must not change.
        state: parameters and buffers; their arrays are constants of the recording.
        rules: INFERENCE or STEP.
        gradients: of before the run; each replay takes them and may change them.
        lasting: arrays that belong to no module, as those of GradScalers; they are constants, and change in place.
        unseen: the part of state that other libraries may write to; it is never prepared.
        postpones: waits come as late as they can. In a CUDA graph: on the host, one that fails would come too late.
    """

    def __init__(
        self, arguments: Sequence[Tensor], state: Sequence[Tensor], rules: Rules = INFERENCE,
        gradients: Sequence[NDArray] = (), unseen: Sequence[Tensor] = (), lasting: Sequence[NDArray] = (),
        postpones: bool = False,
    ) -> None:  # fmt: skip
        self.refusal = ""
        self.uses_packed_weights = False  # packed before the run, from values that must not change
        self._rules, self._postpones = rules, postpones
        self._prepare: Callable[[str, Sequence[object]], Op | None] = lambda op, args: None  # the watched backend's
        self._recorder, self._waits = recording.Recorder(), Waits()
        self._arguments = [self._declare(Kind.INPUT, tensor.array) for tensor in arguments]
        self._gradients = [self._declare(Kind.GRADIENT, grad) for grad in gradients]
        for tensor in state:
            if self.value_of(tensor) is None:  # it may be an argument too
                kind = Kind.PARAMETER if isinstance(tensor, Parameter) else Kind.BUFFER
                self._declare(kind, tensor.array)
        for array in lasting:
            self._declare(Kind.BUFFER, array)
        self._unseen = {id(tensor.array.handle) for tensor in unseen}
        self._calls: list[Call] = []  # with the constants themselves in their places
        self._join: Callable[[Op, Op], Op | None] = lambda first, second: None  # the watched backend's
        self._are_prepared: set[Call] = set()

    def _declare(self, kind: Kind, array: NDArray) -> Value:
        value = self._recorder.declare(kind, array.handle)
        self._waits.declare(value, array)
        return value

    def watch(self, backend: Backend) -> Backend:
        if self._rules.prepares:
            self._prepare, self._join = backend.prepare, backend.join
        return self._recorder.tap(backend, self._check).wrapped(untraced)

    def refuse(self, reason: str) -> None:
        """Declare the run not replayable: it `reason`. The first reason is kept, with the user's line."""
        self.refusal = self.refusal or f"{reason} ({user_line()})"

    @property
    def is_paused(self) -> bool:
        return self._recorder.is_paused

    def paused(self) -> AbstractContextManager[None]:
        """Stop recording inside the with block."""
        return self._recorder.paused()

    def note_call(
        self, name: str, function: Op, operands: Sequence[object], changed: Sequence[object], is_wait: bool = False
    ) -> None:
        """Record function(operands), which is no op and changes these handles in place; is_wait: see Waits."""
        call = self._recorder.note(name, function, (operands,), {}, changed=changed)
        self._waits.note(call, is_wait and self._postpones)
        self._check_operands(call)
        self._check_changes(call)
        self._calls.append(dataclasses.replace(call, args=tuple(map(self._constant, call.args))))

    def note_repeated(
        self, name: str, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray],
        changed: Sequence[NDArray], is_wait: bool = False,
    ) -> None:  # fmt: skip
        """Record call(arrays), which changes some of them."""
        devices = [array.device for array in arrays]

        def run(handles: Sequence[object]) -> None:
            call([NDArray(handle, device) for handle, device in zip(handles, devices, strict=True)])

        self.note_call(name, run, [array.handle for array in arrays], [array.handle for array in changed], is_wait)

    def value_of(self, tensor: Tensor) -> Value | None:
        return self._recorder.value_of(tensor.array.handle)

    def are_due(self, arrays: Sequence[NDArray]) -> list[bool]:
        """For each array, whether the last wait gives it, and nothing has used what it gives."""
        return self._waits.are_due([self._recorder.value_of(array.handle) for array in arrays])

    def finish(self, outputs: Sequence[Value]) -> Recording:
        """The recording, as a function of the arguments and of those gradients that it uses."""
        uses = collections.Counter(value.number for call in self._calls for value in call.operands)
        uses.update(value.number for value in outputs)
        gradients = [value for value in self._gradients if value.number in uses]
        return Recording(self._joined(uses), [*self._arguments, *gradients], outputs)

    def _joined(self, uses: Mapping[int, int]) -> list[Call]:
        """The calls; two prepared ones become one, where only the second takes the first's result."""
        found: list[Call] = []
        for call in self._waits.postponed(self._calls):
            last = found[-1] if found else None
            if last in self._are_prepared and call in self._are_prepared and uses[call.args[0].number] == 1:
                joined = self._join(last.function, call.function) if last.results is call.args[0] else None
                if joined is not None:
                    found[-1] = dataclasses.replace(call, function=joined, args=last.args)
                    continue
            found.append(call)
        return found

    def _check(self, call: Call, args: Sequence[object]) -> None:
        if self.refusal:
            return
        self._waits.note(call)
        traits, fixed = TRAITS[call.op], self._rules.fixed
        if traits.unreplayable:
            self.refuse(traits.unreplayable)
        if traits.in_place and traits.in_place[0] in traits.lists and Kind.GRADIENT in fixed:
            self.refuse("changes gradients in place")
        self._check_operands(call)
        if traits.trains(call.args, {}) and Kind.BUFFER in fixed:
            self.refuse("normalizes by the statistics of a batch")
        else:
            self._check_changes(call)
        prepared = self._prepared(call, args)
        if traits.random:
            prepared = dataclasses.replace(prepared, function=random.drawing_as_here(prepared.function))
        self._calls.append(prepared)

    def _check_changes(self, call: Call) -> None:
        fixed = self._rules.fixed
        if any(value.memory.kind in fixed for value in call.changed):
            parts = "an argument, a parameter or a buffer" if Kind.BUFFER in fixed else "an argument"
            self.refuse(f"changes {parts} in place")

    def _check_operands(self, call: Call) -> None:
        for value in call.operands:
            if value.memory.kind is Kind.CONSTANT:
                self.refuse(
                    f"uses a tensor of shape {value.shape} that is neither an argument nor a parameter or buffer; "
                    "register_buffer() makes it one"
                )

    def _prepared(self, call: Call, args: Sequence[object]) -> Call:
        """The call as a replay makes it; with a prepared function if all but its first argument are constant."""
        places = tuple(map(self._constant, call.args))
        traits = TRAITS[call.op]
        if any(not isinstance(traits.argument(each, places, {}), Value) for each in traits.opaque):
            self.uses_packed_weights = True
        is_constant = not call.kwargs and not values_in(places[1:]) and self._unseen.isdisjoint(map(id, args))
        if places and isinstance(places[0], Value) and is_constant:
            prepared = self._prepare(call.op, args)
            if prepared is not None:
                made = dataclasses.replace(call, function=prepared, args=places[:1])
                self._are_prepared.add(made)
                return made
        return dataclasses.replace(
            call, args=places, kwargs={name: self._constant(arg) for name, arg in call.kwargs.items()}
        )

    def _constant(self, place: object) -> object:
        """A place with the arrays of parameters and buffers instead of their values."""
        if isinstance(place, Value):
            return self._recorder.given.get(place.number, place)
        if isinstance(place, list | tuple) and values_in(place):
            return rebuilt(place, map(self._constant, place))
        return place
