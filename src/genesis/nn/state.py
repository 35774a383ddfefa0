"""A module's state: collected under PyTorch's names, checked as a whole before any of it is taken over."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import ClassVar, NamedTuple

from genesis import checkpoint
from genesis.errors import CheckpointError, DTypeError, describe
from genesis.files import kind_of
from genesis.interop import from_dlpack, load_torch
from genesis.interrupts import at_once, finish, held
from genesis.ndarray import NDArray
from genesis.tensor import Tensor

Metadata = Mapping[str, Mapping[str, object]]  # by the name of a module: its version, and what its hooks note

_NUM_SHOWN = 10  # faults of a kind in one message

# PyTorch's batch norm counts its batches only since 0.4.1; a checkpoint without the counter is whole.
_MAY_BE_MISSING = "num_batches_tracked"

# Under which names the files of whole trainings keep the model's state.
_ENTRIES = ("model", "state_dict", "model_state_dict")
_DATA_PARALLEL = "module."  # what PyTorch's parallel wrappers put before each key


class IncompatibleKeys(NamedTuple):
    """The keys that a state_dict lacks, and those that the module does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Loading:
    """A load_state_dict under way: what is to be written once all modules have been asked, and what does not fit."""

    current: ClassVar[ContextVar[Loading | None]] = ContextVar("current", default=None)

    def __init__(self, assign: bool) -> None:
        self.assign = assign
        self.pairs: list[tuple[Tensor, NDArray]] = []
        self.calls: list[Callable[[], None]] = []  # that set extra state
        self.known: list[str] = []  # keys of the tensors that the modules have
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.faults: list[str] = []

    def take(self, key: str, tensor: Tensor, value: object, faults: list[str]) -> None:
        """Note a value for a tensor, or the fault that it has."""
        given = _as_tensor(key, value)
        if given.shape != tensor.shape:
            faults.append(f"'{key}': expected shape {tensor.shape}, got {given.shape}")
        elif not self.assign and tensor.array.is_expanded:
            faults.append(f"'{key}': its elements share memory (it was expanded), and cannot take values")
        else:
            self.pairs.append((tensor, given.array))

    def check(self, kind: str, given: Iterable[str], strict: bool) -> None:
        """Raise for what does not fit a module of this kind."""
        faults = list(self.faults)
        if strict:
            faults += _missing_key_lines(self.missing, self.unexpected, given)
            faults += _unexpected_key_lines(self.missing, self.unexpected, self.known)
        if faults:
            raise CheckpointError(
                f"load_state_dict: the state does not fit {kind}; nothing was changed\n  " + "\n  ".join(faults)
            )

    def write(self) -> None:
        """Take over all values: all of them, even if interrupted."""
        if self.assign:
            at_once([(setattr, tensor, "array", array) for tensor, array in self.pairs])
        else:
            _write(self.pairs)
        for call in self.calls:
            call()


def require_mapping(state_dict: object) -> None:
    """Raise unless it is a mapping."""
    if not isinstance(state_dict, Mapping):
        raise DTypeError(describe("load_state_dict", "state_dict", "a dict", type(state_dict).__name__))


def may_be_missing(key: str) -> bool:
    """Whether a checkpoint without this key is whole."""
    return key.endswith(_MAY_BE_MISSING)


def _write(pairs: Sequence[tuple[Tensor, NDArray]]) -> None:
    """Copy the values into the tensors in place: all of them, even if interrupted."""
    storages = {id(tensor.array.changes) for tensor, _ in pairs}
    ready = []
    for tensor, array in pairs:
        if array is not tensor.array:
            source = array.to_device(tensor.device)
            # The module's own memory, under another name: it may have changed when its turn comes.
            ready.append((tensor.array, source.clone() if id(source.changes) in storages else source))

    def write() -> None:
        for target, source in ready:
            target.copy_into(source)

    with held():
        finish(write)


def read(path: str | os.PathLike[str]) -> object:
    """The content of a file of Genesis, safetensors or PyTorch (tensors and plain values only)."""
    return load_torch(path) if kind_of(path) == "torch" else checkpoint.load(path)


def weights_in(content: object, path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The model's state in the content of a file: all of it, or an entry of a training's file."""
    for entry in _ENTRIES:
        if isinstance(content, Mapping) and isinstance(content.get(entry), Mapping):
            content = content[entry]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        kind = f"entries {', '.join(map(str, content))}" if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(f"{path}: expected a model's state, names and tensors, got {kind}")
    if all(isinstance(key, str) and key.startswith(_DATA_PARALLEL) for key in content):
        return {key.removeprefix(_DATA_PARALLEL): value for key, value in content.items()}
    return dict(content)


def unknown_name(op: str, kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist in a module of this kind."""
    return f"{op}: {kind} has no '{name}'{_closest(name, known, 'the closest is')}"


def _missing_key_lines(missing: list[str], unexpected: list[str], given: Iterable[str]) -> list[str]:
    lines = [
        f"missing key '{key}'{_closest(key, unexpected or given, 'the closest given is')}"
        for key in missing[:_NUM_SHOWN]
    ]
    return _with_rest(lines, len(missing), "missing")


def _unexpected_key_lines(missing: list[str], unexpected: list[str], own: Iterable[str]) -> list[str]:
    lines = [
        f"unexpected key '{key}'{_closest(key, missing or own, 'the closest expected is')}"
        for key in unexpected[:_NUM_SHOWN]
    ]
    return _with_rest(lines, len(unexpected), "unexpected")


def _with_rest(lines: list[str], total: int, kind: str) -> list[str]:
    rest = total - len(lines)
    return [*lines, f"and {rest} more {kind} keys"] if rest else lines


def _closest(name: object, known: Iterable[object], words: str) -> str:
    names = [other for other in known if isinstance(other, str)]  # in a file of PyTorch, keys can be anything
    matches = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f" ({words} '{matches[0]}')" if matches else ""


def _as_tensor(key: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise CheckpointError(
            describe("load_state_dict", "state_dict", f"a tensor for key '{key}'", type(value).__name__)
        )
    return from_dlpack(value)
