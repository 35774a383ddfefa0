"""PyTorch's torch.linalg as far as it is composed of sums and products: on every device, with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import Tensor
from genesis.errors import ShapeError, describe
from genesis.functional import matmul as matmul


class LinAlgError(RuntimeError):
    """A matrix that is singular, or not positive definite."""


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product along dim, which has size 3. See `F.cross`."""
    return F.cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, a view. See `F.diagonal`."""
    return F.diagonal(A, offset, dim1, dim2)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A square matrix to the n-th power; of negative n, of its inverse. See `F.matrix_power`."""
    return F.matrix_power(A, n) if n >= 0 else F.matrix_power(inv(A), -n)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along dim.

    Args:
        x, y: tensors whose shapes broadcast.
        dim: a dimension.
    Returns: the common shape without dim.
    Raises: ValueError: the shapes don't broadcast.

    Example:
        >>> genesis.linalg.vecdot(genesis.ones(2, 3), genesis.ones(3)).tolist()
        [3.0, 3.0]
    """
    return (x * y).sum(dim)


def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:  # fmt: skip
    """The vector norm over dim. See `F.norm`."""
    if dim is None and not keepdim and x.ndim != 1:
        x = x.reshape(-1) if x.numel() else x.flatten()
    return F.norm(x, float(ord), dim, keepdim, dtype)  # type: ignore[arg-type]


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


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular factor L of A = L · Lᵀ.

    Args:
        A: (…, N, N), symmetric and positive definite, floating.
        upper: give Lᵀ.
    Returns: the shape of A.
    Raises: LinAlgError: not positive definite. ShapeError: not square.
    Grad: A, symmetric.

    Example:
        >>> genesis.linalg.cholesky(genesis.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    size = _square("cholesky", A)
    rest, columns = (A + A.mT) * 0.5, []
    for number in range(size):  # a column each, then what it explains is taken off
        column = rest[..., :, 0] / rest[..., 0, 0].unsqueeze(-1).sqrt()
        columns.append(F.pad(column, (number, 0)))
        below = column[..., 1:]
        rest = rest[..., 1:, 1:] - below.unsqueeze(-1) * below.unsqueeze(-2)
    factor = F.stack(columns, -1) if columns else A
    if not bool(factor.detach().isfinite().all()):
        raise LinAlgError("cholesky: argument 'A': expected positive definite matrices, got another one")
    return factor.mT if upper else factor


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
    size = _square("solve_triangular", A)
    if not left:
        transposed = solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular)
        return transposed.mT
    if B.ndim < 2 or B.shape[-2] != size:
        raise ShapeError(describe("solve_triangular", "B", f"(…, {size}, M)", f"shape {B.shape}"))
    rows: dict[int, Tensor] = {}
    for number in reversed(range(size)) if upper else range(size):
        known = sorted(rows)
        row = B[..., number, :]
        if known:
            part = A[..., number, known[0] : known[-1] + 1].unsqueeze(-2)
            row = row - (part @ F.stack(F.broadcast_tensors(*[rows[at] for at in known]), -2)).squeeze(-2)
        head = A[..., number, number].unsqueeze(-1)
        rows[number] = F.where(head.detach().isreal(), row, head) if unitriangular else row / head  # of gradient 0
    return F.stack(F.broadcast_tensors(*[rows[number] for number in range(size)]), -2) if size else B + A.sum() * 0


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X of A · X = B, by elimination with row exchanges.

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
    if not left:
        return solve(A.mT, B.mT).mT
    size = _square("solve", A)
    vectors = B.ndim == 1 or (B.ndim + 1 == A.ndim and B.shape == A.shape[:-1])
    columns = B.unsqueeze(-1) if vectors else B
    if columns.shape[-2] != size:
        raise ShapeError(describe("solve", "B", f"{size} rows, as A", f"shape {B.shape}"))
    found, _ = _eliminated("solve", A, columns)
    return found.squeeze(-1) if vectors else found


def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices. See `genesis.linalg.solve`."""
    size = _square("inv", A)
    ones = A.new_ones(size).diag().expand(A.shape)
    return _eliminated("inv", A, ones)[0]


inverse = inv


def det(A: Tensor) -> Tensor:
    """The determinants of square matrices.

    Args:
        A: (…, N, N), floating.
    Returns: the batch's shape.
    Raises: ShapeError: not square.
    Grad: A, where it is regular.

    Example:
        >>> genesis.linalg.det(2 * genesis.eye(3)).item()
        8.0
    """
    _square("det", A)
    return _eliminated("det", A, None)[1].prod(-1)


def _square(op: str, A: Tensor) -> int:
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(describe(op, "A", "square matrices", f"shape {A.shape}"))
    if not A.is_floating_point():
        raise ShapeError(describe(op, "A", "a floating dtype", A.dtype))
    return A.shape[-1]


def _eliminated(op: str, A: Tensor, B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gauss and Jordan's elimination of (A | B): what B becomes, and the pivots, whose product is the determinant."""
    size = A.shape[-1]
    if B is not None:
        batch = F.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        A, B = A.expand((*batch, *A.shape[-2:])), B.expand((*batch, *B.shape[-2:]))
    table = A if B is None else F.cat([A, B], -1)
    pivots = []
    for number in range(size):
        column = table[..., number:, number].detach().abs()
        pivot = column.argmax(-1, keepdim=True) + number  # (…, 1)
        order = _exchanged(pivot, number, size)
        table = table.take_along_dim(order.unsqueeze(-1).expand(table.shape), -2)
        head = table[..., number, number]
        pivots.append(F.where(pivot.squeeze(-1) == number, head, -head))
        row = table[..., number, :] / F.where(head == 0, 1.0, head).unsqueeze(-1)
        factor = table[..., :, number].unsqueeze(-1)
        if B is None:
            table = table - F.select_scatter(factor, factor[..., number, :] * 0, -2, number) * row.unsqueeze(-2)
        else:
            cleared = table - factor * row.unsqueeze(-2)
            table = F.select_scatter(cleared, row, -2, number)
    if B is None:
        return table, F.stack(pivots, -1) if size else A.sum(-1)
    if size and not bool((F.stack(pivots).detach() != 0).all()):
        raise LinAlgError(f"{op}: argument 'A': expected regular matrices, got a singular one")
    return table[..., size:], A


def _exchanged(pivot: Tensor, number: int, size: int) -> Tensor:
    """The order of the rows with row number and the pivot's exchanged."""
    places = pivot.new_tensor(list(range(size))).expand((*pivot.shape[:-1], size))
    swapped = F.where(places == pivot, number, places)
    return F.where(places == number, pivot, swapped)


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its magnitude, −∞ of singular matrices.

    Args:
        A: (…, N, N), floating.
    Returns: two tensors of the batch's shape.
    Raises: ShapeError: not square.
    Grad: A, of the logarithm.

    Example:
        >>> sign, value = genesis.linalg.slogdet(genesis.tensor([[0.0, 1.0], [1.0, 0.0]]))
        >>> sign.item(), value.item()
        (-1.0, 0.0)
    """
    _square("slogdet", A)
    pivots = _eliminated("slogdet", A, None)[1] if A.shape[-1] else A.sum(-1)  # of nothing: 1, whose logarithm is 0
    return pivots.sign().prod(-1), pivots.abs().log().sum(-1)


def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant: NaN where that is negative. See `genesis.linalg.det`."""
    sign, value = slogdet(A)
    return F.where(sign < 0, float("nan"), value)


def matrix_norm(
    A: Tensor, ord: str | float = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False
) -> Tensor:  # fmt: skip
    """The norm of matrices: "fro", or ±1 and ±∞ of sums of magnitudes along columns and rows.

    Args:
        A: any shape, floating.
        ord: which norm; those by singular values ("nuc", ±2) are refused.
        dim: the two dimensions of the matrices.
        keepdim: keep dim, with size 1.
    Returns: the shape of A without dim.
    Raises: NotImplementedError: a norm by singular values.

    Example:
        >>> genesis.linalg.matrix_norm(genesis.tensor([[3.0, -4.0], [0.0, 0.0]]), 1).item()
        4.0
    """
    if ord == "fro":
        return F.norm(A, 2.0, dim, keepdim)
    if ord not in (1, -1, float("inf"), -float("inf")):
        raise NotImplementedError(f"matrix_norm: ord={ord!r} needs singular values, which no backend has")
    rows, columns = dim if abs(ord) == 1 else dim[::-1]
    sums = A.abs().sum(rows, keepdim=True)
    found = sums.amax(columns, keepdim=True) if ord > 0 else sums.amin(columns, keepdim=True)
    return found if keepdim else found.squeeze(dim)


def norm(
    A: Tensor, ord: str | float | None = None, dim: int | tuple[int, int] | None = None, keepdim: bool = False
) -> Tensor:  # fmt: skip
    """vector_norm, or matrix_norm where ord is given for a matrix or for two dimensions, as in PyTorch."""
    if ord is not None and (isinstance(dim, tuple) or (dim is None and A.ndim == 2)):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim)
    return vector_norm(A, 2.0 if ord is None else float(ord), dim, keepdim)
