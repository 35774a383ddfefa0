"""The dense (fully connected) layer."""

from __future__ import annotations

from typing import Any

from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import add
from genesis.functional.linalg import matmul
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.precision import follows_forward, get_float32_precision
from genesis.shapes import numel

__all__ = ["linear"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """y = x·wᵀ + b over the last dimension.

    Args:
        input: (…, I), any floating dtype.
        weight: (O, I), or (I,) for a result without the last dimension; dtype of input.
        bias: (O,), or 0-d; dtype of input.
    Returns: (…, O).
    Raises: ValueError: the sizes don't fit. TypeError: the dtypes differ.
    Grad: input, weight, bias. Saves input and weight.

    Example:
        >>> F.linear(genesis.tensor([1.0, 2.0]), genesis.tensor([[3.0, 4.0]]), genesis.tensor([0.5])).tolist()
        [11.5]
    """
    op = "linear"
    for argument, value in (("input", input), ("weight", weight)):
        require_tensor(op, argument, value)
    x, w = input.array.shape, weight.array.shape
    if len(w) not in (1, 2):
        raise ShapeError(describe(op, "weight", "1 or 2 dimensions", f"shape {w}"))
    if not x or x[-1] != w[-1]:
        raise ShapeError(describe(op, "input", f"a last dimension of {w[-1]}, as weight {w} takes", f"shape {x}"))
    if bias is not None:
        require_tensor(op, "bias", bias)
        if bias.array.shape != w[:-1]:
            raise ShapeError(describe(op, "bias", f"shape {w[:-1]}", bias.array.shape))
    if len(w) == 1:
        product = matmul(input, weight)
        return product if bias is None else add(product, bias)
    return Linear.apply(input, weight, bias)


class Linear(ArrayFunction):
    autocast = "lower"

    @staticmethod
    def forward(ctx: Any, x: NDArray, weight: NDArray, bias: NDArray | None) -> NDArray:
        for argument, array in (("weight", weight), ("bias", bias)):
            if array is not None and array.dtype is not x.dtype:
                raise DTypeError(describe("linear", argument, f"the dtype of input, {x.dtype}", array.dtype))
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save(x if needs_weight else None, weight if needs_x else None)
        ctx.precision = get_float32_precision()
        ctx.x_shape = x.shape
        return ops.linear(x, weight, bias)

    @staticmethod
    @follows_forward
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, weight = ctx.saved
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        num_rows = numel(ctx.x_shape[:-1])
        rows = grad.reshape((num_rows, grad.shape[-1]))
        grad_x = ops.matmul(rows, weight).reshape(ctx.x_shape) if needs_x else None
        grad_weight = ops.matmul(rows.transpose(0, 1), x.reshape((num_rows, x.shape[-1]))) if needs_weight else None
        return grad_x, grad_weight, ops.sum(rows, (0,)) if needs_bias else None
