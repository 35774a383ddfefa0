"""Transforms of vectors and matrices, and of parts of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import genesis.functional as F
from genesis.creation import eye
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import sum_last
from genesis.distributions.elementwise_transforms import inside_unit
from genesis.distributions.transform import Transform
from genesis.dtypes import finfo
from genesis.errors import ShapeError, describe
from genesis.linalg import cholesky
from genesis.queries import tril_indices
from genesis.shapes import Shape
from genesis.tensor import Tensor


class SoftmaxTransform(Transform):
    """softmax, from vectors to the simplex; not one to one. See `genesis.distributions.Transform`."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """From vectors to the simplex of one more dimension: each number says how much to break off the rest of a stick.

    See `genesis.distributions.Transform`.
    """

    bijective, domain, codomain = True, constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        part = inside_unit((x - _log_rests(x)).sigmoid())
        return F.pad(part, [0, 1], value=1.0) * F.pad((1 - part).cumprod(-1), [1, 0], value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        first = y[..., :-1]
        rest = (1 - first.cumsum(-1)).clamp_min(finfo(y.dtype).tiny)
        return first.log() - rest.log() + _log_rests(first)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - _log_rests(x)
        return (-x + F.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        _require_dims("StickBreakingTransform", shape, 1)
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        _require_dims("StickBreakingTransform", shape, 1)
        return (*shape[:-1], shape[-1] - 1)


def _log_rests(x: Tensor) -> Tensor:
    """ln of how many parts are still to come: zeros make equal parts."""
    count = x.shape[-1]
    return (count + 1 - x.new_ones(count).cumsum(-1)).log()


class LowerCholeskyTransform(Transform):
    """The lower triangle, with eˣ of the diagonal. See `genesis.distributions.Transform`."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(0, -2, -1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """L · Lᵀ, with L of LowerCholeskyTransform. See `genesis.distributions.Transform`."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(cholesky(y))


class CorrCholeskyTransform(Transform):
    """From N (N − 1) / 2 numbers to the Cholesky factor of N × N correlations, whose rows have length 1.

    See `genesis.distributions.Transform`.
    """

    bijective, domain, codomain = True, constraints.real_vector, constraints.corr_cholesky

    def _call(self, x: Tensor) -> Tensor:
        limit = 1 - finfo(x.dtype).eps
        below = _lower_matrix(x.tanh().clamp(-limit, limit))
        left = (1 - below.square()).sqrt().cumprod(-1)
        unit = eye(below.shape[-1], dtype=x.dtype, device=x.device)
        return (below + unit) * F.pad(left[..., :-1], [1, 0], value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        left = F.pad((1 - y.square().cumsum(-1))[..., :-1], [1, 0], value=1.0)
        return (_below(y, -1) / _below(left, -1).sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        left = _below(1 - y.square().cumsum(-1), -2)
        return left.log().sum(-1) / 2 - 2 * (x + F.softplus(-2 * x) - math.log(2)).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        _require_dims("CorrCholeskyTransform", shape, 1)
        size = _size_of(shape[-1])
        return (*shape[:-1], size, size)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        _require_dims("CorrCholeskyTransform", shape, 2)
        if shape[-1] != shape[-2]:
            raise ShapeError(describe("CorrCholeskyTransform", "shape", "square matrices", tuple(shape)))
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)


def _size_of(count: int) -> int:
    """The size of a matrix with so many elements below its diagonal."""
    size = (1 + math.isqrt(1 + 8 * count)) // 2
    if size * (size - 1) // 2 != count:
        raise ShapeError(describe("CorrCholeskyTransform", "shape", "n (n − 1) / 2 numbers", count))
    return size


def _lower_matrix(values: Tensor) -> Tensor:
    """The matrix with these elements below its diagonal, row by row."""
    size = _size_of(values.shape[-1])
    rows, columns = tril_indices(size, size, -1, device=values.device)
    flat = values.new_zeros((*values.shape[:-1], size * size))
    places = (rows * size + columns).expand(values.shape)
    return flat.scatter(-1, places, values).reshape((*values.shape[:-1], size, size))


def _below(matrix: Tensor, offset: int) -> Tensor:
    """The elements below a diagonal, row by row."""
    rows, columns = tril_indices(matrix.shape[-2], matrix.shape[-1], offset, device=matrix.device)
    return matrix[..., rows, columns]


def _require_dims(op: str, shape: Sequence[int], count: int) -> None:
    if len(shape) < count:
        raise ShapeError(describe(op, "shape", f"at least {count} dimensions", tuple(shape)))


# --- transforms side by side ------------------------------------------------------------------------------------------


class _Side(Transform):
    """Transforms, each of a part along a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        super().__init__(cache_size)
        self.transforms = [each.with_cache(cache_size) for each in tseq] if cache_size else list(tseq)
        self.dim = dim

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(each.bijective for each in self.transforms)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def _joined(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return self._joined([each(part) for each, part in zip(self.transforms, self._parts(x), strict=True)])

    def _inverse(self, y: Tensor) -> Tensor:
        return self._joined([each.inv(part) for each, part in zip(self.transforms, self._parts(y), strict=True)])

    def _slopes(self, x: Tensor, y: Tensor) -> list[Tensor]:
        parts = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return [each.log_abs_det_jacobian(before, after) for each, before, after in parts]

    def _identity(self) -> tuple[object, ...]:
        return (*self.transforms, self.dim)

    def _require_size(self, value: Tensor, size: int) -> None:
        if value.shape[self.dim] != size:
            expected = f"size {size} in dimension {self.dim}"
            raise ShapeError(describe(type(self).__name__, "value", expected, tuple(value.shape)))


class CatTransform(_Side):
    """Transforms of the parts of a tensor along a dimension, as cat joins them.

    Args:
        tseq: transforms.
        dim: a dimension.
        lengths: of the parts; 1 each if None.
        cache_size: as in `genesis.distributions.Transform`.
    Raises: ShapeError: not as many lengths as transforms.

    Example:
        >>> from genesis.distributions import CatTransform, ExpTransform, identity_transform
        >>> CatTransform([ExpTransform(), identity_transform], 0, [1, 2])(genesis.zeros(3)).tolist()
        [1.0, 0.0, 0.0]
    """

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:  # fmt: skip
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ShapeError(describe("CatTransform", "lengths", f"{len(self.transforms)} of them", len(self.lengths)))

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.cat([each.domain for each in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.cat([each.codomain for each in self.transforms], self.dim, self.lengths)

    def _renewed(self, cache_size: int) -> Self:
        return type(self)(self.transforms, self.dim, self.lengths, cache_size)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        self._require_size(value, sum(self.lengths))
        return value.split(self.lengths, self.dim)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return F.cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        event_dim = max(each.event_dim for each in self.transforms)
        slopes = [
            sum_last(slope, event_dim - each.event_dim)
            for each, slope in zip(self.transforms, self._slopes(x, y), strict=True)
        ]
        dim = (self.dim if self.dim < 0 else self.dim - x.ndim) + event_dim
        return F.cat(slopes, dim) if dim < 0 else sum(slopes[1:], slopes[0])


class StackTransform(_Side):
    """Transforms of the places along a dimension, as stack joins them.

    Args:
        tseq: transforms.
        dim: a dimension.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import ExpTransform, StackTransform, identity_transform
        >>> StackTransform([ExpTransform(), identity_transform])(genesis.zeros(2)).tolist()
        [1.0, 0.0]
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.stack([each.domain for each in self.transforms], self.dim)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.stack([each.codomain for each in self.transforms], self.dim)

    def _renewed(self, cache_size: int) -> Self:
        return type(self)(self.transforms, self.dim, cache_size)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        self._require_size(value, len(self.transforms))
        return value.unbind(self.dim)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return F.stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return F.stack(self._slopes(x, y), self.dim)
