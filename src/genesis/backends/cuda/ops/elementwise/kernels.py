"""Element-wise ops on one element; ops/pointwise/ has the loops around them.

Values arrive as float32 (float64 for float64), or in their integer type; bool as int8. The functions follow PyTorch in
the corner cases: NaN, signed zeros, ties, division of negative numbers.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis.backends.cuda.ops.pointwise.kernels import specimen, strided_specimen
from genesis.dtypes import bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8


# --- one operand ----------------------------------------------------------------------------------------------------
@triton.jit
def _neg_kernel(x):
    if x.dtype.is_floating():
        result = x * -1.0  # 0 - x would lose the sign of zero
    else:
        result = 0 - x
    return result


@triton.jit
def _abs_kernel(x):
    return tl.abs(x)


@triton.jit
def _sign_kernel(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def _exp_kernel(x):
    return libdevice.exp(x)


@triton.jit
def _expm1_kernel(x):
    return libdevice.expm1(x)


@triton.jit
def _log_kernel(x):
    return libdevice.log(x)


@triton.jit
def _log1p_kernel(x):
    return libdevice.log1p(x)


@triton.jit
def _sqrt_kernel(x):
    return libdevice.sqrt_rn(x)


@triton.jit
def _rsqrt_kernel(x):
    return libdevice.rsqrt(x)


@triton.jit
def _reciprocal_kernel(x):
    return libdevice.rcp_rn(x)


@triton.jit
def _sin_kernel(x):
    return libdevice.sin(x)


@triton.jit
def _cos_kernel(x):
    return libdevice.cos(x)


@triton.jit
def _tanh_kernel(x):
    return libdevice.tanh(x)


@triton.jit
def _sigmoid_kernel(x):
    return libdevice.rcp_rn(1.0 + libdevice.exp(x * -1.0))


@triton.jit
def _erf_kernel(x):
    return libdevice.erf(x)


@triton.jit
def _trunc_kernel(x):
    if x.dtype.is_floating():
        result = libdevice.trunc(x)
    else:
        result = x
    return result


@triton.jit
def _floor_kernel(x):
    if x.dtype.is_floating():
        result = libdevice.floor(x)
    else:
        result = x
    return result


@triton.jit
def _ceil_kernel(x):
    if x.dtype.is_floating():
        result = libdevice.ceil(x)
    else:
        result = x
    return result


@triton.jit
def _round_kernel(x):
    if x.dtype.is_floating():
        result = libdevice.rint(x)
    else:
        result = x
    return result


@triton.jit
def _round_decimals_kernel(x, scale):
    """scale: 10 to the number of decimals."""
    return libdevice.div_rn(libdevice.rint(x * scale), scale)


@triton.jit
def _round_tens_kernel(x, scale):
    """scale: 10 to the number of digits before the point that become zero."""
    return libdevice.rint(libdevice.div_rn(x, scale)) * scale


@triton.jit
def _isnan_kernel(x):
    return x != x


@triton.jit
def _isinf_kernel(x):
    return tl.abs(x) == float("inf")


@triton.jit
def _isfinite_kernel(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _logical_not_kernel(x):
    return x == 0


@triton.jit
def _bitwise_not_kernel(x):
    return 0 - x - 1  # ~x would need a constant that unsigned types do not hold


# --- two operands: arithmetic ---------------------------------------------------------------------------------------
@triton.jit
def _add_kernel(x, y):
    return x + y


@triton.jit
def _sub_kernel(x, y):
    return x - y


@triton.jit
def _mul_kernel(x, y):
    return x * y


@triton.jit
def _div_kernel(x, y):
    return libdevice.div_rn(x, y)


@triton.jit
def _floor_divide_kernel(x, y):
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
        quotient = libdevice.div_rn(x - rest, y)
        quotient = tl.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1.0, quotient)
        floored = libdevice.floor(quotient)
        floored = tl.where(quotient - floored > 0.5, floored + 1.0, floored)
        plain = libdevice.div_rn(x, y)
        floored = tl.where(quotient != 0, floored, libdevice.copysign(quotient * 0.0, plain))
        result = tl.where(y == 0, plain, floored)
    else:
        quotient = x // y
        rest = x - quotient * y
        result = quotient - ((rest != 0) & ((rest < 0) != (y < 0))).to(x.dtype)
    return result


@triton.jit
def _remainder_kernel(x, y):
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
    else:
        rest = x - (x // y) * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def _fmod_kernel(x, y):
    if x.dtype.is_floating():
        result = libdevice.fmod(x, y)
    else:
        result = x - (x // y) * y
    return result


@triton.jit
def _atan2_kernel(x, y):
    return libdevice.atan2(x, y)


@triton.jit
def _hypot_kernel(x, y):
    return libdevice.hypot(x, y)


@triton.jit
def _copysign_kernel(x, y):
    return libdevice.copysign(x, y)


@triton.jit
def _nextafter_kernel(x, y):
    return libdevice.nextafter(x, y)


@triton.jit
def _pow_kernel(x, y):
    if x.dtype.is_floating():
        result = libdevice.pow(x, y)
    else:  # by squaring; a negative power of an integer is 0, save for 1 and -1
        one = ((x == x) & (y == y)).to(x.dtype)  # in the shape of both: one of them may be a number
        result = one
        square = x * one
        bits = y
        for _ in range(63):
            result = tl.where((bits & 1) != 0, result * square, result)
            square = square * square
            bits = tl.where(bits > 0, bits >> 1, 0)
        minus = tl.where((y & 1) != 0, x, one)
        result = tl.where(y >= 0, result, tl.where((x == 1) | (x + 1 == 0), minus, one - one))
    return result


@triton.jit
def _maximum_kernel(x, y):
    return tl.where((x > y) | (x != x), x, y)


@triton.jit
def _minimum_kernel(x, y):
    return tl.where((x < y) | (x != x), x, y)


# --- two operands: comparison, logic, bits --------------------------------------------------------------------------
@triton.jit
def _eq_kernel(x, y):
    return x == y


@triton.jit
def _ne_kernel(x, y):
    return x != y


@triton.jit
def _lt_kernel(x, y):
    return x < y


@triton.jit
def _le_kernel(x, y):
    return x <= y


@triton.jit
def _gt_kernel(x, y):
    return x > y


@triton.jit
def _ge_kernel(x, y):
    return x >= y


@triton.jit
def _logical_and_kernel(x, y):
    return (x != 0) & (y != 0)


@triton.jit
def _logical_or_kernel(x, y):
    return (x != 0) | (y != 0)


@triton.jit
def _bitwise_and_kernel(x, y):
    return x & y


@triton.jit
def _bitwise_or_kernel(x, y):
    return x | y


@triton.jit
def _bitwise_xor_kernel(x, y):
    return x ^ y


# --- selection ------------------------------------------------------------------------------------------------------
@triton.jit
def _where_kernel(condition, x, y):
    return tl.where(condition != 0, x, y)


@triton.jit
def _clamp_kernel(x, low, high):
    x = tl.where((x < low) | (low != low), low, x)  # a NaN among the bounds, too, is the result
    return tl.where((x > high) | (high != high), high, x)


@triton.jit
def _clamp_min_kernel(x, low):
    return tl.where((x < low) | (low != low), low, x)


@triton.jit
def _clamp_max_kernel(x, high):
    return tl.where((x > high) | (high != high), high, x)


_FLOAT_OPS = [_exp_kernel, _expm1_kernel, _log_kernel, _log1p_kernel, _sqrt_kernel, _rsqrt_kernel, _reciprocal_kernel]
_FLOAT_OPS += [_sin_kernel, _cos_kernel, _tanh_kernel, _sigmoid_kernel, _erf_kernel]
_FLOAT_OPS += [_floor_kernel, _ceil_kernel, _round_kernel, _trunc_kernel]
_TESTS = [_isnan_kernel, _isinf_kernel, _isfinite_kernel, _logical_not_kernel]
_ARITHMETIC = [_add_kernel, _sub_kernel, _mul_kernel, _floor_divide_kernel, _remainder_kernel, _pow_kernel]
_ARITHMETIC += [_maximum_kernel, _minimum_kernel, _fmod_kernel]
_ANGLES = [_atan2_kernel, _hypot_kernel, _copysign_kernel, _nextafter_kernel]
_COMPARISONS = [_eq_kernel, _ne_kernel, _lt_kernel, _le_kernel, _gt_kernel, _ge_kernel]
_COMPARISONS += [_logical_and_kernel, _logical_or_kernel]
_BITS = [_bitwise_and_kernel, _bitwise_or_kernel, _bitwise_xor_kernel]

SPECIMENS = [
    *(specimen(op, dtype) for op in _FLOAT_OPS for dtype in (float32, float64)),
    *(specimen(op, dtype) for op in (_neg_kernel, _abs_kernel, _sign_kernel) for dtype in (bfloat16, uint8)),
    *(specimen(op, float16, out=bool_) for op in _TESTS),
    *(specimen(op, float32, 100.0) for op in (_round_decimals_kernel, _round_tens_kernel)),
    *(specimen(op, dtype, dtype) for op in _ARITHMETIC for dtype in (float32, float64, int64)),
    *(specimen(op, dtype, dtype) for op in _ANGLES for dtype in (float32, float64)),
    specimen(_pow_kernel, 2, int64),
    specimen(_pow_kernel, int64, 2),
    *(specimen(op, int32, int32, out=bool_) for op in _COMPARISONS),
    *(specimen(op, int8, int8) for op in _BITS),
    specimen(_bitwise_not_kernel, uint8),
    specimen(_div_kernel, bfloat16, bfloat16),
    specimen(_add_kernel, bool_, bool_),
    specimen(_mul_kernel, float32, 2.0),
    specimen(_where_kernel, bool_, bfloat16, 0.0),
    specimen(_clamp_kernel, float32, 0.0, 2.0),
    specimen(_clamp_min_kernel, float32, 0.0),
    specimen(_clamp_max_kernel, float32, 2.0),
    *(strided_specimen(_add_kernel, float32, rank) for rank in range(1, 5)),
    strided_specimen(_add_kernel, bfloat16, 2, wide=True),
]
