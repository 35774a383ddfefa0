"""Matrix products. Operands have one dtype (under autocast, the lower one that it chose)."""

from __future__ import annotations

from typing import Any

from genesis import shapes
from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import mul
from genesis.functional.shape import unsqueeze
from genesis.ndarray import NDArray


def matmul(input: Tensor, other: Tensor) -> Any:
    """The matrix product over the last two dimensions; the others broadcast.

    Vectors: a 1-d input is a row, a 1-d other a column, and that dimension is gone from the result.

    Example:
        >>> F.matmul(genesis.tensor([[1.0, 2.0], [3.0, 4.0]]), genesis.tensor([1.0, 1.0])).tolist()
        [3.0, 7.0]
    """
    _require_tensors("matmul", input=input, other=other)
    x, y = input.array.shape, other.array.shape
    for name, shape in (("input", x), ("other", y)):
        if not shape:
            raise ShapeError(describe("matmul", name, "at least 1 dimension", "a 0-d tensor"))
    _require_inner("matmul", "other", x, y)
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
        ctx.vectors, ctx.one_matrix = (x.ndim == 1, y.ndim == 1), y.ndim <= 2
        z = _rows(x).matmul(_columns(y))
        z = z.squeeze((z.ndim - 1,)) if y.ndim == 1 else z
        return z.squeeze((z.ndim - (1 if y.ndim == 1 else 2),)) if x.ndim == 1 else z

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        x_is_vector, y_is_vector = ctx.vectors
        grad = grad.unsqueeze(grad.ndim) if y_is_vector else grad
        grad = grad.unsqueeze(grad.ndim - 1) if x_is_vector else grad
        grad_x = grad_y = None
        if y is not None:  # dX = dZ · Yᵀ
            grad_x = grad.matmul(_transposed(_columns(y)))
            grad_x = grad_x.squeeze((grad_x.ndim - 2,)) if x_is_vector else grad_x
        if x is not None:  # dY = Xᵀ · dZ
            rows = _rows(x)
            if ctx.one_matrix and grad.ndim > 2:  # one product over the whole batch instead of a sum of products
                count = shapes.numel(grad.shape[:-1])
                rows, grad = rows.reshape((count, rows.shape[-1])), grad.reshape((count, grad.shape[-1]))
            grad_y = _transposed(rows).matmul(grad)
            grad_y = grad_y.squeeze((grad_y.ndim - 1,)) if y_is_vector else grad_y
        return grad_x, grad_y


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
    _require_tensors("dot", input=input, tensor=tensor)
    _require_ndim("dot", "input", input, 1)
    _require_ndim("dot", "tensor", tensor, 1)
    _require_inner("dot", "tensor", input.array.shape, tensor.array.shape)
    return Matmul.apply(input, tensor)


def mv(input: Tensor, vec: Tensor) -> Any:
    """A matrix times a vector: (M, K) by (K)."""
    _require_tensors("mv", input=input, vec=vec)
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
    _require_tensors("outer", input=input, vec2=vec2)
    _require_ndim("outer", "input", input, 1)
    _require_ndim("outer", "vec2", vec2, 1)
    return mul(unsqueeze(input, 1), vec2)


def _product(op: str, ndim: int, input: Tensor, name: str, other: Tensor) -> Any:
    _require_tensors(op, **{"input": input, name: other})
    _require_ndim(op, "input", input, ndim)
    _require_ndim(op, name, other, ndim)
    x, y = input.array.shape, other.array.shape
    if x[:-2] != y[:-2]:
        raise ShapeError(describe(op, name, f"a batch of {x[0]}, as input", y[0]))
    _require_inner(op, name, x, y)
    return Matmul.apply(input, other)


# --- arguments --------------------------------------------------------------------------------------------------------


def _require_tensors(op: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise DTypeError(describe(op, name, "a tensor", type(value).__name__))


def _require_ndim(op: str, name: str, value: Tensor, ndim: int) -> None:
    if value.array.ndim != ndim:
        raise ShapeError(describe(op, name, f"{ndim} dimension{'s' * (ndim > 1)}", f"shape {value.array.shape}"))


def _require_inner(op: str, name: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    dim = -1 if len(y) == 1 else -2
    if x[-1] != y[dim]:
        raise ShapeError(
            describe(op, name, f"{x[-1]} elements in dimension {dim}, as the last of input {x}", f"shape {y}")
        )
