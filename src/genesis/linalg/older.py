"""PyTorch's names outside torch.linalg, in the order of arguments that they have there: torch.svd, torch.lu_solve …"""

from __future__ import annotations

from typing import NamedTuple

from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional import decompositions as parts
from genesis.functional.arguments import require_tensors
from genesis.functional.keywords import also
from genesis.linalg import factors, spectra, systems
from genesis.linalg.factors import matrices, square


class SVD(NamedTuple):
    """Made by `genesis.svd`."""

    U: Tensor
    S: Tensor
    V: Tensor


class TriangularSolution(NamedTuple):
    """Made by `genesis.triangular_solve`."""

    solution: Tensor
    cloned_coefficient: Tensor


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVD:
    """input = U · diag(S) · Vᵀ.

    Args:
        input: (…, M, N), floating.
        some: (…, M, K) and (…, N, K) with K = min(M, N); else square ones.
        compute_uv: False: zeros instead of U and V, which are square then.
    Returns: (U, S, V). See `genesis.linalg.svd`, whose last result is transposed.
    Raises: ShapeError: no matrix.
    Grad: input.

    Example:
        >>> genesis.svd(genesis.tensor([[3.0, 0.0], [0.0, -4.0]])).S.tolist()
        [4.0, 3.0]
    """
    rows, columns = matrices("svd", input, "input")
    if not compute_uv:
        batch = input.shape[:-2]
        zeros = input.new_zeros((*batch, rows, rows)), input.new_zeros((*batch, columns, columns))
        return SVD(zeros[0], spectra.svdvals(input), zeros[1])
    u, s, vh = spectra.svd(input, not some)
    return SVD(u, s, vh.mT)


def qr(input: Tensor, some: bool = True) -> factors.QR:
    """Q · R of matrices, square Q unless some. See `genesis.linalg.qr`."""
    return factors.qr(input, "reduced" if some else "complete")


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The triangular factor of symmetric positive definite matrices. See `genesis.linalg.cholesky`."""
    return factors.cholesky(input, upper=upper)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverses of matrices. See `genesis.linalg.pinv`.

    Args:
        input: (…, M, N), floating.
        rcond: 0-d or of the shape of the batch, or a number: singular values up to it times the largest count as 0.
    Returns: (…, N, M).
    Raises: ShapeError: no matrix.
    Grad: input, where its rank is constant.

    Example:
        >>> genesis.pinverse(genesis.tensor([[2.0], [0.0]])).tolist()
        [[0.5, 0.0]]
    """
    return spectra.pinv(input, rcond)


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> factors.PLU:  # fmt: skip
    """P, L and U of what lu_factor gives.

    Args:
        LU_data, LU_pivots: (…, M, N) and (…, K), floating and int32, of lu_factor.
        unpack_data: give L and U; else empty ones.
        unpack_pivots: give P; else an empty one.
    Returns: (P, L, U).
    Raises: ShapeError: no matrix, or other pivots. TypeError: pivots are no int32.
    Grad: LU_data.

    Example:
        >>> genesis.lu_unpack(*genesis.linalg.lu_factor(genesis.tensor([[0.0, 2.0], [1.0, 0.0]]))).P.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    rows, columns = matrices("lu_unpack", LU_data, "LU_data")
    require_tensors("lu_unpack", LU_pivots=LU_pivots)
    if LU_pivots.dtype.name != "int32":
        raise DTypeError(describe("lu_unpack", "LU_pivots", "int32", LU_pivots.dtype))
    expected = (*LU_data.shape[:-2], min(rows, columns))
    if LU_pivots.shape != expected:
        raise ShapeError(describe("lu_unpack", "LU_pivots", f"shape {expected}", f"shape {LU_pivots.shape}"))
    p, lower, upper = factors.unpacked(LU_data, LU_pivots)
    nothing = LU_data.new_empty(0)
    return factors.PLU(p if unpack_pivots else nothing, *((lower, upper) if unpack_data else (nothing, nothing)))


def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions exchanged, and conjugated. See `F.transpose`."""
    matrices("adjoint", input, "input")
    return input.mH


@also(input="B", input2="L")
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X of A · X = B, by Cholesky's factor of A.

    Args:
        B: (…, N, M).
        L: (…, N, N), as `genesis.linalg.cholesky` gives it.
        upper: whether L is upper triangular.
    Returns: the shape of B, with the batch of both.
    Raises: ShapeError: L is not square, or sizes don't fit.
    Grad: B, L.

    Example:
        >>> genesis.cholesky_solve(genesis.ones(2, 1), 2 * genesis.eye(2)).tolist()
        [[0.25], [0.25]]
    """
    size = square("cholesky_solve", L, "L")
    matrices("cholesky_solve", B, "B")
    if B.shape[-2] != size:
        raise ShapeError(describe("cholesky_solve", "B", f"(…, {size}, M)", f"shape {B.shape}"))
    if B.dtype is not L.dtype:
        raise DTypeError(describe("cholesky_solve", "B", f"{L.dtype}, as L", B.dtype))
    return parts.CholeskySolve.apply(B, L, bool(upper))


@also(input="L")
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A by its Cholesky factor. See `genesis.cholesky_solve`."""
    square("cholesky_inverse", L, "L")
    return cholesky_solve(systems.identity(L), L, upper)


@also(input="b")
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """torch.lu_solve, which takes b first. See `genesis.linalg.lu_solve`."""
    return systems.lu_solve(LU_data, LU_pivots, b)


@also(input="b")
def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:  # fmt: skip
    """(X, a copy of A) of A · X = b. See `genesis.linalg.solve_triangular`."""
    matrices("triangular_solve", A)
    turned, is_upper = (A.mT, not upper) if transpose else (A, upper)
    found = systems.solve_triangular(turned, b, upper=is_upper, unitriangular=unitriangular)
    return TriangularSolution(found, A.clone())
