"""Transforms, constraints and their registries against PyTorch's, in float64; caches, shapes and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import distributions as D
from genesis.port.facade import facade

OURS: Any = facade("torch")
X = [[0.3, -1.2, 0.8], [2.0, 0.1, -0.5]]
SQUARE = [[0.5, 0.3, -0.2], [1.0, -0.4, 0.1], [0.2, 0.6, 0.9]]


def double(library: Any, values: Any) -> Any:
    return library.tensor(values, dtype=library.float64, requires_grad=True)


MADE: dict[str, Callable[[Any], Any]] = {
    "Exp": lambda t: t.distributions.ExpTransform(),
    "Sigmoid": lambda t: t.distributions.SigmoidTransform(cache_size=1),
    "Softplus": lambda t: t.distributions.SoftplusTransform(),
    "Tanh": lambda t: t.distributions.TanhTransform(),
    "Affine": lambda t: t.distributions.AffineTransform(1.0, double(t, [2.0, -0.5, 1.0])),
    "Affine of vectors": lambda t: t.distributions.AffineTransform(1.0, -2.0, event_dim=1),
    "CumulativeDistribution": lambda t: t.distributions.CumulativeDistributionTransform(
        t.distributions.Normal(double(t, 0.5), 2.0)
    ),
    "Compose": lambda t: t.distributions.ComposeTransform(
        [t.distributions.AffineTransform(0.5, 2.0), t.distributions.SigmoidTransform()], cache_size=1
    ),
    "Compose of numbers and vectors": lambda t: t.distributions.ComposeTransform(
        [t.distributions.TanhTransform(), t.distributions.StickBreakingTransform()]
    ),
    "identity": lambda t: t.distributions.identity_transform,
    "Independent": lambda t: t.distributions.IndependentTransform(t.distributions.ExpTransform(), 1),
    "inverse": lambda t: t.distributions.ComposeTransform(
        [
            t.distributions.ExpTransform(), t.distributions.PowerTransform(double(t, 1.5)),
            t.distributions.ExpTransform().inv,
        ]
    ),
    "Reshape": lambda t: t.distributions.ReshapeTransform((3,), (1, 3)),
    "StickBreaking": lambda t: t.distributions.StickBreakingTransform(),
    "CorrCholesky": lambda t: t.distributions.CorrCholeskyTransform(),
    "Cat": lambda t: t.distributions.CatTransform(
        [t.distributions.ExpTransform(), t.distributions.identity_transform], 1, [1, 2]
    ),
    "Stack": lambda t: t.distributions.StackTransform(
        [t.distributions.ExpTransform(), t.distributions.TanhTransform(), t.distributions.identity_transform], 1
    ),
    "biject_to an interval": lambda t: t.distributions.biject_to(t.distributions.constraints.interval(-1.0, 3.0)),
    "biject_to a half line": lambda t: t.distributions.biject_to(t.distributions.constraints.less_than(2.0)),
    "biject_to vectors": lambda t: t.distributions.biject_to(
        t.distributions.constraints.independent(t.distributions.constraints.greater_than(1.0), 1)
    ),
}  # fmt: skip
SETS = {  # constraints whose transforms are no bijections of vectors, and what is transformed
    "simplex": X, "lower_cholesky": SQUARE, "positive_definite": SQUARE, "corr_cholesky": X, "positive": X,
    "unit_interval": X, "real_vector": X,
}  # fmt: skip

REGISTRIES = dict.fromkeys(("lower_cholesky", "positive_definite"), ("transform_to",))  # no bijection


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.detach().to_torch(), theirs.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MADE)
def test_transforms_as_in_pytorch(name: str) -> None:
    ours, theirs = MADE[name](OURS), MADE[name](torch)
    x, same = double(genesis, X), double(torch, X)
    y, expected = ours(x), theirs(same)
    close(y, expected)
    slope, wanted = ours.log_abs_det_jacobian(x, y), theirs.log_abs_det_jacobian(same, expected)
    close(slope, wanted)
    (found,) = genesis.autograd.grad((slope.sum() + y.square().sum()), x)
    close(found, torch.autograd.grad(wanted.sum() + expected.square().sum(), same)[0])
    fresh = y.detach()
    close(ours.inv(fresh), same)
    close(ours.inv.log_abs_det_jacobian(fresh, x), -wanted)
    assert ours.inv.inv is ours
    assert ours.bijective == theirs.bijective
    for each, other in ((ours.domain, theirs.domain), (ours.codomain, theirs.codomain)):
        assert each.event_dim == other.event_dim
    assert ours.forward_shape((2, 3)) == tuple(theirs.forward_shape((2, 3))) == y.shape
    assert ours.inverse_shape(y.shape) == (2, 3)
    if not ours.domain.event_dim and name not in ("Cat", "Stack"):
        assert repr(ours.sign) in ("1", "-1") or ours.sign.tolist() == theirs.sign.tolist()


@pytest.mark.parametrize("name", SETS)
def test_transforms_to_sets(name: str) -> None:
    for registry in REGISTRIES.get(name, ("biject_to", "transform_to")):
        ours = getattr(D, registry)(getattr(D.constraints, name))
        theirs = getattr(torch.distributions, registry)(getattr(torch.distributions.constraints, name))
        y, expected = ours(double(genesis, SETS[name])), theirs(double(torch, SETS[name]))
        close(y, expected)
        close(ours.inv(y.detach()), theirs.inv(expected.detach()))
        assert bool(getattr(D.constraints, name).check(y.detach()).all())


def test_a_cache_makes_inverses_exact() -> None:
    transform = D.SigmoidTransform(cache_size=1)
    x = genesis.tensor([40.0])
    y = transform(x)
    assert transform.inv(y) is x
    assert transform(x) is y
    assert D.SigmoidTransform().inv(y).item() != 40.0
    assert transform.with_cache() is transform
    assert transform.inv.with_cache(0).inv == D.SigmoidTransform()
    composed = D.ComposeTransform([D.ExpTransform(), D.AffineTransform(1.0, 2.0)]).with_cache()
    assert composed.inv(composed(x)) is x


def test_equality() -> None:
    assert D.ExpTransform() == D.ExpTransform() != D.TanhTransform()
    assert D.AffineTransform(1.0, 2.0) == D.AffineTransform(1.0, 2.0) != D.AffineTransform(1.0, 3.0)
    assert D.ExpTransform().inv == D.ExpTransform().inv != D.ExpTransform()
    assert D.AffineTransform(genesis.ones(2), 2.0) == D.AffineTransform(genesis.ones(2), 2.0)
    assert D.ComposeTransform([D.ExpTransform()]) != D.identity_transform == D.ComposeTransform([])
    assert repr(D.ComposeTransform([D.ExpTransform().inv])) == "ComposeTransform([ExpTransform().inv])"


def test_transformed_distributions_as_in_pytorch() -> None:
    def made(t: Any) -> list[Any]:
        d, c = t.distributions, t.distributions.constraints
        normal = d.Normal(double(t, [0.0, 1.0, -1.0]), 0.7)
        flows = [
            d.TransformedDistribution(normal, [d.AffineTransform(1.0, -2.0), d.SigmoidTransform()]),
            d.TransformedDistribution(normal, d.StickBreakingTransform()),
            d.TransformedDistribution(d.Normal(double(t, 0.0), 1.0), d.AffineTransform(double(t, [1.0, 2.0]), 2.0)),
            d.TransformedDistribution(normal, [d.ReshapeTransform((3,), (3, 1)), d.ExpTransform()]),
            d.TransformedDistribution(normal, d.biject_to(c.interval(-2.0, 2.0))).expand((2, 3)),
        ]
        values = [[0.2, 0.5, 0.7], [0.1, 0.2, 0.3, 0.4], [0.5, 3.0], [[0.5], [1.0], [2.0]], [0.5, -1.0, 1.5]]
        return [(each, each.log_prob(double(t, value)), normal) for each, value in zip(flows, values, strict=True)]

    for (ours, found, _), (theirs, wanted, _) in zip(made(OURS), made(torch), strict=True):
        close(found, wanted)
        assert (ours.batch_shape, ours.event_shape) == (tuple(theirs.batch_shape), tuple(theirs.event_shape))
        assert ours.support.event_dim == theirs.support.event_dim == len(ours.event_shape)
        assert ours.rsample((5,)).shape == (5, *ours.batch_shape, *ours.event_shape)
        assert bool(ours.support.check(ours.sample((5,))).all())


CHECKED: dict[str, tuple[tuple[Any, ...] | None, Any]] = {  # arguments of a factory, and values
    "boolean": (None, [0.0, 1.0, 0.5]), "real": (None, [0.0, float("nan")]), "positive": (None, [0.0, 1.0]),
    "nonnegative": (None, [0.0, -1.0]), "unit_interval": (None, [0.0, 1.0, 1.1]),
    "positive_integer": (None, [0.0, 1.0, 1.5]), "nonnegative_integer": (None, [0.0, -1.0, 1.5]),
    "interval": ((1.0, 2.0), [1.0, 2.0, 3.0]), "half_open_interval": ((1.0, 2.0), [1.0, 2.0, 3.0]),
    "integer_interval": ((1, 3), [1.0, 3.0, 2.5, 4.0]), "less_than": ((1.0,), [1.0, 0.0]),
    "greater_than_eq": ((1.0,), [1.0, 0.0]), "simplex": (None, [[0.2, 0.8], [0.5, 0.6]]),
    "one_hot": (None, [[0.0, 1.0], [1.0, 1.0]]), "multinomial": ((3,), [[1.0, 2.0], [2.0, 2.0], [-1.0, 2.0]]),
    "lower_triangular": (None, [[[1.0, 0.0], [2.0, -1.0]], [[1.0, 1.0], [2.0, 1.0]]]),
    "lower_cholesky": (None, [[[1.0, 0.0], [2.0, -1.0]], [[1.0, 0.0], [2.0, 1.0]]]),
    "corr_cholesky": (None, [[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [2.0, 1.0]]]),
    "square": (None, [[[1.0, 0.0], [2.0, -1.0]]]), "symmetric": (None, [[[1.0, 2.0], [2.0, 1.0]]]),
    "positive_definite": (None, [[[1.0, 0.5], [0.5, 1.0]], [[1.0, 2.0], [2.0, 1.0]]]),
    "positive_semidefinite": (None, [[[1.0, 0.5], [0.5, 1.0]], [[1.0, 2.0], [2.0, 1.0]]]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_constraints_as_in_pytorch(name: str) -> None:
    arguments, values = CHECKED[name]
    ours, theirs = (getattr(space.distributions.constraints, name) for space in (OURS, torch))
    if arguments is not None:
        ours, theirs = ours(*arguments), theirs(*arguments)
    assert (ours.is_discrete, ours.event_dim) == (theirs.is_discrete, theirs.event_dim)
    found, wanted = ours.check(genesis.tensor(values)), theirs.check(torch.tensor(values))
    assert found.tolist() == wanted.tolist()


def test_constraints_of_parts() -> None:
    c, x = D.constraints, genesis.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert c.independent(c.positive, 1).check(x.abs()).tolist() == [True, True]
    assert c.cat([c.positive, c.real], 1, [1, 1]).check(x).tolist() == [[True, True], [False, True]]
    assert c.stack([c.positive, c.real], 1).check(x).tolist() == [[True, True], [False, True]]
    assert c.is_dependent(D.Uniform.arg_constraints["low"])
    assert repr(c.interval(0.0, 2.0)) == "Interval(lower_bound=0.0, upper_bound=2.0)"
    assert c.dependent(is_discrete=True, event_dim=2).event_dim == 2

    class Mine(D.Distribution):
        @c.dependent_property(is_discrete=False, event_dim=1)
        def support(self) -> Any:
            return c.simplex

    assert Mine.support.event_dim == 1
    assert Mine().support is c.simplex


def test_a_registered_transform() -> None:
    class Even(D.constraints.Constraint):
        pass

    with pytest.raises(NotImplementedError, match=r"no transform to Even\(\) is registered"):
        D.biject_to(Even())

    @D.biject_to.register(Even)
    def to_even(constraint: Even) -> D.Transform:
        return D.AffineTransform(0.0, 2.0)

    assert D.biject_to(Even())(genesis.ones(1)).tolist() == [2.0]
    with pytest.raises(TypeError, match="register: argument 'constraint': expected a constraint, or its class"):
        D.biject_to.register(3, to_even)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: D.ExpTransform(cache_size=2), "ExpTransform: argument 'cache_size': expected 0 or 1, got 2"),
        (lambda: D.ReshapeTransform((2,), (3,)), "ReshapeTransform: argument 'out_shape': expected as many elements"),
        (lambda: D.ReshapeTransform((2,), (2, 1)).forward_shape((3,)), r"expected one that ends in \(2,\), got \(3,\)"),
        (lambda: D.StickBreakingTransform().event_dim + D.ReshapeTransform((2,), (2, 1)).event_dim, "as they differ"),
        (lambda: D.StickBreakingTransform().forward_shape(()), "expected at least 1 dimensions"),
        (lambda: D.CorrCholeskyTransform().forward_shape((2,)), r"expected n \(n − 1\) / 2 numbers, got 2"),
        (lambda: D.CorrCholeskyTransform().inverse_shape((2, 3)), "expected square matrices"),
        (lambda: D.IndependentTransform(D.ExpTransform(), 1)(genesis.tensor(1.0)), "at least 1 dimensions, got 0"),
        (lambda: D.CatTransform([D.ExpTransform()], 0, [1, 2]), "CatTransform: argument 'lengths': expected 1 of them"),
        (lambda: D.StackTransform([D.ExpTransform()])(genesis.ones(2)), "expected size 1 in dimension 0"),
        (lambda: D.constraints.dependent.check(genesis.ones(1)), "depends on the other arguments"),
        (lambda: D.constraints.cat([D.constraints.real], 0, [1, 2]), "cat: argument 'lengths': expected 1 of them"),
        (lambda: D.constraints.real_vector.check(genesis.tensor(1.0)), "at least 1 dimensions, got 0"),
        (
            lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), D.StickBreakingTransform()),
            "TransformedDistribution: argument 'base_distribution': expected 1 dimensions",
        ),
    ],
)  # fmt: skip
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_what_a_transform_of_ones_own_lacks() -> None:
    class Mine(D.Transform):
        pass

    x = genesis.ones(1)
    for call in (lambda: Mine()(x), lambda: Mine().inv(x), lambda: Mine().log_abs_det_jacobian(x, x)):
        with pytest.raises(NotImplementedError, match="Mine has no"):
            call()
