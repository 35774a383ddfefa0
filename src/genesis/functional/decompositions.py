"""Decompositions of matrices with their gradients, which are written on tensors: so they have gradients themselves.

They are the parts of genesis.linalg, which checks arguments. Gradients of eigenvectors and singular vectors hold where
the values differ; where a gradient is zero, equal values are harmless.
"""

from __future__ import annotations

from genesis.autograd import Context, Function, Tensor
from genesis.functional.elementwise import where
from genesis.functional.joining import cat
from genesis.functional.linalg import matmul
from genesis.functional.matrices import diag_embed
from genesis.functional.selection import take_along_dim
from genesis.functional.shape import diagonal, transpose, tril, triu, unsqueeze
from genesis.functional.stacking import broadcast_shapes
from genesis.ndarray import ops

__all__: list[str] = []  # genesis.linalg has the functions

Gradients = tuple[Tensor | None, ...]


def transposed(x: Tensor) -> Tensor:
    """Swap the last two dimensions.

    Args:
        x: matrices.
    Returns: a view.
    """
    return transpose(x, -2, -1)


def chain(*factors: Tensor) -> Tensor:
    """Multiply several matrices from the left to the right.

    Args:
        factors: matrices whose sizes fit.
    Returns: the product.
    """
    product = factors[0]
    for factor in factors[1:]:
        product = matmul(product, factor)
    return product


class TriangularSolve(Function):
    """X of A · X = B. dB = A⁻ᵀ · dX, dA = −dB · Xᵀ in the triangle that is read."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor, upper: bool, unitriangular: bool) -> Tensor:
        x = a._like(ops.triangular_solve(a.array, b.array, upper, unitriangular))
        ctx.save_for_backward(a, x)
        ctx.flags = upper, unitriangular
        return x

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        a, x = ctx.saved_tensors
        upper, unitriangular = ctx.flags
        grad_b = TriangularSolve.apply(transposed(a), grad, not upper, unitriangular)
        grad_a = None
        if ctx.needs_input_grad[0]:
            offset = 1 if unitriangular else 0
            grad_a = -matmul(grad_b, transposed(x))
            grad_a = triu(grad_a, offset) if upper else tril(grad_a, -offset)
        return grad_a, grad_b, None, None


class Cholesky(Function):
    """L of A = L · Lᵀ, of the lower triangle. dA = sym(L⁻ᵀ · Φ(Lᵀ · dL) · L⁻¹), Φ: lower triangle, half a diagonal."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        factor, info = (a._like(each) for each in ops.cholesky(a.array, upper))
        ctx.save_for_backward(factor)
        ctx.mark_non_differentiable(info)
        ctx.upper = upper
        return factor, info

    @staticmethod
    def backward(ctx: Context, grad: Tensor, _: object = None) -> Gradients:
        (factor,) = ctx.saved_tensors
        if ctx.upper:
            factor, grad = transposed(factor), transposed(grad)
        product = tril(matmul(transposed(factor), grad))
        product = product - diag_embed(diagonal(product, 0, -2, -1)) * 0.5
        half = TriangularSolve.apply(transposed(factor), product, True, False)
        found = transposed(TriangularSolve.apply(transposed(factor), transposed(half), True, False))
        return (found + transposed(found)) * 0.5, None


class CholeskySolve(Function):
    """X of L · Lᵀ · X = B, or of Lᵀ · L · X = B. dB = A⁻¹ · dX, dL = −(dB · Xᵀ + X · dBᵀ) · L."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, b: Tensor, factor: Tensor, upper: bool) -> Tensor:
        inner = TriangularSolve.apply(transposed(factor) if upper else factor, b, False, False)
        x = TriangularSolve.apply(factor if upper else transposed(factor), inner, True, False)
        ctx.save_for_backward(x, factor)
        ctx.upper = upper
        return x

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        x, factor = ctx.saved_tensors
        grad_b, grad_factor = CholeskySolve.apply(grad, factor, ctx.upper), None
        if ctx.needs_input_grad[1]:
            common = matmul(grad_b, transposed(x))
            common = common + transposed(common)
            grad_factor = -matmul(factor, common) if ctx.upper else -matmul(common, factor)
        return grad_b, grad_factor, None


class LU(Function):
    """P · L · U, L and U in one matrix. dA = P · L⁻ᵀ · (tril(Lᵀ · dL, −1) + triu(dU · Uᵀ)) · U⁻ᵀ of a square one.

    The columns beyond a square are A₂ = L · U₂, the rows beyond it A₂ = L₂ · U; both hand gradients on to L and U.
    """

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed, pivots, info = (a._like(each) for each in ops.lu(a.array))
        ctx.save_for_backward(packed, pivots)
        ctx.mark_non_differentiable(pivots, info)
        return packed, pivots, info

    @staticmethod
    def backward(ctx: Context, grad: Tensor, *_: object) -> Tensor:
        packed, pivots = ctx.saved_tensors
        rows, columns = packed.shape[-2:]
        size = min(rows, columns)
        square = packed[..., :size, :size]
        grad_square = grad[..., :size, :size]
        lower, upper = tril(square, -1), triu(square)
        grad_lower, grad_upper = tril(grad_square, -1), triu(grad_square)
        more = None
        if columns > size:
            more = TriangularSolve.apply(transposed(square), grad[..., size:], True, True)
            grad_lower = grad_lower - tril(matmul(more, transposed(packed[..., size:])), -1)
        if rows > size:
            more = transposed(TriangularSolve.apply(upper, transposed(grad[..., size:, :]), True, False))
            grad_upper = grad_upper - triu(matmul(transposed(packed[..., size:, :]), more))
        full_lower = lower + diag_embed(lower.new_ones((*lower.shape[:-2], size)))
        middle = tril(matmul(transposed(full_lower), grad_lower), -1) + triu(matmul(grad_upper, transposed(upper)))
        middle = TriangularSolve.apply(transposed(square), middle, True, True)
        found = transposed(TriangularSolve.apply(upper, transposed(middle), True, False))
        if more is not None:
            found = cat([found, more], -1 if columns > size else -2)
        return in_rows_of_matrix(found, pivots)


def rows_of_product(pivots: Tensor, rows: int) -> Tensor:
    """The rows of a matrix in the order of its L · U.

    Args:
        pivots: (…, K), int32, as LU gives them.
        rows: the matrix's number of rows.
    Returns: (…, rows), int64.
    """
    return pivots._like(ops.lu_order(pivots.array, rows))


def in_rows_of_product(b: Tensor, pivots: Tensor) -> Tensor:
    """Pᵀ · b. See in_rows_of_matrix."""
    return _taken(b, rows_of_product(pivots, b.shape[-2]))


def in_rows_of_matrix(b: Tensor, pivots: Tensor) -> Tensor:
    """P · b.

    Args:
        b: (…, N, M).
        pivots: (…, K), as LU gives them.
    Returns: the shape of b, with the batch of both.
    """
    return _taken(b, rows_of_product(pivots, b.shape[-2]).argsort(-1))


def _taken(b: Tensor, order: Tensor) -> Tensor:
    batch = broadcast_shapes(b.shape[:-2], order.shape[:-1])
    wide, places = b.expand((*batch, *b.shape[-2:])), unsqueeze(order, -1).expand((*batch, *b.shape[-2:]))
    return take_along_dim(wide, places, -2)


class Eigh(Function):
    """Λ and V of A = V · diag(Λ) · Vᵀ. dA = V · (diag(dΛ) + skew(Vᵀ · dV) / 2 (λⱼ − λᵢ)) · Vᵀ."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        values, vectors = (a._like(each) for each in ops.eigh(a.array, upper))
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def backward(ctx: Context, grad_values: Tensor | None, grad_vectors: Tensor | None) -> Gradients:
        values, vectors = ctx.saved_tensors
        if grad_vectors is None:
            assert grad_values is not None
            return matmul(vectors * unsqueeze(grad_values, -2), transposed(vectors)), None
        inner = _divided(_skew(matmul(transposed(vectors), grad_vectors)) * 0.5, _differences(values))
        if grad_values is not None:
            inner = inner + diag_embed(grad_values)
        return chain(vectors, inner, transposed(vectors)), None


def _differences(values: Tensor) -> Tensor:
    """λⱼ − λᵢ."""
    return unsqueeze(values, -2) - unsqueeze(values, -1)


def _divided(x: Tensor, by: Tensor) -> Tensor:
    """x / by off the diagonal, 0 on it and where x is 0."""
    x = x - diag_embed(diagonal(x, 0, -2, -1))
    nothing = x.detach() == 0
    return where(nothing, 0.0, x / where(nothing, 1.0, by))


class SVD(Function):
    """S, U and Vᵀ of A = U · diag(S) · Vᵀ.

    dA = U · (diag(dS) + skew(Uᵀ · dU) / E · S + S · skew(V · dVᵀ) / E) · Vᵀ, E = sⱼ² − sᵢ², skew(X) = X − Xᵀ; and what
    changes U and V beyond the space that they span.
    """

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
        s, u, vh = (a._like(each) for each in ops.svd(a.array, full_matrices))
        ctx.save_for_backward(s, u, vh)
        ctx.full = full_matrices
        return s, u, vh

    @staticmethod
    def backward(
        ctx: Context, grad_s: Tensor | None, grad_u: Tensor | None, grad_vh: Tensor | None
    ) -> Gradients:  # fmt: skip
        s, u, vh = ctx.saved_tensors
        size, rows, columns = s.shape[-1], u.shape[-2], vh.shape[-1]
        u, vh = u[..., :size], vh[..., :size, :]
        if grad_u is None and grad_vh is None:
            assert grad_s is not None
            return matmul(u * unsqueeze(grad_s, -2), vh), None
        inner, squares = s.new_zeros((*s.shape, size)), _differences(s * s)
        if grad_u is not None:
            grad_u = grad_u[..., :size]
            inner = inner + _divided(_skew(matmul(transposed(u), grad_u)), squares) * unsqueeze(s, -2)
        if grad_vh is not None:
            grad_vh = grad_vh[..., :size, :]
            inner = inner + unsqueeze(s, -1) * _divided(_skew(matmul(vh, transposed(grad_vh))), squares)
        if grad_s is not None:
            inner = inner + diag_embed(grad_s)
        if rows > size and grad_u is not None:  # (I − U · Uᵀ) · dU / S
            scaled = grad_u / unsqueeze(s, -2)
            return matmul(matmul(u, inner) + scaled - chain(u, transposed(u), scaled), vh), None
        if columns > size and grad_vh is not None:
            scaled = grad_vh / unsqueeze(s, -1)
            return matmul(u, matmul(inner, vh) + scaled - chain(scaled, transposed(vh), vh)), None
        return chain(u, inner, vh), None


def _skew(x: Tensor) -> Tensor:
    return x - transposed(x)


class Solve(Function):
    """X of A · X = B, and what LU says of A. dB = A⁻ᵀ · dX, dA = −dB · Xᵀ."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        packed, pivots, info = LU.apply(a)
        x = lu_solved(packed, pivots, b)
        ctx.save_for_backward(a, x, packed, pivots)
        ctx.mark_non_differentiable(info)
        return x, info

    @staticmethod
    def backward(ctx: Context, grad: Tensor, _: object = None) -> Gradients:
        a, x, packed, pivots = ctx.saved_tensors
        grad_b = SolveTransposed.apply(a, packed, pivots, grad)
        return -matmul(grad_b, transposed(x)) if ctx.needs_input_grad[0] else None, grad_b


class SolveTransposed(Function):
    """X of Aᵀ · X = B, by the factors of A. dB = A⁻¹ · dX, dA = −X · dBᵀ."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, packed: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
        inner = TriangularSolve.apply(transposed(packed), b, False, False)
        x = in_rows_of_matrix(TriangularSolve.apply(transposed(packed), inner, True, True), pivots)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        a, x = ctx.saved_tensors
        grad_b = Solve.apply(a, grad)[0]
        return -matmul(x, transposed(grad_b)) if ctx.needs_input_grad[0] else None, None, None, grad_b


def lu_solved(packed: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    """U⁻¹ · L⁻¹ · Pᵀ · b.

    Args:
        packed, pivots: as LU gives them.
        b: (…, N, M).
    Returns: the shape of b, with the batch of both.
    """
    inner = TriangularSolve.apply(packed, in_rows_of_product(b, pivots), False, True)
    return TriangularSolve.apply(packed, inner, True, False)


class Det(Function):
    """The determinant. dA = dy · det A · A⁻ᵀ; of a singular A, that of the matrix with a tiny last pivot."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor) -> Tensor:
        packed, pivots, _ = LU.apply(a)
        pivot = diagonal(packed, 0, -2, -1)
        result = pivot.prod(-1) * sign_of(pivots)
        ctx.save_for_backward(a, result, packed, pivots)
        return result

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        a, result, packed, pivots = ctx.saved_tensors
        pivot = diagonal(packed, 0, -2, -1)
        if bool((pivot == 0).any()):
            tiny = 1e-16 if a.dtype.itemsize == 8 else 1e-8
            more = where(pivot == 0, tiny * (1 + pivot.abs().amax(-1, True)), 0.0)
            lower = tril(packed, -1) + diag_embed(pivot.new_ones(pivot.shape))
            a = a + in_rows_of_matrix(lower * unsqueeze(more, -2), pivots)
            result = (pivot + more).prod(-1) * sign_of(pivots)
        ones = diag_embed(a.new_ones(a.shape[:-1]))
        return transposed(Solve.apply(a, ones)[0]) * unsqueeze(unsqueeze(grad * result, -1), -1)


def sign_of(pivots: Tensor) -> Tensor:
    """The sign of the permutation: −1 for each row that is exchanged with another one.

    Args:
        pivots: (…, N), as LU gives them.
    Returns: (…,), int64.
    """
    numbers = pivots.new_tensor(list(range(1, pivots.shape[-1] + 1)))
    return 1 - 2 * ((pivots != numbers).sum(-1) % 2)


class Pinv(Function):
    """The pseudo-inverse P of A by singular values; those up to the tolerance count as 0. See Golub & Pereyra, 1973."""

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, tolerance: Tensor, hermitian: bool) -> Tensor:
        if hermitian:
            values, vectors = Eigh.apply(a, False)
            kept = values.abs() > tolerance
            parts = vectors, where(kept, 1 / where(kept, values, 1.0), 0.0), transposed(vectors)
        else:
            s, u, vh = SVD.apply(a, False)
            kept = s > tolerance
            parts = transposed(vh), where(kept, 1 / where(kept, s, 1.0), 0.0), transposed(u)
        found = matmul(parts[0] * unsqueeze(parts[1], -2), parts[2])
        ctx.save_for_backward(a, found)
        return found

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        a, p = ctx.saved_tensors
        g, pt = transposed(grad), transposed(p)
        if a.shape[-2] <= a.shape[-1]:
            k = matmul(g, p)
            kp = matmul(k, pt)
            found = kp - transposed(matmul(p, k)) - chain(a, p, kp) + chain(pt, p, g - matmul(k, a))
        else:
            k = matmul(p, g)
            pk = matmul(pt, k)
            found = pk - transposed(matmul(k, p)) + chain(g - matmul(a, k), p, pt) - chain(pk, p, a)
        return found, None, None


class QR(Function):
    """Q · R. dA = (Q · sym(triu(dR · Rᵀ − Qᵀ · dQ)) + dQ) · R⁻ᵀ, sym(X) = X + Xᵀ with the diagonal once.

    The columns beyond a square are A₂ = Q · R₂: they hand their gradient on to Q.
    """

    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, a: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        q, r = (a._like(each) for each in ops.qr(a.array, mode == "complete"))
        ctx.save_for_backward(q, r)
        ctx.mode = mode
        return q, r

    @staticmethod
    def backward(ctx: Context, grad_q: Tensor | None, grad_r: Tensor | None) -> Gradients:
        q, r = ctx.saved_tensors
        rows, columns = q.shape[-2], r.shape[-1]
        if ctx.mode == "r":
            raise RuntimeError("qr: argument 'mode': the gradient needs Q, which mode=\"r\" does not give")
        if ctx.mode == "complete" and rows > columns:
            raise RuntimeError("qr: argument 'mode': \"complete\" has no gradient of more rows than columns")
        size, more = r.shape[-2], None
        if columns > size:
            if grad_r is not None:
                more = matmul(q, grad_r[..., size:])
                from_rest = matmul(q, matmul(r[..., size:], transposed(grad_r[..., size:])))
                grad_q = from_rest if grad_q is None else grad_q + from_rest
                grad_r = grad_r[..., :size]
            r = r[..., :size]
        inner = q.new_zeros((*r.shape[:-2], size, size))
        if grad_r is not None:
            inner = inner + matmul(grad_r, transposed(r))
        if grad_q is not None:
            inner = inner - matmul(transposed(q), grad_q)
        inner = triu(inner)
        found = matmul(q, inner + transposed(inner) - diag_embed(diagonal(inner, 0, -2, -1)))
        found = found if grad_q is None else found + grad_q
        found = transposed(TriangularSolve.apply(r, transposed(found), True, False))
        if columns > size:
            rest = found.new_zeros((*found.shape[:-1], columns - size)) if more is None else more
            found = cat([found, rest], -1)
        return found, None
