"""Sets of values: what parameters may be, and what distributions draw. By PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import genesis.functional as F
from genesis.dtypes import finfo
from genesis.errors import ShapeError, describe
from genesis.linalg import cholesky_ex, eigvalsh
from genesis.tensor import Tensor

Bound = Tensor | float


class Constraint:
    """A set of events, as the reals or the simplex.

    Attributes:
        is_discrete: whether it is countable.
        event_dim: dimensions of one event.

    Example:
        >>> from genesis.distributions import constraints
        >>> constraints.interval(0.0, 2.0).check(genesis.tensor([1.0, 3.0])).tolist()
        [True, False]
    """

    is_discrete: bool = False
    event_dim: int = 0

    def check(self, value: Tensor) -> Tensor:
        """Whether events are in the set.

        Args:
            value: events, batch shape + event shape.
        Returns: bool, the batch shape.
        """
        raise NotImplementedError(f"{type(self).__name__} has no check")

    @property
    def expected(self) -> str:
        """The values that are expected, in an error's words."""
        return f"values of {self!r}"

    def __repr__(self) -> str:
        bounds = ", ".join(f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__.removeprefix('_')}({bounds})"


# --- numbers ----------------------------------------------------------------------------------------------------------


class _Real(Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value == value


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _GreaterThan(Constraint):
    def __init__(self, lower_bound: Bound) -> None:
        self.lower_bound = lower_bound

    @property
    def expected(self) -> str:
        return f"values above {self.lower_bound:g}" if isinstance(self.lower_bound, float) else super().expected

    def check(self, value: Tensor) -> Tensor:
        return value > self.lower_bound


class _GreaterThanEq(Constraint):
    def __init__(self, lower_bound: Bound) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return value >= self.lower_bound


class _LessThan(Constraint):
    def __init__(self, upper_bound: Bound) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class _Interval(Constraint):
    def __init__(self, lower_bound: Bound, upper_bound: Bound) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    @property
    def expected(self) -> str:
        if isinstance(self.lower_bound, Tensor) or isinstance(self.upper_bound, Tensor):
            return super().expected
        return f"values in [{self.lower_bound:g}, {self.upper_bound:g}]"

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class _HalfOpenInterval(_Interval):
    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class _IntegerInterval(_Interval):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & super().check(value)


class _IntegerLessThan(Constraint):
    is_discrete = True

    def __init__(self, upper_bound: Bound) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value <= self.upper_bound)


class _IntegerGreaterThan(_GreaterThanEq):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & super().check(value)


# --- vectors ----------------------------------------------------------------------------------------------------------


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Multinomial(Constraint):
    """Counts whose sum is at most upper_bound."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Bound) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


# --- matrices ---------------------------------------------------------------------------------------------------------


class _Matrix(Constraint):
    event_dim = 2


class _LowerTriangular(_Matrix):
    def check(self, value: Tensor) -> Tensor:
        return (value.tril() == value).all(-1).all(-1)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & (value.diagonal(0, -2, -1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    """Cholesky factors of correlations: each row has length 1."""

    def check(self, value: Tensor) -> Tensor:
        tolerance = 10 * finfo(value.dtype).eps * value.shape[-1]
        lengths = value.detach().square().sum(-1).sqrt()
        return super().check(value) & ((lengths - 1).abs() <= tolerance).all(-1)


class _Square(_Matrix):
    def check(self, value: Tensor) -> Tensor:
        return value.new_full(value.shape[:-2], float(value.shape[-1] == value.shape[-2])).bool()


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-1] != value.shape[-2]:
            return super().check(value)
        return F.isclose(value, value.mT, atol=1e-6).all(-1).all(-1)


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        return symmetric & (eigvalsh(value) >= 0).all(-1) if bool(symmetric.all()) else symmetric


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        return symmetric & (cholesky_ex(value)[1] == 0) if bool(symmetric.all()) else symmetric


# --- made of others ---------------------------------------------------------------------------------------------------


class _Independent(Constraint):
    """Events of several events: the last batch dimensions belong to one."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"

    @property
    def expected(self) -> str:
        return self.base_constraint.expected

    def check(self, value: Tensor) -> Tensor:
        found, count = self.base_constraint.check(value), self.reinterpreted_batch_ndims
        if found.ndim < count:
            raise ShapeError(describe("independent", "value", f"at least {self.event_dim} dimensions", value.ndim))
        return found.all(tuple(range(-count, 0))) if count else found


class MixtureSameFamilyConstraint(Constraint):
    """Events that each component of a mixture can draw. See `genesis.distributions.constraints.Constraint`.

    Args:
        base_constraint: that of the components.
    """

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete, self.event_dim = base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        return self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)).all(-1)


class _Sequence(Constraint):
    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(each.is_discrete for each in self.cseq)
        self.event_dim = max(each.event_dim for each in self.cseq)


class _Cat(_Sequence):
    """Parts of these lengths along a dimension, a constraint for each."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise ShapeError(describe("cat", "lengths", f"{len(self.cseq)} of them", len(self.lengths)))

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return F.cat([each.check(part) for each, part in zip(self.cseq, parts, strict=True)], self.dim)


class _Stack(_Sequence):
    """A constraint for each place along a dimension."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        super().__init__(cseq, dim)
        self.event_dim += self.dim + self.event_dim < 0

    def check(self, value: Tensor) -> Tensor:
        parts = value.unbind(self.dim)
        return F.stack([each.check(part) for each, part in zip(self.cseq, parts, strict=True)], self.dim)


# --- of the other arguments -------------------------------------------------------------------------------------------


class _Dependent(Constraint):
    """A constraint that only an instance of the distribution knows."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> _Dependent:
        return _Dependent(
            is_discrete=self.is_discrete if is_discrete is None else is_discrete,
            event_dim=self.event_dim if event_dim is None else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        raise ValueError("dependent: the constraint depends on the other arguments of a distribution")


class dependent_property(property, _Dependent):  # noqa: N801  PyTorch's name
    """A property that is a constraint of instances; on the class, a dependent constraint itself.

    Args:
        fn: the getter.
        is_discrete, event_dim: as in `genesis.distributions.constraints.Constraint`.
    """

    def __init__(
        self, fn: Callable[[object], Constraint] | None = None, *, is_discrete: bool = False, event_dim: int = 0
    ) -> None:  # fmt: skip
        super().__init__(fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Callable[[object], Constraint]) -> dependent_property:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: object) -> bool:
    """Whether a constraint depends on the other arguments of a distribution.

    Args:
        constraint: a constraint.

    Example:
        >>> from genesis.distributions import constraints
        >>> constraints.is_dependent(constraints.dependent), constraints.is_dependent(constraints.real)
        (True, False)
    """
    return isinstance(constraint, _Dependent)


# --- PyTorch's names --------------------------------------------------------------------------------------------------

dependent = _Dependent()
independent = _Independent
real, boolean = _Real(), _Boolean()
real_vector = independent(real, 1)
positive, nonnegative, unit_interval = _GreaterThan(0.0), _GreaterThanEq(0.0), _Interval(0.0, 1.0)
greater_than, greater_than_eq, less_than = _GreaterThan, _GreaterThanEq, _LessThan
interval, half_open_interval, integer_interval = _Interval, _HalfOpenInterval, _IntegerInterval
nonnegative_integer, positive_integer = _IntegerGreaterThan(0), _IntegerGreaterThan(1)
simplex, one_hot, multinomial = _Simplex(), _OneHot(), _Multinomial
lower_triangular, lower_cholesky, corr_cholesky = _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
square, symmetric = _Square(), _Symmetric()
positive_semidefinite, positive_definite = _PositiveSemidefinite(), _PositiveDefinite()
cat, stack = _Cat, _Stack
