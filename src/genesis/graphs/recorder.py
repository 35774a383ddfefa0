"""Recorder: a backend that notes each call while it computes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from genesis.backends import Backend
from genesis.backends.backend import Op
from genesis.backends.contract import TRAITS
from genesis.backends.traits import Traits
from genesis.callsite import user_line
from genesis.graphs.source import Call, Recording, Slot, slots_in


class Rules(NamedTuple):
    """What may be recorded."""

    may_change: bool  # whether parameters and buffers may change: in place, and by the statistics of a batch


INFERENCE = Rules(may_change=False)
STEP = Rules(may_change=True)


class Recorder:
    """Notes what the thread that made it asks of a backend.

    `refusal` says why the run cannot be replayed, if so; it goes on as it would have without the recorder.

    Args:
        arguments: the handles that a replay is given anew and must not change.
        constants: the handles that stay what they are: parameters and buffers.
        rules: INFERENCE or STEP.
        changing: handles that a replay is given anew and may change.
        changing_unseen: those among the constants whose values others may change: nothing is prepared from them.
    """

    def __init__(
        self, arguments: Sequence[Any], constants: Sequence[Any], rules: Rules = INFERENCE,
        changing: Sequence[Any] = (), changing_unseen: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.refusal = ""
        self.uses_packed_weights = False  # which were made before, of values that must stay what they were then
        self._rules = rules
        self._prepare: Op = lambda op, args: None  # the watched backend's
        self._thread = threading.get_ident()
        self._is_paused = False
        self._handle_type = type(arguments[0])
        self._places: dict[int, tuple[Slot, Callable[[], Any]]] = {}  # by id of a handle, which may have died since
        self._constants = {id(handle): handle for handle in constants}
        self._changing_unseen = set(map(id, changing_unseen))
        self._num_slots = 0
        self._inputs = [self._new_slot(handle) for handle in (*arguments, *changing)]
        self._num_arguments = len(arguments)
        self._roots: dict[int, int] = {}  # of views: the slot whose memory they are part of
        self._calls: list[Call] = []

    def watch(self, backend: Backend) -> Backend:
        if not self._rules.may_change:
            self._prepare = backend.prepare
        return backend.wrapped(self._around)

    def _around(self, op: str, function: Op) -> Op:
        traits = TRAITS[op]
        if traits.query and not traits.unreplayable:  # a replay's shapes are the recording's, and so are the answers
            return function

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if threading.get_ident() == self._thread and not self.refusal and not self._is_paused:
                self._note(traits, function, args, kwargs, result)
            return result

        return noted

    def refuse(self, reason: str) -> None:
        """The run cannot be replayed: it `reason`. The first reason counts; the user's line stands with it."""
        self.refusal = self.refusal or f"{reason} ({user_line()})"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, calls are not noted."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def note(self, function: Op, *args: Any) -> None:
        """A call of something else than an op, which gives nothing."""
        if not self.refusal:
            self._calls.append(Call(function, tuple(map(self._place, args)), {}, None))

    def _note(self, traits: Traits, function: Op, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if traits.unreplayable:
            self.refuse(traits.unreplayable)
        places = tuple(map(self._place, args))
        if traits.in_training and traits.argument("training", args, kwargs) and not self._rules.may_change:
            self.refuse("normalizes by the statistics of a batch")
        elif traits.in_place:
            self._check_change(traits, places)
        elif any(not isinstance(traits.argument(each, places, kwargs), Slot) for each in traits.opaque):
            self.uses_packed_weights = True
        slots = tuple(map(self._new_slot, result)) if isinstance(result, tuple) else self._new_slot(result)
        if traits.views:
            self._roots[slots.number] = self.root(places[0])  # type: ignore[union-attr]
        is_constant = not slots_in(places[1:]) and self._changing_unseen.isdisjoint(map(id, args))
        if places and isinstance(places[0], Slot) and is_constant and not kwargs:
            prepared = self._prepare(traits.name, args)
            if prepared is not None:
                function, places = prepared, places[:1]
        self._calls.append(Call(function, places, kwargs, slots))

    def _check_change(self, traits: Traits, places: tuple[Any, ...]) -> None:
        """Of an op in place. Lists of arrays are gradients (those of an optimizer's step are refused by name)."""
        if traits.in_place[0] in traits.lists:
            if not self._rules.may_change:
                self.refuse("changes gradients in place")
            return
        root = self.root(places[traits.position(traits.in_place[0])])
        if not self._rules.may_change and root < self._num_arguments:
            self.refuse("changes an argument, a parameter or a buffer in place")
        elif 0 <= root < self._num_arguments:
            self.refuse("changes an argument in place")

    def _place(self, arg: Any) -> Any:
        slot = self.slot_of(arg)
        if slot is not None:
            return slot
        if isinstance(arg, list | tuple):
            return list(map(self._place, arg)) if any(isinstance(x, self._handle_type) for x in arg) else arg
        if isinstance(arg, self._handle_type) and id(arg) not in self._constants:
            self.refuse(
                f"uses a tensor of shape {tuple(arg.shape)} that is neither an argument nor a parameter or buffer; "
                "register_buffer() makes it one"
            )
        return arg

    def _new_slot(self, result: Any) -> Any:
        """The slot of a result from now on; None for None. It is not kept alive: memory is used as without recorder."""
        if result is None:
            return None
        slot = Slot(self._num_slots)
        self._num_slots += 1
        try:
            alive: Callable[[], Any] = weakref.ref(result)
        except TypeError:  # what is the backend's own, and no array
            alive = lambda: result  # noqa: E731
        self._places[id(result)] = slot, alive
        return slot

    def root(self, place: Any) -> int:
        """The slot whose memory an array is part of; −1 for what is no slot."""
        return self._roots.get(place.number, place.number) if isinstance(place, Slot) else -1

    def slot_of(self, handle: Any) -> Slot | None:
        slot, alive = self._places.get(id(handle), (None, None))
        return slot if alive is not None and alive() is handle else None

    def finish(self, outputs: Sequence[Slot]) -> Recording:
        """What was noted, ready to be run again with the arguments and those of the changing handles that it uses."""
        used = {slot for call in self._calls for slot in slots_in((call.args, tuple(call.kwargs.values())))}
        changing = [slot for slot in self._inputs[self._num_arguments :] if slot in used or slot in outputs]
        return Recording(self._calls, [*self._inputs[: self._num_arguments], *changing], outputs)
