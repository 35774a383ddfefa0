"""Find the user's line that is running: for the checker, debug output and asynchronous errors."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from genesis.dtypes import DType
from genesis.errors import DTypeError

_PACKAGE = str(Path(__file__).parent) + "/"
COMPILED = "<genesis.compile>"  # the file name of generated code
_BETWEEN = (_PACKAGE, COMPILED, contextlib.__file__)  # a with statement calls Genesis by way of contextlib
_local = threading.local()
wrappers: set[CodeType] = set()  # of functions of decorators, which call what they name `function`


class Anomaly(NamedTuple):
    """Whether autograd notes the line of each op, and looks for NaN in gradients: autograd.detect_anomaly."""

    is_on: bool
    checks_nan: bool


anomaly = Anomaly(False, False)


def user_line() -> str:
    """Return file:line of the nearest caller outside Genesis; in backward, of the forward op whose gradient runs."""
    origin = getattr(_local, "origin", None)
    if origin is not None:
        return f"{origin} (its backward)"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def called_function() -> str:
    """Return the name of the function of Genesis that the user's line calls."""
    frame, name = sys._getframe(1), ""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        if frame.f_code.co_filename.startswith(_PACKAGE):
            name = frame.f_locals["function"].__name__ if frame.f_code in wrappers else frame.f_code.co_name
        frame = frame.f_back
    return name


def no_complex(dtype: DType) -> DTypeError:
    """The error of a function that the user's line calls with complex numbers, and that computes with real ones."""
    name = called_function() or "cast"
    return DTypeError(f"{name}: expected real numbers, got {dtype}; take .real, .imag or .abs() of complex ones")


@contextlib.contextmanager
def backward_of(line: str | None) -> Iterator[None]:
    """Make user_line() name this forward line inside the with block."""
    _local.origin = line
    try:
        yield
    finally:
        _local.origin = None
