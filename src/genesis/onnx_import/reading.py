"""ONNX files, read without trust: each tensor is checked against the bytes that there are before it is made."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genesis.errors import CheckpointError
from genesis.onnx_import.registry import Array

if TYPE_CHECKING:
    import onnx_ir as ir

OLDEST, NEWEST = 11, 26  # opsets
_NUMPY = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "INT64": "int64", "INT32": "int32", "INT16": "int16",
    "INT8": "int8", "UINT8": "uint8", "BOOL": "bool", "BFLOAT16": "bfloat16",
}  # fmt: skip


def read(path: Path) -> ir.Model:
    """The model in a file.

    Raises: CheckpointError: it is none, or one of operators that are too old or too new.
        OSError: it cannot be read. ImportError: a package of the extra `export` is missing.
    """
    try:
        import onnx_ir as ir
    except ImportError as error:
        from genesis.distribution import install_command

        needs = f"load_onnx: needs the package '{error.name}'; {install_command('export')}"
        raise ModuleNotFoundError(needs, name=error.name) from error
    require_file(path, path)
    try:
        model = ir.load(path, format="protobuf")
        opset = model.graph.opset_imports.get("", 0)
    except OSError:
        raise
    except Exception as error:  # the parser's exceptions, of several packages
        raise CheckpointError(f"{path}: not an ONNX file: {_first_cause(error)}") from error
    if not model.graph.outputs:
        raise CheckpointError(f"{path}: not an ONNX file of a network: it has no outputs")
    if not OLDEST <= opset <= NEWEST:
        raise CheckpointError(f"{path}: expected operators of opset {OLDEST} to {NEWEST}, got {opset}")
    return model


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0][:300]


def require_file(file: Path, path: Path) -> int:
    """The size of a file that is one: reading from a pipe or a device may never end."""
    found = os.stat(file)
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: expected a regular file, got {file}")
    return found.st_size


def dtype_name(kind: ir.DataType, path: Path, name: str) -> str:
    """NumPy's name of an element type."""
    if kind.name not in _NUMPY:
        raise CheckpointError(f"{path}: '{name}': expected elements among {', '.join(_NUMPY)}, got {kind.name}")
    return _NUMPY[kind.name]


def array_of(tensor: ir.TensorProtocol, path: Path, name: str) -> Array:
    """The elements of a tensor of a file, bfloat16 as float32.

    Raises: CheckpointError: its shape needs other bytes than it has; its weights lie outside of the file's folder.
    """
    import onnx_ir as ir

    kind = dtype_name(tensor.dtype, path, name)
    shape = tuple(int(size) for size in tensor.shape)
    if any(size < 0 for size in shape):
        raise CheckpointError(f"{path}: '{name}': expected sizes from 0, got {shape}")
    try:
        if isinstance(tensor, ir.ExternalTensor):
            found = _beside(tensor, path, name, kind, shape)
        else:
            found = np.asarray(tensor.numpy())
        if found.shape != shape:
            raise ValueError(f"{found.size} elements")
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: '{name}': expected the elements of shape {shape}, got {error}") from error
    return found.astype(np.float32) if kind == "bfloat16" else found


def _beside(tensor: ir.ExternalTensor, path: Path, name: str, kind: str, shape: tuple[int, ...]) -> Array:
    """Weights in a file of their own, which lies in the model's folder or below."""
    location = os.fspath(tensor.location)
    folder = os.path.realpath(path.parent)
    file = Path(os.path.realpath(os.path.join(folder, location)))
    if os.path.isabs(location) or not file.is_relative_to(folder):
        raise CheckpointError(f"{path}: '{name}': expected weights in the model's folder, got {location!r}")
    itemsize = 2 if kind == "bfloat16" else np.dtype(kind).itemsize
    offset, needed = int(tensor.offset or 0), math.prod(shape) * itemsize
    size = require_file(file, path)
    length = needed if tensor.length is None else int(tensor.length)
    if length != needed or offset < 0 or offset + needed > size:
        got = f"{length} bytes from {offset} of {size}"
        raise CheckpointError(f"{path}: '{name}': expected {needed} bytes in {location!r}, got {got}")
    stored = np.dtype("<u2" if kind == "bfloat16" else kind).newbyteorder("<")
    elements = np.fromfile(file, stored, math.prod(shape), offset=offset).reshape(shape)
    if kind == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(kind, copy=False)
