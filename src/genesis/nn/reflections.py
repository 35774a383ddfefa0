"""QR by Householder reflections, on the host in float64: for weights that begin, or stay, orthogonal."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.autograd import no_grad
from genesis.creation import eye, tensor
from genesis.tensor import Tensor

PANEL = 32  # columns that are factored one by one before the rest of the matrix follows in two products


@no_grad()
def factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """LAPACK's geqrf: R in and above the diagonal, below it the reflections I − tau · v · vᵀ, whose v[0] = 1.

    Args:
        matrix: (M, N), M ≥ N, floating, on any device.
    Returns: (M, N) and (N,), float64 on the CPU.
    """
    work = matrix.detach().cpu().to(dtypes.float64).clone()
    columns = work.shape[1]
    taus: list[float] = []
    for start in range(0, columns, PANEL):
        end = min(start + PANEL, columns)
        taus += [_reflect(work, column, end) for column in range(start, end)]
        if end < columns:
            v, t = _block(work, taus, start, end)
            rest = work[start:, end:]
            rest -= v @ (t.t() @ (v.t() @ rest))
    return work, tensor(taus, dtype=dtypes.float64, device="cpu")


def _reflect(work: Tensor, column: int, end: int) -> float:
    """Eliminate a column below its diagonal, and apply the reflection to the panel's columns up to end."""
    below = work[column + 1 :, column]
    head, squares = work[column, column].item(), below.dot(below).item()
    if squares == 0.0:
        return 0.0
    length = -math.copysign(math.sqrt(head * head + squares), head)
    tau = (length - head) / length
    below.mul_(1.0 / (head - length))
    work[column, column] = 1.0
    v = work[column:, column : column + 1]
    rest = work[column:, column + 1 : end]
    rest -= v @ ((v.t() @ rest) * tau)
    work[column, column] = length
    return tau


def _block(work: Tensor, taus: list[float], start: int, end: int) -> tuple[Tensor, Tensor]:
    """The reflections of a panel as one, I − V · T · Vᵀ: LAPACK's larft."""
    v = work[start:, start:end].tril(-1)
    count = end - start
    v[:count] += eye(count, dtype=dtypes.float64, device="cpu")
    products = v.t() @ v
    t = eye(count, dtype=dtypes.float64, device="cpu") * tensor(taus[start:end], dtype=dtypes.float64, device="cpu")
    for column in range(1, count):
        t[:column, column] = (t[:column, :column] @ products[:column, column]) * -taus[start + column]
    return v, t


@no_grad()
def orthonormal(matrix: Tensor) -> Tensor:
    """The Q of matrix = Q · R whose R has a diagonal that is not negative.

    Args:
        matrix: (M, N), M ≥ N, floating, on any device.
    Returns: (M, N), float64 on the CPU, with orthonormal columns.
    """
    work, tau = factored(matrix)
    rows, columns = work.shape
    taus = tau.tolist()
    q = eye(rows, columns, dtype=dtypes.float64, device="cpu")
    for start in reversed(range(0, columns, PANEL)):
        v, t = _block(work, taus, start, min(start + PANEL, columns))
        rest = q[start:]
        rest -= v @ (t @ (v.t() @ rest))
    return q * work.diagonal().lt(0).logical_not().to(dtypes.float64).mul(2).sub(1)
