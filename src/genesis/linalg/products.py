"""Products and norms of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import Tensor
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.keywords import also
from genesis.functional.matrix_exponential import MatrixExp
from genesis.linalg import factors, spectra, systems


@also(axis="dim")
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product along dim, which has size 3. See `F.cross`."""
    return F.cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, a view. See `F.diagonal`."""
    return F.diagonal(A, offset, dim1, dim2)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A square matrix to the n-th power; of negative n, of its inverse. See `F.matrix_power`."""
    return F.matrix_power(A, n) if n >= 0 else F.matrix_power(systems.inv(A), -n)


@also(axis="dim")
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along dim, the first ones conjugated.

    Args:
        x, y: tensors whose shapes broadcast.
        dim: a dimension.
    Returns: the common shape without dim.
    Raises: ValueError: the shapes don't broadcast.

    Example:
        >>> genesis.linalg.vecdot(genesis.ones(2, 3), genesis.ones(3)).tolist()
        [3.0, 3.0]
    """
    return (F.conj(x) * y).sum(dim)


@also(axis="dim", keepdims="keepdim")
def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The vector norm over dim. See `F.norm`."""
    if dim is None and not keepdim and x.ndim != 1:
        x = x.reshape(-1) if x.numel() else x.flatten()
    return F.norm(x, float(ord), dim, keepdim, dtype)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices; the first and the last may be vectors.

    Args:
        tensors: at least 2, of sizes that fit.
    Returns: a matrix, a vector or a 0-d tensor.
    Raises: ShapeError: fewer than 2, or sizes that don't fit.

    Example:
        >>> genesis.linalg.multi_dot([genesis.eye(2), genesis.ones(2)]).tolist()
        [1.0, 1.0]
    """
    if len(tensors) < 2:
        raise ShapeError(describe("multi_dot", "tensors", "at least 2 tensors", len(tensors)))
    product = tensors[0]
    for number, matrix in enumerate(tensors[1:], 1):
        if matrix.ndim != 2 and not (matrix.ndim == 1 and number == len(tensors) - 1):
            raise ShapeError(describe("multi_dot", f"tensors[{number}]", "a matrix", f"shape {matrix.shape}"))
        product = product @ matrix
    return product


@also(axis="dim", keepdims="keepdim")
def matrix_norm(
    A: Tensor, ord: str | float = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The norm of matrices: "fro", ±1 and ±∞ of sums of magnitudes along columns and rows, or of singular values.

    Args:
        A: any shape, floating.
        ord: which norm; "nuc" sums the singular values, 2 and −2 are the largest and the smallest one.
        dim: the two dimensions of the matrices.
        keepdim: keep dim, with size 1.
        dtype: compute in and return this dtype.
    Returns: the shape of A without dim.
    Raises: ValueError: no such norm.

    Example:
        >>> genesis.linalg.matrix_norm(genesis.tensor([[3.0, -4.0], [0.0, 0.0]]), 1).item()
        4.0
    """
    A = A if dtype is None else F.cast(A, dtype)
    if ord == "fro":
        return F.norm(A, 2.0, dim, keepdim)
    if ord in ("nuc", 2, -2):
        values = spectra.svdvals(F.movedim(A, dim, (-2, -1)))
        found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
        places = sorted(each % A.ndim for each in dim)
        return found.unsqueeze(places[0]).unsqueeze(places[1]) if keepdim else found
    if not isinstance(ord, int | float) or abs(ord) not in (1, float("inf")):
        raise ValueError(describe("matrix_norm", "ord", "'fro', 'nuc', ±1, ±2 or ±inf", repr(ord)))
    rows, columns = dim if abs(ord) == 1 else dim[::-1]
    sums = A.abs().sum(rows, keepdim=True)
    found = sums.amax(columns, keepdim=True) if ord > 0 else sums.amin(columns, keepdim=True)
    return found if keepdim else found.squeeze(dim)


@also(input="A", axis="dim", keepdims="keepdim")
def norm(
    A: Tensor, ord: str | float | None = None, dim: int | tuple[int, int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """vector_norm, or matrix_norm where ord is given for a matrix or for two dimensions, as in PyTorch."""
    if ord is not None and (isinstance(dim, tuple) or (dim is None and A.ndim == 2)):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2.0 if ord is None else float(ord), dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: str | float | None = None) -> Tensor:
    """The condition number: the norm of A times that of its inverse.

    Args:
        A: (…, M, N), floating; square but for p = ±2 or None.
        p: a norm, as in `genesis.linalg.matrix_norm`; None is 2.
    Returns: the batch's shape; ∞ of singular matrices.
    Raises: ShapeError: no matrix, or not square. ValueError: no such norm.
    Grad: A.

    Example:
        >>> genesis.linalg.cond(genesis.tensor([[4.0, 0.0], [0.0, 2.0]])).item()
        2.0
    """
    if p in (None, 2, -2):
        factors.matrices("cond", A)
        values = spectra.svdvals(A)
        found = values[..., 0] / values[..., -1]
        return 1 / found if p == -2 else found
    assert p is not None
    factors.square("cond", A)
    inverse, info = systems.inv_ex(A)
    found = matrix_norm(A, p) * matrix_norm(F.where((info != 0)[..., None, None], 0.0, inverse), p)
    return F.where(info != 0, float("inf"), found)


@also(input="A")
def matrix_exp(A: Tensor) -> Tensor:
    """The exponential I + A + A² / 2! + …

    Args:
        A: (…, N, N), floating.
    Returns: the shape of A.
    Raises: ShapeError: not square.
    Grad: A.

    Example:
        >>> genesis.linalg.matrix_exp(genesis.tensor([[0.0, 1.0], [0.0, 0.0]])).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    factors.square("matrix_exp", A)
    return MatrixExp.apply(A)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Vandermonde's matrices: the powers 0 … N − 1 of each element.

    Args:
        x: (…, M), numbers.
        N: the number of columns; M by default.
    Returns: (…, M, N); integers give int64.
    Raises: ValueError: N below 2.
    Grad: x.

    Example:
        >>> genesis.linalg.vander(genesis.tensor([2.0, 3.0]), N=3).tolist()
        [[1.0, 2.0, 4.0], [1.0, 3.0, 9.0]]
    """
    require_tensors("vander", x=x)
    x = x if x.ndim else x.unsqueeze(0)
    columns = x.shape[-1] if N is None else N
    if N is not None and N < 2:
        raise ValueError(describe("vander", "N", "above 1", N))
    repeated = x.unsqueeze(-1).expand((*x.shape, max(columns - 1, 0)))
    return F.cat([repeated.new_ones((*x.shape, 1)), F.cumprod(repeated, -1)], -1)
