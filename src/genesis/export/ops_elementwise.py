"""Translations: element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.dtypes import BOOL, DType, Number
from genesis.export.graph import Emitter, Operand
from genesis.export.registry import NamedOp, translates

if TYPE_CHECKING:
    import onnx_ir as ir

Part = Operand | Number
_NARROW = ("int8", "int16", "uint8", "bool")  # in which ONNX Runtime computes little


def computed_in(dtype: DType) -> DType:
    """The dtype in which this one is computed: small integers wrap around when they are cast back."""
    return dtypes.int32 if dtype.name in _NARROW else dtype


def common(*operands: Part) -> DType:
    """The dtype in which operands meet: PyTorch's promotion."""
    tensors = [each for each in operands if isinstance(each, Operand)]
    found = tensors[0].dtype
    ranked = [each for each in tensors if each.ndim] or tensors  # 0-d ones count by their category alone
    found = ranked[0].dtype
    for each in ranked[1:]:
        found = dtypes.promote(found, each.dtype)
    for other in operands:
        dtype = other.dtype if isinstance(other, Operand) else dtypes.of_scalar(other)
        if dtype.category > found.category:
            found = dtype
    return found


# --- one operand ------------------------------------------------------------------------------------------------------


def _unary(kind: str) -> Callable[[Emitter, Operand], ir.Value]:
    def translate(e: Emitter, x: Operand) -> ir.Value:
        dtype = computed_in(e.dtype)
        y = e.op(kind, e.cast(x, dtype))
        return y if dtype is e.dtype else e.convert(y, e.dtype)

    return translate


for _name, _kind in {
    "Neg": "Neg", "Abs": "Abs", "Exp": "Exp", "Log": "Log", "Sqrt": "Sqrt", "Reciprocal": "Reciprocal", "Sin": "Sin",
    "Cos": "Cos", "Erf": "Erf", "Sign": "Sign", "Sigmoid": "Sigmoid", "Tanh": "Tanh",
}.items():  # fmt: skip
    translates(_name, _name.lower())(_unary(_kind))
for _name, _op, _kind in (
    ("Tan", "tan", "Tan"), ("ArcSin", "asin", "Asin"), ("ArcCos", "acos", "Acos"), ("ArcTan", "atan", "Atan"),
    ("Sinh", "sinh", "Sinh"), ("Cosh", "cosh", "Cosh"), ("Asinh", "asinh", "Asinh"), ("Acosh", "acosh", "Acosh"),
    ("Atanh", "atanh", "Atanh"),
):  # fmt: skip
    translates(_name, _op)(_unary(_kind))


def _rounded(kind: str) -> Callable[[Emitter, Operand, int], Operand | ir.Value]:
    def translate(e: Emitter, x: Operand, decimals: int = 0) -> Operand | ir.Value:
        if not x.dtype.is_floating_point:
            return x
        if not decimals:
            return e.op(kind, x)
        factor = e.number(10.0 ** abs(decimals), x.dtype)
        there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
        return e.op(back, e.op(kind, e.op(there, x, factor)), factor)

    return translate


translates("Floor", "floor")(_rounded("Floor"))
translates("Ceil", "ceil")(_rounded("Ceil"))
translates("Round", "round")(_rounded("Round"))


@translates("Rsqrt", "rsqrt")
def rsqrt(e: Emitter, x: Operand) -> ir.Value:
    return e.op("Reciprocal", e.op("Sqrt", e.cast(x, e.dtype)))


@translates("Expm1", "expm1")
def expm1(e: Emitter, x: Operand) -> ir.Value:
    half = e.op("Mul", e.cast(x, e.dtype), e.number(0.5, e.dtype))  # eˣ − 1 = 2·sinh(x/2)·e^(x/2), exact near 0
    small = e.op("Mul", e.op("Mul", e.op("Sinh", half), e.op("Exp", half)), e.number(2, e.dtype))
    large = e.op("Sub", e.op("Exp", e.cast(x, e.dtype)), e.number(1, e.dtype))
    return e.op("Where", e.op("Less", e.op("Abs", half), e.number(0.5, e.dtype)), small, large)


@translates("Log1p", "log1p")
def log1p(e: Emitter, x: Operand) -> ir.Value:
    value = e.cast(x, e.dtype)
    ratio = e.op("Div", value, e.op("Add", value, e.number(2, e.dtype)))  # ln(1 + x) = 2·artanh(x / (2 + x))
    small = e.op("Mul", e.op("Atanh", ratio), e.number(2, e.dtype))
    large = e.op("Log", e.op("Add", value, e.number(1, e.dtype)))
    return e.op("Where", e.op("Less", e.op("Abs", value), e.number(0.5, e.dtype)), small, large)


@translates("Exp2", "exp2")
def exp2(e: Emitter, x: Operand) -> ir.Value:
    return e.op("Pow", e.number(2, e.dtype), e.cast(x, e.dtype))


def _logarithm(base: int) -> Callable[[Emitter, Operand], ir.Value]:
    return lambda e, x: e.op("Div", e.op("Log", e.cast(x, e.dtype)), e.number(math.log(base), e.dtype))


translates("Log2", "log2")(_logarithm(2))
translates("Log10", "log10")(_logarithm(10))


@translates("Erfc", "erfc")
def erfc(e: Emitter, x: Operand) -> ir.Value:
    return e.op("Sub", e.number(1, e.dtype), e.op("Erf", e.cast(x, e.dtype)))


@translates("Trunc", "trunc")
def trunc(e: Emitter, x: Operand) -> Operand | ir.Value:
    return e.op("Mul", e.op("Sign", x), e.op("Floor", e.op("Abs", x))) if x.dtype.is_floating_point else x


# --- two operands -----------------------------------------------------------------------------------------------------


def _binary(kind: str, of_bools: str = "") -> Callable[[Emitter, Part, Part], ir.Value]:
    def translate(e: Emitter, x: Part, y: Part) -> ir.Value:
        if e.dtype.category == BOOL and of_bools:
            return e.op(of_bools, e.cast(x, e.dtype), e.cast(y, e.dtype))
        dtype = computed_in(e.dtype)
        z = e.op(kind, e.cast(x, dtype), e.cast(y, dtype))
        return z if dtype is e.dtype else e.convert(z, e.dtype)

    return translate


for _name, _kind, _of_bools in (
    ("Add", "Add", "Or"), ("Sub", "Sub", ""), ("Mul", "Mul", "And"), ("Div", "Div", ""), ("Maximum", "Max", "Or"),
    ("Minimum", "Min", "And"),
):  # fmt: skip
    translates(_name, _name.lower())(_binary(_kind, _of_bools))


@translates("Pow", "pow")
def pow(e: Emitter, x: Part, y: Part) -> ir.Value:
    if isinstance(y, int | float) and not isinstance(y, bool) and y == 2 and isinstance(x, Operand):
        return _binary("Mul", "And")(e, x, x)
    return _binary("Pow")(e, x, y)


@translates("Remainder", "remainder")
def remainder(e: Emitter, x: Part, y: Part) -> ir.Value:
    dtype = computed_in(e.dtype)
    left, right = e.cast(x, dtype), e.cast(y, dtype)
    if not dtype.is_floating_point:
        return e.convert(e.op("Mod", left, right, fmod=0), e.dtype)
    rest = e.op("Mod", left, right, fmod=1)  # the sign of x; y's is wanted
    zero = e.number(0, dtype)
    differs = e.op("Xor", e.op("Less", rest, zero), e.op("Less", right, zero))
    wrong = e.op("And", differs, e.op("Not", e.op("Equal", rest, zero)))
    return e.op("Where", wrong, e.op("Add", rest, right), rest)


@translates("Fmod", "fmod")
def fmod(e: Emitter, x: Part, y: Part) -> ir.Value:
    dtype = computed_in(e.dtype)
    return e.convert(e.op("Mod", e.cast(x, dtype), e.cast(y, dtype), fmod=1), e.dtype)


@translates("ArcTan2", "atan2")
def atan2(e: Emitter, y: Operand, x: Operand) -> ir.Value:
    up, right, zero = e.cast(y, e.dtype), e.cast(x, e.dtype), e.number(0, e.dtype)
    half = e.op("Where", e.op("Less", up, zero), e.number(-math.pi, e.dtype), e.number(math.pi, e.dtype))
    still = e.op("And", e.op("Equal", up, zero), e.op("Equal", right, zero))  # 0/0
    angle = e.op("Atan", e.op("Div", up, e.op("Where", still, e.number(1, e.dtype), right)))
    return e.op("Add", angle, e.op("Where", e.op("Less", right, zero), half, zero))


@translates("Hypot", "hypot")
def hypot(e: Emitter, x: Operand, y: Operand) -> ir.Value:
    sides = [e.op("Abs", e.cast(side, e.dtype)) for side in (x, y)]
    long, short = e.op("Max", *sides), e.op("Min", *sides)
    safe = e.op("Where", e.op("Equal", long, e.number(0, e.dtype)), e.number(1, e.dtype), long)
    ratio = e.op("Div", short, safe)
    return e.op("Mul", long, e.op("Sqrt", e.op("Add", e.op("Mul", ratio, ratio), e.number(1, e.dtype))))


@translates("CopySign", "copysign")
def copysign(e: Emitter, x: Part, y: Part) -> ir.Value:
    sign, zero = e.cast(y, e.dtype), e.number(0, e.dtype)
    minus = e.op("Less", e.op("Where", e.op("Equal", sign, zero), e.op("Reciprocal", sign), sign), zero)  # −0.0 too
    size = e.op("Abs", e.cast(x, e.dtype))
    return e.op("Where", minus, e.op("Neg", size), size)


@translates("FloorDivide", "floor_divide")
def floor_divide(e: Emitter, x: Part, y: Part) -> ir.Value:
    dtype = computed_in(e.dtype)
    left, right = e.cast(x, dtype), e.cast(y, dtype)
    if dtype.is_floating_point:
        return e.op("Floor", e.op("Div", left, right))
    whole = e.op("Sub", left, e.op("Mod", left, right, fmod=0))
    return e.convert(e.op("Div", whole, right), e.dtype)


@translates("TruncDivide")
def trunc_divide(e: Emitter, x: Part, y: Part) -> ir.Value:
    dtype = computed_in(e.dtype)
    quotient = e.op("Div", e.cast(x, dtype), e.cast(y, dtype))  # of integers: truncated already
    if not dtype.is_floating_point:
        return e.convert(quotient, e.dtype)
    return e.op("Mul", e.op("Sign", quotient), e.op("Floor", e.op("Abs", quotient)))


# --- bounds and choices -----------------------------------------------------------------------------------------------


@translates("Clamp")
def clamp(e: Emitter, x: Operand, min: Number | None, max: Number | None) -> ir.Value:
    dtype = computed_in(e.dtype)
    low, high = (None if bound is None else e.cast(bound, dtype) for bound in (min, max))
    y = e.op("Clip", e.cast(x, dtype), low, high)
    return y if dtype is e.dtype else e.convert(y, e.dtype)


translates("clamp")(lambda e, x, low, high: clamp(e, x, low, high))
translates("Hardtanh")(lambda e, x, low, high: clamp(e, x, low, high))


@translates("ClampBetween")
def clamp_between(e: Emitter, x: Operand, low: Operand | None, high: Operand | None) -> ir.Value:
    y = e.cast(x, e.dtype)
    y = y if low is None else e.op("Max", y, e.cast(low, e.dtype))
    return y if high is None else e.op("Min", y, e.cast(high, e.dtype))


@translates("Where", "where")
def where(e: Emitter, condition: Operand, x: Part, y: Part) -> ir.Value:
    return _select(e, e.cast(condition, dtypes.bool_), e.cast(x, e.dtype), e.cast(y, e.dtype))


@translates("MaskedFill", "masked_fill")
def masked_fill(e: Emitter, x: Operand, mask: Operand, value: Number) -> ir.Value:
    return _select(e, mask, e.number(value, e.dtype), x)


def _select(e: Emitter, condition: Part, x: Part, y: Part) -> ir.Value:
    if e.dtype is not dtypes.bool_:
        return e.op("Where", condition, x, y)
    return e.op("Or", e.op("And", condition, x), e.op("And", e.op("Not", condition), y))  # ONNX Runtime's lacks bools


@translates("Cast", "cast")
def cast(e: Emitter, x: Operand, dtype: DType, made: None = None) -> ir.Value:
    """made: no observed cast has it (amp/casting.py)."""
    if x.dtype.is_floating_point and dtype.name in ("int8", "int16", "uint8"):
        return e.convert(e.convert(x.value, dtypes.int32), dtype)
    return e.convert(x.value, dtype)


# --- questions --------------------------------------------------------------------------------------------------------

_COMPARISONS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_LOGIC = {"logical_and": "And", "logical_or": "Or"}
_BITS = {"bitwise_and": ("BitwiseAnd", "And"), "bitwise_or": ("BitwiseOr", "Or"), "bitwise_xor": ("BitwiseXor", "Xor")}


@translates("Compare")
def compare(e: Emitter, x: Part, y: Part, op: NamedOp) -> ir.Value:
    return compared(e, op.__name__, x, y)


def compared(e: Emitter, op: str, x: Part, y: Part) -> ir.Value:
    if op in _LOGIC:
        return e.op(_LOGIC[op], e.cast(x, dtypes.bool_), e.cast(y, dtypes.bool_))
    dtype = common(x, y)
    if op in _BITS:
        of_integers, of_bools = _BITS[op]
        return e.op(of_bools if dtype.category == BOOL else of_integers, e.cast(x, dtype), e.cast(y, dtype))
    if op not in _COMPARISONS:
        raise e.refuse(f"{op} has no translation to ONNX")
    dtype = computed_in(dtype)
    z = e.op(_COMPARISONS[op], e.cast(x, dtype), e.cast(y, dtype))
    return e.op("Not", z) if op == "ne" else z


@translates("Ask")
def ask(e: Emitter, x: Operand, op: NamedOp) -> ir.Value:
    return asked(e, op.__name__, x)


def asked(e: Emitter, op: str, x: Operand) -> ir.Value:
    if op == "logical_not":
        return e.op("Not", e.cast(x, dtypes.bool_))
    if op == "bitwise_not":
        return e.op("Not" if x.dtype.category == BOOL else "BitwiseNot", x)
    if not x.dtype.is_floating_point:
        y = e.op("Equal", e.cast(x, dtypes.int64), e.cast(x, dtypes.int64))
        return y if op == "isfinite" else e.op("Not", y)
    if op == "isnan":
        return e.op("IsNaN", x)
    value = x.value if x.dtype.itemsize >= 4 else e.convert(x.value, dtypes.float32)
    is_infinite = e.op("IsInf", value)
    return is_infinite if op == "isinf" else e.op("Not", e.op("Or", is_infinite, e.op("IsNaN", value)))


def _named_comparison(op: str) -> Callable[[Emitter, Part, Part], ir.Value]:
    return lambda e, x, y: compared(e, op, x, y)


def _named_question(op: str) -> Callable[[Emitter, Operand], ir.Value]:
    return lambda e, x: asked(e, op, x)


for _name in (*_COMPARISONS, *_LOGIC, *_BITS):
    translates(_name)(_named_comparison(_name))
for _name in ("isnan", "isinf", "isfinite", "logical_not", "bitwise_not"):
    translates(_name)(_named_question(_name))
