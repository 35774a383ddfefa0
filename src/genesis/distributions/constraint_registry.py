"""biject_to and transform_to: transforms from all real numbers to a set, for optimizers of bounded parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast, overload

from genesis.distributions import constraints
from genesis.distributions import transforms as t
from genesis.distributions.constraints import Constraint
from genesis.errors import describe
from genesis.tensor import Tensor

C = TypeVar("C", bound=Constraint)
Factory = Callable[[C], t.Transform]


class ConstraintRegistry:
    """A table of factories: for the class of a constraint, what makes a transform to it.

    Example:
        >>> from genesis.distributions import biject_to, constraints
        >>> biject_to(constraints.positive)(genesis.tensor(0.0)).item()
        1.0
    """

    def __init__(self) -> None:
        self._factories: dict[type[Constraint], Factory[Constraint]] = {}

    @overload
    def register(self, constraint: C | type[C]) -> Callable[[Factory[C]], Factory[C]]: ...
    @overload
    def register(self, constraint: C | type[C], factory: Factory[C]) -> Factory[C]: ...
    def register(
        self, constraint: C | type[C], factory: Factory[C] | None = None
    ) -> Factory[C] | Callable[[Factory[C]], Factory[C]]:
        """Register a factory for a class of constraints; a decorator, if none is given.

        Args:
            constraint: a constraint, or its class.
            factory: takes a constraint, and returns a transform.
        Returns: factory, or the decorator.
        Raises: TypeError: constraint is none.
        """
        if factory is None:
            return lambda given: self.register(constraint, given)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise TypeError(describe("register", "constraint", "a constraint, or its class", repr(constraint)))
        self._factories[kind] = cast("Factory[Constraint]", factory)
        return factory

    def __call__(self, constraint: Constraint) -> t.Transform:
        """A transform from all real numbers to a set.

        Args:
            constraint: the set.
        Returns: a new transform.
        Raises: NotImplementedError: no factory is registered for its class.
        """
        factory = self._factories.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"no transform to {constraint!r} is registered")
        return factory(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _above(constraint: Constraint) -> t.Transform:
    assert isinstance(constraint, (constraints.greater_than, constraints.greater_than_eq))
    bound = constraint.lower_bound
    if not isinstance(bound, Tensor) and bound == 0:
        return t.ExpTransform()
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(bound, 1.0)])


def _below(constraint: Constraint) -> t.Transform:
    assert isinstance(constraint, constraints.less_than)
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(constraint.upper_bound, -1.0)])


def _interval(constraint: Constraint) -> t.Transform:
    assert isinstance(constraint, constraints.interval)
    low, high = constraint.lower_bound, constraint.upper_bound
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and (low, high) == (0, 1):
        return t.SigmoidTransform()
    return t.ComposeTransform([t.SigmoidTransform(), t.AffineTransform(low, high - low)])


def _fill(registry: ConstraintRegistry, simplex: type[t.Transform]) -> None:
    """Register what both registries share, and the one's transform to the simplex."""

    def independent(constraint: Constraint) -> t.Transform:
        assert isinstance(constraint, constraints.independent)
        return t.IndependentTransform(registry(constraint.base_constraint), constraint.reinterpreted_batch_ndims)

    def cat(constraint: Constraint) -> t.Transform:
        assert isinstance(constraint, constraints.cat)
        return t.CatTransform([registry(each) for each in constraint.cseq], constraint.dim, constraint.lengths)

    def stack(constraint: Constraint) -> t.Transform:
        assert isinstance(constraint, constraints.stack)
        return t.StackTransform([registry(each) for each in constraint.cseq], constraint.dim)

    registry.register(constraints.real, lambda _: t.identity_transform)
    for above in (constraints.greater_than, constraints.greater_than_eq):
        registry.register(above, _above)
    for interval in (constraints.interval, constraints.half_open_interval):
        registry.register(interval, _interval)
    registry.register(constraints.less_than, _below)
    registry.register(constraints.simplex, lambda _: simplex())
    registry.register(constraints.corr_cholesky, lambda _: t.CorrCholeskyTransform())
    registry.register(constraints.independent, independent)
    registry.register(constraints.cat, cat)
    registry.register(constraints.stack, stack)


_fill(biject_to, t.StickBreakingTransform)
_fill(transform_to, t.SoftmaxTransform)
transform_to.register(constraints.lower_cholesky, lambda _: t.LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda _: t.PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda _: t.PositiveDefiniteTransform())
