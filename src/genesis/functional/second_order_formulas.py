"""Gradients of gradients where operands or results are part of the gradient: see second_order.py."""

from __future__ import annotations

import math
from collections.abc import Callable

from genesis.autograd import Tensor
from genesis.autograd.recorded_walk import RULES, Recorded, Rule
from genesis.functional import activation as act
from genesis.functional import elementwise, extremes, linalg, reduction, shape, unary
from genesis.functional.activation import sigmoid
from genesis.functional.dimensions import squeeze
from genesis.functional.elementwise import add, div, mul, sub, where
from genesis.functional.linalg import matmul
from genesis.functional.reduction import prod, sum
from genesis.functional.second_order import Gradients, linear_by, own_backward
from genesis.functional.shape import reshape, unsqueeze
from genesis.functional.unary import cos, erf, exp, log, neg, sin
from genesis.ndarray import NDArray, ops

__all__: list[str] = []  # the import fills the table of rules

# --- ops whose gradient has the operands or the result in it ----------------------------------------------------------


def by_input(formula: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """The rule of a function of one operand, from its gradient and the operand, which is saved."""
    return lambda call, grad: formula(grad, call.input(0, call.saved[0]))


def by_output(formula: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """The rule of a function of one operand, from its gradient and the result, which is saved."""
    return lambda call, grad: formula(grad, call.output(call.saved[0]))


def _tanh(grad: Tensor, y: Tensor) -> Tensor:
    return mul(grad, sub(1, mul(y, y)))


def _erf(grad: Tensor, x: Tensor) -> Tensor:
    return mul(mul(grad, exp(neg(mul(x, x)))), 2 / math.sqrt(math.pi))


RULES[unary.Neg] = lambda call, grad: neg(grad)
RULES[unary.Exp] = by_output(mul)
RULES[unary.Expm1] = by_output(lambda grad, y: mul(grad, add(y, 1)))
RULES[unary.Log] = by_input(div)
RULES[unary.Log1p] = by_input(lambda grad, x: div(grad, add(x, 1)))
RULES[unary.Sqrt] = by_output(lambda grad, y: div(grad, mul(y, 2)))
RULES[unary.Rsqrt] = by_output(lambda grad, y: mul(mul(grad, mul(mul(y, y), y)), -0.5))
RULES[unary.Reciprocal] = by_output(lambda grad, y: neg(mul(grad, mul(y, y))))
RULES[unary.Sin] = by_input(lambda grad, x: mul(grad, cos(x)))
RULES[unary.Cos] = by_input(lambda grad, x: neg(mul(grad, sin(x))))
RULES[unary.Erf] = by_input(_erf)
RULES[act.Sigmoid] = by_output(lambda grad, y: mul(grad, mul(y, sub(1, y))))
RULES[act.Tanh] = by_output(_tanh)


def _silu(grad: Tensor, x: Tensor) -> Tensor:
    s = sigmoid(x)
    return grad * (s * (1 + x * (1 - s)))


def _hardswish(grad: Tensor, x: Tensor) -> Tensor:
    return where(x <= -3, 0.0, where(x < 3, grad * (x / 3 + 0.5), grad))


def _gelu(call: Recorded, grad: Tensor) -> Tensor:
    x = call.input(0, call.saved[0])
    if call.ctx.approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        t = act.tanh(inner)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    return grad * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


def _softplus(call: Recorded, grad: Tensor) -> Tensor:
    x, beta = call.input(0, call.saved[0]), call.ctx.beta
    return where(x * beta > call.ctx.threshold, grad, grad * sigmoid(x * beta))


def _elu(call: Recorded, grad: Tensor) -> Tensor:
    alpha = call.ctx.alpha
    if call.ctx.keeps_result:
        y = call.output(call.saved[0])
        return where(y > 0, grad, grad * (y + alpha))
    x = call.input(0, call.saved[0])
    return where(x > 0, grad, grad * exp(where(x > 0, 0.0, x)) * alpha)


def _softmax(call: Recorded, grad: Tensor) -> Tensor:
    y, dim = call.output(call.saved[0]), call.ctx.dim
    return y * (grad - sum(grad * y, dim, keepdim=True)) if y.ndim else grad * 0.0


def _log_softmax(call: Recorded, grad: Tensor) -> Tensor:
    y, dim = call.output(call.saved[0]), call.ctx.dim
    return grad - exp(y) * sum(grad, dim, keepdim=True) if y.ndim else grad * 0.0


RULES[act.SiLU] = by_input(_silu)
RULES[act.Hardswish] = by_input(_hardswish)
RULES[act.GELU] = _gelu
RULES[act.Softplus] = _softplus
RULES[act.ELU] = _elu
RULES[act.Softmax] = _softmax
RULES[act.LogSoftmax] = _log_softmax

# --- two operands -----------------------------------------------------------------------------------------------------

RULES[elementwise.Add] = lambda call, grad: (grad, grad)
RULES[elementwise.Sub] = lambda call, grad: (grad, -grad)


def _mul(call: Recorded, grad: Tensor) -> Gradients:
    x, y = (call.input(index, each) for index, each in enumerate(call.saved))
    return None if y is None else grad * y, None if x is None else grad * x


def _div(call: Recorded, grad: Tensor) -> Gradients:
    x, y = (call.input(index, each) for index, each in enumerate(call.saved))
    grad_x = grad / y
    return grad_x, -(grad_x * x / y) if call.needs[1] else None


def _pow(call: Recorded, grad: Tensor) -> Gradients:
    x, y = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    grad_x = grad_y = None
    if call.needs[0]:
        if isinstance(y, Tensor):
            grad_x = grad * where(y == 0, 0.0, x ** (y - 1) * y)
        elif y == 0:
            grad_x = grad * 0.0
        else:
            grad_x = grad * (x if y == 2 else x ** (y - 1)) * y
    if call.needs[1]:
        result = call.output(call.saved[2])
        if isinstance(x, Tensor):
            zero = (x == 0) & (y >= 0)
            grad_y = grad * where(zero, 0.0, result * log(where(zero, 1.0, x)))
        elif x == 0:
            grad_y = grad * where(y >= 0, 0.0, result * -math.inf)
        else:
            grad_y = grad * result * (math.log(x) if x > 0 else math.nan)
    return grad_x, grad_y


def _matmul(call: Recorded, grad: Tensor) -> Gradients:
    x, y = (call.input(index, each) for index, each in enumerate(call.saved))
    x_shape, y_shape = call.ctx.shapes
    grad = unsqueeze(grad, -1) if len(y_shape) == 1 else grad
    grad = unsqueeze(grad, -2) if len(x_shape) == 1 else grad
    grad_x = grad_y = None
    if y is not None:
        y = unsqueeze(y, -1) if len(y_shape) == 1 else y
        grad_x = matmul(grad, shape.transpose(y, -1, -2))
        grad_x = squeeze(grad_x, -2) if len(x_shape) == 1 else grad_x
    if x is not None:
        x = unsqueeze(x, 0) if len(x_shape) == 1 else x
        grad_y = matmul(shape.transpose(x, -1, -2), grad)
        grad_y = squeeze(grad_y, -1) if len(y_shape) == 1 else grad_y
    return grad_x, grad_y


RULES[elementwise.Mul] = _mul
RULES[elementwise.Div] = _div
RULES[elementwise.Pow] = _pow
RULES[linalg.Matmul] = _matmul

# --- reductions -------------------------------------------------------------------------------------------------------


def kept(call: Recorded, reduced: Tensor) -> Tensor:
    """The result of a reduction, with the reduced dimensions of size 1.

    Args:
        call: of a Reduction.
        reduced: the shape of its result.
    Returns: a shape that broadcasts with the operand.
    """
    if call.ctx.keepdim:
        return reduced
    dims = {dim % len(call.ctx.shape) for dim in call.ctx.dims} if call.ctx.shape else set()
    return reshape(reduced, tuple([1 if dim in dims else size for dim, size in enumerate(call.ctx.shape)]))


def _norm(call: Recorded, grad: Tensor) -> Tensor | Gradients:
    order = call.ctx.order
    if order != 2:
        if order in (0, 1, math.inf, -math.inf):
            found: Gradients = multiples(call, grad)
            return found
        x, y = call.input(0, call.saved[0]), kept(call, call.output(call.saved[1]))
        safe = where(y == 0, 1.0, y)
        slope = unary.sign(x) * where(x == 0, 0.0, (unary.abs(where(x == 0, 1.0, x)) / safe) ** (order - 1))
        return where(y == 0, 0.0, slope * kept(call, grad))
    x, y = call.input(0, call.saved[0]), kept(call, call.output(call.saved[1]))
    return where(y == 0, 0.0, x * (kept(call, grad) / where(y == 0, 1.0, y)))


def _multiples_back(call: Recorded, array: NDArray) -> NDArray:
    factors = own_backward(call)((array.full_like(1, call.node.outputs[0][0]),))
    assert isinstance(factors, NDArray)
    return ops.sum(factors.mul(array), call.ctx.dims, call.ctx.keepdim)


multiples = linear_by(_multiples_back)  # of a reduction whose gradient is, element by element, a constant multiple


def _var(call: Recorded, grad: Tensor) -> Tensor:
    return _variance_slope(call, kept(call, grad))


def _std(call: Recorded, grad: Tensor) -> Tensor:
    y = call.output(call.saved[1])
    return _variance_slope(call, kept(call, where(y == 0, 0.0, grad / (where(y == 0, 1.0, y) * 2))))


def _variance_slope(call: Recorded, grad: Tensor) -> Tensor:
    x, dims = call.input(0, call.saved[0]), call.ctx.dims
    count = 1
    for dim in dims if x.ndim else ():
        count *= x.shape[dim]
    return grad * (x - reduction.mean(x, dims, keepdim=True)) * (2 / (count - call.ctx.correction))


def _log_sum_exp(call: Recorded, grad: Tensor) -> Tensor:
    x, y = call.input(0, call.saved[0]), call.output(call.saved[1])
    return exp(x - kept(call, y)) * kept(call, grad)


def _prod(call: Recorded, grad: Tensor) -> Tensor:
    x = call.input(0, call.saved[0])
    total = x
    for dim in sorted((dim % max(x.ndim, 1) for dim in call.ctx.dims), reverse=True) if x.ndim else ():
        total = prod(total, dim, keepdim=True)
    if bool((x == 0).any()):
        raise NotImplementedError("prod: create_graph=True is not supported where an element is zero")
    return kept(call, grad) * total / x


RULES[reduction.Norm] = _norm
RULES[extremes.Extreme] = RULES[extremes.ExtremeOfAll] = multiples
RULES[reduction.Var] = _var
RULES[reduction.Std] = _std
RULES[reduction.LogSumExp] = _log_sum_exp
RULES[reduction.Prod] = _prod
