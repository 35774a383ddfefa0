"""Distribution: what all families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import genesis.functional as F
from genesis.autograd import no_grad
from genesis.creation import tensor
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.dtypes import get_default_dtype
from genesis.errors import describe
from genesis.shapes import Shape
from genesis.tensor import Tensor

Parameter = Tensor | float


class Distribution:
    """A family's base: parameters, shapes, samples, densities.

    Args:
        batch_shape: of independent distributions with parameters of their own.
        event_shape: of one draw.
        validate_args: check the parameters; True by default.

    Example:
        >>> from genesis.distributions import Normal
        >>> normal = Normal(genesis.zeros(2), 1.0)
        >>> normal.batch_shape, normal.event_shape, normal.sample((3,)).shape
        ((2,), (), (3, 2))
        >>> normal.mean.tolist(), normal.variance.tolist(), normal.stddev.tolist()
        ([0.0, 0.0], [1.0, 1.0], [1.0, 1.0])
    """

    has_rsample: bool = False
    has_enumerate_support: bool = False
    support: Constraint = constraints.dependent  # what is drawn
    arg_constraints: Mapping[str, Constraint] = {}  # the sets of the parameters; they are checked, but for `real`

    def __init__(self, batch_shape: Shape = (), event_shape: Shape = (), validate_args: bool | None = None) -> None:
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)
        if validate_args is False:
            return
        for name, constraint in self.arg_constraints.items():
            if constraint is constraints.real or constraints.is_dependent(constraint) or name not in vars(self):
                continue
            if not bool(constraint.check(getattr(self, name).detach()).all()):
                raise ValueError(describe(type(self).__name__, name, constraint.expected, "others"))

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def mode(self) -> Tensor:
        """The value of the highest density or probability."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each element."""
        return self.variance.sqrt()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw, so that gradients flow to the parameters.

        Args:
            sample_shape: of the draws.
        Returns: sample_shape + batch_shape + event_shape.
        Raises: NotImplementedError: the family is not reparametrised.
        """
        raise NotImplementedError(f"{type(self).__name__}.rsample: the family is not reparametrised; use sample")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw, outside the graph. See `genesis.distributions.Distribution.rsample`."""
        with no_grad():
            return self.rsample(sample_shape)

    def sample_n(self, n: int) -> Tensor:
        """Draw n times. See `genesis.distributions.Distribution.rsample`."""
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability.

        Args:
            value: broadcasts with batch_shape + event_shape.
        Returns: the shape of value without event_shape.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most value. See `genesis.distributions.Distribution.log_prob`."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of cdf. See `genesis.distributions.Distribution.log_prob`."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def entropy(self) -> Tensor:
        """The entropy, in the batch shape."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, of a family that has finitely many.

        Args:
            expand: to the batch shape; else, its dimensions have size 1.
        Returns: (number of values, batch shape, event shape).
        """
        raise NotImplementedError(f"{type(self).__name__} has no enumerate_support")

    def perplexity(self) -> Tensor:
        """e to the entropy."""
        return self.entropy().exp()

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """The distribution with its parameters expanded.

        Args:
            batch_shape: what batch_shape broadcasts to.
        Returns: a new distribution.
        """
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        before, shape = len(self.batch_shape), tuple(batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(new, name, value.expand((*shape, *value.shape[before:])))
            elif isinstance(value, Distribution):
                setattr(new, name, value.expand((*shape, *value.batch_shape[before:])))
        new.batch_shape = shape
        return new

    def _shape(self, sample_shape: Sequence[int]) -> Shape:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        parts = (f"{name}: {value.item() if value.numel() == 1 else value.shape}" for name, value in shown.items())
        return f"{type(self).__name__}({', '.join(parts)})"


def broadcast(*parameters: Parameter) -> tuple[Tensor, ...]:
    """Parameters as tensors of one shape; numbers take the dtype and device of the tensors."""
    known = next((value for value in parameters if isinstance(value, Tensor)), None)
    made = []
    for value in parameters:
        if not isinstance(value, Tensor):
            value = tensor(float(value), dtype=get_default_dtype() if known is None else known.dtype)
            value = value if known is None else value.to(known.device)
        made.append(value)
    return F.broadcast_tensors(*made)


def sum_last(value: Tensor, count: int) -> Tensor:
    """The sum over the last dimensions."""
    return value.sum(tuple(range(-count, 0))) if count else value
