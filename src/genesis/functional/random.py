"""Functions that draw random numbers: dropout."""

from __future__ import annotations

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.autograd.modes import state as thread
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import mul
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["dropout", "dropout2d"]


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 − p); outside training, return input.

    Args:
        input: any shape and floating dtype.
        p: in [0, 1].
        training: whether to drop anything.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability. DTypeError: input is not floating.
    Grad: input. Saves the mask.
    Source: Srivastava et al. 2014, JMLR 15:1929.

    Example:
        >>> F.dropout(genesis.ones(3), p=0.9, training=False).tolist()
        [1.0, 1.0, 1.0]
    """
    _check("dropout", input, p)
    if inplace:
        return input._change(dropout, p, training)
    if not training or p == 0 or input.array.numel == 0 or not thread.dropping:
        return input
    return Dropout.apply(input, p=float(p))


class Dropout(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, p: float) -> NDArray:
        ctx.p = p
        if p == 1:
            return x.full_like(0)
        y, mask = ops.dropout(x, p)
        ctx.save(mask)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        if ctx.p == 1:
            return grad.full_like(0)
        (mask,) = ctx.saved
        return mask.where(grad.mul(1 / (1 - ctx.p)), 0.0)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels with probability p and scale the others by 1 / (1 − p); outside training, return input.

    Args:
        input: (N, C, H, W) or (N, C, L), any floating dtype.
        p: in [0, 1].
        training: whether to drop anything.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability, or input has other dimensions. DTypeError: input is not floating.
    Grad: input. Saves the mask of the channels.
    Source: Tompson et al. 2015, arXiv:1411.4280.
    Example: >>> F.dropout2d(genesis.ones(1, 2, 1, 1), training=False).flatten().tolist()
    [1.0, 1.0]
    """
    _check("dropout2d", input, p)
    if input.array.ndim not in (3, 4):
        raise ShapeError(describe("dropout2d", "input", "3 or 4 dimensions", f"shape {input.array.shape}"))
    if inplace:
        return input._change(dropout2d, p, training)
    shape = input.array.shape
    channels = input._like(input.array.full_like(1, (*shape[:2], *(1,) * (len(shape) - 2))))
    return mul(input, dropout(channels, p, training)) if training and p != 0 else input


def _check(op: str, input: Tensor, p: float) -> None:
    require_tensor(op, "input", input)
    if not 0 <= p <= 1:
        raise ValueError(describe(op, "p", "a probability in [0, 1]", p))
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
