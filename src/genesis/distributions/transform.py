"""Transform: an invertible function of draws; its inverse, chains, and transforms of whole events."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Self

from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import sum_last
from genesis.errors import ShapeError, describe
from genesis.shapes import Shape
from genesis.tensor import Tensor


class Transform:
    """A base of invertible functions: subclasses have `_call`, `_inverse` and `log_abs_det_jacobian`.

    Args:
        cache_size: 1 to remember the last argument with its result, so that the inverse of that result is exact.
    Attributes:
        bijective: whether it is one to one.
        domain, codomain: what it takes, and what it gives: of `genesis.distributions.constraints`.
        sign: of the slope, 1 or −1, of a function of single numbers.
    Raises: ValueError: another cache_size.

    Example:
        >>> from genesis.distributions import ExpTransform
        >>> exp = ExpTransform()
        >>> exp(genesis.tensor(0.0)).item(), exp.inv(genesis.tensor(1.0)).item(), exp.inv.inv is exp
        (1.0, 0.0, True)
        >>> exp.sign, exp.event_dim, exp.forward_shape((2, 3)), exp.inverse_shape((2, 3)), exp.with_cache() == exp
        (1, 0, (2, 3), (2, 3), True)
    """

    bijective: bool = False
    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real
    sign: int | Tensor
    _inv: Transform | None = None

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(describe(type(self).__name__, "cache_size", "0 or 1", cache_size))
        self._cache_size = cache_size
        self._last: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def event_dim(self) -> int:
        """Dimensions of what it takes and gives at once.

        Raises: ValueError: they differ.
        """
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError(f"{type(self).__name__}: ask domain.event_dim or codomain.event_dim, as they differ")
        return self.domain.event_dim

    @property
    def inv(self) -> Transform:
        """The inverse."""
        if self._inv is None:
            self._inv = _Inverse(self)
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform with a cache.

        Args:
            cache_size: as in `genesis.distributions.Transform`.
        Returns: self, if it has that cache.
        """
        return self if cache_size == self._cache_size else self._renewed(cache_size)

    def _renewed(self, cache_size: int) -> Transform:
        return type(self)(cache_size=cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size and x is self._last[0] and self._last[1] is not None:
            return self._last[1]
        y = self._call(x)
        self._remember(x, y)
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size and y is self._last[1] and self._last[0] is not None:
            return self._last[0]
        x = self._inverse(y)
        self._remember(x, y)
        return x

    def _remember(self, x: Tensor, y: Tensor) -> None:
        if self._cache_size:
            self._last = (x, y)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """ln |det dy/dx|.

        Args:
            x, y: an argument, and the result; batch shape + event shapes.
        Returns: the batch shape.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The result's shape.

        Args:
            shape: of an argument.
        Returns: a tuple.
        Raises: ShapeError: no argument has that shape.
        """
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """The argument's shape. See `genesis.distributions.Transform.forward_shape`."""
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity() == getattr(other, "_identity", tuple)()

    def __hash__(self) -> int:
        return hash(type(self))

    def _identity(self) -> tuple[object, ...]:
        """Equal transforms of one class have equal ones."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    """A transform backwards, which has the cache."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._forward = self._inv = transform
        self.bijective = transform.bijective
        self._cache_size = transform._cache_size

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return self._forward.codomain

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return self._forward.domain

    @property
    def sign(self) -> int | Tensor:  # type: ignore[override]
        return self._forward.sign

    def _renewed(self, cache_size: int) -> Transform:
        return self._forward.with_cache(cache_size).inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self._forward.forward_shape(shape)

    def _identity(self) -> tuple[object, ...]:
        return (self._forward,)

    def __repr__(self) -> str:
        return f"{self._forward!r}.inv"


class ComposeTransform(Transform):
    """Several transforms, in order.

    Args:
        parts: transforms.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import AffineTransform, ComposeTransform, ExpTransform
        >>> ComposeTransform([ExpTransform(), AffineTransform(0.0, 2.0)])(genesis.tensor(0.0)).item()
        2.0
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> int | Tensor:  # type: ignore[override]
        return functools.reduce(operator.mul, (part.sign for part in self.parts), 1)

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims = max(dims + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim)
        return _with_event_dim(self.parts[0].domain, dims)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        if not self.parts:
            return constraints.real
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims = max(dims + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim)
        return _with_event_dim(self.parts[-1].codomain, dims)

    @property
    def inv(self) -> Transform:
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def _renewed(self, cache_size: int) -> Transform:
        return ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Tensor | None = None
        dims = self.domain.event_dim
        for index, part in enumerate(self.parts):
            after = part(x) if index + 1 < len(self.parts) else y
            slope = sum_last(part.log_abs_det_jacobian(x, after), dims - part.domain.event_dim)
            total, x = slope if total is None else total + slope, after
            dims += part.codomain.event_dim - part.domain.event_dim
        return x.new_zeros(x.shape) if total is None else total

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def _identity(self) -> tuple[object, ...]:
        return tuple(self.parts)

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts!r})"


def _with_event_dim(constraint: Constraint, event_dim: int) -> Constraint:
    more = event_dim - constraint.event_dim
    return constraints.independent(constraint, more) if more else constraint


class IndependentTransform(Transform):
    """Another transform, with its last batch dimensions as parts of one event.

    Args:
        base_transform: any.
        reinterpreted_batch_ndims: how many dimensions.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import ExpTransform, IndependentTransform
        >>> x = genesis.ones(2, 3)
        >>> IndependentTransform(ExpTransform(), 1).log_abs_det_jacobian(x, x.exp()).tolist()
        [3.0, 3.0]
    """

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective = base_transform.bijective

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def sign(self) -> int | Tensor:  # type: ignore[override]
        return self.base_transform.sign

    def _renewed(self, cache_size: int) -> Transform:
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        self._require_dims(x, self.domain)
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        self._require_dims(y, self.codomain)
        return self.base_transform.inv(y)

    def _require_dims(self, value: Tensor, constraint: Constraint) -> None:
        if value.ndim < constraint.event_dim:
            expected = f"at least {constraint.event_dim} dimensions"
            raise ShapeError(describe("IndependentTransform", "value", expected, value.ndim))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_last(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self.base_transform.inverse_shape(shape)

    def _identity(self) -> tuple[object, ...]:
        return self.base_transform, self.reinterpreted_batch_ndims

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """The same event in another shape.

    Args:
        in_shape, out_shape: event shapes of as many elements.
        cache_size: as in `genesis.distributions.Transform`.
    Raises: ShapeError: the numbers of elements differ.

    Example:
        >>> from genesis.distributions import ReshapeTransform
        >>> ReshapeTransform((2, 3), (6,))(genesis.ones(4, 2, 3)).shape
        (4, 6)
    """

    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if functools.reduce(operator.mul, self.in_shape, 1) != functools.reduce(operator.mul, self.out_shape, 1):
            raise ShapeError(describe("ReshapeTransform", "out_shape", f"as many elements as {in_shape}", out_shape))
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _renewed(self, cache_size: int) -> Self:
        return type(self)(self.in_shape, self.out_shape, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.shape[: x.ndim - len(self.in_shape)])

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return _exchanged(shape, self.out_shape, self.in_shape)

    def _identity(self) -> tuple[object, ...]:
        return self.in_shape, self.out_shape


def _exchanged(shape: Sequence[int], end: Shape, other: Shape) -> Shape:
    cut = len(shape) - len(end)
    if cut < 0 or tuple(shape[cut:]) != end:
        raise ShapeError(describe("ReshapeTransform", "shape", f"one that ends in {end}", tuple(shape)))
    return (*shape[:cut], *other)


identity_transform = ComposeTransform([])
