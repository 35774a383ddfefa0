"""Element-wise functions that are composed of others."""

from __future__ import annotations

import math
from builtins import abs
from collections.abc import Callable

from genesis.autograd import Tensor
from genesis.dtypes import Number, complex128, finfo, float32, float64, get_default_dtype, number, of_scalar
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import eq, ge, gt, isnan, le, logical_or, lt
from genesis.functional.complex_numbers import complex, imag, real
from genesis.functional.conversion import cast, clone
from genesis.functional.elementwise import add, clamp, div, mul, sub, where
from genesis.functional.elementwise import pow as power
from genesis.functional.unary import abs as absolute
from genesis.ndarray import NDArray, result_type

__all__ = [
    "addcdiv",
    "addcmul",
    "clamp_max",
    "clamp_min",
    "deg2rad",
    "float_power",
    "fmax",
    "fmin",
    "heaviside",
    "ldexp",
    "lerp",
    "nan_to_num",
    "rad2deg",
    "rsub",
]

Operand = NDArray | Number


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value · tensor1 · tensor2.

    Args:
        input, tensor1, tensor2: tensors whose shapes broadcast.
        value: a factor; an integer if all of them are.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, tensor1, tensor2.
    Example: >>> F.addcmul(genesis.ones(1), genesis.tensor([2.0]), genesis.tensor([3.0]), value=2).tolist()
    [13.0]
    """
    _require_integral("addcmul", value, input, tensor1, tensor2)
    return _in_wide(lambda x, y, z: add(x, mul(mul(y, z), value)), input, tensor1, tensor2)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value · tensor1 / tensor2.

    Args:
        input, tensor1, tensor2: tensors whose shapes broadcast; floating.
        value: a factor.
    Returns: the common shape, in the promoted dtype.
    Raises: DTypeError: tensor1 and tensor2 are integers. ValueError: the shapes don't broadcast.
    Grad: input, tensor1, tensor2.
    Example: >>> F.addcdiv(genesis.ones(1), genesis.tensor([6.0]), genesis.tensor([3.0])).tolist()
    [3.0]
    """
    require_tensors("addcdiv", input=input, tensor1=tensor1, tensor2=tensor2)
    if not (tensor1.array.dtype.is_differentiable or tensor2.array.dtype.is_differentiable):
        raise DTypeError(describe("addcdiv", "tensor1", "a floating dtype", tensor1.array.dtype))
    return _in_wide(lambda x, y, z: add(x, mul(div(y, z), value)), input, tensor1, tensor2)


def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """input + weight · (end − input).

    Args:
        input, end: tensors whose shapes broadcast, of one floating dtype.
        weight: a number, or a tensor that broadcasts with them.
    Returns: the common shape, in the promoted dtype.
    Raises: DTypeError: dtypes differ. ValueError: the shapes don't broadcast.
    Grad: input, end, weight.
    Example: >>> F.lerp(genesis.tensor([1.0]), genesis.tensor([3.0]), 0.5).tolist()
    [2.0]
    """
    require_tensors("lerp", input=input, end=end)
    for name, tensor in (("end", end), ("weight", weight)):
        if isinstance(tensor, Tensor) and tensor.array.dtype is not input.array.dtype:
            raise DTypeError(describe("lerp", name, f"{input.array.dtype}, as input", tensor.array.dtype))
    dtype = input.array.dtype
    if dtype.itemsize == 2:  # rounded once, not after each step
        wide = cast(weight, float32) if isinstance(weight, Tensor) else weight
        return cast(_lerp(cast(input, float32), cast(end, float32), wide), dtype)
    return _lerp(input, end, weight)


def _lerp(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    step = sub(end, input)
    if not isinstance(weight, Tensor):
        return add(input, mul(step, weight)) if abs(weight) < 0.5 else sub(end, mul(step, 1 - weight))
    return where(lt(absolute(weight), 0.5), add(input, mul(step, weight)), sub(end, mul(step, sub(1, weight))))


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, and values at 0.

    Args:
        input: any shape and dtype.
        values: dtype of input; broadcasts with it.
    Returns: the common shape, in the promoted dtype.
    Raises: DTypeError: the dtypes differ.
    Grad: none.
    Example: >>> F.heaviside(genesis.tensor([-1.0, 0.0, 2.0]), genesis.tensor([0.5])).tolist()
    [0.0, 0.5, 1.0]
    """
    require_tensors("heaviside", input=input, values=values)
    if input.array.dtype is not values.array.dtype:
        raise DTypeError(describe("heaviside", "values", f"{input.array.dtype}, as input", values.array.dtype))
    above = cast(gt(input.detach(), 0), input.array.dtype)
    return where(eq(input.detach(), 0), values.detach(), above)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input · 2^other.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.ldexp(genesis.tensor([1.0]), genesis.tensor([3])).tolist()
    [8.0]
    """
    require_tensors("ldexp", input=input)
    return mul(input, power(2.0, other))


def float_power(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """The power, computed in float64, or in complex128 if one is complex.

    Args:
        input, exponent: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, float64 or complex128.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, exponent.
    Example: >>> F.float_power(genesis.tensor([2]), 0.5).dtype
    genesis.float64
    """
    dtypes = [value.array.dtype if isinstance(value, Tensor) else of_scalar(value) for value in (input, exponent)]
    wide = complex128 if any(dtype.is_complex for dtype in dtypes) else float64
    return power(
        *[
            cast(value, wide) if isinstance(value, Tensor) else number("float_power", "exponent", value, wide)
            for value in (input, exponent)
        ]
    )


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The greater of two numbers; of a number and NaN the number.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other; where both are equal, input.
    Example: >>> F.fmax(genesis.tensor([1.0, genesis.nan]), genesis.tensor([3.0, 2.0])).tolist()
    [3.0, 2.0]
    """
    require_tensors("fmax", input=input, other=other)
    return where(logical_or(ge(input, other), isnan(other)), *_promoted(input, other))


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of two numbers; of a number and NaN the number.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other; where both are equal, input.
    Example: >>> F.fmin(genesis.tensor([1.0, genesis.nan]), genesis.tensor([3.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    require_tensors("fmin", input=input, other=other)
    return where(logical_or(le(input, other), isnan(other)), *_promoted(input, other))


def clamp_min(input: Tensor, min: Tensor | Number) -> Tensor:
    """The greater of input and min.

    Args:
        input: any shape and dtype.
        min: a number, or a tensor that broadcasts with input.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, min.
    Example: >>> F.clamp_min(genesis.tensor([-1.0, 2.0]), 0).tolist()
    [0.0, 2.0]
    """
    require_tensors("clamp_min", input=input)
    return clamp(input, min)


def clamp_max(input: Tensor, max: Tensor | Number) -> Tensor:
    """The smaller of input and max.

    Args:
        input: any shape and dtype.
        max: a number, or a tensor that broadcasts with input.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, max.
    Example: >>> F.clamp_max(genesis.tensor([-1.0, 2.0]), 0).tolist()
    [-1.0, 0.0]
    """
    require_tensors("clamp_max", input=input)
    return clamp(input, None, max)


def rsub(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """other − alpha · input.

    Args:
        input: any shape, numbers.
        other: a tensor that broadcasts with it, or a number.
        alpha: a factor of input; an integer if both are.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.rsub(genesis.tensor([1.0]), 5).tolist()
    [4.0]
    """
    require_tensors("rsub", input=input)
    return sub(other, input, alpha=alpha)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians: input · π / 180.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves nothing.
    Example: >>> F.deg2rad(genesis.tensor([180.0])).tolist()
    [3.1415927410125732]
    """
    return mul(floating(input), math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees: input · 180 / π.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves nothing.
    Example: >>> F.rad2deg(genesis.tensor([genesis.pi])).tolist()
    [180.0]
    """
    return mul(floating(input), 180 / math.pi)


def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN and infinities by numbers.

    Args:
        input: any shape and dtype.
        nan: for NaN, 0 if None.
        posinf: for ∞, the greatest finite number if None.
        neginf: for −∞, the least finite number if None.
    Returns: shape and dtype of input.
    Grad: input; zero where it is replaced.
    Example: >>> F.nan_to_num(genesis.tensor([genesis.nan, genesis.inf]), posinf=1.0).tolist()
    [0.0, 1.0]
    """
    dtype = input.array.dtype
    if dtype.is_complex:
        return complex(*[nan_to_num(part, nan, posinf, neginf) for part in (real(input), imag(input))])
    if not dtype.is_floating_point:
        return clone(input)
    limits = finfo(dtype)
    kept = where(isnan(input), _held(nan, 0.0), input)
    kept = where(eq(input, math.inf), _held(posinf, limits.max), kept)
    return where(eq(input, -math.inf), _held(neginf, limits.min), kept)


# --- what they share --------------------------------------------------------------------------------------------------


def floating(input: Tensor) -> Tensor:
    """input, in the default float dtype if it is not floating."""
    return input if input.array.dtype.is_floating_point else cast(input, get_default_dtype())


def _in_wide(function: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor) -> Tensor:
    """function(*tensors), in float32 where they are of 16 bits, so that what is between is not rounded."""
    dtype = result_type(*[tensor.array for tensor in tensors])
    if not dtype.is_floating_point or dtype.itemsize != 2:
        return function(*tensors)
    return cast(function(*[cast(tensor, float32) for tensor in tensors]), dtype)


def _promoted(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    dtype = result_type(input.array, other.array)
    return cast(input, dtype), cast(other, dtype)


def _held(value: float | None, default: float) -> float:
    return default if value is None else value


def _require_integral(op: str, value: Number, *tensors: Tensor) -> None:
    require_tensors(op, **{f"tensor{number}": tensor for number, tensor in enumerate(tensors)})
    if isinstance(value, float) and not any(tensor.array.dtype.is_differentiable for tensor in tensors):
        raise DTypeError(describe(op, "value", "an integer, as the tensors are integers", value))
