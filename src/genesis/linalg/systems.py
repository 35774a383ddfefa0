"""Systems of linear equations, inverses and determinants, by P · L · U."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import genesis.functional as F
from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional import decompositions as parts
from genesis.functional.arguments import require_tensors
from genesis.functional.keywords import also
from genesis.linalg.factors import eye, require_zero, square


class InvEx(NamedTuple):
    """Made by `genesis.linalg.inv_ex`."""

    inverse: Tensor
    info: Tensor


class SolveEx(NamedTuple):
    """Made by `genesis.linalg.solve_ex`."""

    result: Tensor
    info: Tensor


class SlogDet(NamedTuple):
    """Made by `genesis.linalg.slogdet`."""

    sign: Tensor
    logabsdet: Tensor


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:  # fmt: skip
    """X of A · X = B, with A triangular; or of X · A = B.

    Args:
        A: (…, N, N), of which one triangle is read.
        B: (…, N, M); (…, M, N) where left is False.
        upper: which triangle.
        left: A stands on the left.
        unitriangular: the diagonal counts as ones.
    Returns: the shape of B, with the batch of both.
    Raises: ShapeError: A is not square, or sizes don't fit.
    Grad: A, B.

    Example:
        >>> genesis.linalg.solve_triangular(2 * genesis.eye(2), genesis.ones(2, 1), upper=False).tolist()
        [[0.5], [0.5]]
    """
    size = square("solve_triangular", A)
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    _fitting("solve_triangular", A, B)
    if B.ndim < 2 or B.shape[-2] != size:
        raise ShapeError(describe("solve_triangular", "B", f"(…, {size}, M)", f"shape {B.shape}"))
    return parts.TriangularSolve.apply(A, B, bool(upper), bool(unitriangular))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X of A · X = B.

    Args:
        A: (…, N, N), floating.
        B: (…, N, M), or (N,) or (…, N) as vectors.
        left: False for X · A = B.
    Returns: the shape of B, with the batch of both.
    Raises: LinAlgError: A is singular. ShapeError: not square, or sizes don't fit.
    Grad: A, B.

    Example:
        >>> genesis.linalg.solve(genesis.tensor([[0.0, 2.0], [1.0, 0.0]]), genesis.tensor([2.0, 3.0])).tolist()
        [3.0, 1.0]
    """
    return _solved("solve", A, B, left, check_errors=True).result


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolveEx:
    """X of A · X = B, and whether A is singular.

    Args:
        A, B, left: as in `genesis.linalg.solve`.
        check_errors: raise if A is singular, as that does.
    Returns: (result, info): int32 of the batch: 0, or the first pivot that is zero.
    Raises: LinAlgError: A is singular, with check_errors. ShapeError: not square, or sizes don't fit.
    Grad: A, B.

    Example:
        >>> genesis.linalg.solve_ex(genesis.zeros(2, 2), genesis.ones(2)).info.item()
        1
    """
    return _solved("solve_ex", A, B, left, check_errors)


def _solved(op: str, A: Tensor, B: Tensor, left: bool, check_errors: bool) -> SolveEx:
    size = square(op, A)
    _fitting(op, A, B)
    vectors = B.ndim == 1 or (B.ndim + 1 == A.ndim and B.shape == A.shape[:-1])
    if vectors and not left:
        raise ShapeError(describe(op, "B", "matrices, as left is False", f"shape {B.shape}"))
    columns = B.unsqueeze(-1) if vectors else B if left else B.mT
    if columns.shape[-2] != size:
        raise ShapeError(describe(op, "B", f"{size} {'rows' if left else 'columns'}, as A", f"shape {B.shape}"))
    found, info = parts.Solve.apply(A if left else A.mT, columns)
    if check_errors:
        require_zero(op, info, "regular matrices")
    return SolveEx(found.squeeze(-1) if vectors else found if left else found.mT, info)


def _fitting(op: str, A: Tensor, B: Tensor) -> None:
    require_tensors(op, B=B)
    if B.dtype is not A.dtype:
        raise DTypeError(describe(op, "B", f"{A.dtype}, as A", B.dtype))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X of A · X = B, by the factors of A.

    Args:
        LU, pivots: (…, N, N) and (…, N), as `genesis.linalg.lu_factor` gives them.
        B: (…, N, M); (…, M, N) where left is False.
        left: False for X · A = B.
        adjoint: use Aᵀ.
    Returns: the shape of B, with the batch of both.
    Raises: ShapeError: LU is not square, or sizes don't fit. TypeError: pivots are no int32.
    Grad: LU, B.

    Example:
        >>> A, b = genesis.tensor([[0.0, 2.0], [1.0, 0.0]]), genesis.tensor([[2.0], [3.0]])
        >>> genesis.linalg.lu_solve(*genesis.linalg.lu_factor(A), b).tolist()
        [[3.0], [1.0]]
    """
    size = square("lu_solve", LU, "LU")
    _fitting("lu_solve", LU, B)
    if pivots.dtype.name != "int32":
        raise DTypeError(describe("lu_solve", "pivots", "int32", pivots.dtype))
    if pivots.shape != LU.shape[:-1]:
        raise ShapeError(describe("lu_solve", "pivots", f"shape {LU.shape[:-1]}, as LU", f"shape {pivots.shape}"))
    if not left:
        return lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    if B.ndim < 2 or B.shape[-2] != size:
        raise ShapeError(describe("lu_solve", "B", f"(…, {size}, M)", f"shape {B.shape}"))
    if not adjoint:
        return parts.lu_solved(LU, pivots, B)
    inner = parts.TriangularSolve.apply(LU.mT, B, False, False)
    return parts.in_rows_of_matrix(parts.TriangularSolve.apply(LU.mT, inner, True, True), pivots)


@also(input="A")
def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices. See `genesis.linalg.solve`."""
    square("inv", A)
    found, info = parts.Solve.apply(A, identity(A))
    require_zero("inv", info, "regular matrices")
    return found


inverse = inv


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InvEx:
    """The inverses of square matrices, and which are singular. See `genesis.linalg.solve_ex`."""
    square("inv_ex", A)
    found, info = parts.Solve.apply(A, identity(A))
    if check_errors:
        require_zero("inv_ex", info, "regular matrices")
    return InvEx(found, info)


def identity(A: Tensor) -> Tensor:
    """Identity matrices of A's shape."""
    return eye(A, A.shape[-1], A.shape[-1]).expand(A.shape)


@also(input="A")
def det(A: Tensor) -> Tensor:
    """The determinants of square matrices.

    Args:
        A: (…, N, N), floating.
    Returns: the batch's shape.
    Raises: ShapeError: not square.
    Grad: A.

    Example:
        >>> genesis.linalg.det(2 * genesis.eye(3)).item()
        8.0
    """
    square("det", A)
    return parts.Det.apply(A)


@also(input="A")
def slogdet(A: Tensor) -> SlogDet:
    """The sign of the determinant, and the logarithm of its magnitude, −∞ of singular matrices.

    Args:
        A: (…, N, N), floating.
    Returns: (sign, logabsdet), of the batch's shape.
    Raises: ShapeError: not square.
    Grad: A, of the logarithm.

    Example:
        >>> sign, value = genesis.linalg.slogdet(genesis.tensor([[0.0, 1.0], [1.0, 0.0]]))
        >>> sign.item(), value.item()
        (-1.0, 0.0)
    """
    square("slogdet", A)
    packed, pivots, _ = parts.LU.apply(A)
    pivot = F.diagonal(packed, 0, -2, -1)
    return SlogDet(pivot.sign().prod(-1) * parts.sign_of(pivots), pivot.abs().log().sum(-1))


@also(input="A")
def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant: NaN where that is negative. See `genesis.linalg.det`."""
    sign, value = slogdet(A)
    return F.where(sign < 0, float("nan"), value)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of the linear map that tensordot with A is.

    Args:
        A: floating; the sizes of the first ind dimensions multiply to those of the others.
        ind: above 0.
    Returns: the last dimensions of A, then its first ones.
    Raises: LinAlgError: singular. ShapeError: sizes that don't fit. ValueError: ind below 1.
    Grad: A.

    Example:
        >>> genesis.linalg.tensorinv(genesis.eye(4).reshape(2, 2, 4), ind=2).shape
        (4, 2, 2)
    """
    require_tensors("tensorinv", A=A)
    if ind < 1:
        raise ValueError(describe("tensorinv", "ind", "above 0", ind))
    first, last = A.shape[:ind], A.shape[ind:]
    if math.prod(first) != math.prod(last):
        raise ShapeError(describe("tensorinv", "A", f"as many elements before dimension {ind} as behind", A.shape))
    return inv(A.reshape(math.prod(last), -1)).reshape(*last, *first)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X of tensordot(A, X) = B.

    Args:
        A: floating, B's dimensions and then X's; as many elements in the one as in the other.
        B: floating.
        dims: dimensions of A that are moved to its end first.
    Returns: the last dimensions of A.
    Raises: LinAlgError: singular. ShapeError: sizes that don't fit.
    Grad: A, B.

    Example:
        >>> genesis.linalg.tensorsolve(genesis.eye(4).reshape(2, 2, 4), genesis.ones(2, 2)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    require_tensors("tensorsolve", A=A, B=B)
    moved = A if dims is None else F.movedim(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    wanted = moved.shape[B.ndim :]
    if math.prod(wanted) != B.numel() or moved.numel() != B.numel() ** 2:
        raise ShapeError(describe("tensorsolve", "A", f"{B.numel()} elements for each of B", f"shape {A.shape}"))
    return solve(moved.reshape(B.numel(), -1), B.flatten()).reshape(wanted)
