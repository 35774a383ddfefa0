"""Matrix products. Operands have one dtype (under autocast, the lower one that it chose)."""

from __future__ import annotations

from typing import Any

from genesis import shapes
from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.elementwise import mul
from genesis.functional.shape import unsqueeze
from genesis.ndarray import NDArray, ops
from genesis.precision import follows_forward, get_float32_precision

__all__ = ["bmm", "dot", "matmul", "mm", "mv", "outer"]


def matmul(input: Tensor, other: Tensor) -> Any:
    """The matrix product over the last two dimensions; the others broadcast.

    Vectors: a 1-d input is a row, a 1-d other a column, and that dimension is gone from the result.

    Example:
        >>> F.matmul(genesis.tensor([[1.0, 2.0], [3.0, 4.0]]), genesis.tensor([1.0, 1.0])).tolist()
        [3.0, 7.0]
    """
    require_tensors("matmul", input=input, other=other)
    x, y = input.array.shape, other.array.shape
    for name, shape in (("input", x), ("other", y)):
        if not shape:
            raise ShapeError(describe("matmul", name, "at least 1 dimension", "a 0-d tensor"))
    _require_inner("matmul", "other", x, y)
    if len(x) > 2 and len(y) > 2:
        shapes.broadcast("matmul", x[:-2], y[:-2])
    return Matmul.apply(input, other)


class Matmul(ArrayFunction):
    autocast = "lower"

    @staticmethod
    def forward(ctx: Any, x: NDArray, y: NDArray) -> NDArray:
        if x.dtype is not y.dtype:
            raise DTypeError(describe("matmul", "other", f"{x.dtype}, as input", y.dtype))
        if x.dtype.name == "bool":
            raise DTypeError(describe("matmul", "input", "numbers", x.dtype))
        needs_x, needs_y = ctx.needs_input_grad
        ctx.save(x if needs_y else None, y if needs_x else None)
        ctx.shapes, ctx.precision = (x.shape, y.shape), get_float32_precision()
        z = ops.matmul(_rows(x), _columns(y))
        z = z.squeeze((z.ndim - 1,)) if y.ndim == 1 else z
        return z.squeeze((z.ndim - (1 if y.ndim == 1 else 2),)) if x.ndim == 1 else z

    @staticmethod
    @follows_forward
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        x_shape, y_shape = ctx.shapes
        grad = grad.unsqueeze(grad.ndim) if len(y_shape) == 1 else grad
        grad = grad.unsqueeze(grad.ndim - 1) if len(x_shape) == 1 else grad
        grad_x = grad_y = None
        if y is not None:  # dX = dZ · Yᵀ
            y = _transposed(_columns(y))
            one = shapes.numel(x_shape[:-2]) == 1
            grad_x = _product_of_batch(_transposed(grad), y).reshape(x_shape) if one else ops.matmul(grad, y)
        if x is not None:  # dY = Xᵀ · dZ
            x = _rows(x)
            one = shapes.numel(y_shape[:-2]) == 1
            grad_y = _product_of_batch(x, grad).reshape(y_shape) if one else ops.matmul(_transposed(x), grad)
        return grad_x, grad_y


def _product_of_batch(x: NDArray, y: NDArray) -> NDArray:
    """Σ xᵀ · y over the batch, as one product: faster, and more accurate in 16 bits, than a sum of products."""
    if max(x.ndim, y.ndim) > 2:
        batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
        x, y = (a.expand((*batch, *a.shape[-2:])) for a in (x, y))
        x, y = (a.reshape((shapes.numel(a.shape[:-1]), a.shape[-1])) for a in (x, y))
    return ops.matmul(_transposed(x), y)


def _rows(x: NDArray) -> NDArray:
    return x.unsqueeze(0) if x.ndim == 1 else x


def _columns(y: NDArray) -> NDArray:
    return y.unsqueeze(1) if y.ndim == 1 else y


def _transposed(x: NDArray) -> NDArray:
    return x.transpose(x.ndim - 2, x.ndim - 1)


def mm(input: Tensor, mat2: Tensor) -> Any:
    """The product of two matrices: (M, K) by (K, N)."""
    return _product("mm", 2, input, "mat2", mat2)


def bmm(input: Tensor, mat2: Tensor) -> Any:
    """The products of two batches of matrices: (B, M, K) by (B, K, N)."""
    return _product("bmm", 3, input, "mat2", mat2)


def dot(input: Tensor, tensor: Tensor) -> Any:
    """The inner product of two vectors of one length."""
    require_tensors("dot", input=input, tensor=tensor)
    _require_ndim("dot", "input", input, 1)
    _require_ndim("dot", "tensor", tensor, 1)
    _require_inner("dot", "tensor", input.array.shape, tensor.array.shape)
    return Matmul.apply(input, tensor)


def mv(input: Tensor, vec: Tensor) -> Any:
    """A matrix times a vector: (M, K) by (K)."""
    require_tensors("mv", input=input, vec=vec)
    _require_ndim("mv", "input", input, 2)
    _require_ndim("mv", "vec", vec, 1)
    _require_inner("mv", "vec", input.array.shape, vec.array.shape)
    return Matmul.apply(input, vec)


def outer(input: Tensor, vec2: Tensor) -> Any:
    """Every product of an element of input with one of vec2: (M) by (N) gives (M, N).

    Example:
        >>> F.outer(genesis.tensor([1, 2]), genesis.tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
    """
    require_tensors("outer", input=input, vec2=vec2)
    _require_ndim("outer", "input", input, 1)
    _require_ndim("outer", "vec2", vec2, 1)
    return mul(unsqueeze(input, 1), vec2)


def _product(op: str, ndim: int, input: Tensor, name: str, other: Tensor) -> Any:
    require_tensors(op, **{"input": input, name: other})
    _require_ndim(op, "input", input, ndim)
    _require_ndim(op, name, other, ndim)
    x, y = input.array.shape, other.array.shape
    if x[:-2] != y[:-2]:
        raise ShapeError(describe(op, name, f"a batch of {x[0]}, as input", y[0]))
    _require_inner(op, name, x, y)
    return Matmul.apply(input, other)


# --- arguments --------------------------------------------------------------------------------------------------------


def _require_ndim(op: str, name: str, value: Tensor, ndim: int) -> None:
    if value.array.ndim != ndim:
        raise ShapeError(describe(op, name, f"{ndim} dimension{'s' * (ndim > 1)}", f"shape {value.array.shape}"))


def _require_inner(op: str, name: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    dim = -1 if len(y) == 1 else -2
    if x[-1] != y[dim]:
        raise ShapeError(
            describe(op, name, f"{x[-1]} elements in dimension {dim}, as the last of input {x}", f"shape {y}")
        )
