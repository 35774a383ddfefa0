"""The mathematical ops of NDArray: element-wise, activations, reductions, linear algebra, selection, random.

Each is one line to the backend. What the helpers at the top add is the promotion of dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import backends, dtypes
from genesis.dtypes import DType
from genesis.ndarray.dispatch import Array, backend_of, call, call_raw, handles
from genesis.ndarray.refusals import LIBRARY_ERRORS, refusal
from genesis.shapes import Shape

Number = bool | int | float


def rank(value: Any) -> int:
    """How much a value weighs in promotion: 2 with dimensions, 1 for 0-d, 0 for a Python number."""
    return (2 if value.handle.shape else 1) if isinstance(value, Array) else 0


def result_type(*values: Any) -> DType:
    """The dtype in which an op on these arrays and Python numbers computes."""
    return dtypes.result_type(
        (value.dtype if isinstance(value, Array) else dtypes.of_scalar(value), rank(value)) for value in values
    )


def binary(op: str, x: Any, y: Any, floating: bool = False) -> Any:
    """backend.op(x, y) in the promoted dtype; floating: integers compute as the default float."""
    if type(x) is type(y):
        second: Any = y.handle
        plain = x.handle.dtype is second.dtype and x.device is y.device
    else:
        second, plain = y, _is_plain(x, y)
    if plain and (not floating or x.dtype.is_floating_point):  # call() written out: this is on the way of most ops
        device = x.device
        backend = backends.active.get(device.type) or backend_of(device)
        try:
            return type(x)(getattr(backend, op)(x.handle, second), device)
        except LIBRARY_ERRORS as error:
            raise refusal(op, (x, y), error) from None
    dtype = result_type(x, y)
    if floating and not dtype.is_floating_point:
        dtype = dtypes.get_default_dtype()
    x = x.to(dtype) if isinstance(x, Array) else x
    y = y.to(dtype) if isinstance(y, Array) else y
    return call(op, x, y) if isinstance(x, Array) else call_reversed(op, x, y)


def _is_plain(x: Any, y: Any) -> bool:
    """Is this a floating array and a number that its dtype takes?"""
    return type(y) in (int, float, bool) and isinstance(x, Array) and x.dtype.is_floating_point


def call_reversed(op: str, number: Number, y: Any) -> Any:
    """backend.op(number, y)."""
    try:
        return type(y)(getattr(backend_of(y.device), op)(number, y.handle), y.device)
    except LIBRARY_ERRORS as error:
        raise refusal(op, (y,), error) from None


class MathOps(Array):
    """A part of NDArray: see the module's docstring."""

    __slots__ = ()

    def _floating(self) -> Any:
        """This array, integers and bool as the default float dtype."""
        return self if self.dtype.is_floating_point else self.to(dtypes.get_default_dtype())

    # --- element-wise, one operand ----------------------------------------------------------------------------------

    def neg(self) -> Any:
        return call("neg", self)

    def abs(self) -> Any:
        return call("abs", self)

    def sign(self) -> Any:
        return call("sign", self)

    def floor(self) -> Any:
        return call("floor", self)

    def ceil(self) -> Any:
        return call("ceil", self)

    def isnan(self) -> Any:
        return call("isnan", self)

    def isinf(self) -> Any:
        return call("isinf", self)

    def isfinite(self) -> Any:
        return call("isfinite", self)

    def logical_not(self) -> Any:
        return call("logical_not", self)

    def bitwise_not(self) -> Any:
        return call("bitwise_not", self)

    def round(self, decimals: int = 0) -> Any:
        return call("round", self, decimals)

    def exp(self) -> Any:
        return call("exp", self._floating())

    def expm1(self) -> Any:
        return call("expm1", self._floating())

    def log(self) -> Any:
        return call("log", self._floating())

    def log1p(self) -> Any:
        return call("log1p", self._floating())

    def sqrt(self) -> Any:
        return call("sqrt", self._floating())

    def rsqrt(self) -> Any:
        return call("rsqrt", self._floating())

    def reciprocal(self) -> Any:
        return call("reciprocal", self._floating())

    def sin(self) -> Any:
        return call("sin", self._floating())

    def cos(self) -> Any:
        return call("cos", self._floating())

    def tanh(self) -> Any:
        return call("tanh", self._floating())

    def sigmoid(self) -> Any:
        return call("sigmoid", self._floating())

    def erf(self) -> Any:
        return call("erf", self._floating())

    # --- element-wise, two and three operands; the reversed forms serve a Python number on the left -----------------

    def add(self, other: Any) -> Any:
        return binary("add", self, other)

    def sub(self, other: Any) -> Any:
        return binary("sub", self, other)

    def mul(self, other: Any) -> Any:
        return binary("mul", self, other)

    def floor_divide(self, other: Any) -> Any:
        return binary("floor_divide", self, other)

    def remainder(self, other: Any) -> Any:
        return binary("remainder", self, other)

    def pow(self, other: Any) -> Any:
        return binary("pow", self, other)

    def maximum(self, other: Any) -> Any:
        return binary("maximum", self, other)

    def minimum(self, other: Any) -> Any:
        return binary("minimum", self, other)

    def eq(self, other: Any) -> Any:
        return binary("eq", self, other)

    def ne(self, other: Any) -> Any:
        return binary("ne", self, other)

    def lt(self, other: Any) -> Any:
        return binary("lt", self, other)

    def le(self, other: Any) -> Any:
        return binary("le", self, other)

    def gt(self, other: Any) -> Any:
        return binary("gt", self, other)

    def ge(self, other: Any) -> Any:
        return binary("ge", self, other)

    def logical_and(self, other: Any) -> Any:
        return binary("logical_and", self, other)

    def logical_or(self, other: Any) -> Any:
        return binary("logical_or", self, other)

    def bitwise_and(self, other: Any) -> Any:
        return binary("bitwise_and", self, other)

    def bitwise_or(self, other: Any) -> Any:
        return binary("bitwise_or", self, other)

    def bitwise_xor(self, other: Any) -> Any:
        return binary("bitwise_xor", self, other)

    def div(self, other: Any) -> Any:
        return binary("div", self, other, floating=True)

    def rsub(self, other: Any) -> Any:
        return binary("sub", other, self)

    def rdiv(self, other: Any) -> Any:
        return binary("div", other, self, floating=True)

    def where(self, x: Any, y: Any) -> Any:
        """x where self (bool) is true, else y; x and y are arrays or numbers, promoted."""
        dtype = result_type(x, y)
        x = x.to(dtype) if isinstance(x, Array) else dtypes.number("where", "input", x, dtype, rounds=True)
        y = y.to(dtype) if isinstance(y, Array) else dtypes.number("where", "other", y, dtype, rounds=True)
        if not isinstance(x, Array) and not isinstance(y, Array):
            y = self.full_like(y, (), dtype)
        return call("where", self, x, y)

    def clamp(self, low: Number | None, high: Number | None) -> Any:
        return call("clamp", self, low, high)

    # --- activations ------------------------------------------------------------------------------------------------

    def relu(self) -> Any:
        return call("relu", self)

    def relu_backward(self, y: Any) -> Any:
        return call("relu_backward", self, y)

    def leaky_relu(self, negative_slope: float) -> Any:
        return call("leaky_relu", self, negative_slope)

    def leaky_relu_backward(self, x: Any, negative_slope: float) -> Any:
        return call("leaky_relu_backward", self, x, negative_slope)

    def elu(self, alpha: float) -> Any:
        return call("elu", self, alpha)

    def elu_backward(self, x: Any, alpha: float) -> Any:
        return call("elu_backward", self, x, alpha)

    def gelu(self, approximate: str) -> Any:
        return call("gelu", self, approximate)

    def gelu_backward(self, x: Any, approximate: str) -> Any:
        return call("gelu_backward", self, x, approximate)

    def silu(self) -> Any:
        return call("silu", self)

    def silu_backward(self, x: Any) -> Any:
        return call("silu_backward", self, x)

    def softplus(self, beta: float, threshold: float) -> Any:
        return call("softplus", self, beta, threshold)

    def softplus_backward(self, x: Any, beta: float, threshold: float) -> Any:
        return call("softplus_backward", self, x, beta, threshold)

    def hardswish(self) -> Any:
        return call("hardswish", self)

    def hardswish_backward(self, x: Any) -> Any:
        return call("hardswish_backward", self, x)

    def hardsigmoid(self) -> Any:
        return call("hardsigmoid", self)

    def hardsigmoid_backward(self, x: Any) -> Any:
        return call("hardsigmoid_backward", self, x)

    def sigmoid_backward(self, y: Any) -> Any:
        return call("sigmoid_backward", self, y)

    def tanh_backward(self, y: Any) -> Any:
        return call("tanh_backward", self, y)

    def softmax(self, dim: int) -> Any:
        return call("softmax", self._floating(), dim)

    def softmax_backward(self, y: Any, dim: int) -> Any:
        return call("softmax_backward", self, y, dim)

    def log_softmax(self, dim: int) -> Any:
        return call("log_softmax", self._floating(), dim)

    def log_softmax_backward(self, y: Any, dim: int) -> Any:
        return call("log_softmax_backward", self, y, dim)

    # --- reductions: dims as shapes.normalize_dims gives them -------------------------------------------------------

    def sum(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("sum", self, dims, keepdim)

    def prod(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("prod", self, dims, keepdim)

    def amax(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("amax", self, dims, keepdim)

    def amin(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("amin", self, dims, keepdim)

    def all(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("all", self, dims, keepdim)

    def any(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("any", self, dims, keepdim)

    def mean(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("mean", self, dims, keepdim)

    def argmax(self, dim: int, keepdim: bool = False) -> Any:
        return call("argmax", self, dim, keepdim)

    def argmin(self, dim: int, keepdim: bool = False) -> Any:
        return call("argmin", self, dim, keepdim)

    def var(self, dims: Shape, correction: float, keepdim: bool = False) -> Any:
        return call("var", self, dims, correction, keepdim)

    def logsumexp(self, dims: Shape, keepdim: bool = False) -> Any:
        return call("logsumexp", self._floating(), dims, keepdim)

    def cumsum(self, dim: int) -> Any:
        return call("cumsum", self, dim)

    # --- linear algebra ---------------------------------------------------------------------------------------------

    def matmul(self, other: Any) -> Any:
        return call("matmul", self, other)

    def linear(self, weight: Any, bias: Any | None) -> Any:
        return call("linear", self, weight, bias)

    # --- selection and arrangement ----------------------------------------------------------------------------------

    @staticmethod
    def cat(arrays: Sequence[Any], dim: int) -> Any:
        first = arrays[0]
        listed = handles("cat", arrays)
        try:
            return type(first)(backend_of(first.device).cat(listed, dim), first.device)
        except LIBRARY_ERRORS as error:
            raise refusal("cat", arrays, error) from None

    def flip(self, dims: Shape) -> Any:
        return call("flip", self, dims)

    def tril(self, diagonal: int) -> Any:
        return call("tril", self, diagonal)

    def triu(self, diagonal: int) -> Any:
        return call("triu", self, diagonal)

    def pad(self, pads: tuple[tuple[int, int], ...], mode: str, value: Number) -> Any:
        return call("pad", self, pads, mode, value)

    def pad_backward(self, shape: Shape, pads: tuple[tuple[int, int], ...], mode: str) -> Any:
        return call("pad_backward", self, shape, pads, mode)

    def index_select(self, dim: int, index: Any) -> Any:
        return call("index_select", self, dim, index)

    @staticmethod
    def index_select_each(arrays: Sequence[Any], dims: Sequence[int], index: Any, factors: Sequence[Any]) -> list[Any]:
        """index_select of each array of one float dtype, times its factors (or None) along the dimension; at the cost
        of one. The indices are not checked."""
        device, given = index.device, [None if factor is None else factor.handle for factor in factors]
        made = backend_of(device).index_select_each(
            handles("index_select_each", [index, *arrays])[1:], dims, index.handle, given
        )
        return [type(index)(handle, device) for handle in made]

    def index_add(self, dim: int, index: Any, source: Any) -> Any:
        return call("index_add", self, dim, index, source)

    def gather(self, dim: int, index: Any) -> Any:
        return call("gather", self, dim, index)

    def scatter(self, dim: int, index: Any, source: Any) -> Any:
        return call("scatter", self, dim, index, source)

    def scatter_add(self, dim: int, index: Any, source: Any) -> Any:
        return call("scatter_add", self, dim, index, source)

    def take(self, indices: Sequence[Any | None]) -> Any:
        """self[indices] with an int64 array or None (the whole dimension) for each dimension."""
        return call("take", self, _index_handles("index", self, indices))

    def put(self, indices: Sequence[Any | None], values: Any, accumulate: bool = False) -> None:
        """In place: self[indices] = values, or += when accumulating."""
        call_raw("put", self, _index_handles("index_put", self, indices), values, accumulate)
        self.changes.count += 1

    def masked_fill(self, mask: Any, value: Number) -> Any:
        return call("masked_fill", self, mask, value)

    def nonzero(self) -> Any:
        return call("nonzero", self)

    def sort(self, dim: int, descending: bool, stable: bool) -> tuple[Any, Any]:
        return call("sort", self, dim, descending, stable)

    def topk(self, k: int, dim: int, largest: bool) -> tuple[Any, Any]:
        return call("topk", self, k, dim, largest)

    def dropout(self, p: float) -> tuple[Any, Any]:
        return call("dropout", self, p)


def _index_handles(op: str, x: Any, indices: Sequence[Any | None]) -> tuple[Any, ...]:
    present = [x, *(index for index in indices if index is not None)]
    listed = iter(handles(op, present)[1:])
    return tuple(None if index is None else next(listed) for index in indices)
