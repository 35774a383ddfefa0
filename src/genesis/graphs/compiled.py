"""genesis.compile: runs that are recorded once for each kind of arguments and then replayed."""

from __future__ import annotations

import abc
import dataclasses
import logging
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from genesis import backends
from genesis.autograd.modes import Watcher, state, watched
from genesis.graphs.guards import present_modes
from genesis.graphs.recorder import Recorder
from genesis.graphs.trace import Executed, Trace
from genesis.graphs.values import kind_of
from genesis.graphs.watch import UnwatchableError
from genesis.ndarray import CPU
from genesis.tensor import Tensor

Target = Callable[..., Any]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A call of a target; the tensors are those among its arguments."""

    target: Target
    backend: backends.Backend
    tensors: Sequence[Tensor]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def __call__(self) -> object:
        return self.target(*self.args, **self.kwargs)

    def kind(self) -> Hashable:
        return kind_of((self.args, self.kwargs), [])


class Compiled(abc.ABC):
    """What genesis.compile gives: target, a callable, with its recordings.

    For each kind of arguments there is an entry: the first call runs as it stands, the second is recorded, the later
    ones replay. What each kind of target adds is its entries.
    """

    max_recordings = 8
    most_in_vain = 8  # recordings in a row that were never replayed

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self._name = name
        self._entries: dict[Hashable, Entry] = {}
        self._has_warned = False  # of another device
        self._num_in_vain = 0

    @property
    def num_recordings(self) -> int:
        return sum(entry.is_recorded for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"compile({self.target!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        kind: Hashable = kind_of(args, tensors)
        if kwargs:
            kind = kind, kind_of(kwargs, tensors)
        backend = _plain_backend(tensors)
        is_watched = state.autocast is not None or state.observer is not None or state.watcher is not None
        if backend is None or is_watched or not self._may_replay(tensors):
            if backend is None and not self._has_warned and any(tensor.array.device is not CPU for tensor in tensors):
                self._has_warned = True
                self._warn("is recorded on the CPU only (see docs/compile.md)")
            return self.target(*args, **kwargs)
        kind = kind, present_modes(), self._circumstances()
        entry = self._entries.get(kind)
        if entry is None:
            return self._run_first(kind, Run(self.target, backend, tensors, args, kwargs))
        if entry.is_refused:
            return self.target(*args, **kwargs)
        changed = "the backend" if entry.backend is not backend else entry.changed()
        if changed is not None:
            return self._run_anew(entry, changed, kind, Run(self.target, backend, tensors, args, kwargs))
        if not entry.may_replay(tensors):
            return self.target(*args, **kwargs)
        if entry.is_recorded:
            self._num_in_vain = 0
            return entry.replay(tensors)
        result, refusal = entry.record(Run(self.target, backend, tensors, args, kwargs))
        if refusal:
            entry.is_refused = True
            self._warn(refusal)
        return result

    def _warn(self, reason: str) -> None:
        message = f"genesis.compile: {self._name} runs as it stands: it {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _run_anew(self, entry: Entry, changed: str, kind: Hashable, run: Run) -> object:
        _log.info("genesis.compile: %s has changed and is recorded anew: %s", self._name, changed)
        self._num_in_vain += entry.is_recorded
        if self._num_in_vain >= self.most_in_vain:
            entry.is_refused = True
            self._warn(f"is never the same for two calls in a row, but recorded for nothing: '{changed}' has changed")
            return run()
        del self._entries[kind]
        return self._run_first(kind, run)

    def _run_first(self, kind: Hashable, run: Run) -> object:
        """An eager run: it shows what code is executed, and fills caches that a recording should find filled."""
        while len(self._entries) >= self.max_recordings:
            self._entries.pop(next(iter(self._entries)))
        trace = Trace()
        with trace.runs(), watched(trace):
            result = run()
        self._entries[kind] = self._new_entry(run, trace.executed)
        return result

    @abc.abstractmethod
    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the calls of a target in its present mode can be replayed."""

    @abc.abstractmethod
    def _circumstances(self) -> Hashable:
        """What belongs to the kind of a call beside its arguments."""

    @abc.abstractmethod
    def _new_entry(self, run: Run, executed: Executed) -> Entry: ...


class Entry(abc.ABC):
    """The recording for one kind of arguments, and what it holds for.

    Args:
        executed: the code that a run of this kind executed.
    """

    is_refused = False
    most_attempts = 4  # to record runs of which each executes other code

    def __init__(self, backend: backends.Backend, executed: Executed) -> None:
        self.backend = backend
        self._executed = executed
        self._num_attempts = 0

    @property
    @abc.abstractmethod
    def is_recorded(self) -> bool: ...

    @abc.abstractmethod
    def changed(self) -> str | None:
        """What the recording, if there is one, depends on and is not as it was."""

    @abc.abstractmethod
    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether nothing but the calls of the recording would happen now."""

    @abc.abstractmethod
    def replay(self, tensors: Sequence[Tensor]) -> object:
        """The result of the recorded run with these tensors."""

    def record(self, run: Run) -> tuple[object, str]:
        """The result of this run, and why it cannot be replayed, if so."""
        try:
            return self._record(run)
        except UnwatchableError as error:  # before the run
            return run(), str(error)

    @abc.abstractmethod
    def _record(self, run: Run) -> tuple[object, str]: ...

    def _recorded(self, run: Run, recorder: Recorder, watcher: Watcher, trace: Trace) -> object:
        """The result of the run while it is recorded."""
        modes, given = present_modes(), run.kind()
        with trace.runs(), watched(watcher), backends.use("cpu", recorder.watch(self.backend)):
            result = run()
        if present_modes() != modes or run.kind() != given:
            recorder.refuse("changes its arguments or a mode of the process")
        return result

    def _knew_all(self, trace: Trace, recorder: Recorder) -> bool:
        """Whether the run executed only what the snapshot before it was made for; else the next one is recorded."""
        recorder.refusal = recorder.refusal or trace.refusal
        if trace.executed.keys() <= self._executed.keys():
            return True
        self._executed = self._executed | trace.executed
        self._num_attempts += 1
        if self._num_attempts >= self.most_attempts:
            recorder.refuse("executes other code in each call")
        return False


def _plain_backend(tensors: Sequence[Tensor]) -> backends.Backend | None:
    """The CPU's backend, if all tensors are there and no tool stands in front of it."""
    if not tensors or any(tensor.array.device is not CPU for tensor in tensors):
        return None
    backend = backends.get("cpu")
    return backend if backends.active["cpu"] is backend else None
