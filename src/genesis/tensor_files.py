"""The safetensors file: 8 bytes with the length of a JSON header, the header, the elements of the tensors.

The safetensors library checks what is read. The bytes themselves are written and read here: in one pass, without a
second copy of the tensors, and with bfloat16, for which the library's numpy interface needs another package.
"""

from __future__ import annotations

import io
import json
import os
import reprlib
import sys
from collections.abc import Iterable, Mapping
from typing import BinaryIO, TypedDict

import numpy as np
import safetensors

from genesis import dtypes
from genesis.dtypes import HostArray
from genesis.errors import CheckpointError, DTypeError, OutOfMemoryError, describe
from genesis.files import MAX_HEADER, kind_of_start
from genesis.ndarray import NDArray

_FILE_NAMES = {
    dtypes.float64: "F64", dtypes.float32: "F32", dtypes.float16: "F16", dtypes.bfloat16: "BF16", dtypes.int64: "I64",
    dtypes.int32: "I32", dtypes.int16: "I16", dtypes.int8: "I8", dtypes.uint8: "U8", dtypes.bool_: "BOOL",
    dtypes.complex64: "C64",
}  # fmt: skip
_FROM_FILE = {name: dtype for dtype, name in _FILE_NAMES.items()}


class Entry(TypedDict):
    """The JSON of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


Header = dict[str, Entry]


# --- writing ----------------------------------------------------------------------------------------------------------


def header_of(tensors: Mapping[str, NDArray], notes: Mapping[str, str]) -> tuple[bytes, list[NDArray]]:
    """The bytes before the elements, and the arrays in the order of their elements.

    Raises: DTypeError: complex128, which the format lacks. ValueError: the header would be longer than readers accept.
    """
    header: Header = {}
    # Wide elements first, so that every tensor starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    end = 0
    for name, array in ordered:
        if array.dtype not in _FILE_NAMES:
            expected = "dtypes that safetensors has; save view_as_real() of complex128"
            raise DTypeError(describe("save", "obj", expected, f"{array.dtype} in {name!r}"))
        start, end = end, end + array.numel * array.dtype.itemsize
        header[name] = {"dtype": _FILE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": notes, **header}).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(
            f"save: argument 'obj': expected at most {MAX_HEADER:,} bytes outside of tensors, got {len(text):,}; "
            "put long data into tensors"
        )
    return len(text).to_bytes(8, "little") + text, [array for _, array in ordered]


def write(file: BinaryIO, header: bytes, arrays: Iterable[NDArray]) -> None:
    file.write(header)
    for array in arrays:
        file.write(_little_endian(array.bits()).reshape(-1).view(np.uint8).data)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_header(path: str | os.PathLike[str], file: BinaryIO) -> tuple[Header, dict[str, str], int]:
    """The entries of the tensors, the metadata, and where the elements start, of a whole file.

    Raises: CheckpointError: it is incomplete, or no safetensors file.
    """
    start = file.read(8)
    if not start:
        raise CheckpointError(f"{path}: empty; writing it may have been interrupted")
    try:
        if isinstance(file, io.BytesIO):
            safetensors.deserialize(file.getvalue())
        else:
            with safetensors.safe_open(path, framework="numpy"):
                pass
        length = int.from_bytes(start, "little")
        header = json.loads(file.read(length), object_pairs_hook=_without_duplicates)
    except (safetensors.SafetensorError, ValueError) as error:
        advice = "; a PyTorch checkpoint? try genesis.load_torch" if _start(file) == "torch" else ""
        raise CheckpointError(f"{path}: not a complete safetensors file ({error}){advice}") from None
    except MemoryError:  # the library maps the file
        raise OutOfMemoryError(f"{path}: not enough memory to read it") from None
    return header, header.pop("__metadata__", None) or {}, 8 + length


def _start(file: BinaryIO) -> str | None:
    file.seek(0)
    return kind_of_start(file.read(9))


def read_tensors(path: str | os.PathLike[str], file: BinaryIO, header: Header, start: int) -> dict[str, NDArray]:
    """The arrays behind a header that read_header() gave.

    Raises: CheckpointError: a dtype that Genesis does not have. OutOfMemoryError: an array is too large.
    """
    arrays = {}
    for name, entry in header.items():
        dtype = _FROM_FILE.get(entry["dtype"])
        if dtype is None:
            kind = f"the unsupported dtype {entry['dtype']}"
            raise CheckpointError(f"{path}: tensor {reprlib.repr(name)} has {kind}")
        begin, end = entry["data_offsets"]
        file.seek(start + begin)
        try:
            values: HostArray = np.empty(end - begin, np.uint8)
        except MemoryError:
            size = f"{(end - begin) / 1e9:.1f} GB"
            raise OutOfMemoryError(f"{path}: not enough memory for tensor {reprlib.repr(name)} of {size}") from None
        if file.readinto(values) != end - begin:  # type: ignore[attr-defined]
            raise CheckpointError(f"{path}: incomplete: it ends inside tensor {reprlib.repr(name)}")
        values = values.view("uint16" if dtype is dtypes.bfloat16 else dtype.name)
        try:
            values = _little_endian(values).reshape(entry["shape"])
        except (ValueError, OverflowError) as error:  # sizes beyond the machine's, beside a size of 0
            raise CheckpointError(f"{path}: tensor {reprlib.repr(name)} has an impossible shape ({error})") from None
        arrays[name] = NDArray.from_numpy(values, dtype)
    return arrays


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; readers differ in which of two entries of one name they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name in its header")
    return found


def _little_endian(values: HostArray) -> HostArray:
    """The file's byte order, or back from it: the same change on a big-endian machine, none on others."""
    return values if sys.byteorder == "little" else values.byteswap()
