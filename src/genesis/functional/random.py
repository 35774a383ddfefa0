"""Functions that draw random numbers: dropout of elements and of channels."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.autograd.modes import state as thread
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import add, mul, sub
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]

SELU_LIMIT = -1.7580993408473766  # of selu(x) as x → −∞


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
    if not _drops(input, p, training):
        return input
    return input._change(dropout, p, training) if inplace else Dropout.apply(input, p=float(p))


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
        input: (N, C, H, W) or (N, C, L), any floating dtype. (N, C), and more dimensions than four, warn.
        p: in [0, 1].
        training: whether to drop anything.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability, or input has fewer dimensions. DTypeError: input is not floating.
    Grad: input. Saves the mask of the channels.
    Source: Tompson et al. 2015, arXiv:1411.4280.
    Example: >>> F.dropout2d(genesis.ones(1, 2, 1, 1), training=False).flatten().tolist()
    [1.0, 1.0]
    """
    require_tensor("dropout2d", "input", input)
    ndim = input.array.ndim
    if ndim < 2:
        raise ShapeError(describe("dropout2d", "input", "at least 2 dimensions", f"shape {input.array.shape}"))
    if ndim not in (3, 4):
        warnings.warn(f"dropout2d: input of {ndim} dimensions is taken for (N, C, …); use dropout", stacklevel=2)
    return _drop_channels(dropout2d, max(ndim, 3) - 1, input, p, training, inplace, num_leading=2)  # (N, C, L) too


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of signals with probability p and scale the others by 1 / (1 − p).

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        p, training, inplace: as in `F.dropout2d`.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability, or input has other dimensions. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.dropout1d(genesis.ones(1, 2, 1), training=False).flatten().tolist()
        [1.0, 1.0]
    """
    return _drop_channels(dropout1d, 2, input, p, training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of volumes with probability p and scale the others by 1 / (1 − p).

    Args:
        input: (N, C, D, H, W) or (C, D, H, W), any floating dtype.
        p, training, inplace: as in `F.dropout2d`.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability, or input has other dimensions. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.dropout3d(genesis.ones(1, 2, 1, 1, 1), training=False).flatten().tolist()
        [1.0, 1.0]
    """
    return _drop_channels(dropout3d, 4, input, p, training, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Set elements to the negative limit of selu with probability p, and keep mean 0 and variance 1.

    Args:
        input: any shape and floating dtype.
        p: in [0, 1].
        training: whether to drop anything.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability. DTypeError: input is not floating.
    Grad: input.
    Source: Klambauer et al. 2017, arXiv:1706.02515.

    Example:
        >>> F.alpha_dropout(genesis.ones(2), training=False).tolist()
        [1.0, 1.0]
    """
    _check("alpha_dropout", input, p)
    if not _drops(input, p, training):
        return input
    if inplace:
        return input._change(alpha_dropout, p, training)
    return _alpha_dropped(input, input.array.shape, p)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Compute alpha_dropout of whole channels.

    Args:
        input: (N, C, …), at least 2 dimensions, any floating dtype.
        p, training, inplace: as in `F.alpha_dropout`.
    Returns: the shape and dtype of input.
    Raises: ValueError: p is no probability, or input has fewer dimensions. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.feature_alpha_dropout(genesis.ones(1, 2, 1), training=False).flatten().tolist()
        [1.0, 1.0]
    """
    _check("feature_alpha_dropout", input, p)
    shape = input.array.shape
    if len(shape) < 2 and training and p != 0:
        raise ShapeError(describe("feature_alpha_dropout", "input", "at least 2 dimensions", f"shape {shape}"))
    if not _drops(input, p, training):
        return input
    if inplace:
        return input._change(feature_alpha_dropout, p, training)
    return _alpha_dropped(input, (*shape[:2], *(1,) * (len(shape) - 2)), p)


def _alpha_dropped(input: Tensor, shape: Shape, p: float) -> Tensor:
    """a·x + b of input with elements (or channels, as shape says) at the limit L, a = 1 / √((L²·p + 1)·(1 − p))."""
    if p == 1:
        return mul(input, 0)
    kept = mul(dropout(input._like(input.array.full_like(1, shape)), p), 1 - p)  # 1 or 0
    scale = ((SELU_LIMIT**2 * p + 1) * (1 - p)) ** -0.5
    shift = mul(add(mul(sub(1, kept), SELU_LIMIT), -SELU_LIMIT * p), scale)
    return add(mul(input, mul(kept, scale)), shift)


def _channels(input: Tensor, leading: int) -> Tensor:
    """Ones for the leading dimensions, batch and channels."""
    shape = input.array.shape
    return input._like(input.array.full_like(1, (*shape[:leading], *(1,) * (len(shape) - leading))))


def _drop_channels(
    op: Callable[[Tensor, float, bool], Tensor], least: int, input: Tensor, p: float, training: bool, inplace: bool,
    num_leading: int | None = None,
) -> Tensor:  # fmt: skip
    """op(input), by whose name errors go. least: the dimensions of an input without a batch; num_leading: those up to
    the channels, by default counted from least."""
    name = op.__name__
    _check(name, input, p)
    ndim = input.array.ndim
    if ndim not in (least, least + 1):
        expected = f"{least} or {least + 1} dimensions"
        raise ShapeError(describe(name, "input", expected, f"shape {input.array.shape}"))
    if not _drops(input, p, training):
        return input
    if inplace:
        return input._change(op, p, training)
    return mul(input, dropout(_channels(input, num_leading or ndim - least + 1), p))


def _drops(input: Tensor, p: float, training: bool) -> bool:
    """Will anything be dropped?"""
    return training and p != 0 and input.array.numel != 0 and thread.dropping


def _check(op: str, input: Tensor, p: float) -> None:
    require_tensor(op, "input", input)
    if not 0 <= p <= 1:
        raise ValueError(describe(op, "p", "a probability in [0, 1]", p))
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
