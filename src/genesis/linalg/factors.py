"""Matrices as products of simpler ones: Cholesky's, LU and QR; and what the arguments of this package must be."""

from __future__ import annotations

from typing import NamedTuple

import genesis.functional as F
from genesis.autograd import Tensor
from genesis.autograd.modes import checks_values
from genesis.errors import DTypeError, LinAlgError, ShapeError, describe
from genesis.functional import decompositions as parts
from genesis.functional.arguments import require_tensors


class CholeskyEx(NamedTuple):
    """Made by `genesis.linalg.cholesky_ex`."""

    L: Tensor
    info: Tensor


class LUFactor(NamedTuple):
    """Made by `genesis.linalg.lu_factor`."""

    LU: Tensor
    pivots: Tensor


class LUFactorEx(NamedTuple):
    """Made by `genesis.linalg.lu_factor_ex`."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class PLU(NamedTuple):
    """Made by `genesis.linalg.lu`."""

    P: Tensor
    L: Tensor
    U: Tensor


class QR(NamedTuple):
    """Made by `genesis.linalg.qr`."""

    Q: Tensor
    R: Tensor


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular factor L of A = L · Lᵀ.

    Args:
        A: (…, N, N), symmetric and positive definite, floating; one triangle is read.
        upper: give Lᵀ.
    Returns: the shape of A.
    Raises: LinAlgError: not positive definite. ShapeError: not square.
    Grad: A, symmetric.

    Example:
        >>> genesis.linalg.cholesky(genesis.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    square("cholesky", A)
    factor, info = parts.Cholesky.apply(A, bool(upper))
    require_zero("cholesky", info, "positive definite matrices", "another one")
    return factor


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """Cholesky's factor, and what is known of failures.

    Args:
        A, upper: as in `genesis.linalg.cholesky`.
        check_errors: raise, as that does.
    Returns: (L, info): the shape of A; int32 of the batch: 0, or the order of the first leading minor that is not
        positive.
    Raises: LinAlgError: not positive definite, with check_errors. ShapeError: not square.
    Grad: A, symmetric.

    Example:
        >>> genesis.linalg.cholesky_ex(-genesis.eye(2)).info.item()
        1
    """
    square("cholesky_ex", A)
    factor, info = parts.Cholesky.apply(A, bool(upper))
    if check_errors:
        require_zero("cholesky_ex", info, "positive definite matrices", "another one")
    return CholeskyEx(factor, info)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """P · L · U of matrices in the form that `lu_solve` takes.

    Args:
        A: (…, M, N), floating.
        pivot: exchange rows; without, it is refused.
        check_errors: raise if a pivot is zero.
    Returns: (LU, pivots, info): the shape of A, L below the diagonal, which is one, and U on and above it; (…, K)
        int32, the row with which each is exchanged, from 1; int32 of the batch: 0, or the first pivot that is zero.
    Raises: LinAlgError: singular, with check_errors. ShapeError: no matrix. NotImplementedError: pivot=False.
    Grad: A.

    Example:
        >>> genesis.linalg.lu_factor_ex(genesis.tensor([[0.0, 2.0], [1.0, 0.0]])).pivots.tolist()
        [2, 2]
    """
    return LUFactorEx(*_lu("lu_factor_ex", A, pivot, check_errors))


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """P · L · U of regular matrices. See `genesis.linalg.lu_factor_ex`."""
    return LUFactor(*_lu("lu_factor", A, pivot, check_errors=True)[:2])


def lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """A = P · L · U.

    Args:
        A: (…, M, N), floating.
        pivot: exchange rows; without, it is refused.
    Returns: (P, L, U): (…, M, M), a permutation; (…, M, K), ones on the diagonal, zeros above; (…, K, N), zeros below.
    Raises: ShapeError: no matrix. NotImplementedError: pivot=False.
    Grad: A.

    Example:
        >>> genesis.linalg.lu(genesis.tensor([[0.0, 2.0], [1.0, 0.0]])).U.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    packed, pivots, _ = _lu("lu", A, pivot, check_errors=False)
    return unpacked(packed, pivots)


def unpacked(packed: Tensor, pivots: Tensor) -> PLU:
    """P, L and U of what lu_factor gives."""
    rows, columns = packed.shape[-2:]
    size = min(rows, columns)
    permutation = parts.in_rows_of_matrix(eye(packed, rows, rows), pivots)
    lower = F.tril(packed[..., :size], -1) + eye(packed, rows, size)
    return PLU(permutation, lower, F.triu(packed[..., :size, :]))


def eye(like: Tensor, rows: int, columns: int) -> Tensor:
    """Ones on the diagonal, in the dtype and on the device of a tensor."""
    size = min(rows, columns)
    return F.pad(F.diag_embed(like.new_ones(size)), (0, columns - size, 0, rows - size))


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q · R, with orthonormal columns of Q, and R upper triangular.

    Args:
        A: (…, M, N), floating.
        mode: "reduced" for (…, M, K) and (…, K, N) with K = min(M, N); "complete" for (…, M, M) and (…, M, N); "r"
            for R alone, and an empty Q.
    Returns: (Q, R).
    Raises: ShapeError: no matrix. ValueError: no such mode. RuntimeError: a gradient that mode does not allow.
    Grad: A, in mode "reduced", and in "complete" unless there are more rows than columns.

    Example:
        >>> genesis.linalg.qr(genesis.tensor([[3.0], [4.0]])).R.abs().tolist()
        [[5.0]]
    """
    matrices("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(describe("qr", "mode", "'reduced', 'complete' or 'r'", repr(mode)))
    q, r = parts.QR.apply(A, mode)
    return QR(A.new_empty(0), r) if mode == "r" else QR(q, r)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of the reflections I − τᵢ · vᵢ · vᵢᵀ.

    Args:
        A: (…, M, N), N ≤ M, floating: vᵢ is one in row i, and below it what column i has.
        tau: (…, K), K ≤ N, of A's dtype.
    Returns: the shape of A.
    Raises: ShapeError: sizes that don't fit. TypeError: another dtype.
    Grad: A, tau.

    Example:
        >>> genesis.linalg.householder_product(genesis.zeros(2, 1), genesis.tensor([2.0])).tolist()
        [[-1.0], [0.0]]
    """
    rows, columns = matrices("householder_product", A)
    require_tensors("householder_product", tau=tau)
    if columns > rows:
        raise ShapeError(describe("householder_product", "A", "no more columns than rows", f"shape {A.shape}"))
    if tau.ndim != A.ndim - 1 or tau.shape[:-1] != A.shape[:-2] or tau.shape[-1] > columns:
        expected = f"(…, up to {columns}) with A's batch"
        raise ShapeError(describe("householder_product", "tau", expected, f"shape {tau.shape}"))
    if tau.dtype is not A.dtype:
        raise DTypeError(describe("householder_product", "tau", f"{A.dtype}, as A", tau.dtype))
    product = eye(A, rows, columns).expand(A.shape)
    for number in reversed(range(tau.shape[-1])):
        vector = F.pad(A[..., number + 1 :, number], (number + 1, 0)) + eye(A, rows, columns)[:, number]
        change = (vector.unsqueeze(-2) @ product) * tau[..., number, None, None]
        product = product - vector.unsqueeze(-1) * change
    return product + A * 0 if not tau.shape[-1] else product


def _lu(op: str, A: Tensor, pivot: bool, check_errors: bool) -> tuple[Tensor, Tensor, Tensor]:
    matrices(op, A)
    if not pivot:
        raise NotImplementedError(f"{op}: argument 'pivot': expected True, as LAPACK always exchanges rows, got False")
    packed, pivots, info = parts.LU.apply(A)
    if check_errors:
        require_zero(op, info, "regular matrices")
    return packed, pivots, info


# --- arguments --------------------------------------------------------------------------------------------------------


def matrices(op: str, A: Tensor, name: str = "A") -> tuple[int, int]:
    """Require matrices of a floating dtype; their numbers of rows and columns."""
    require_tensors(op, **{name: A})
    if A.ndim < 2:
        raise ShapeError(describe(op, name, "at least 2 dimensions", f"shape {A.shape}"))
    if not A.is_floating_point():
        raise DTypeError(describe(op, name, "a floating dtype", A.dtype))
    return A.shape[-2], A.shape[-1]


def square(op: str, A: Tensor, name: str = "A") -> int:
    """Require square matrices of a floating dtype; their size."""
    require_tensors(op, **{name: A})
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(describe(op, name, "square matrices", f"shape {A.shape}"))
    matrices(op, A, name)
    return A.shape[-1]


def require_zero(op: str, info: Tensor, expected: str, got: str = "a singular one") -> None:
    """Require that LAPACK had no failure to tell."""
    if checks_values() and bool((info != 0).any()):
        raise LinAlgError(f"{op}: argument 'A': expected {expected}, got {got}")
