"""Checks of a kernel's call before anything is launched; each message names the parameter."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsFloat, SupportsIndex

import numpy as np

from genesis.backends.cuda.nvrtc.signature import Declaration, Parameter
from genesis.backends.cuda.nvrtc.types import Kind, Number, Pointer, Unsupported
from genesis.cuda.arguments import framework_of
from genesis.cuda.frameworks.interface import Operand
from genesis.errors import DeviceError, DTypeError, ShapeError, describe

_GRID_LIMITS = (0x7FFFFFFF, 0xFFFF, 0xFFFF)
_BLOCK_LIMITS = (1024, 1024, 64)
MAX_THREADS = 1024


def check_arguments(
    op: str, declaration: Declaration, kinds: Sequence[Kind], args: Sequence[object], strided: bool
) -> list[Operand]:
    """The tensors among the arguments. Raises: DTypeError, DeviceError, ShapeError, ValueError."""
    check_callable(op, declaration, kinds)
    _check_count(op, declaration.parameters, args)
    operands: list[Operand] = []
    for parameter, kind, value in zip(declaration.parameters, kinds, args, strict=True):
        if isinstance(kind, Number):
            _check_number(op, parameter, kind, value)
        elif isinstance(kind, Pointer) and value is not None:
            operands.append(_check_tensor(op, parameter, kind, value, strided))
    for operand in operands[1:]:
        if operand.device != operands[0].device:
            raise DeviceError(
                f"{op}: expected all tensors on one device, got cuda:{operands[0].device} and cuda:{operand.device}"
            )
    return operands


def check_callable(op: str, declaration: Declaration, kinds: Sequence[Kind]) -> None:
    """Raises: DTypeError: a parameter takes what Python cannot give, or which parameters there are is not known."""
    if declaration.others:
        several = (", ".join(map(str, declaration.parameters)), *declaration.others)
        known = " or ".join(f"({parameters})" for parameters in several)
        raise DTypeError(f"{op}: its source declares the parameters {known}, and which are compiled is not known here")
    for parameter, kind in zip(declaration.parameters, kinds, strict=True):
        if isinstance(kind, Unsupported):
            raise DTypeError(f"{op}: parameter '{parameter}' cannot be given from Python: {kind.reason}")


def _check_count(op: str, parameters: Sequence[Parameter], args: Sequence[object]) -> None:
    if len(args) == len(parameters):
        return
    missing = ", ".join(f"'{parameter.name}'" for parameter in parameters[len(args) :])
    problem = f"{missing} missing" if missing else f"{len(args) - len(parameters)} too many"
    declared = ", ".join(map(str, parameters))
    raise DTypeError(f"{op}: expected {len(parameters)} arguments ({declared}), got {len(args)}: {problem}")


def _check_tensor(op: str, parameter: Parameter, kind: Pointer, value: object, strided: bool) -> Operand:
    framework = framework_of(type(value))
    if framework is None:
        raise DTypeError(describe(op, parameter.name, f"a tensor ({parameter})", f"{type(value).__name__} {value!r}"))
    operand = framework.describe(value)
    if operand.device is None:
        raise DeviceError(describe(op, parameter.name, "a tensor on a CUDA device", "one on the CPU"))
    if kind.dtypes and operand.dtype not in kind.dtypes:
        expected = f"a {' or '.join(kind.dtypes)} tensor ({parameter})"
        raise DTypeError(describe(op, parameter.name, expected, operand.dtype))
    if not (operand.contiguous or strided):
        expected = "a contiguous tensor (.contiguous() makes one; strided=True, if the kernel is told the strides)"
        raise ShapeError(describe(op, parameter.name, expected, f"strides {operand.strides}"))
    if operand.numel and operand.pointer % kind.alignment:
        expected = f"an address divisible by {kind.alignment} ({parameter})"
        raise ShapeError(describe(op, parameter.name, expected, hex(operand.pointer)))
    return operand


def _check_number(op: str, parameter: Parameter, kind: Number, value: object) -> None:
    if framework_of(type(value)) is not None:
        raise DTypeError(describe(op, parameter.name, f"a number ({parameter})", f"a {type(value).__name__}"))
    if kind.low is None or kind.high is None:
        if not isinstance(value, SupportsFloat):
            raise DTypeError(describe(op, parameter.name, f"a number ({parameter})", repr(value)))
        try:
            size = abs(float(value))
        except OverflowError:
            message = describe(op, parameter.name, f"a number that a float holds ({parameter})", "one beyond all")
            raise ValueError(message) from None
        if kind.slot[0] == "e" and 65504 < size < math.inf:
            raise ValueError(describe(op, parameter.name, f"at most 65504 ({parameter})", value))
        return
    if kind.slot[0] == "?" and isinstance(value, np.bool_):  # which is no integer
        return
    number = _integer(value)
    if number is None:
        raise DTypeError(describe(op, parameter.name, f"an integer ({parameter})", repr(value)))
    if not kind.low <= number <= kind.high:
        expected = f"a number from {kind.low} to {kind.high} ({parameter})"
        raise ValueError(describe(op, parameter.name, expected, number))


def check_grid(op: str, grid: object) -> tuple[int, int, int]:
    """The number of blocks in each of three dimensions; 0 launches nothing."""
    return _three(op, "grid", grid, 0, _GRID_LIMITS)


def check_block(op: str, block: object, max_threads: int) -> tuple[int, int, int]:
    """The number of threads in each of three dimensions."""
    x, y, z = _three(op, "block", block, 1, _BLOCK_LIMITS)
    if x * y * z > max_threads:
        reason = "" if max_threads == MAX_THREADS else " (its launch bounds, or its registers)"
        raise ValueError(describe(op, "block", f"at most {max_threads} threads{reason}", f"{x * y * z}: {block}"))
    return x, y, z


def check_shared(op: str, shared: object) -> int:
    """Bytes of dynamic shared memory."""
    if not isinstance(shared, int) or shared < 0:
        raise ValueError(describe(op, "shared", "a number of bytes, at least 0", repr(shared)))
    return shared


def _integer(value: object) -> int | None:
    try:
        return operator.index(value) if isinstance(value, SupportsIndex) else None
    except TypeError:  # an array that is no integer
        return None


def _three(op: str, argument: str, given: object, least: int, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    several: Iterable[object] = (
        given if isinstance(given, Iterable) and not isinstance(given, SupportsIndex) else [given]
    )
    sizes = [_integer(each) for each in several]
    numbers = [size for size in sizes if size is not None]
    padded = (*numbers, 1, 1)[:3]
    if not 1 <= len(numbers) == len(sizes) <= 3 or not all(
        least <= size <= limit for size, limit in zip(padded, limits, strict=True)
    ):
        expected = f"1 to 3 integers from {least} to {limits[0]}, {limits[1]}, {limits[2]}"
        raise ValueError(describe(op, argument, expected, repr(given)))
    x, y, z = padded
    return x, y, z
