"""The dtypes and the one promotion rule (PyTorch's).

A dtype is a value compared by identity; backends translate it to their own by its name.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from genesis.errors import DTypeError, describe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BOOL, INTEGER, FLOAT, COMPLEX = 0, 1, 2, 3
Number = bool | int | float
AnyNumber = bool | int | float | complex
HostArray: TypeAlias = "npt.NDArray[np.generic[bool | int | float | complex]]"  # a NumPy array of numbers


class DType:
    """An element type; `genesis.float32` and the others are all that there are.

    Attributes:
        name: as in Python code.
        itemsize: bytes of an element.
        category: bool < integer < float < complex, which decides promotion.
        is_floating_point: whether it is a float.
        is_complex: whether it is a complex number, of two floats.
        is_differentiable: float or complex: tensors of it may require grad.

    Example:
        >>> genesis.bfloat16.name, genesis.bfloat16.itemsize, genesis.bfloat16.is_floating_point
        ('bfloat16', 2, True)
    """

    __slots__ = ("category", "is_complex", "is_differentiable", "is_floating_point", "itemsize", "name")

    def __init__(self, name: str, itemsize: int, category: int) -> None:
        self.name, self.itemsize, self.category = name, itemsize, category
        self.is_floating_point, self.is_complex = category == FLOAT, category == COMPLEX
        self.is_differentiable = category >= FLOAT

    def to_real(self) -> DType:
        """The dtype of real and imaginary parts.

        Returns: a real dtype; itself if it is not complex.

        Example:
            >>> genesis.complex64.to_real(), genesis.float64.to_complex()
            (genesis.float32, genesis.complex128)
        """
        return _PARTS.get(self, self)

    def to_complex(self) -> DType:
        """The complex dtype that holds this one's numbers.

        Returns: complex128 of float64 and complex128, else complex64.

        Example:
            >>> genesis.int64.to_complex()
            genesis.complex64
        """
        return complex128 if self in (float64, complex128) else complex64

    def __repr__(self) -> str:
        return f"genesis.{self.name}"

    def __reduce__(self) -> str:  # copies and pickles stay the same object
        return "bool_" if self.name == "bool" else self.name  # the module's name for it


float64 = DType("float64", 8, FLOAT)
float32 = DType("float32", 4, FLOAT)
float16 = DType("float16", 2, FLOAT)
bfloat16 = DType("bfloat16", 2, FLOAT)
int64 = DType("int64", 8, INTEGER)
int32 = DType("int32", 4, INTEGER)
int16 = DType("int16", 2, INTEGER)
int8 = DType("int8", 1, INTEGER)
uint8 = DType("uint8", 1, INTEGER)
bool_ = DType("bool", 1, BOOL)

complex128 = DType("complex128", 16, COMPLEX)
complex64 = DType("complex64", 8, COMPLEX)

ALL = (float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool_)  # on every device
BY_NAME = {dtype.name: dtype for dtype in ALL}
WITH_COMPLEX = (*ALL, complex128, complex64)  # on the CPU
NAMED = {dtype.name: dtype for dtype in WITH_COMPLEX}
OF_NUMPY = {name: dtype for name, dtype in NAMED.items() if dtype is not bfloat16}
_PARTS = {complex64: float32, complex128: float64}
OF_LIBRARIES: dict[object, DType] = {}  # a library's own dtype → ours: entered by the backend that computes with it

_default = float32


def get_default_dtype() -> DType:
    """The dtype of Python floats, and of creation functions without an explicit one.

    Returns: float32, until set_default_dtype changes it.

    Example:
        >>> genesis.get_default_dtype()
        genesis.float32
    """
    return _default


def set_default_dtype(dtype: DType) -> None:
    """Set the dtype of Python floats to a floating dtype.

    Args:
        dtype: floating.
    Raises: DTypeError: dtype is not floating.

    Example:
        >>> genesis.set_default_dtype(genesis.float64)
        >>> genesis.tensor(0.5).dtype
        genesis.float64
        >>> genesis.set_default_dtype(genesis.float32)
    """
    global _default
    if not (isinstance(dtype, DType) and dtype.is_floating_point):
        raise DTypeError(f"set_default_dtype: argument 'd': expected a floating dtype, got {dtype!r}")
    _default = dtype


def of_array(op: str, array: HostArray) -> DType:
    """The dtype of a numpy array's elements."""
    dtype = OF_NUMPY.get(array.dtype.name)
    if dtype is None:  # numpy holds the bits of bfloat16 as uint16, so that must be said
        known = ", ".join(OF_NUMPY)
        raise DTypeError(describe(op, "array", f"one of {known}", array.dtype))
    return dtype


def of_scalar(value: object) -> DType:
    """The dtype of a tensor made from a Python (or NumPy) number."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, numbers.Integral):
        return int64
    if isinstance(value, numbers.Real):
        return _default
    if isinstance(value, numbers.Complex):
        return _default.to_complex()
    if type(value).__name__ in ("bool", "bool_"):  # numpy's bool is no number
        return bool_
    raise DTypeError(f"expected a tensor or a number, got {type(value).__name__}")


# The least and the greatest finite number.
_RANGES = {
    **{
        kind: (-(2 ** (8 * kind.itemsize - 1)), 2 ** (8 * kind.itemsize - 1) - 1)
        for kind in (int64, int32, int16, int8)
    },
    uint8: (0, 255),
    float64: (-sys.float_info.max, sys.float_info.max),
    float32: (-(2.0**128 - 2.0**104), 2.0**128 - 2.0**104),
    bfloat16: (-(2.0**128 - 2.0**120), 2.0**128 - 2.0**120),
    float16: (-65504.0, 65504.0),
}


_DIGITS = {float64: 52, float32: 23, float16: 10, bfloat16: 7}  # bits of the fraction
_LEAST_EXPONENT = {float64: -1022, float32: -126, float16: -14, bfloat16: -126}


class finfo:  # noqa: N801  (PyTorch's name)
    """The limits of a floating dtype.

    Args:
        type: a floating dtype; the default one if None.
    Attributes:
        bits: of an element.
        eps: from 1 to the next number.
        max, min: the greatest and the least finite number.
        tiny, smallest_normal: the least positive number with all its digits.
        resolution: the last decimal digit that counts, 10^−digits.
        dtype: its name.
    Raises: DTypeError: type is not a floating dtype.

    Example:
        >>> genesis.finfo(genesis.float32).max, genesis.finfo(genesis.bfloat16).eps
        (3.4028234663852886e+38, 0.0078125)
    """

    def __init__(self, type: DType | None = None) -> None:
        dtype = _default if type is None else type
        if not isinstance(dtype, DType) or not dtype.is_floating_point:
            raise DTypeError(describe("finfo", "type", "a floating dtype; for integers use iinfo", dtype))
        self.dtype, self.bits = dtype.name, 8 * dtype.itemsize
        self.min, self.max = _RANGES[dtype]
        self.eps = 2.0 ** -_DIGITS[dtype]
        self.tiny = self.smallest_normal = 2.0 ** _LEAST_EXPONENT[dtype]
        self.resolution = 10.0 ** -math.floor(_DIGITS[dtype] * math.log10(2))

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny", "dtype")
        return f"finfo({', '.join(f'{name}={getattr(self, name)}' for name in names)})"


class iinfo:  # noqa: N801  (PyTorch's name)
    """The limits of an integer dtype.

    Args:
        type: an integer dtype.
    Attributes:
        bits: of an element.
        max, min: the greatest and the least number.
        dtype: its name.
    Raises: DTypeError: type is not an integer dtype.

    Example:
        >>> genesis.iinfo(genesis.int8).min, genesis.iinfo(genesis.uint8).max
        (-128, 255)
    """

    def __init__(self, type: DType) -> None:
        if not isinstance(type, DType) or type.category != INTEGER:
            raise DTypeError(describe("iinfo", "type", "an integer dtype; for floats use finfo", type))
        self.dtype, self.bits = type.name, 8 * type.itemsize
        self.min, self.max = (int(limit) for limit in _RANGES[type])

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def number(op: str, argument: str, value: Number, dtype: DType, rounds: bool = False) -> Number:
    """Convert a Python number to the value that a tensor of dtype stores, by PyTorch's rule.

    bool asks whether it is zero; integers drop the fraction, and in uint8 negative integers count from 256 down.

    Args:
        rounds: what is too large for 16 bits becomes infinite in them, as if it came from a tensor.
    Raises: OverflowError: dtype does not hold it.

    Example:
        >>> number("fill_", "value", 0.5, bool_), number("fill_", "value", 2.7, int8)
        (True, 2)
    """
    if dtype.is_complex and isinstance(value, numbers.Complex):
        return complex(value)
    if type(value) not in (int, float, bool):
        if not (isinstance(value, numbers.Real) or type(value).__name__ in ("bool", "bool_")):  # as in of_scalar
            raise DTypeError(describe(op, argument, "a number", type(value).__name__))
        value = value.item() if hasattr(value, "item") else value
    floating = dtype.is_floating_point
    if value == 0 and floating:  # most are, and -0.0 stays that
        return value
    if dtype is bool_:
        return value != 0
    low, high = _RANGES[float64 if rounds and floating and dtype.itemsize == 2 else dtype]
    if dtype is uint8 and not isinstance(value, float):
        low = -high
    if not low <= value <= high and not (floating and not math.isfinite(value)):
        raise OverflowError(describe(op, argument, f"a number that {dtype} holds", value))
    if floating:
        return float(value)
    return int(value) % 256 if dtype is uint8 else int(value)


def promote(type1: DType, type2: DType) -> DType:
    """The smallest dtype that holds the values of both.

    Args:
        type1, type2: any dtypes.
    Returns: PyTorch's promote_types(type1, type2).

    Example:
        >>> promote(float16, bfloat16), promote(uint8, int8), promote(int64, float16)
        (genesis.float32, genesis.int16, genesis.float16)
    """
    if type1 is type2:
        return type1
    if type1.is_complex or type2.is_complex:
        return complex128 if float64 in (type1.to_real(), type2.to_real()) else complex64
    if type1.category != type2.category:
        return type1 if type1.category > type2.category else type2
    if type1.itemsize != type2.itemsize:
        return type1 if type1.itemsize > type2.itemsize else type2
    return float32 if type1.category == FLOAT else int16  # float16 with bfloat16, or uint8 with int8


def result_type(operands: Iterable[tuple[DType, int]]) -> DType:
    """The dtype in which an op on several operands computes.

    Args:
        operands: (dtype, rank) pairs, where rank is 2 for a tensor with dimensions, 1 for a 0-d tensor, 0 for a Python
            number. A lower rank decides only when its category (bool < integer < float) is higher.
    """
    by_rank: list[DType | None] = [None, None, None]
    for dtype, rank in operands:
        known = by_rank[rank]
        by_rank[rank] = dtype if known is None else promote(known, dtype)
    result = by_rank[2]
    for weaker in (by_rank[1], by_rank[0]):
        if weaker is not None and (result is None or weaker.category > result.category):
            # A complex number beside floats has parts of their dtype.
            result = result.to_complex() if weaker.is_complex and result and result.is_floating_point else weaker
    assert result is not None
    return result
