"""Messages for ops that a backend's library refuses: the op, the shapes and the dtypes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeGuard

from genesis import shapes
from genesis.dtypes import DType
from genesis.errors import GenesisError

LIBRARY_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)  # NotImplementedError among them
_NAMES = {"where": ("condition", "input", "other"), "masked_fill": ("input", "mask")}  # of operands that broadcast
_SIZES = re.compile(r"must match|broadcast|expanded size")
_COMPLEX = re.compile(r"complex (inputs|tensors|types|dtypes)|Complex(Float|Double)|complex input")
_DTYPES = re.compile(r"not implemented for|not supported|on a bool tensor|expected scalar type|same dtype")


class _Device(Protocol):
    @property
    def type(self) -> str: ...


class _Array(Protocol):
    """An operand, as messages show it."""

    @property
    def shape(self) -> shapes.Shape: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def device(self) -> _Device: ...


def _is_array(value: object) -> TypeGuard[_Array]:
    return hasattr(value, "handle")


def refusal(op: str, operands: Sequence[object], error: Exception) -> Exception:
    """The error to raise instead of one that came from below; itself, where that speaks of the op already."""
    text = str(error)
    arrays = [operand for operand in operands if _is_array(operand)]
    if op in _NAMES or (_SIZES.search(text) and not isinstance(error, GenesisError)):
        try:
            shapes.broadcast(op, *[array.shape for array in arrays], names=_NAMES.get(op, ("input", "other")))
        except GenesisError as named:
            return named
    if isinstance(error, GenesisError) or (text.startswith(op) and not _COMPLEX.search(text)):
        return error
    device = arrays[0].device.type if arrays else "cpu"
    complex_dtype = next((array.dtype.name for array in arrays if array.dtype.is_complex), None)
    if complex_dtype is not None and _COMPLEX.search(text):
        advice = "take .real, .imag or .abs() of complex numbers"
        return NotImplementedError(f"{op} has no {device} implementation for {complex_dtype}; {advice}")
    if isinstance(error, NotImplementedError) or _DTYPES.search(text):
        dtypes = " and ".join(dict.fromkeys(array.dtype.name for array in arrays))
        return NotImplementedError(f"{op} has no {device} implementation for {dtypes}")
    if text == "ZeroDivisionError":
        return ZeroDivisionError(f"{op}: argument 'other': expected integers other than 0, got a 0")
    if "invalid combination of arguments" in text or ("must be" in text and "argument '" in text):
        kinds = ", ".join(type(operand).__name__ for operand in operands)
        return TypeError(f"{op}: expected arguments of other types than ({kinds})")
    shown = ", ".join(f"{array.dtype.name}{list(array.shape)}" for array in arrays)
    return type(error)(f"{op} of {shown}: {text.partition(chr(10))[0]}")
