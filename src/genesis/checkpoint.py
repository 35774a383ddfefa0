"""Checkpoints: a state of tensors and plain values in one safetensors file, replaced whole or not at all.

The tensors stand in the file under readable names ("model/conv.weight"; a flat state_dict keeps its own), where any
safetensors reader finds them. All else, and how it is nested, is JSON in the metadata. Nothing in a file is executed.

The safetensors library checks what is read. The bytes themselves are written and read here: in one pass, without a
second copy of the tensors, and with bfloat16, for which the library's numpy interface needs another package.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors

from genesis import dtypes
from genesis.dtypes import DType
from genesis.errors import CheckpointError, DTypeError, describe
from genesis.files import replaced
from genesis.ndarray import CPU, Device, NDArray
from genesis.tensor import Tensor

FORMAT = 1
_TREE, _FORMAT = "genesis.tree", "genesis.format"  # our entries in the file's metadata

_PICKLES = (b"PK\x03\x04", b"\x80")  # how PyTorch's files begin: a zip archive, or a bare pickle

_FILE_NAMES = {
    dtypes.float64: "F64", dtypes.float32: "F32", dtypes.float16: "F16", dtypes.bfloat16: "BF16", dtypes.int64: "I64",
    dtypes.int32: "I32", dtypes.int16: "I16", dtypes.int8: "I8", dtypes.uint8: "U8", dtypes.bool_: "BOOL",
}  # fmt: skip
_FROM_FILE = {name: dtype for dtype, name in _FILE_NAMES.items()}


def save(obj: Any, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state to path: first to a temporary file beside it, which then takes its place.

    An interruption at any moment, kill -9 or a full disk leave the old file as it was; a kill may also leave an
    unfinished ".tmp" file beside it. A tensor that occurs several times is written once, and is loaded as one.

    Args:
        obj: a module (its state_dict() is saved), or any nesting of dictionaries, lists and tuples of tensors, numbers,
            strings, bytes and None.
        path: the file; ".safetensors" is the usual ending.
        metadata: strings to be kept with it, see read_metadata().
    Raises: DTypeError: obj holds something else; OSError: the file cannot be written.
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
    notes = {str(key): str(value) for key, value in (metadata or {}).items()}
    notes |= {_FORMAT: str(FORMAT), _TREE: json.dumps(tree)}
    with replaced(path, make_folder=False) as temporary, open(temporary, "xb") as file:
        _write(file, packed.tensors, notes)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(temporary.parent)


def load(path: str | os.PathLike[str], device: str | Device | None = None) -> Any:
    """What save() wrote to path; from another program's safetensors file, a dictionary of its tensors.

    Args:
        device: where the tensors go; the CPU by default.
    Raises: CheckpointError: the file is incomplete, is no safetensors file, or was written by a newer Genesis;
        FileNotFoundError: there is none.
    """
    target = CPU if device is None else Device(device)
    with open(path, "rb") as file:
        header, notes, start = _read_header(path, file)
        arrays = _read_tensors(path, file, header, start)
    tensors = {name: Tensor(array.to_device(target)) for name, array in arrays.items()}
    if _TREE not in notes:
        return tensors
    try:
        return _unpack(json.loads(notes[_TREE]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged: its tree does not fit its tensors ({error!r})") from None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata that was given to save()."""
    with open(path, "rb") as file:
        _, notes, _ = _read_header(path, file)
    return {key: value for key, value in notes.items() if key not in (_TREE, _FORMAT)}


def is_torch_file(path: str | os.PathLike[str]) -> bool:
    """Whether path begins as what torch.save() writes, whatever its name ends in."""
    with open(path, "rb") as file:
        return file.read(4).startswith(_PICKLES)


# --- the state as a tree of plain values ------------------------------------------------------------------------------


class _Packer:
    """Turns a state into JSON in which tensors are names, and collects the tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray] = {}
        self._names: dict[Any, str] = {}  # by the memory that a tensor shows

    def pack(self, value: Any, place: tuple[str, ...]) -> Any:
        """JSON for value: itself if JSON has it, else a dictionary of one entry that names the kind."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)  # without numpy's or an enum's subclass
        if isinstance(value, np.generic):
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

    def _entry(self, key: Any, item: Any, place: tuple[str, ...]) -> list[Any]:
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
        count = 1
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = array
        self._names[memory] = name
        return name


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
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
        return dtypes.BY_NAME[content]
    if kind == "tuple":
        return tuple([_unpack(item, tensors) for item in content])
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in content}
    raise ValueError(f"unknown kind {kind!r}")


# --- the file: 8 bytes with the length of a JSON header, the header, the elements ----------------------------------


def _write(file: BinaryIO, tensors: dict[str, NDArray], notes: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": notes}
    # Wide elements first, so that every tensor starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    end = 0
    for name, array in ordered:
        start, end = end, end + array.numel * array.dtype.itemsize
        header[name] = {"dtype": _FILE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, array in ordered:
        file.write(_little_endian(array.bits()).reshape(-1).view(np.uint8).data)


def _read_header(path: Any, file: BinaryIO) -> tuple[dict[str, Any], dict[str, str], int]:
    """The entries of the tensors, the metadata, and where the elements start, of a whole file that we can read."""
    start = file.read(8)
    if not start:
        raise CheckpointError(f"{path}: empty; writing it may have been interrupted")
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass
    except safetensors.SafetensorError as error:
        advice = "; a PyTorch checkpoint? try genesis.load_torch" if start.startswith(_PICKLES) else ""
        raise CheckpointError(f"{path}: not a complete safetensors file ({error}){advice}") from None
    length = int.from_bytes(start, "little")
    header = json.loads(file.read(length))
    notes = header.pop("__metadata__", {})
    written = notes.get(_FORMAT, str(FORMAT))
    if not written.isdigit() or int(written) > FORMAT:
        raise CheckpointError(f"{path}: written in format {written}, this Genesis reads up to {FORMAT}; update Genesis")
    return header, notes, 8 + length


def _read_tensors(path: Any, file: BinaryIO, header: dict[str, Any], start: int) -> dict[str, NDArray]:
    arrays = {}
    for name, entry in header.items():
        dtype = _FROM_FILE.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(
                f"{path}: tensor {name!r} has the dtype {entry['dtype']}, which Genesis does not have"
            )
        begin, end = entry["data_offsets"]
        file.seek(start + begin)
        values = np.empty(end - begin, np.uint8)
        if file.readinto(values) != end - begin:  # type: ignore[attr-defined]
            raise CheckpointError(f"{path}: incomplete: it ends within tensor {name!r}")
        values = values.view("uint16" if dtype is dtypes.bfloat16 else dtype.name)
        arrays[name] = NDArray.from_numpy(_little_endian(values).reshape(entry["shape"]), dtype)
    return arrays


def _little_endian(values: np.ndarray) -> np.ndarray:
    """The file's byte order, or back from it: the same change on a big-endian machine, none on others."""
    return values if sys.byteorder == "little" else values.byteswap()


def _sync_folder(folder: Path) -> None:
    """Make the replacement itself survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
