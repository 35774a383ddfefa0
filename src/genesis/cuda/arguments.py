"""Arguments of kernels: tensors of Genesis, of PyTorch, of anything with DLPack or __cuda_array_interface__.

Each kind of tensor has a Framework (frameworks/) that says where its memory is, on which stream its own work runs, and
what must be noted when a kernel writes into it. Its read() is on the way of every launch: the mark that it gives stands
for all that was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import dtypes
from genesis.autograd import Variable
from genesis.backends.cuda.driver import Value
from genesis.backends.cuda.runtime.array import DeviceArray, OwnedStorage
from genesis.cuda.frameworks.foreign import FOREIGN, array_on
from genesis.cuda.frameworks.genesis import GENESIS
from genesis.cuda.frameworks.interface import Framework
from genesis.errors import DTypeError

Read = Callable[[Any], tuple[object, Value]]  # a mark, what is packed


def array_of(tensor: Any) -> DeviceArray:
    """A tensor on a CUDA device as the backend's array, on the same memory."""
    framework = framework_of(type(tensor))
    if framework is GENESIS:
        return tensor.array.handle
    if framework is FOREIGN:
        found = array_on(tensor)
        assert found is not None, "the checks have let pass an array of the host"
        return found
    assert framework is not None, "the checks have let pass what is no tensor"
    operand = framework.describe(tensor)
    assert operand.device is not None, "the checks have let pass a tensor on the CPU"
    if operand.dtype not in dtypes.BY_NAME:
        raise DTypeError(f"kernel: expected one of {', '.join(dtypes.BY_NAME)}, got a tensor of {operand.dtype}")
    dtype, shape, strides = dtypes.BY_NAME[operand.dtype], tuple(tensor.shape), operand.strides
    stream = framework.current_stream(operand.device)
    storage = OwnedStorage(operand.pointer, operand.numel * dtype.itemsize, operand.device, stream, tensor)
    return DeviceArray(storage, shape, strides, 0, dtype)


_frameworks: dict[type, Framework | None] = {}
readers: dict[type, Read] = {}  # by the type of an argument


def framework_of(kind: type) -> Framework | None:
    """The framework of a type of tensors; None for numbers and all else."""
    try:
        return _frameworks[kind]
    except KeyError:
        found = _frameworks[kind] = _find_framework(kind)
        return found


def _find_framework(kind: type) -> Framework | None:
    if issubclass(kind, Variable):
        return GENESIS
    if any(base.__name__ == "Tensor" and base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        from genesis.cuda.frameworks.torch import TORCH

        return TORCH
    if hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__"):
        return FOREIGN
    return None


def reader_of(kind: type) -> Read:
    """The function that reads a tensor, a number or None of this type: (a mark, the value that is packed for the
    kernel).
    """
    framework = framework_of(kind)
    if framework is not None:
        reader: Read = framework.read
    elif kind is type(None):
        reader = _read_none
    else:
        reader = _read_number
    readers[kind] = reader
    return reader


def _read_number(value: float) -> tuple[object, Value]:
    return type(value), value


def _read_none(value: None) -> tuple[object, Value]:
    return None, 0
