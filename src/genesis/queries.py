"""PyTorch's functions that ask about tensors and dtypes."""

from __future__ import annotations

import numpy as np

from genesis import dtypes
from genesis.creation import DeviceLike, tensor
from genesis.dtypes import DType, HostArray, Number
from genesis.errors import ShapeError, describe
from genesis.functional.keywords import also
from genesis.ndarray import NDArray
from genesis.pinning import placed
from genesis.tensor import Tensor


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a float.

    Args:
        input: any shape and dtype.

    Example:
        >>> x = genesis.ones(2)
        >>> genesis.is_floating_point(x), genesis.is_complex(x), genesis.numel(x)
        (True, False, 2)
    """
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex. See `genesis.is_floating_point`."""
    return input.is_complex()


def is_nonzero(input: Tensor) -> bool:
    """Whether the one element is not 0.

    Args:
        input: one element, any dtype.
    Raises: ShapeError: another number of elements.

    Example:
        >>> genesis.is_nonzero(genesis.tensor([2.0]))
        True
    """
    return input.is_nonzero()


def numel(input: Tensor) -> int:
    """Number of elements. See `genesis.is_floating_point`."""
    return input.numel()


@placed
def scalar_tensor(
    s: Number, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """A 0-d tensor of a number.

    Args:
        s: a number.
        dtype: the default float dtype if None.
        device, requires_grad: as in `genesis.empty`.
    Returns: a 0-d tensor.

    Example:
        >>> genesis.scalar_tensor(2)
        tensor(2.)
    """
    return tensor(s, dtype=dtype or dtypes.get_default_dtype(), device=device, requires_grad=requires_grad)


@also(tensor="tensor1", other="tensor2", scalar="tensor2", scalar1="tensor1", scalar2="tensor2")
def result_type(tensor1: Tensor | Number, tensor2: Tensor | Number) -> DType:
    """The dtype of an arithmetic result of both.

    Args:
        tensor1, tensor2: tensors of any dtype, or numbers.
    Returns: the promoted dtype.

    Example:
        >>> genesis.result_type(genesis.ones(1, dtype=genesis.int64), 0.5)
        genesis.float32
    """
    operands = []
    for value in (tensor1, tensor2):
        known = isinstance(value, Tensor)
        operands.append((value.dtype, 1 + (value.ndim > 0)) if known else (dtypes.of_scalar(value), 0))  # type: ignore[union-attr]
    return dtypes.result_type(operands)


def can_cast(from_: DType, to: DType) -> bool:
    """Whether a result of one dtype may be written into another: not from floats to integers, nor to bool.

    Args:
        from_, to: dtypes.

    Example:
        >>> genesis.can_cast(genesis.float32, genesis.float16), genesis.can_cast(genesis.float32, genesis.int64)
        (True, False)
    """
    return from_.category <= to.category


@placed
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: DeviceLike = None
) -> Tensor:  # fmt: skip
    """The indices of the lower triangle of a matrix, row by row.

    Args:
        row, col: the matrix' sizes.
        offset: above the main diagonal if positive.
        dtype: int64 if None.
        device: as in `genesis.empty`.
    Returns: (2, number of elements).
    Raises: ShapeError: a negative size.

    Example:
        >>> genesis.tril_indices(2, 2).tolist()
        [[0, 1, 1], [0, 0, 1]]
    """
    return _indices("tril_indices", np.tril_indices(_size("tril_indices", row), offset, col), col, dtype, device)


@placed
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: DeviceLike = None
) -> Tensor:  # fmt: skip
    """The indices of the upper triangle of a matrix, row by row. See `genesis.tril_indices`."""
    return _indices("triu_indices", np.triu_indices(_size("triu_indices", row), offset, col), col, dtype, device)


def _size(op: str, size: int) -> int:
    if size < 0:
        raise ShapeError(describe(op, "row", "at least 0", size))
    return size


def _indices(op: str, found: tuple[HostArray, HostArray], col: int, dtype: DType | None, device: DeviceLike) -> Tensor:
    if col < 0:
        raise ShapeError(describe(op, "col", "at least 0", col))
    return tensor(np.stack(found).astype(np.int64), dtype=dtype or dtypes.int64, device=device)


@placed
def logspace(
    start: Number, end: Number, steps: int, base: float = 10.0, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Powers of base whose exponents are evenly spaced from start to end.

    Args:
        start, end: exponents.
        steps: how many, at least 0.
        base: of the powers.
        dtype, device, requires_grad: as in `genesis.empty`.
    Returns: (steps,).
    Raises: ValueError: steps < 0.

    Example:
        >>> genesis.logspace(0, 2, 3).tolist()
        [1.0, 10.0, 100.0]
    """
    if steps < 0:
        raise ValueError(describe("logspace", "steps", "at least 0", steps))
    values = np.power(float(base), np.linspace(float(start), float(end), steps))
    kind = dtype or dtypes.get_default_dtype()
    made = NDArray.from_numpy(values, dtypes.float64).to(kind)
    return Tensor(tensor(Tensor(made), device=device or "cpu").array, requires_grad)
