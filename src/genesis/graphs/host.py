"""Notes what a run computes on another device than its own: constants on the CPU, which a recording may use, and all
else, which it can't hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from genesis import backends
from genesis.backends.backend import Op
from genesis.backends.contract import TRAITS
from genesis.graphs.recorder import Recorder
from genesis.ndarray import CPU, Device


def constants_only(device: Device, recorder: Recorder) -> contextlib.AbstractContextManager[object]:
    """Inside, refuse what this thread computes on the CPU, while a run on another device is recorded; and the reverse.

    Constants are made of Python numbers, which guards watch, and of other constants: genesis.tensor([1.0, 2.0]).
    """
    if device is CPU:
        if "cuda" not in backends.active:
            return contextlib.nullcontext()
        backend = backends.get("cuda")
        return backends.use("cuda", backend.wrapped(_Nothing(recorder).around))
    backend = backends.get("cpu")
    return backends.use("cpu", backend.wrapped(_Constants(recorder).around))


class _Constants:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = threading.get_ident()
        self._known: dict[int, object] = {}  # by id; kept alive

    def around(self, op: str, function: Op) -> Op:
        traits = TRAITS[op]
        if traits.query:
            return function

        def noted(*args: object, **kwargs: object) -> object:
            if threading.get_ident() != self._thread or self._recorder.is_paused:
                return function(*args, **kwargs)
            operands = _flat([traits.argument(name, args, kwargs) for name in traits.arrays])
            is_constant = not traits.random and all(self._is_known(operand) for operand in operands)
            result = function(*args, **kwargs)
            if is_constant:
                self._known.update((id(each), each) for each in _flat([result]))
            else:
                self._recorder.refuse("computes on the CPU with what is no constant")
            return result

        return noted

    def _is_known(self, operand: object) -> bool:
        return isinstance(operand, bool | int | float | None) or id(operand) in self._known


class _Nothing:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = threading.get_ident()

    def around(self, op: str, function: Op) -> Op:
        if TRAITS[op].query:
            return function

        def noted(*args: object, **kwargs: object) -> object:
            if threading.get_ident() == self._thread and not self._recorder.is_paused:
                self._recorder.refuse("computes on a GPU, but its arguments are on the CPU")
            return function(*args, **kwargs)

        return noted


def _flat(places: Sequence[object]) -> list[object]:
    found: list[object] = []
    for place in places:
        found += _flat(place) if isinstance(place, list | tuple) else [place]
    return found
