"""A module's state: collected under PyTorch's names, checked as a whole before any of it is taken over."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from genesis import checkpoint
from genesis.errors import CheckpointError, DTypeError, describe
from genesis.files import kind_of
from genesis.interop import from_dlpack, load_torch
from genesis.interrupts import at_once, finish, held
from genesis.ndarray import NDArray
from genesis.tensor import Tensor

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


def load(
    kind: str, named: Iterable[tuple[str, Tensor]], state_dict: Any, strict: bool, assign: bool
) -> IncompatibleKeys:
    """Module.load_state_dict, for a module of this kind with these tensors, under each of their names."""
    if not isinstance(state_dict, Mapping):
        raise DTypeError(describe("load_state_dict", "state_dict", "a dict", type(state_dict).__name__))
    own = dict(named)
    given = {key: _as_tensor(key, value) for key, value in state_dict.items()}
    missing = [key for key in own if key not in given and not key.endswith(_MAY_BE_MISSING)]
    unexpected = [key for key in given if key not in own]
    faults = [
        f"'{key}': expected shape {own[key].shape}, got {value.shape}"
        for key, value in given.items()
        if key in own and value.shape != own[key].shape
    ]
    if not assign:
        faults += [
            f"'{key}': its elements share memory (it was expanded), and cannot take values"
            for key in given
            if key in own and own[key].array.is_expanded
        ]
    if strict:
        faults += _missing_key_lines(missing, unexpected, given) + _unexpected_key_lines(missing, unexpected, own)
    if faults:
        raise CheckpointError(
            f"load_state_dict: the state does not fit {kind}; nothing was changed\n  " + "\n  ".join(faults)
        )
    pairs = [(own[key], value.array) for key, value in given.items() if key in own]
    if assign:
        at_once([(setattr, tensor, "array", array) for tensor, array in pairs])
    else:
        _write(pairs)
    return IncompatibleKeys(missing, unexpected)


def _write(pairs: Sequence[tuple[Tensor, NDArray]]) -> None:
    """Have the tensors take these values in place: all of them, whatever interrupts it."""
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


def read(path: str | os.PathLike[str]) -> Any:
    """What is in a file of Genesis', of safetensors or of PyTorch (tensors and plain values only)."""
    return load_torch(path) if kind_of(path) == "torch" else checkpoint.load(path)


def weights_in(content: Any, path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The model's state in what read() gave: all of it, or its entry in the file of a training."""
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
    """The message for a name that a module of this kind does not have."""
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


def _closest(name: Any, known: Iterable[Any], words: str) -> str:
    known = [other for other in known if isinstance(other, str)]  # in a file of PyTorch, keys can be anything
    matches = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f" ({words} '{matches[0]}')" if matches else ""


def _as_tensor(key: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise CheckpointError(
            describe("load_state_dict", "state_dict", f"a tensor for key '{key}'", type(value).__name__)
        )
    return from_dlpack(value)
