"""Recorder: a backend that notes each call while it computes."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any

from genesis.backends import Backend, contract
from genesis.backends.backend import Op
from genesis.graphs.source import Call, Recording, Slot, slots_in

# Ops that only say what an array is: the shapes of a replay are those of the recording, and so are the answers.
_QUERIES = frozenset({"dtype", "strides", "offset"})
# Ops whose result depends on values, leaves the arrays of the backend, or comes from outside.
_REFUSED = {
    "to_cpu": "reads values (item, numpy, tolist, printing, or a condition on a tensor)",
    "data_pointer": "asks where an array lies in memory",
    "nonzero": "has a result whose shape depends on values (nonzero, or a boolean index)",
    "from_dlpack": "takes memory from another library",
    "sgd_step": "takes an optimizer's step",
    "adam_step": "takes an optimizer's step",
    "scale_into": "changes gradients in place",
    "unscale_into": "changes gradients in place",
}
_IN_PLACE = frozenset({"copy_into", "add_into", "put"})
_TRAINS = {op: list(inspect.signature(getattr(contract, op)).parameters) for op in ("batch_norm", "conv_bn_relu")}


class Recorder:
    """Notes what the thread that made it asks of a backend.

    `refusal` says why the run cannot be replayed, if so; it goes on as it would have without the recorder.

    Args:
        inputs: the handles that a replay is given anew.
        constants: the handles, by id, that stay what they are: parameters and buffers.
    """

    def __init__(self, inputs: Sequence[Any], constants: Sequence[Any]) -> None:
        self.refusal = ""
        self._prepare: Op = lambda op, args: None  # the watched backend's
        self._thread = threading.get_ident()
        self._handle_type = type(inputs[0])
        self._slots = {id(handle): index for index, handle in enumerate(inputs)}
        self._kept = [*inputs, *constants]  # alive, so that no other object gets an id of theirs
        self._constants = {id(handle) for handle in constants}
        self._num_slots = self._num_inputs = len(inputs)
        self._roots: dict[int, int] = {}  # of views: the slot whose memory they are part of
        self._calls: list[Call] = []

    def watch(self, backend: Backend) -> Backend:
        self._prepare = backend.prepare
        return backend.wrapped(self._around)

    def _around(self, op: str, function: Op) -> Op:
        if op in _QUERIES:
            return function

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if threading.get_ident() == self._thread and not self.refusal:
                self._note(op, function, args, kwargs, result)
            return result

        return noted

    def _note(self, op: str, function: Op, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        places = tuple(map(self._place, args))
        if op in _REFUSED:
            self.refusal = _REFUSED[op]
        elif op in _TRAINS and args[_TRAINS[op].index("training")]:
            self.refusal = "normalizes by the statistics of a batch"
        elif op in _IN_PLACE and self.root(places[0]) < self._num_inputs:
            self.refusal = "changes an argument, a parameter or a buffer in place"
        slots = tuple(map(self._new_slot, result)) if isinstance(result, tuple) else self._new_slot(result)
        if op == "view":
            self._roots[slots.number] = self.root(places[0])  # type: ignore[union-attr]
        if places and isinstance(places[0], Slot) and not slots_in(places[1:]) and not kwargs:
            prepared = self._prepare(op, args)
            if prepared is not None:
                function, places = prepared, places[:1]
        self._calls.append(Call(function, places, kwargs, slots))

    def _place(self, arg: Any) -> Any:
        if id(arg) in self._slots:
            return Slot(self._slots[id(arg)])
        if isinstance(arg, list | tuple):
            return list(map(self._place, arg)) if any(isinstance(x, self._handle_type) for x in arg) else arg
        if isinstance(arg, self._handle_type) and id(arg) not in self._constants:
            self.refusal = (
                f"uses a tensor of shape {tuple(arg.shape)} that is neither an argument nor a parameter or buffer; "
                "register_buffer() makes it one"
            )
        return arg

    def _new_slot(self, result: Any) -> Slot | None:
        if result is None:
            return None
        slot = Slot(self._num_slots)
        self._num_slots += 1
        self._slots[id(result)] = slot.number
        self._kept.append(result)
        return slot

    def root(self, place: Any) -> int:
        """The slot whose memory an array is part of; −1 for what is no slot."""
        return self._roots.get(place.number, place.number) if isinstance(place, Slot) else -1

    def slot_of(self, handle: Any) -> Slot | None:
        index = self._slots.get(id(handle))
        return None if index is None else Slot(index)

    def finish(self, outputs: Sequence[Slot]) -> Recording:
        """What was noted, ready to be run again."""
        return Recording(self._calls, self._num_inputs, outputs)
