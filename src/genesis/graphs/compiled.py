"""genesis.compile: runs that are recorded once for each kind of arguments and then replayed."""

from __future__ import annotations

import abc
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from genesis import backends
from genesis.autograd.modes import state
from genesis.graphs.values import kind_of
from genesis.ndarray import CPU
from genesis.tensor import Tensor

_log = logging.getLogger(__name__)


class Compiled(abc.ABC):
    """What genesis.compile gives: target, a callable, with its recordings.

    For each kind of arguments there is an entry: the first call runs as it stands, the second is recorded, the later
    ones replay. What each kind of target adds is its entries.
    """

    max_recordings = 8

    def __init__(self, target: Callable[..., Any], name: str) -> None:
        self.target = target
        self._name = name
        self._entries: dict[Any, Entry] = {}

    @property
    def num_recordings(self) -> int:
        return sum(entry.is_recorded for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"compile({self.target!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        kind = kind_of((args, kwargs), tensors)
        backend = _plain_backend(tensors)
        is_watched = state.autocast is not None or state.observer is not None
        if backend is None or is_watched or not self._may_replay(tensors):
            return self.target(*args, **kwargs)
        kind = kind, self._circumstances(tensors, args, kwargs)
        try:
            entry = self._entries.get(kind)
        except TypeError:  # an argument that is no tensor and cannot be compared
            return self.target(*args, **kwargs)
        if entry is not None and entry.is_refused:
            return self.target(*args, **kwargs)
        if entry is None or entry.backend is not backend or not entry.holds():
            return self._run_first(entry, kind, backend, args, kwargs)
        if not entry.may_replay(tensors):
            return self.target(*args, **kwargs)
        if entry.is_recorded:
            return entry.replay(tensors)
        result, refusal = entry.record(tensors, args, kwargs)
        if refusal:
            entry.is_refused = True
            warnings.warn(
                f"genesis.compile: {self._name} runs as it stands: it {refusal}", RuntimeWarning, stacklevel=2
            )
        return result

    def _run_first(self, entry: Entry | None, kind: Any, backend: backends.Backend, args: Any, kwargs: Any) -> Any:
        """A run as it stands, which fills the caches that a recording should find filled."""
        if entry is not None:
            _log.info("genesis.compile: %s has changed and is recorded anew", self._name)
        elif len(self._entries) >= self.max_recordings:
            self._entries.pop(next(iter(self._entries)))
        result = self.target(*args, **kwargs)
        self._entries[kind] = self._new_entry(backend)
        return result

    @abc.abstractmethod
    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the calls of a target in its present mode can be replayed."""

    @abc.abstractmethod
    def _circumstances(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        """What belongs to the kind of a call beside its arguments; hashable."""

    @abc.abstractmethod
    def _new_entry(self, backend: backends.Backend) -> Entry: ...


class Entry(abc.ABC):
    """The recording for one kind of arguments, and what it holds for."""

    is_refused = False

    def __init__(self, backend: backends.Backend) -> None:
        self.backend = backend

    @property
    @abc.abstractmethod
    def is_recorded(self) -> bool: ...

    @abc.abstractmethod
    def holds(self) -> bool:
        """Whether everything that the recording, if there is one, depends on is as it was."""

    @abc.abstractmethod
    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether nothing but the calls of the recording would happen now."""

    @abc.abstractmethod
    def record(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> tuple[Any, str]:
        """The result of this run, and why it cannot be replayed, if so."""

    @abc.abstractmethod
    def replay(self, tensors: Sequence[Tensor]) -> Any:
        """The result of the recorded run with these tensors."""


def _plain_backend(tensors: Sequence[Tensor]) -> backends.Backend | None:
    """The CPU's backend, if all tensors are there and no tool stands in front of it."""
    if not tensors or any(tensor.array.device is not CPU for tensor in tensors):
        return None
    backend = backends.get("cpu")
    return backend if backends.active["cpu"] is backend else None
