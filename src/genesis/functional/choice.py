"""where: a choice between two tensors, element by element."""

from __future__ import annotations

from typing import overload

from genesis.autograd import Context, ElementwiseFunction, Gradients, Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, describe
from genesis.ndarray import NDArray

__all__ = ["where"]

Operand = NDArray | Number


@overload
def where(condition: Tensor) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Tensor, input: Tensor | Number, other: Tensor | Number) -> Tensor: ...
def where(
    condition: Tensor, input: Tensor | Number | None = None, other: Tensor | Number | None = None
) -> Tensor | tuple[Tensor, ...]:
    """input where condition is true, else other; of condition alone, the places where it is true.

    Args:
        condition: bool (or uint8), any shape; alone, any dtype.
        input, other: tensors that broadcast with condition, or numbers; both or none.
    Returns: the common shape, in the promoted dtype; without input and other, a vector of places per dimension.
    Raises: DTypeError: condition is of another dtype. ValueError: the shapes don't broadcast.
    Grad: input, other. Saves condition.
    Example: >>> F.where(genesis.tensor([True, False]), genesis.tensor([1.0, 2.0]), 0.0).tolist()
    [1.0, 0.0]
    """
    if input is None or other is None:
        return _places(condition, input, other)
    if condition.array.dtype.name not in ("bool", "uint8"):
        raise DTypeError(describe("where", "condition", "genesis.bool", condition.array.dtype))
    return Where.apply(condition, input, other)


def _places(condition: Tensor, input: object, other: object) -> tuple[Tensor, ...]:
    if input is not None or other is not None:
        missing = "other" if other is None else "input"
        raise DTypeError(describe("where", missing, "a tensor or a number, as there is one of both", None))
    return condition.nonzero(as_tuple=True)


class Where(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, condition: NDArray, x: Operand, y: Operand) -> NDArray:
        condition = condition.ne(0) if condition.dtype.name == "uint8" else condition
        ctx.save(condition)
        return condition.where(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        (condition,) = ctx.saved
        _, needs_x, needs_y = ctx.needs_input_grad
        return None, condition.where(grad, 0.0) if needs_x else None, condition.where(0.0, grad) if needs_y else None
