"""The orthogonal parametrization: a weight whose columns, or rows, are orthonormal whatever is learned."""

from __future__ import annotations

from typing import TypeVar

from genesis import functional as F
from genesis import linalg
from genesis.autograd import no_grad
from genesis.creation import eye
from genesis.creation_like import ones_like, zeros_like
from genesis.dtypes import finfo, int32
from genesis.errors import ShapeError, describe
from genesis.nn.module import Module
from genesis.nn.utils.parametrize import register_parametrization
from genesis.random import randn
from genesis.tensor import Tensor

M = TypeVar("M", bound=Module)
_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map, self.use_trivialization = weight.shape, orthogonal_map, use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        is_wide = X.shape[-2] < X.shape[-1]
        x = X.mT if is_wide else X
        if self.orthogonal_map == "householder":
            vectors = x.tril(-1)
            q = linalg.householder_product(vectors, 2.0 / (1.0 + (vectors * vectors).sum(-2)))
            q = q * x.diagonal(0, -2, -1).detach().to(int32).unsqueeze(-2)  # signs, which are not learned
        else:
            q = self._of_skew(x)
        if self.use_trivialization and self.base is not None:
            q = self.base @ q
        return q.mT if is_wide else q

    def _of_skew(self, x: Tensor) -> Tensor:
        """The first columns of exp(A), or of Cayley's (I − A / 2)⁻¹ · (I + A / 2), with A = X − Xᵀ of the triangle."""
        size, columns = x.shape[-2:]
        lower = F.pad(x.tril(), (0, size - columns))
        skew = lower - lower.mT
        if self.orthogonal_map == "matrix_exp":
            return linalg.matrix_exp(skew)[..., :columns]
        ones = eye(size, dtype=skew.dtype, device=skew.device)
        return linalg.solve(ones - skew * 0.5, (ones + skew * 0.5).expand(skew.shape))[..., :columns]

    @no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:
        """Return what is learned, such that forward gives the orthogonal matrix next to Q.

        Args:
            Q: the weight's shape.
        Returns: the shape of Q.
        Raises: ShapeError: another shape. NotImplementedError: there is no inverse of the map without trivialization.
        """
        if Q.shape != self.shape:
            raise ShapeError(describe("orthogonal", "Q", f"shape {self.shape}", Q.shape))
        is_wide = Q.shape[-2] < Q.shape[-1]
        q = Q.mT if is_wide else Q
        if not self.use_trivialization:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    f"orthogonal: argument 'orthogonal_map': expected 'householder', as only that can be assigned to "
                    f"with use_trivialization=False, got {self.orthogonal_map!r}"
                )
            found = _reflections(q)
            return found.mT if is_wide else found
        size, columns = q.shape[-2:]
        if size != columns:
            more = randn(*q.shape[:-2], size, size - columns, dtype=q.dtype, device=q.device)
            q = _orthogonal_next_to(F.cat([q, more], -1))
        else:
            q = q.clone() if _is_orthogonal(q) else _orthogonal_next_to(q)
        self.base = q
        start = zeros_like(Q)
        start.diagonal(0, -2, -1).fill_(-1.0)  # of which each map gives the first columns of I, by Householder's signs
        return start


def _is_orthogonal(q: Tensor) -> bool:
    size, columns = q.shape[-2:]
    ones = eye(columns, dtype=q.dtype, device=q.device).expand(*q.shape[:-2], columns, columns)
    return F.allclose(q.mT @ q, ones, atol=10.0 * size * finfo(q.dtype).eps)


def _orthogonal_next_to(a: Tensor) -> Tensor:
    """Q of A = Q · R, where R has no negative diagonal."""
    q, r = linalg.qr(a)
    return q * r.diagonal(0, -2, -1).sgn().unsqueeze(-2)


def _reflections(a: Tensor) -> Tensor:
    """Householder's vectors of A = Q · R below the diagonal; on it, signs that make R's diagonal positive."""
    a = a.clone()
    for number in range(a.shape[-1]):
        head, rest = a[..., number, number].clone(), a[..., number + 1 :, number].clone()
        length = (head * head + (rest * rest).sum(-1)).sqrt()
        reflects = (rest != 0).any(-1)
        beta = F.where(reflects, F.where(head < 0, length, -length), head)  # R's diagonal
        tau = F.where(reflects, (beta - head) / F.where(reflects, beta, 1.0), 0.0)
        vector = rest / F.where(reflects, head - beta, 1.0).unsqueeze(-1)
        whole = F.cat([ones_like(head).unsqueeze(-1), vector], -1)
        block = a[..., number:, number:]
        change = (whole.unsqueeze(-2) @ block) * tau[..., None, None]
        a[..., number:, number:] = block - whole.unsqueeze(-1) * change
        a[..., number + 1 :, number] = vector
        a[..., number, number] = F.where(reflects, beta.sgn(), -beta.sgn())
    return a


def orthogonal(
    module: M, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> M:  # fmt: skip
    """Make a weight orthogonal: its columns are orthonormal, or its rows if there are fewer of them.

    Args:
        module: has the parameter; parametrizations.name.original replaces it.
        name: of the parameter, (…, M, N).
        orthogonal_map: "matrix_exp" of a skew-symmetric matrix, "cayley", its rational counterpart, or "householder", a
            product of reflections; by default the first for square weights, else the last.
        use_trivialization: learn the difference to a matrix that is kept, which is the weight if that is orthogonal.
    Returns: module.
    Raises: ValueError: no such parameter, fewer than 2 dimensions, or no such map. NotImplementedError: a map that
        cannot be assigned to, without trivialization.
    Source: Lezcano-Casado 2019, arXiv:1909.09501.

    Example:
        >>> layer = nn.utils.parametrizations.orthogonal(nn.Linear(3, 2))
        >>> [round(abs(x), 3) for x in (layer.weight @ layer.weight.mT).flatten().tolist()]
        [1.0, 0.0, 0.0, 1.0]
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(describe("orthogonal", "name", "a parameter or buffer of the module", repr(name)))
    if weight.ndim < 2:
        raise ValueError(describe("orthogonal", "name", "matrices", f"{name} of shape {weight.shape}"))
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(describe("orthogonal", "orthogonal_map", ", ".join(_MAPS), repr(orthogonal_map)))
    return register_parametrization(module, name, _Orthogonal(weight, orthogonal_map, use_trivialization), unsafe=True)
