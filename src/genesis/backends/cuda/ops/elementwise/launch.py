"""Element-wise ops: each names what is done to an element; pointwise.apply does all that they share."""

# ruff: noqa: E501, E704  (one line per op reads best)
# fmt: off
from __future__ import annotations

from genesis import dtypes
from genesis.backends.cuda.ops.elementwise import kernels, special
from genesis.backends.cuda.ops.pointwise.launch import Number, apply, binary
from genesis.backends.cuda.runtime.array import DeviceArray, require_numbers

Operand = DeviceArray | Number


# --- one operand ----------------------------------------------------------------------------------------------------
def neg(x: DeviceArray) -> DeviceArray: return apply(kernels._neg_kernel, x)
def abs(x: DeviceArray) -> DeviceArray: return apply(kernels._abs_kernel, require_numbers("abs", x))
def sign(x: DeviceArray) -> DeviceArray: return apply(kernels._sign_kernel, x)
def exp(x: DeviceArray) -> DeviceArray: return apply(kernels._exp_kernel, x, floats_only=True)
def expm1(x: DeviceArray) -> DeviceArray: return apply(kernels._expm1_kernel, x, floats_only=True)
def log(x: DeviceArray) -> DeviceArray: return apply(kernels._log_kernel, x, floats_only=True)
def log1p(x: DeviceArray) -> DeviceArray: return apply(kernels._log1p_kernel, x, floats_only=True)
def sqrt(x: DeviceArray) -> DeviceArray: return apply(kernels._sqrt_kernel, x, floats_only=True)
def rsqrt(x: DeviceArray) -> DeviceArray: return apply(kernels._rsqrt_kernel, x, floats_only=True)
def reciprocal(x: DeviceArray) -> DeviceArray: return apply(kernels._reciprocal_kernel, x, floats_only=True)
def sin(x: DeviceArray) -> DeviceArray: return apply(kernels._sin_kernel, x, floats_only=True)
def cos(x: DeviceArray) -> DeviceArray: return apply(kernels._cos_kernel, x, floats_only=True)
def tanh(x: DeviceArray) -> DeviceArray: return apply(kernels._tanh_kernel, x, floats_only=True)
def sigmoid(x: DeviceArray) -> DeviceArray: return apply(kernels._sigmoid_kernel, x, floats_only=True)
def erf(x: DeviceArray) -> DeviceArray: return apply(kernels._erf_kernel, x, floats_only=True)
def tan(x: DeviceArray) -> DeviceArray: return apply(special._tan_kernel, x, floats_only=True)
def asin(x: DeviceArray) -> DeviceArray: return apply(special._asin_kernel, x, floats_only=True)
def acos(x: DeviceArray) -> DeviceArray: return apply(special._acos_kernel, x, floats_only=True)
def atan(x: DeviceArray) -> DeviceArray: return apply(special._atan_kernel, x, floats_only=True)
def sinh(x: DeviceArray) -> DeviceArray: return apply(special._sinh_kernel, x, floats_only=True)
def cosh(x: DeviceArray) -> DeviceArray: return apply(special._cosh_kernel, x, floats_only=True)
def asinh(x: DeviceArray) -> DeviceArray: return apply(special._asinh_kernel, x, floats_only=True)
def acosh(x: DeviceArray) -> DeviceArray: return apply(special._acosh_kernel, x, floats_only=True)
def atanh(x: DeviceArray) -> DeviceArray: return apply(special._atanh_kernel, x, floats_only=True)
def exp2(x: DeviceArray) -> DeviceArray: return apply(special._exp2_kernel, x, floats_only=True)
def log2(x: DeviceArray) -> DeviceArray: return apply(special._log2_kernel, x, floats_only=True)
def log10(x: DeviceArray) -> DeviceArray: return apply(special._log10_kernel, x, floats_only=True)
def erfc(x: DeviceArray) -> DeviceArray: return apply(special._erfc_kernel, x, floats_only=True)
def erfinv(x: DeviceArray) -> DeviceArray: return apply(special._erfinv_kernel, x, floats_only=True)
def lgamma(x: DeviceArray) -> DeviceArray: return apply(special._lgamma_kernel, x, floats_only=True)
def digamma(x: DeviceArray) -> DeviceArray: return apply(special._digamma_kernel, x, floats_only=True)
def trigamma(x: DeviceArray) -> DeviceArray: return apply(special._trigamma_kernel, x, floats_only=True)
def trunc(x: DeviceArray) -> DeviceArray: return apply(kernels._trunc_kernel, require_numbers("trunc", x))
def floor(x: DeviceArray) -> DeviceArray: return apply(kernels._floor_kernel, require_numbers("floor", x))
def ceil(x: DeviceArray) -> DeviceArray: return apply(kernels._ceil_kernel, require_numbers("ceil", x))
def isnan(x: DeviceArray) -> DeviceArray: return apply(kernels._isnan_kernel, x, dtype=dtypes.bool_)
def isinf(x: DeviceArray) -> DeviceArray: return apply(kernels._isinf_kernel, x, dtype=dtypes.bool_)
def isfinite(x: DeviceArray) -> DeviceArray: return apply(kernels._isfinite_kernel, x, dtype=dtypes.bool_)
def logical_not(x: DeviceArray) -> DeviceArray: return apply(kernels._logical_not_kernel, x, dtype=dtypes.bool_)


def round(x: DeviceArray, decimals: int = 0) -> DeviceArray:
    if decimals == 0 or not x.dtype.is_floating_point:
        return apply(kernels._round_kernel, require_numbers("round", x))
    op = kernels._round_decimals_kernel if decimals > 0 else kernels._round_tens_kernel
    return apply(op, x, 10.0 ** (decimals if decimals > 0 else -decimals))


def bitwise_not(x: DeviceArray) -> DeviceArray:
    if x.dtype is dtypes.bool_:
        return logical_not(x)
    return apply(_integers("bitwise_not", kernels._bitwise_not_kernel, x), x)


# --- two operands: arithmetic ---------------------------------------------------------------------------------------
add = binary(__name__, kernels._add_kernel)
sub = binary(__name__, kernels._sub_kernel)
mul = binary(__name__, kernels._mul_kernel)
div = binary(__name__, kernels._div_kernel, floats_only=True)
floor_divide = binary(__name__, kernels._floor_divide_kernel)
remainder = binary(__name__, kernels._remainder_kernel)
fmod = binary(__name__, kernels._fmod_kernel)
atan2 = binary(__name__, kernels._atan2_kernel, floats_only=True)
hypot = binary(__name__, kernels._hypot_kernel, floats_only=True)
copysign = binary(__name__, kernels._copysign_kernel, floats_only=True)
_next = binary(__name__, kernels._nextafter_kernel, floats_only=True)


def nextafter(x: Operand, y: Operand) -> DeviceArray:
    for operand in (x, y):
        if isinstance(operand, DeviceArray) and operand.dtype.itemsize == 2:  # computed in float32, whose next is near
            raise NotImplementedError(f"nextafter has no cuda implementation for {operand.dtype.name}")
    return _next(x, y)


maximum = binary(__name__, kernels._maximum_kernel)
minimum = binary(__name__, kernels._minimum_kernel)


def pow(x: Operand, y: Operand) -> DeviceArray:
    if isinstance(x, DeviceArray) and x.dtype.is_floating_point and not isinstance(y, DeviceArray):
        if y == 2:
            return mul(x, x)
        if y in _ROOTS:  # exact, and with the corner cases of the roots rather than of powers
            return _ROOTS[y](x)
    return apply(kernels._pow_kernel, x, y)


_ROOTS = {0.5: sqrt, -0.5: rsqrt, -1.0: reciprocal}


# --- two operands: comparison, logic, bits --------------------------------------------------------------------------
eq = binary(__name__, kernels._eq_kernel, dtype=dtypes.bool_)
ne = binary(__name__, kernels._ne_kernel, dtype=dtypes.bool_)
lt = binary(__name__, kernels._lt_kernel, dtype=dtypes.bool_)
le = binary(__name__, kernels._le_kernel, dtype=dtypes.bool_)
gt = binary(__name__, kernels._gt_kernel, dtype=dtypes.bool_)
ge = binary(__name__, kernels._ge_kernel, dtype=dtypes.bool_)
logical_and = binary(__name__, kernels._logical_and_kernel, dtype=dtypes.bool_)
logical_or = binary(__name__, kernels._logical_or_kernel, dtype=dtypes.bool_)


def bitwise_and(x: Operand, y: Operand) -> DeviceArray: return apply(_integers("bitwise_and", kernels._bitwise_and_kernel, x, y), x, y)
def bitwise_or(x: Operand, y: Operand) -> DeviceArray: return apply(_integers("bitwise_or", kernels._bitwise_or_kernel, x, y), x, y)
def bitwise_xor(x: Operand, y: Operand) -> DeviceArray: return apply(_integers("bitwise_xor", kernels._bitwise_xor_kernel, x, y), x, y)


def _integers(op: str, kernel: object, *operands: Operand) -> object:
    for operand in operands:
        dtype = operand.dtype if isinstance(operand, DeviceArray) else dtypes.of_scalar(operand)
        if dtype.is_floating_point:
            raise NotImplementedError(f"{op} has no cuda implementation for {dtype.name}")
    return kernel


# --- selection ------------------------------------------------------------------------------------------------------
def where(condition: DeviceArray, x: Operand, y: Operand) -> DeviceArray: return apply(kernels._where_kernel, condition, x, y)


def clamp(x: DeviceArray, low: Number | None, high: Number | None) -> DeviceArray:
    if low is None:
        return apply(kernels._clamp_max_kernel, x, high)
    if high is None:
        return apply(kernels._clamp_min_kernel, x, low)
    return apply(kernels._clamp_kernel, x, low, high)
