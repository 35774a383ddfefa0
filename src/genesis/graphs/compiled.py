"""genesis.compile: a module whose inference is recorded once for each kind of arguments and then replayed."""

from __future__ import annotations

import itertools
import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from genesis import backends
from genesis.autograd.modes import state
from genesis.errors import DTypeError, describe
from genesis.graphs.recorder import Recorder
from genesis.graphs.source import Recording, Slot
from genesis.ndarray import CPU, NDArray
from genesis.nn import Module
from genesis.tensor import Tensor

_log = logging.getLogger(__name__)


def compile(module: Module) -> Compiled:
    """The module, with its inference on the CPU recorded and replayed: the same results without the Python between ops.

    The first call with arguments of some kind (shapes, strides, dtypes, and all that is no tensor) runs as it stands,
    the second is recorded, the later ones replay: op after op, each array let go after its last use. A changed
    parameter, buffer, submodule or mode is noticed, and the run is recorded anew.

    What runs as it stands: training, and all that records gradients; under autocast, GENESIS_CHECK or GENESIS_DEBUG;
    with hooks; on other devices. A forward that cannot be replayed runs as it stands too, with one warning that says
    why: it reads values (.item(), a condition on a tensor), changes an argument or buffer in place, or uses a tensor
    that is neither an argument nor its own. Attributes and other Python values that forward reads, and modules that are
    no submodules of it, are those of the recording.

    Args:
        module: any Module in eval mode.
    Returns: a callable with the arguments and results of module.
    Raises: TypeError: module is no Module.

    Example:
        >>> model = genesis.compile(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()).eval())
        >>> with genesis.no_grad():
        ...     for _ in range(3):
        ...         y = model(genesis.ones(1, 1, 8, 8))
        >>> y.shape, model.num_recordings
        ((1, 4, 6, 6), 1)
    """
    if not isinstance(module, Module):
        raise DTypeError(describe("compile", "module", "a Module", type(module).__name__))
    return Compiled(module)


class Compiled:
    """A module with its recordings; see genesis.compile."""

    max_recordings = 8

    def __init__(self, module: Module) -> None:
        self.module = module
        self._entries: dict[Any, _Entry] = {}

    @property
    def num_recordings(self) -> int:
        return sum(entry.recording is not None for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"compile({self.module!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        key = _key((args, kwargs), tensors)
        backend = _plain_backend(tensors)
        if backend is None or state.autocast is not None or self.module.training:
            return self.module(*args, **kwargs)
        try:
            entry = self._entries.get(key)
        except TypeError:  # an argument that is no tensor and cannot be compared
            return self.module(*args, **kwargs)
        if entry is not None and entry.is_refused:
            return self.module(*args, **kwargs)
        if entry is not None and entry.backend is backend and entry.holds():
            if entry.needs_gradients(tensors) or entry.has_hooks():
                return self.module(*args, **kwargs)
            if entry.recording is not None:
                return entry.replay(tensors)
            return self._record(entry, tensors, args, kwargs)
        if entry is not None:
            _log.info("genesis.compile: %s has changed and is recorded anew", type(self.module).__name__)
        elif len(self._entries) >= self.max_recordings:
            self._entries.pop(next(iter(self._entries)))
        result = self.module(*args, **kwargs)  # fills caches that a recording should find filled
        self._entries[key] = _Entry(self.module, backend)
        return result

    def _record(self, entry: _Entry, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        result, refusal = entry.record(tensors, args, kwargs)
        if refusal:
            entry.is_refused = True
            name = type(self.module).__name__
            warnings.warn(f"genesis.compile: {name} runs as it stands: it {refusal}", RuntimeWarning, stacklevel=3)
        return result


class _Entry:
    """The recording for one kind of arguments, and what it holds for."""

    def __init__(self, module: Module, backend: backends.Backend) -> None:
        self.module = module
        self.backend = backend
        self.recording: Recording | None = None
        self.is_refused = False
        self._modules = list(module.modules())
        self._modes = [module.training for module in self._modules]
        self._registries: list[dict[str, Any]] = [
            registry for each in self._modules for registry in (each._modules, each._parameters, each._buffers)
        ]
        self._registered = self._members()
        self._tensors = [*module.parameters(), *module.buffers()]
        self._arrays = [tensor.array for tensor in self._tensors]
        self._counts = [array.changes.count for array in self._arrays]
        self._result: Any = None  # of the recorded run, with Input and Output in the places of its tensors

    def holds(self) -> bool:
        """Whether the module is made of the same parts, in the same modes and with the same values, as it was."""
        arrays = [tensor.array for tensor in self._tensors]
        return (
            all(map(operator.is_, arrays, self._arrays))
            and [array.changes.count for array in arrays] == self._counts
            and [module.training for module in self._modules] == self._modes
            and len(members := self._members()) == len(self._registered)
            and all(map(operator.is_, members, self._registered))
        )

    def _members(self) -> list[Any]:
        """All that the module and those below it have registered, in order."""
        return list(itertools.chain.from_iterable(map(dict.values, self._registries)))

    def needs_gradients(self, tensors: Sequence[Tensor]) -> bool:
        return state.recording and any(tensor.requires_grad for tensor in (*tensors, *self._tensors))

    def has_hooks(self) -> bool:
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)

    def record(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> tuple[Any, str]:
        """The result of this run, and why it cannot be replayed, if so."""
        recorder = Recorder([tensor.array.handle for tensor in tensors], [array.handle for array in self._arrays])
        with backends.use("cpu", recorder.watch(self.backend)):
            result = self.module(*args, **kwargs)
        outputs: list[Output] = []
        self._result = _noted(result, tensors, recorder, outputs)
        if not recorder.refusal and not self.holds():
            recorder.refusal = "changes its own parameters or buffers"
        if not recorder.refusal:
            self.recording = recorder.finish([output.slot for output in outputs])
        return result, recorder.refusal

    def replay(self, tensors: Sequence[Tensor]) -> Any:
        assert self.recording is not None
        handles = self.recording.run([tensor.array.handle for tensor in tensors])
        changes = {index: tensor.array.changes for index, tensor in enumerate(tensors)}
        return _made(self._result, tensors, iter(handles), changes)


class Input(NamedTuple):
    """In a noted result: the tensor that was given at this place."""

    place: int


class Output(NamedTuple):
    """In a noted result: a tensor on the array of slot, which is part of the memory of the slot root."""

    slot: Slot
    root: int


def _noted(result: Any, tensors: Sequence[Tensor], recorder: Recorder, outputs: list[Output]) -> Any:
    """The result of a forward with Input and Output in the places of its tensors; the latter are listed in outputs."""
    if isinstance(result, Tensor):
        for index, tensor in enumerate(tensors):
            if result is tensor:
                return Input(index)
        slot = recorder.slot_of(result.array.handle)
        root = recorder.root(slot)
        if slot is None or root < 0 or result.requires_grad:
            recorder.refusal = recorder.refusal or "returns a parameter or buffer, or a view of one"
            return None
        outputs.append(Output(slot, root))
        return outputs[-1]
    if isinstance(result, list | tuple):
        return _sequence(type(result), [_noted(part, tensors, recorder, outputs) for part in result])
    if type(result) is dict:
        return {name: _noted(part, tensors, recorder, outputs) for name, part in result.items()}
    if result is None or isinstance(result, bool | int | float | str):
        return result
    recorder.refusal = recorder.refusal or f"returns a {type(result).__name__}"
    return None


def _made(noted: Any, tensors: Sequence[Tensor], handles: Iterator[Any], changes: dict[int, Any]) -> Any:
    """What _noted noted, made of this replay's handles. Views of one memory share its count of changes."""
    if type(noted) is Output:
        array = NDArray(next(handles), CPU, changes.get(noted.root))
        made = tensors[0]._like(array)
        if noted.root in changes:
            made._viewed_at = array.changes.count
        changes[noted.root] = array.changes
        return made
    if type(noted) is Input:
        return tensors[noted.place]
    if isinstance(noted, list | tuple):
        return _sequence(type(noted), [_made(part, tensors, handles, changes) for part in noted])
    if type(noted) is dict:
        return {name: _made(part, tensors, handles, changes) for name, part in noted.items()}
    return noted


def _sequence(kind: Any, parts: list[Any]) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)  # named tuples take their fields one by one


def _key(value: Any, tensors: list[Tensor]) -> Any:
    """All of the arguments but the tensors' values, hashable; the tensors are listed in their order."""
    if isinstance(value, Tensor):
        array = value.array
        for index, tensor in enumerate(tensors):
            if tensor.array.handle is array.handle:
                return Input(index)
        tensors.append(value)
        return array.shape, array.strides, array.offset, array.dtype, array.device
    if type(value) in (list, tuple):
        return type(value), tuple([_key(part, tensors) for part in value])
    if type(value) is dict:
        return dict, tuple([(name, _key(part, tensors)) for name, part in value.items()])
    return type(value), value


def _plain_backend(tensors: Sequence[Tensor]) -> backends.Backend | None:
    """The CPU's backend, if all tensors are there and no tool stands in front of it."""
    if not tensors or any(tensor.array.device is not CPU for tensor in tensors):
        return None
    backend = backends.get("cpu")
    return backend if backends.active["cpu"] is backend else None
