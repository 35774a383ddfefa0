"""Gradients over complex tensors: which functions have one, and by which backward.

A function that is linear with real coefficients (sums, views, copies) has the same backward as over real numbers. One
that is complex-differentiable, w = f(z), has grad · conj(f′(z)), where the backward of real numbers gives grad · f′(z):
so the gradient is conjugated before and after. What is in neither list is refused, see genesis.autograd.complex_forms.
"""

from __future__ import annotations

from genesis.autograd import Gradients, Tensor
from genesis.autograd.complex_forms import FORMS
from genesis.autograd.context import Context, Differentiable
from genesis.autograd.recorded_walk import RULES, Recorded, Rule
from genesis.functional import activation as act
from genesis.functional import (
    complex_numbers,
    conversion,
    dense,
    elementwise,
    indexing,
    joining,
    linalg,
    padding,
    reduction,
    second_order,
    second_order_formulas,
    second_order_layers,
    second_order_special,
    selection,
    shape,
    statistics,
    transcendental,
    trigonometry,
    unary,
)
from genesis.functional.complex_numbers import Complex, Conj, Part, ViewAsComplex, ViewAsReal, conj
from genesis.ndarray import NDArray, ops

__all__: list[str] = []
_FILL_RULES = (second_order_formulas, second_order_layers, second_order_special)  # by being imported


def conjugated(function: type[Differentiable]) -> type[Differentiable]:
    """The form over complex numbers of a function that is complex-differentiable.

    Args:
        function: its backward is bilinear in the gradient and the derivative.
    Returns: the function with a backward by the conjugate derivative.
    """

    def backward(ctx: Context, *grads: NDArray | None) -> NDArray | Gradients | None:
        results: NDArray | Gradients = function.backward(
            ctx, *[None if grad is None else _conj(grad) for grad in grads]
        )
        return tuple(map(_conj, results)) if isinstance(results, tuple) else _conj(results)

    made: type[Differentiable] = type(function.__name__, (function,), {"backward": staticmethod(backward)})
    made.adds_up = False
    made.__module__ = function.__module__
    return made


def _conj(grad: NDArray | None) -> NDArray | None:
    return ops.conj(grad) if grad is not None and grad.dtype.is_complex else grad


def _recorded(rule: Rule) -> Rule:
    """The rule of a form that conjugated() made, from the rule over real numbers."""

    def conjugate_rule(call: Recorded, *grads: Tensor) -> tuple[Tensor | None, ...]:
        results = rule(call, *map(conj, grads))
        parts = results if isinstance(results, tuple) else (results,)
        return tuple([None if part is None else conj(part) for part in parts])

    return conjugate_rule


_LINEAR: tuple[type[Differentiable], ...] = (  # with real coefficients
    conversion.Cast, conversion.Clone, conversion.Contiguous, shape.Reshape, shape.Unsqueeze, shape.Permute,
    shape.Diagonal, shape.Flip, shape.Roll, shape.Expand, shape.Repeat, shape.Triangle, joining.Cat, joining.Split,
    joining.Unbind, joining.Narrow, indexing.GetItem, indexing.SetItem, selection.IndexSelect, selection.IndexAdd,
    selection.Gather, selection.Scatter, selection.ScatterAdd, selection.MaskedFill, padding.Pad, elementwise.Add,
    elementwise.Sub, elementwise.Where, unary.Neg, unary.Abs, reduction.Sum, reduction.Mean, reduction.CumSum,
    complex_numbers.Angle, Complex, Conj, Part, ViewAsComplex, ViewAsReal, second_order.Linear,
)  # fmt: skip
_COMPLEX_DIFFERENTIABLE: tuple[type[Differentiable], ...] = (
    elementwise.Mul, elementwise.Div, elementwise.Pow, unary.Exp, unary.Expm1, unary.Log, unary.Log1p, unary.Sqrt,
    unary.Rsqrt, unary.Reciprocal, unary.Sin, unary.Cos, transcendental.Exp2, transcendental.Log2, transcendental.Log10,
    trigonometry.Tan, trigonometry.ArcSin, trigonometry.ArcCos, trigonometry.ArcTan, trigonometry.Sinh,
    trigonometry.Cosh, trigonometry.Asinh, trigonometry.Acosh, trigonometry.Atanh, linalg.Matmul, dense.Linear,
    reduction.Prod, statistics.CumProd,
)  # fmt: skip
_BY_TORCH: tuple[type[Differentiable], ...] = (act.Sigmoid, act.Tanh)  # whose backward conjugates the derivative itself
_FIRST_ORDER = (reduction.Prod, statistics.CumProd)  # their rules for gradients of gradients are for real numbers

for function in _LINEAR:
    FORMS[function] = function
for function in (*_COMPLEX_DIFFERENTIABLE, *_BY_TORCH):
    attributes = {"__module__": function.__module__}
    form = type(function.__name__, (function,), attributes) if function in _BY_TORCH else conjugated(function)
    FORMS[function] = FORMS[form] = form
    if function in RULES and function not in _FIRST_ORDER:
        RULES[form] = _recorded(RULES[function])


def _abs(call: Recorded, grad: Tensor) -> Tensor | tuple[Tensor | None, ...]:
    (array,) = call.saved
    if not array.dtype.is_complex:
        return second_order.diagonal(call, grad)
    z = call.input(0, array)
    size = unary.abs(z)
    return z * (grad / elementwise.where(size == 0, 1.0, size))  # d|z| = z / |z|, 0 at 0


def _angle(call: Recorded, grad: Tensor) -> Tensor:
    (array,) = call.saved
    if not array.dtype.is_complex:
        return grad * 0
    z = call.input(0, array)
    size = unary.abs(z)
    safe = elementwise.where(size == 0, 1.0, size)
    return complex_numbers.complex(-z.imag, z.real) / safe * (grad / safe)  # d angle = i·z / |z|², 0 at 0


RULES[complex_numbers.Angle] = _angle
RULES[unary.Abs] = _abs
RULES[Complex] = lambda call, grad: (grad.real, grad.imag)
RULES[Conj] = lambda call, grad: conj(grad)
RULES[Part] = second_order.linear
RULES[ViewAsComplex] = lambda call, grad: complex_numbers.view_as_real(grad)
RULES[ViewAsReal] = lambda call, grad: complex_numbers.complex(grad[..., 0], grad[..., 1])
