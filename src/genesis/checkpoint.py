"""Checkpoints: tensors and plain values in one safetensors file, replaced atomically.

Tensors have readable names ("model/conv.weight"; a flat state_dict keeps its own) that any safetensors reader finds.
Everything else, and the nesting, is JSON in the metadata. Nothing in a file is executed.
"""

from __future__ import annotations

import base64
import json
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from genesis import dtypes, tensor_files
from genesis.dtypes import DType
from genesis.errors import CheckpointError, DTypeError, OutOfMemoryError, describe
from genesis.files import Source, kind_of_start, reading, replaced
from genesis.interop import read_torch
from genesis.ndarray import CPU, Device, NDArray
from genesis.tensor import Tensor

MapLocation: TypeAlias = str | Device | Mapping[str, str | Device] | Callable[[object, str], object] | None

FORMAT = 1
_TREE, _FORMAT = "genesis.tree", "genesis.format"  # our entries in the file's metadata

MAX_DEPTH = 100  # of containers in containers
_MAX_BITS = 14_000  # Python reads integers of up to 4,300 digits


def save(obj: object, path: Source, metadata: Mapping[str, str] | None = None) -> None:
    """Write a state to path atomically, through a temporary file next to it.

    An interruption at any moment, kill -9 and a full disk included, leaves the old file as it was; a kill may also
    leave an unfinished ".tmp" file. A tensor that occurs several times is written once, and loaded as one.

    Args:
        obj: a module (its state_dict() is saved), or any nesting of dictionaries, lists and tuples of tensors, numbers,
            strings, bytes and None.
        path: the file, usually ending in ".safetensors". An existing one keeps its permissions. Or a binary file
            object, as io.BytesIO, which is written at its position.
        metadata: strings to store with it; see read_metadata().
    Raises: DTypeError: obj holds something else. ValueError: it could not be read back: a tensor's key or metadata that
        is not Unicode text (file names may not be); nesting deeper than 100; more than 100 MB outside of tensors.
        OSError: the file cannot be written.
    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/state.safetensors"
        >>> genesis.save({"weight": genesis.ones(2), "epoch": 3}, path)
        >>> genesis.load(path)
        {'weight': tensor([1., 1.]), 'epoch': 3}
    """
    if hasattr(obj, "state_dict"):
        obj = obj.state_dict()
    packed = _Packer()
    tree = packed.pack(obj, ())
    notes = _checked_notes(metadata or {}) | {_FORMAT: str(FORMAT), _TREE: json.dumps(tree)}
    header, arrays = tensor_files.header_of(packed.tensors, notes)
    if not isinstance(path, str | os.PathLike):
        if not hasattr(path, "write"):
            raise DTypeError(describe("save", "path", "a path or a binary file object", type(path).__name__))
        tensor_files.write(path, header, arrays)
        return
    with replaced(path, make_folder=False) as temporary, open(temporary, "wb") as file:
        tensor_files.write(file, header, arrays)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(temporary.parent)


def load(
    path: Source, map_location: MapLocation = None, *, device: str | Device | None = None, weights_only: bool = True
) -> Any:  # fmt: skip
    """Load what save() or torch.save() wrote to path; from any safetensors file, a dictionary of its tensors.

    Args:
        path: the file, or a binary file object, which is read to its end.
        map_location: the device of the tensors, as in PyTorch: a device; a dictionary whose entry for "cpu" is one; a
            function, which is taken for the usual `lambda storage, location: storage`, the CPU. Default: the CPU.
        device: the same, by Genesis' name.
        weights_only: no code in a file is ever run, whatever this says.
    Returns: what was saved; a module's state_dict for a module.
    Raises: CheckpointError: the file is incomplete, not a safetensors file, or written by a newer Genesis.
        FileNotFoundError: there is none.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/linear.safetensors"
        >>> genesis.save(nn.Linear(2, 1), path)
        >>> {name: tensor.shape for name, tensor in genesis.load(path).items()}
        {'weight': (1, 2), 'bias': (1,)}
    """
    target = target_of(device if map_location is None else map_location)
    with reading(path) as (name, file):
        is_torch = kind_of_start(file.read(9)) == "torch"
        file.seek(0)
        if is_torch:
            return read_torch(name, file, target)
        header, notes, start = _read_header(name, file)
        arrays = tensor_files.read_tensors(name, file, header, start)
    try:
        tensors = {name: Tensor(array.to_device(target)) for name, array in arrays.items()}
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{path}: {error}") from error
    if _TREE not in notes:
        return tensors
    try:
        return _unpack(json.loads(notes[_TREE]), tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: its tree does not match its tensors ({_shortened(error)})") from None


def target_of(place: MapLocation) -> Device:
    """The device that a map_location names; the CPU where it names none."""
    if isinstance(place, Mapping):
        place = place.get("cpu")
    return CPU if place is None or callable(place) else Device(place)


def read_metadata(path: Source) -> dict[str, str]:
    """Read the metadata that was passed to save()."""
    with reading(path) as (name, file):
        _, notes, _ = _read_header(name, file)
        return {key: value for key, value in notes.items() if key not in (_TREE, _FORMAT)}


def _read_header(name: str, file: BinaryIO) -> tuple[tensor_files.Header, dict[str, str], int]:
    """The header, the metadata, and where the elements start, of a format that we can read."""
    header, notes, start = tensor_files.read_header(name, file)
    written = notes.get(_FORMAT, str(FORMAT))
    if written not in map(str, range(1, FORMAT + 1)):
        reads = f"this Genesis reads up to {FORMAT}; update Genesis"
        raise CheckpointError(f"{name}: written in format {_shortened(written)}, {reads}")
    return header, notes, start


def _checked_notes(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata that can be read back as it is."""
    for key, value in metadata.items():
        for text in (key, value):
            if not isinstance(text, str):
                raise DTypeError(describe("save", "metadata", "strings", f"{text!a}, of {type(text).__name__}"))
            if not _is_unicode(text):
                raise ValueError(describe("save", "metadata", "Unicode text", ascii(text)))
        if key in (_TREE, _FORMAT):
            raise ValueError(describe("save", "metadata", f"keys other than {_TREE} and {_FORMAT}", repr(key)))
    return dict(metadata)


def _is_unicode(text: str) -> bool:
    """Whether readers accept it: they refuse lone surrogates, with which Python decodes bytes in file names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(value: object) -> str:
    """A value from a file for use in a message: printable and short."""
    return value if isinstance(value, str) and value.isalnum() and len(value) < 20 else reprlib.repr(value)


# --- the state as a tree of plain values ------------------------------------------------------------------------------


class _Packer:
    """Turns a state into JSON in which tensors are names, and collects the tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray] = {}
        self._names: dict[object, str] = {}  # by the memory that a tensor shows

    def pack(self, value: object, place: tuple[str, ...]) -> object:
        """JSON for value: itself if JSON has it, else a dictionary of one entry that names the kind."""
        if len(place) > MAX_DEPTH:
            expected = f"containers nested at most {MAX_DEPTH} deep, and none inside itself"
            raise ValueError(describe("save", "/".join(("obj", *place[:3], "…")), expected, "deeper nesting"))
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            expected = f"integers of at most {_MAX_BITS:,} bits"
            raise ValueError(describe("save", "/".join(("obj", *place)), expected, f"{value.bit_length():,}"))
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)  # without numpy's or an enum's subclass
        if isinstance(value, np.generic) and not isinstance(value, np.longdouble):  # whose item() is one again
            return self.pack(value.item(), place)
        if isinstance(value, Tensor):
            return {"tensor": self._name(value.array, place)}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, list | tuple):
            items = [self.pack(item, (*place, str(index))) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, Mapping):
            return {"dict": [self._entry(key, item, place) for key, item in value.items()]}
        kinds = "tensors, numbers, strings, bytes, None, and lists, tuples and dictionaries of them"
        raise DTypeError(describe("save", "/".join(("obj", *place)), kinds, type(value).__name__))

    def _entry(self, key: object, item: object, place: tuple[str, ...]) -> list[object]:
        if not isinstance(key, str | int | float | bool | tuple | None):
            kinds = "keys that are strings, numbers, None or tuples"
            raise DTypeError(describe("save", "/".join(("obj", *place)), kinds, type(key).__name__))
        return [self.pack(key, place), self.pack(item, (*place, str(key)))]

    def _name(self, array: NDArray, place: tuple[str, ...]) -> str:
        memory = (
            (array.device, array.data_pointer, array.shape, array.strides, array.dtype) if array.numel else object()
        )
        known = self._names.get(memory)
        if known is not None:
            return known
        name = base = "/".join(place) or "tensor"
        if not _is_unicode(name):
            raise ValueError(describe("save", "obj", "keys that are Unicode text", ascii(name)))
        count = 1
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = array
        self._names[memory] = name
        return name


def _unpack(value: object, tensors: dict[str, Tensor]) -> object:
    """The state that _Packer.pack turned into JSON."""
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dtype":
        return dtypes.NAMED[content]
    if kind == "tuple":
        return tuple([_unpack(item, tensors) for item in content])
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in content}
    raise ValueError(f"unknown kind {kind!r}")


def _sync_folder(folder: Path) -> None:
    """Make the replacement itself survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
