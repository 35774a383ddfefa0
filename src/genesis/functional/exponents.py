"""Numbers taken apart: mantissa and exponent."""

from __future__ import annotations

from typing import NamedTuple

from genesis import dtypes
from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops

__all__ = ["frexp"]


class MantissaAndExponent(NamedTuple):
    mantissa: Tensor
    exponent: Tensor


def frexp(input: Tensor) -> MantissaAndExponent:
    """Take input apart: input = mantissa · 2^exponent, with ½ ≤ |mantissa| < 1.

    Args:
        input: any shape, floating. Zeros, infinities and NaNs are their own mantissa, with exponent 0.
    Returns: (mantissa, exponent): the shape of input, in its dtype and in int32.
    Raises: DTypeError: input is not floating.
    Grad: input, from the mantissa.
    Example: >>> [part.tolist() for part in F.frexp(genesis.tensor([12.0, -0.25]))]
    [[0.75, -0.5], [4, -1]]
    """
    require_tensors("frexp", input=input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe("frexp", "input", "a floating dtype", input.array.dtype))
    return MantissaAndExponent(*Frexp.apply(input))


class Frexp(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> tuple[NDArray, NDArray]:
        mantissa, exponent = _take_apart(x.to(dtypes.float64))  # in which all floats are exact
        exponent = exponent.to(dtypes.int32)
        ctx.save(exponent)
        return mantissa.to(x.dtype), exponent

    @staticmethod
    def backward(ctx: Context, grad: NDArray, _: None) -> NDArray:
        (exponent,) = ctx.saved
        return grad.mul(power_of_two(exponent.neg(), grad))


def power_of_two(exponent: NDArray, like: NDArray) -> NDArray:
    """2^exponent, in the dtype of another array."""
    return ops.exp2(exponent.to(dtypes.float64)).to(like.dtype)


def _take_apart(x: NDArray) -> tuple[NDArray, NDArray]:
    """By the bits of float64: 1 of the sign, 11 of the exponent, 52 of the mantissa."""
    tiny = x.abs().lt(2.0**-1022)
    normal = tiny.where(x.mul(2.0**54), x).contiguous()
    bits = normal.view_dtype(dtypes.int64, normal.shape, normal.strides, normal.offset)
    field = bits.bitwise_and(0x7FF << 52).floor_divide(1 << 52)
    halved = bits.bitwise_and(~(0x7FF << 52)).bitwise_or(1022 << 52)
    mantissa = halved.view_dtype(dtypes.float64, halved.shape, halved.strides, halved.offset)
    own = x.eq(0).logical_or(x.isfinite().logical_not())
    exponent = field.sub(1022).sub(tiny.where(54, 0))
    return own.where(x, mantissa), own.where(0, exponent)
