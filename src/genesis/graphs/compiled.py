"""Recordings by input signature: when to run eagerly, to record, and to replay."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from genesis import backends
from genesis.amp.casting import note_weights, with_new_cache
from genesis.autograd.modes import Watcher, state, watched
from genesis.graphs.failures import CannotReplayError
from genesis.graphs.flat import Conditions
from genesis.graphs.guards import present_modes
from genesis.graphs.host import constants_only
from genesis.graphs.recorder import Recorder
from genesis.graphs.report import RecordingReport, Report, signature_of
from genesis.graphs.shortcut import Shortcut
from genesis.graphs.source import Recording
from genesis.graphs.trace import Executed, Trace, untraced
from genesis.graphs.values import kind_of
from genesis.graphs.watch import UnwatchableError
from genesis.ndarray import CPU, Device
from genesis.ndarray.capturing import capture_of
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.cuda.arena import Arena
    from genesis.cuda.recorded import Captured

Target = Callable[..., Any]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A call of a target, with the tensors among its arguments."""

    target: Target
    device: Device
    backend: backends.Backend
    tensors: Sequence[Tensor]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def __call__(self) -> object:
        return self.target(*self.args, **self.kwargs)

    def kind(self) -> Hashable:
        return kind_of((self.args, self.kwargs), [])


class Compiled(abc.ABC):
    """The result of genesis.compile: a callable target with its recordings.

    Each input signature has an entry: the first call runs eagerly, the second is recorded, later ones replay. Without a
    tensor among the arguments, one call more runs eagerly: it shows the device.
    Subclasses define the entries.

    Attributes:
        target: the module or function.
        num_recordings: how many signatures are recorded.
        num_replays: how many calls were replays.

    Example:
        >>> double = genesis.compile(lambda x: x * 2)
        >>> [double(genesis.ones(2)).tolist() for _ in range(3)]
        [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
        >>> double.num_recordings
        1
    """

    _advice = "keep what changes between calls outside of it (a learning rate that it returns, say), or in a tensor"
    max_recordings = 8
    most_in_vain = 8  # recordings in a row that were never replayed
    most_new = 16  # signatures in a row that are new, before a warning
    most_anew, few_replays = 16, 4  # recordings that changes ended, after fewer replays each than pay, before a warning

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self._name = name
        self._entries: dict[Hashable, Entry] = {}
        self._latest: Shortcut | None = None
        self._arenas: dict[Device, Arena] = {}
        self._reasons: list[str] = []  # why it ran eagerly, of all warnings
        self._changes: collections.Counter[str] = collections.Counter()  # before it was recorded anew
        self.num_replays = self._num_in_vain = self._num_anew = 0
        self._home: Device | None = None  # where the target computes, which no argument says
        self._is_homeless = False  # on several devices
        self._num_new = self._num_replays_before = 0  # signatures in a row, each seen for the first time

    @property
    def num_recordings(self) -> int:
        return sum(entry.is_recorded for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"compile({self.target!r})"

    def report(self) -> Report:
        """Its recordings, and why it ran eagerly or was recorded anew; waits for the device.

        Returns: a Report, which prints as a table.

        Example:
            >>> double = genesis.compile(lambda x: x * 2)
            >>> for _ in range(3):
            ...     y = double(genesis.ones(2))
            >>> [(each.signature, each.num_calls, each.num_replays) for each in double.report().recordings]
            [('float32 (2,)', 1, 1)]
        """
        recordings = tuple([entry.report() for entry in self._entries.values() if entry.is_recorded])
        num_shared = sum(arena.num_shared_bytes for arena in self._arenas.values())
        return Report(recordings, tuple(self._reasons), dict(self._changes), num_shared)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        latest = self._latest
        if latest is not None and not kwargs:
            found, recorded = latest.tensors_of(args), latest.entry
            if found is not None and recorded.holds is not None and recorded.holds():
                try:
                    return self._replay(recorded, found, start)
                except CannotReplayError:  # it will be once more, where that is dealt with
                    pass
        tensors: list[Tensor] = []
        kind: Hashable = kind_of(args, tensors)
        if kwargs:
            kind = kind, kind_of(kwargs, tensors)
        device = tensors[0].array.device if tensors else self._home
        if device is None:
            return self._run_to_find_home(args, kwargs)
        backend = _plain_backend(device, tensors)
        if backend is None or _is_listened_to(device) or not self._may_replay(tensors):
            if backend is None and len({tensor.array.device for tensor in tensors}) > 1 and not self._reasons:
                self._warn("takes tensors of several devices")
            return self.target(*args, **kwargs)
        kind = kind, present_modes(), self._circumstances()
        entry = self._entries.get(kind)
        if entry is None:
            self._note_new()
            return self._run_first(kind, Run(self.target, device, backend, tensors, args, kwargs))
        if entry.is_refused:
            return self.target(*args, **kwargs)
        changed = "the backend" if entry.backend is not backend else entry.changed()
        if changed is not None:
            return self._run_anew(entry, changed, kind, Run(self.target, device, backend, tensors, args, kwargs))
        if not entry.may_replay(tensors):
            return self.target(*args, **kwargs)
        if entry.is_recorded:
            self._latest = None if kwargs else Shortcut.of(entry, args, tensors)
            try:
                return self._replay(entry, tensors, start)
            except CannotReplayError as error:
                failure = error.with_traceback(None)  # whose frames would hold the graph, and its memory
                failure.__context__ = None
            return self._run_instead(entry, failure, kind, Run(self.target, device, backend, tensors, args, kwargs))
        self._num_new = 0
        result, refusal = entry.record(Run(self.target, device, backend, tensors, args, kwargs))
        if refusal:
            entry.is_refused = True
            self._warn(refusal)
        return result

    def _run_to_find_home(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Run eagerly; the tensors that the target has in reach show on which device it computes."""
        if self._is_homeless or state.observer is not None or state.watcher is not None:
            return self.target(*args, **kwargs)
        trace = Trace()
        with _new_casts(), _untraced(backends.loaded()), trace.runs(), watched(trace):
            result = self.target(*args, **kwargs)
        try:
            devices = {tensor.array.device for tensor in self._in_reach((args, kwargs), trace.executed)} - {CPU}
        except UnwatchableError as error:
            refusal = str(error)
        else:
            if len(devices) < 2:
                self._home = devices.pop() if devices else CPU
                return result
            refusal = f"uses tensors of several devices ({', '.join(sorted(map(str, devices)))})"
        self._is_homeless = True
        self._warn(refusal)
        return result

    def _replay(self, entry: Entry, tensors: Sequence[Tensor], start: float) -> object:
        """start: of the call. Raises: CannotReplayError: before it has done anything."""
        result = entry.replay(tensors)
        self._num_in_vain = 0
        self.num_replays += 1
        entry.num_replays += 1
        entry.seconds += perf_counter() - start
        return result

    def _note_new(self) -> None:
        """Say it once if each call has a signature of its own, as with a number that counts steps."""
        self._num_new = self._num_new + 1 if self.num_replays == self._num_replays_before else 1
        self._num_replays_before = self.num_replays
        if self._num_new == self.most_new and not self._reasons:
            self._warn(
                f"is called with other arguments each time ({self.most_new} signatures in a row): pass numbers that "
                "vary as tensors, and batches whose shapes repeat",
                depth=4,
            )

    def _run_instead(self, entry: Entry, failure: CannotReplayError, kind: Hashable, run: Run) -> object:
        if failure.is_stale:
            return self._run_anew(entry, str(failure), kind, run)
        if failure.is_final:
            entry.refuse()
            self._warn(str(failure), depth=4)
        return run()

    def _warn(self, reason: str, depth: int = 3) -> None:
        """depth: of this call below the user's."""
        self._reasons.append(reason)
        message = f"genesis.compile: {self._name} runs eagerly: it {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=depth)

    def _arena(self, device: Device) -> Arena | None:
        """Return what the recordings on a device share; None on the CPU, where arrays are allocated as needed."""
        if device is CPU:
            return None
        if device not in self._arenas:
            from genesis.cuda.arena import Arena  # and with it genesis.cuda

            self._arenas[device] = Arena(device)
        return self._arenas[device]

    def _run_anew(self, entry: Entry, changed: str, kind: Hashable, run: Run) -> object:
        _log.info("genesis.compile: %s has changed and is recorded anew: %s", self._name, changed)
        self._changes[changed] += 1
        self._num_in_vain += entry.is_recorded
        self._num_anew += entry.is_recorded
        if self._num_in_vain >= self.most_in_vain:
            entry.refuse()
            self._warn(
                f"changes before each recording could be replayed: '{changed}' has changed; {self._advice}", depth=4
            )
            return run()
        if self._num_anew == self.most_anew and self.num_replays < self.most_anew * self.few_replays:
            warnings.warn(
                f"genesis.compile: {self._name} is recorded anew time and again, after few replays each: '{changed}' "
                f"has changed; {self._advice}",
                RuntimeWarning,
                stacklevel=3,
            )
        del self._entries[kind]
        return self._run_first(kind, run)

    def _run_first(self, kind: Hashable, run: Run) -> object:
        """Run eagerly, to see which code runs and to fill the caches that a recording should find filled."""
        while len(self._entries) >= self.max_recordings:
            self._entries.pop(next(iter(self._entries)))
        trace = Trace()
        with _new_casts(), _untraced({run.device.type: run.backend}), trace.runs(), watched(trace):
            result = run()
        self._entries[kind] = entry = self._new_entry(run, trace.executed)
        entry.signature = signature_of(run.tensors)
        return result

    @abc.abstractmethod
    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether calls can be replayed in the target's present mode."""

    @abc.abstractmethod
    def _circumstances(self) -> Hashable:
        """The part of a signature beside the arguments."""

    @abc.abstractmethod
    def _in_reach(self, arguments: object, executed: Executed) -> Sequence[Tensor]:
        """The tensors besides its arguments that the target may use. Raises: UnwatchableError."""

    @abc.abstractmethod
    def _new_entry(self, run: Run, executed: Executed) -> Entry: ...


class Entry(abc.ABC):
    """The recording of one input signature, with its guards.

    Args:
        executed: the code that a run with this signature executed.
    """

    is_refused = False
    signature = ""  # for people
    num_replays, seconds = 0, 0.0  # how often, and how long in all
    most_attempts = 4  # to record runs of which each executes other code

    def __init__(self, backend: backends.Backend, executed: Executed) -> None:
        self.backend = backend
        self._executed = executed
        self._num_attempts = 0
        # All guards in one function: whether it is known at once that nothing has changed, and that there are no hooks.
        self.holds: Callable[[], bool] | None = None
        self._num_checks, self._num_checks_until = 0, 2  # guards are put together after so many checks

    @property
    @abc.abstractmethod
    def is_recorded(self) -> bool: ...

    @abc.abstractmethod
    def report(self) -> RecordingReport:
        """Ask its recording, which there is."""

    def _report(self, recording: Recording, captured: Captured | None = None) -> RecordingReport:
        seconds = self.seconds / self.num_replays if self.num_replays else None
        num_bytes, on_device = (0, None) if captured is None else (captured.num_bytes, captured.seconds())
        return RecordingReport(
            self.signature, len(recording.calls), self.num_replays, num_bytes, seconds, on_device
        )  # fmt: skip

    @abc.abstractmethod
    def refuse(self) -> None:
        """Run eagerly from now on, and forget the recording."""

    def changed(self) -> str | None:
        """The name of the first guard that fails; None if the recording, if any, is valid."""
        if self.holds is not None and self.holds():
            return None
        changed = self._changed()
        if changed is None and self.num_replays:  # the capture may have changed what optimizers keep
            self._put_guards_together()
        return changed

    def _put_guards_together(self) -> None:
        """Now and then, as it takes milliseconds: a number may be another object, with the same value, in each call."""
        self._num_checks += 1
        if self._num_checks < self._num_checks_until:
            return
        self._num_checks, self._num_checks_until = 0, 2 * self._num_checks_until
        conditions = Conditions()
        self._describe(conditions)
        # Another thread may just have changed something.
        self.holds = conditions.compiled() if self._changed() is None else None

    @abc.abstractmethod
    def _changed(self) -> str | None:
        """changed(), guard by guard."""

    @abc.abstractmethod
    def _describe(self, conditions: Conditions) -> None:
        """Require that all is as it is now, and that there are no hooks."""

    @abc.abstractmethod
    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a replay would skip nothing, such as hooks."""

    @abc.abstractmethod
    def replay(self, tensors: Sequence[Tensor]) -> object:
        """The result of the recorded run with these tensors. Raises: CannotReplayError: nothing has been done."""

    def record(self, run: Run) -> tuple[object, str]:
        """Run and record; gives the result, and why it cannot be replayed, or ""."""
        try:
            return self._record(run)
        except UnwatchableError as error:  # before the run
            return run(), str(error)

    @abc.abstractmethod
    def _record(self, run: Run) -> tuple[object, str]: ...

    def _recorded(self, run: Run, recorder: Recorder, watcher: Watcher, trace: Trace) -> object:
        """Run with recorder and trace listening; gives the result."""
        modes, given = present_modes(), run.kind()
        with (
            backends.use(run.device.type, recorder.watch(self.backend)), constants_only(run.device, recorder),
            _new_casts(), watched(watcher), trace.runs(),
        ):  # fmt: skip
            result = run()
        if present_modes() != modes or run.kind() != given:
            recorder.refuse("changes its arguments or a mode of the process")
        return result

    def _knew_all(self, trace: Trace, recorder: Recorder) -> bool:
        """Whether the guards cover the code that ran; else they are extended, and the next run is recorded."""
        recorder.refusal = recorder.refusal or trace.refusal
        if trace.executed.keys() <= self._executed.keys():
            return True
        self._executed = self._executed | trace.executed
        self._num_attempts += 1
        if self._num_attempts >= self.most_attempts:
            recorder.refuse("executes different code in each call")
        return False


def _plain_backend(device: Device, tensors: Sequence[Tensor]) -> backends.Backend | None:
    """The device's backend, if all tensors are there and no tool wraps it."""
    for tensor in tensors:
        if tensor.array.device is not device:
            return None
    backend = backends.get(device.type)
    return backend if backends.active[device.type] is backend else None


def _is_listened_to(device: Device) -> bool:
    """Whether a replay would pass over who hears of each call: a recorder, or a CUDA graph that is being captured."""
    if state.observer is not None or state.watcher is not None:
        return True
    return state.autocast is not None if device is CPU else capture_of(device) is not None


@contextlib.contextmanager
def _untraced(of: Mapping[str, backends.Backend]) -> Iterator[None]:
    """Inside, these backends, by the type of their device, run untraced: they compile kernels in an op's first call."""
    with contextlib.ExitStack() as stack:
        for device, backend in of.items():
            if device != "cpu":
                stack.enter_context(backends.use(device, backend.wrapped(untraced)))
        yield


@contextlib.contextmanager
def _new_casts() -> Iterator[None]:
    """Inside, an autocast block around the call casts weights anew: a replay could not use its casts from before."""
    before = state.autocast
    state.autocast = with_new_cache(before)
    try:
        yield
        note_weights(state.autocast)
    finally:
        state.autocast = before
