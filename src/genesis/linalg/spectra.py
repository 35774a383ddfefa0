"""Eigenvalues of symmetric matrices, singular values, and what they give: pseudo-inverses, ranks, least squares."""

from __future__ import annotations

from typing import NamedTuple

from genesis import dtypes
from genesis import functional as F
from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional import decompositions as parts
from genesis.functional.arguments import require_tensors
from genesis.linalg.factors import matrices, square

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


class Eigh(NamedTuple):
    """Made by `genesis.linalg.eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """Made by `genesis.linalg.svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class LeastSquares(NamedTuple):
    """Made by `genesis.linalg.lstsq`."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """The eigenvalues and eigenvectors of symmetric matrices.

    Args:
        A: (…, N, N), floating; one triangle is read.
        UPLO: which: "L", the lower, or "U".
    Returns: (eigenvalues, eigenvectors): (…, N), ascending; (…, N, N), the vectors as columns.
    Raises: ShapeError: not square. ValueError: no such triangle. LinAlgError: it does not converge, as with NaN.
    Grad: A; of the vectors where the values differ.

    Example:
        >>> genesis.linalg.eigh(genesis.tensor([[0.0, 1.0], [1.0, 0.0]])).eigenvalues.round(decimals=5).tolist()
        [-1.0, 1.0]
    """
    square("eigh", A)
    return Eigh(*parts.Eigh.apply(A, _is_upper("eigh", UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending. See `genesis.linalg.eigh`."""
    square("eigvalsh", A)
    return parts.Eigh.apply(A, _is_upper("eigvalsh", UPLO))[0]


def _is_upper(op: str, UPLO: str) -> bool:
    if not isinstance(UPLO, str) or UPLO.upper() not in ("L", "U"):
        raise ValueError(describe(op, "UPLO", "'L' or 'U'", repr(UPLO)))
    return UPLO.upper() == "U"


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U · diag(S) · Vh, with orthonormal columns of U and rows of Vh.

    Args:
        A: (…, M, N), floating.
        full_matrices: square U and Vh; else (…, M, K) and (…, K, N) with K = min(M, N).
        driver: None; PyTorch's others are for CUDA.
    Returns: (U, S, Vh), S (…, K), descending.
    Raises: ShapeError: no matrix. ValueError: a driver. LinAlgError: it does not converge, as with NaN.
    Grad: A; of U and Vh where the values differ.

    Example:
        >>> genesis.linalg.svd(genesis.tensor([[3.0, 0.0], [0.0, -4.0]])).S.tolist()
        [4.0, 3.0]
    """
    matrices("svd", A)
    _without_driver("svd", driver)
    s, u, vh = parts.SVD.apply(A, bool(full_matrices))
    return SVD(u, s, vh)


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of matrices, descending. See `genesis.linalg.svd`."""
    matrices("svdvals", A)
    _without_driver("svdvals", driver)
    return parts.SVD.apply(A, False)[0]


def _without_driver(op: str, driver: str | None) -> None:
    if driver is not None:
        raise ValueError(describe(op, "driver", "None, as LAPACK computes on every device", repr(driver)))


def matrix_rank(
    A: Tensor, tol: Tensor | float | None = None, hermitian: bool = False, *, atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
) -> Tensor:  # fmt: skip
    """The number of singular values above max(atol, rtol · the largest).

    Args:
        A: (…, M, N), floating.
        tol: atol, with an rtol of 0.
        hermitian: A is symmetric; its eigenvalues are faster.
        atol: 0 by default.
        rtol: max(M, N) · epsilon by default, or 0 if there is an atol above 0.
    Returns: int64 of the batch's shape.
    Raises: ShapeError: no matrix, or not square if hermitian.

    Example:
        >>> genesis.linalg.matrix_rank(genesis.ones(3, 3)).item()
        1
    """
    values = _magnitudes("matrix_rank", A.detach() if isinstance(A, Tensor) else A, hermitian)
    if not values.shape[-1]:
        return values.sum(-1).to(dtypes.int64)
    if tol is not None:
        atol, rtol = tol, 0.0
    return (values > _tolerance("matrix_rank", A, values, atol, rtol)).sum(-1)


def pinv(
    A: Tensor, rcond: Tensor | float | None = None, hermitian: bool = False, *, atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
) -> Tensor:  # fmt: skip
    """The Moore-Penrose pseudo-inverses.

    Args:
        A: (…, M, N), floating.
        rcond: another name of rtol, a number or a tensor.
        hermitian: A is symmetric; its eigenvalues are faster.
        atol: singular values up to max(atol, rtol · the largest) count as 0; 0 by default.
        rtol: max(M, N) · epsilon by default, or 0 if there is an atol above 0.
    Returns: (…, N, M).
    Raises: ShapeError: no matrix, or not square if hermitian.
    Grad: A, where its rank is constant.

    Example:
        >>> genesis.linalg.pinv(genesis.tensor([[2.0], [0.0]])).tolist()
        [[0.5, 0.0]]
    """
    if rcond is not None:
        rtol = rcond
    values = _magnitudes("pinv", A.detach() if isinstance(A, Tensor) else A, hermitian)
    if not values.shape[-1]:
        return F.transpose(A, -2, -1).clone()
    return parts.Pinv.apply(A, _tolerance("pinv", A, values, atol, rtol), bool(hermitian))


def _magnitudes(op: str, A: Tensor, hermitian: bool) -> Tensor:
    (square if hermitian else matrices)(op, A)
    return parts.Eigh.apply(A, False)[0].abs() if hermitian else parts.SVD.apply(A, False)[0]


def _tolerance(
    op: str, A: Tensor, values: Tensor, atol: Tensor | float | None, rtol: Tensor | float | None
) -> Tensor:  # fmt: skip
    """max(atol, rtol · the largest value), to compare with values."""
    for name, given in (("atol", atol), ("rtol", rtol)):
        if isinstance(given, Tensor) and not given.is_floating_point():
            raise DTypeError(describe(op, name, "a floating dtype", given.dtype))
    largest = values.amax(-1, keepdim=True)
    smallest_step = 2.220446049250313e-16 if values.dtype.itemsize == 8 else 1.1920928955078125e-07
    default = max(A.shape[-2:]) * smallest_step
    lower = values.new_zeros(()) if atol is None else _column(values, atol)
    if rtol is None:
        relative = F.where(lower > 0, 0.0, default)
    else:
        relative = _column(values, rtol)
    return F.maximum(lower.expand(largest.shape) if lower.ndim < 2 else lower, relative * largest)


def _column(values: Tensor, given: Tensor | float) -> Tensor:
    if not isinstance(given, Tensor):
        return values.new_full((), given)
    return given.detach().to(values.dtype).unsqueeze(-1)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """X that minimizes |A · X − B|, the smallest one if there are several.

    Args:
        A: (…, M, N), floating.
        B: (…, M, K), or (…, M) as vectors; of A's dtype.
        rcond: singular values up to rcond times the largest count as 0; max(M, N) · epsilon by default.
        driver: "gelsy" (the default), "gelsd", "gelss" or "gels", as on PyTorch's CPU: they say what is returned.
    Returns: (solution, residuals, rank, singular_values): (…, N, K); the sums of squares (…, K), empty unless M > N and
        the rank is N; int64, empty with "gels"; empty with "gels" and "gelsy".
    Raises: ShapeError: sizes that don't fit. TypeError: dtypes that differ. ValueError: no such driver.
    Grad: A, B.

    Example:
        >>> genesis.linalg.lstsq(genesis.ones(2, 1), genesis.tensor([[1.0], [3.0]])).solution.round().tolist()
        [[2.0]]
    """
    rows, columns = matrices("lstsq", A)
    require_tensors("lstsq", B=B)
    driver = "gelsy" if driver is None else driver
    if driver not in DRIVERS:
        raise ValueError(describe("lstsq", "driver", f"one of {', '.join(DRIVERS)}", repr(driver)))
    if B.dtype is not A.dtype:
        raise DTypeError(describe("lstsq", "B", f"{A.dtype}, as A", B.dtype))
    vectors = B.ndim == 1 or (B.ndim + 1 == A.ndim and B.shape == A.shape[:-1])
    targets = B.unsqueeze(-1) if vectors else B
    if targets.ndim < 2 or targets.shape[-2] != rows:
        raise ShapeError(describe("lstsq", "B", f"{rows} rows, as A", f"shape {B.shape}"))
    values = _magnitudes("lstsq", A.detach(), hermitian=False)
    tolerance = None if not values.shape[-1] else _tolerance("lstsq", A, values, None, rcond)
    inverse = A.mT.clone() if tolerance is None else parts.Pinv.apply(A, tolerance, False)
    solution = inverse @ targets
    rank = (values > tolerance).sum(-1) if tolerance is not None else values.sum(-1).to(dtypes.int64)
    residuals = A.flatten()[:0]
    if rows > columns and driver != "gelsy" and bool((rank == columns).all()):
        residuals = (A @ solution - targets).square().sum(-2)
    return LeastSquares(
        solution.squeeze(-1) if vectors else solution,
        residuals,
        rank.new_empty(0) if driver == "gels" else rank,
        values if driver in ("gelsd", "gelss") else A.new_empty(0),
    )
