"""Families beyond their densities: draws of counts, mixtures, relaxed draws, supports, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import distributions as D


def double(values: Any) -> genesis.Tensor:
    return genesis.tensor(values, dtype=genesis.float64)


def test_the_entropy_of_multinomial_is_that_of_all_outcomes() -> None:
    """PyTorch's has a term in float32."""
    ours = D.Multinomial(5, double([0.2, 0.5, 0.3]))
    outcomes = [each for each in itertools.product(range(6), repeat=3) if sum(each) == 5]
    log_prob = ours.log_prob(double(outcomes))
    assert log_prob.exp().sum().item() == pytest.approx(1)
    assert ours.entropy().item() == pytest.approx(-(log_prob.exp() * log_prob).sum().item(), rel=1e-12)


@pytest.mark.parametrize("count", [3, 64, 65, 1000, 10**6])
def test_draws_of_binomial(count: int) -> None:
    genesis.manual_seed(3)
    ours = D.Binomial(count, double([0.0, 0.02, 0.5, 0.999, 1.0]))
    draws = ours.sample((4000,))
    assert bool(((draws >= 0) & (draws <= count) & (draws == draws.floor())).all())
    assert draws[:, 0].tolist() == [0] * 4000
    assert draws[:, 4].tolist() == [count] * 4000
    inner = slice(1, 4)
    off = (draws.mean(0) - ours.mean)[inner] / (ours.stddev[inner] / 4000**0.5)
    assert off.abs().amax().item() < 5
    assert (draws.var(0) / ours.variance - 1)[inner].abs().amax().item() < 0.25


def test_mixtures_as_in_pytorch() -> None:
    weights, loc = [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], [[-1.0, 0.5, 2.0], [0.0, 1.0, 3.0]]

    def made(space: Any, library: Any) -> list[Any]:
        kind = {"dtype": library.float64}
        probs, centers = library.tensor(weights, **kind), library.tensor(loc, **kind)
        one = space.MixtureSameFamily(space.Categorical(probs), space.Normal(centers, 0.7))
        vectors = space.Independent(space.Normal(library.stack([centers, -centers], -1), 0.7), 1)
        several = space.MixtureSameFamily(space.Categorical(probs[0]), vectors)
        at = library.tensor([[0.3], [1.2]], **kind)
        wide = one.expand((3, 2))
        return [
            one.log_prob(at[:, 0]), one.cdf(at[:, 0]), one.mean, one.variance, several.mean, several.variance,
            several.log_prob(library.cat([at, at], 1)), wide.log_prob(at[:, 0]), wide.mean,
        ]  # fmt: skip

    for ours, theirs in zip(made(D, genesis), made(torch.distributions, torch), strict=True):
        torch.testing.assert_close(ours.to_torch(), theirs, rtol=1e-10, atol=1e-12)


def test_draws_of_mixtures() -> None:
    genesis.manual_seed(0)
    vectors = D.Independent(D.Normal(double([[-3.0, 0.0], [2.0, 5.0]]), 0.1), 1)
    mixture = D.MixtureSameFamily(D.Categorical(double([0.25, 0.75])), vectors)
    draws = mixture.sample((4000,))
    assert draws.shape == (4000, 2)
    assert np.allclose(draws.mean(0).numpy(), mixture.mean.numpy(), atol=0.2)
    assert bool(((draws[:, 0] < 0) == (draws[:, 1] < 3)).all())  # both numbers are of one component
    with pytest.raises(ValueError, match="MixtureSameFamily: argument 'component_distribution': expected batch shapes"):
        D.MixtureSameFamily(D.Categorical(genesis.ones(3)), D.Normal(genesis.zeros(2), 1.0))


def test_relaxed_draws_near_the_corners() -> None:
    genesis.manual_seed(0)
    probs = genesis.tensor([0.2, 0.8])
    draws = D.RelaxedOneHotCategorical(genesis.tensor(0.05), probs).sample((4000,))
    assert np.allclose(draws.sum(-1).numpy(), 1, atol=1e-5)
    assert np.allclose(draws.mean(0).numpy(), probs.numpy(), atol=0.03)
    one = D.RelaxedBernoulli(genesis.tensor(0.05), logits=probs)
    assert np.allclose(one.sample((4000,)).mean(0).numpy(), one.probs.numpy(), atol=0.03)
    logits = D.LogitRelaxedBernoulli(genesis.tensor(0.05), logits=probs)
    assert logits.log_prob(one.logits).shape == (2,)


def test_straight_through_draws_are_one_hot_and_have_gradients() -> None:
    probs = genesis.tensor([0.2, 0.8], requires_grad=True)
    draws = D.OneHotCategoricalStraightThrough(probs).rsample((5,))
    assert bool(D.constraints.one_hot.check(draws.detach().round()).all())
    (draws * genesis.tensor([1.0, 2.0])).sum().backward()
    assert probs.grad is not None
    assert probs.grad.abs().sum().item() > 0


def test_events_in_the_support() -> None:
    families = [
        D.Binomial(3, genesis.tensor([0.5])), D.Pareto(2.0, 1.0), D.Categorical(genesis.ones(2, 3)),
        D.Uniform(genesis.zeros(2), 1.0), D.LogisticNormal(genesis.zeros(2), genesis.ones(2)),
        D.Independent(D.Gamma(genesis.ones(2), 1.0), 1), D.Multinomial(3, genesis.ones(2)),
        D.TransformedDistribution(D.Normal(genesis.zeros(2), 1.0), D.TanhTransform()),
        D.MixtureSameFamily(D.Categorical(genesis.ones(2)), D.Exponential(genesis.ones(2))),
    ]  # fmt: skip
    for each in families:
        draws = each.sample((50,))
        inside = each.support.check(draws)
        assert inside.shape == (50, *each.batch_shape)
        assert bool(inside.all())
        assert not bool(each.support.check(-draws - 100).any())


def test_all_values_of_finite_families() -> None:
    made = {
        "Bernoulli": ([0.2, 0.5],), "Categorical": ([[0.2, 0.8], [0.5, 0.5]],),
        "OneHotCategorical": ([[0.2, 0.8], [0.5, 0.5]],),
    }  # fmt: skip
    for name, arguments in made.items():
        ours = getattr(D, name)(*map(genesis.tensor, arguments))
        theirs = getattr(torch.distributions, name)(*map(torch.tensor, arguments))
        for expand in (True, False):
            assert ours.enumerate_support(expand).tolist() == theirs.enumerate_support(expand).tolist()
    assert D.Binomial(2, genesis.tensor([0.5])).enumerate_support().tolist() == [[0.0], [1.0], [2.0]]
    with pytest.raises(NotImplementedError, match="the elements of total_count differ"):
        D.Binomial(genesis.tensor([1.0, 2.0]), 0.5).enumerate_support()
    with pytest.raises(NotImplementedError, match="Normal has no enumerate_support"):
        D.Normal(0.0, 1.0).enumerate_support()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.StudentT(-1.0), "StudentT: argument 'df': expected values above 0"),
        (lambda: D.Binomial(1, 1.5), r"Binomial: argument 'probs': expected values in \[0, 1\]"),
        (lambda: D.Binomial(1), "Binomial: argument 'probs': expected either probs or logits, got neither"),
        (lambda: D.Binomial(1.5, 0.5), "Binomial: argument 'total_count': expected values of IntegerGreaterThan"),
        (lambda: D.NegativeBinomial(1.0, 1.0), "NegativeBinomial: argument 'probs'"),
        (lambda: D.Dirichlet(genesis.tensor([1.0, 0.0])), "Dirichlet: argument 'concentration': expected values above"),
        (lambda: D.HalfNormal(0.0), "Normal: argument 'scale': expected values above 0"),
    ],
)
def test_wrong_parameters(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_multinomial_wants_an_int() -> None:
    with pytest.raises(TypeError, match="Multinomial: argument 'total_count': expected an int"):
        D.Multinomial(1.5, genesis.ones(2))


def test_precisions_stand_for_covariances() -> None:
    matrix = double([[2.0, 0.5], [0.5, 1.0]])
    ours = D.MultivariateNormal(double([0.0, 1.0]), precision_matrix=genesis.linalg.inv(matrix))
    assert np.allclose(ours.covariance_matrix.numpy(), matrix.numpy(), rtol=1e-12)
    assert np.allclose(ours.precision_matrix.numpy(), genesis.linalg.inv(matrix).numpy(), rtol=1e-12)
