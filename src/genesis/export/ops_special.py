"""Translations: the gamma functions and erf⁻¹, which ONNX lacks, by their series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.export.graph import Emitter, Operand
from genesis.export.registry import translates

if TYPE_CHECKING:
    import onnx_ir as ir

_WIDE = dtypes.float64  # near the zeros of ln Γ and ψ, terms that are much larger cancel
_LEAST = 8  # from here on, Stirling's series are exact to 1e-13
# Of w⁻¹, w⁻³, …: B₂ₙ / 2n(2n − 1), with Bernoulli's numbers B₂ₙ.
_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # of w⁻², w⁻⁴, …: B₂ₙ / 2n
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # of w⁻³, w⁻⁵, …: B₂ₙ
# Giles 2010, "Approximating the erfinv function": erf⁻¹(x) / x by w − 2.5 for w = −ln(1 − x²) < 5, else by √w − 3.
_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322, 0.000100950558,
    -0.000200214257,
)  # fmt: skip


def _number(e: Emitter, value: float) -> ir.Value:
    return e.number(value, _WIDE)


def _polynomial(e: Emitter, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Σ coefficients[n] · xⁿ."""
    y = _number(e, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        y = e.op("Add", e.op("Mul", y, x), _number(e, coefficient))
    return y


class _Raised:
    """An argument of 0.5 or more, and the numbers up to those where the series holds.

    Attributes:
        value: z, or z + 8 if that is less than 8.
        is_raised: which of them.
        steps: z, z + 1, … z + 7.
    """

    def __init__(self, e: Emitter, z: ir.Value) -> None:
        self.is_raised = e.op("Less", z, _number(e, _LEAST))
        self.value = e.op("Where", self.is_raised, e.op("Add", z, _number(e, _LEAST)), z)
        self.steps = [z, *[e.op("Add", z, _number(e, step)) for step in range(1, _LEAST)]]

    def sum(self, e: Emitter, term: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Σ term(step), or 0 where the series holds at once."""
        return e.op("Where", self.is_raised, e.op("Sum", *map(term, self.steps)), _number(e, 0))


def _reflected(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return whether x is less than ½; 1 − x there, else x; and π · (x − the nearest integer), for its sine."""
    is_left = e.op("Less", x, _number(e, 0.5))
    z = e.op("Where", is_left, e.op("Sub", _number(e, 1), x), x)
    return is_left, z, e.op("Mul", e.op("Sub", x, e.op("Round", x)), _number(e, math.pi))


def _wide(translate: Callable[[Emitter, ir.Value], ir.Value]) -> Callable[[Emitter, Operand], ir.Value]:
    return lambda e, x: e.convert(translate(e, e.cast(x, _WIDE)), e.dtype)


@translates("LogGamma", "lgamma")
@_wide
def lgamma(e: Emitter, x: ir.Value) -> ir.Value:
    is_left, z, angle = _reflected(e, x)
    raised = _Raised(e, z)
    w = raised.value
    leading = e.op("Sub", e.op("Mul", e.op("Sub", w, _number(e, 0.5)), e.op("Log", w)), w)
    inverse = e.op("Reciprocal", w)
    series = e.op("Mul", inverse, _polynomial(e, e.op("Mul", inverse, inverse), _LOG_GAMMA))
    y = e.op("Sum", leading, series, _number(e, 0.5 * math.log(2 * math.pi)))
    y = e.op("Sub", y, raised.sum(e, lambda step: e.op("Log", step)))
    # ln |Γ(x)| = ln(π / |sin πx|) − ln Γ(1 − x)
    mirrored = e.op("Sub", e.op("Log", e.op("Div", _number(e, math.pi), e.op("Abs", e.op("Sin", angle)))), y)
    return e.op("Where", e.op("IsInf", x), e.op("Abs", x), e.op("Where", is_left, mirrored, y))


@translates("Digamma", "digamma")
@_wide
def digamma(e: Emitter, x: ir.Value) -> ir.Value:
    is_left, z, angle = _reflected(e, x)
    raised = _Raised(e, z)
    inverse = e.op("Reciprocal", raised.value)
    square = e.op("Mul", inverse, inverse)
    series = e.op("Mul", square, _polynomial(e, square, _DIGAMMA))
    y = e.op("Sub", e.op("Log", raised.value), e.op("Add", e.op("Mul", inverse, _number(e, 0.5)), series))
    y = e.op("Sub", y, raised.sum(e, lambda step: e.op("Reciprocal", step)))
    sine = e.op("Sin", angle)  # ψ(x) = ψ(1 − x) − π · cos πx / sin πx; ONNX Runtime has no tangent of float64
    is_pole = e.op("Equal", sine, _number(e, 0))
    mirrored = e.op("Sub", y, e.op("Div", e.op("Mul", e.op("Cos", angle), _number(e, math.pi)), sine))
    mirrored = e.op("Where", is_pole, _number(e, math.nan), mirrored)
    at_zero = e.op("Neg", e.op("Reciprocal", x))  # −∞, and ∞ at −0
    y = e.op("Where", is_left, mirrored, y)
    return e.op("Where", e.op("Equal", x, _number(e, 0)), at_zero, y)


@translates("Trigamma", "trigamma")
@_wide
def trigamma(e: Emitter, x: ir.Value) -> ir.Value:
    is_left, z, angle = _reflected(e, x)
    raised = _Raised(e, z)
    inverse = e.op("Reciprocal", raised.value)
    square = e.op("Mul", inverse, inverse)
    series = e.op("Mul", e.op("Mul", square, inverse), _polynomial(e, square, _TRIGAMMA))
    y = e.op("Sum", inverse, e.op("Mul", square, _number(e, 0.5)), series)
    y = e.op("Add", y, raised.sum(e, lambda step: e.op("Reciprocal", e.op("Mul", step, step))))
    ratio = e.op("Div", _number(e, math.pi), e.op("Sin", angle))  # ψ′(x) = π² / sin² πx − ψ′(1 − x)
    return e.op("Where", is_left, e.op("Sub", e.op("Mul", ratio, ratio), y), y)


@translates("Erfinv", "erfinv")
@_wide
def erfinv(e: Emitter, x: ir.Value) -> ir.Value:
    one = _number(e, 1)
    w = e.op("Neg", e.op("Log", e.op("Mul", e.op("Sub", one, x), e.op("Add", one, x))))
    near = _polynomial(e, e.op("Sub", w, _number(e, 2.5)), _NEAR)
    far = _polynomial(e, e.op("Sub", e.op("Sqrt", w), _number(e, 3)), _FAR)
    ratio = e.op("Where", e.op("Less", w, _number(e, 5)), near, far)
    ratio = e.op("Where", e.op("IsInf", w), _number(e, math.inf), ratio)
    return e.op("Mul", x, ratio)
