"""Every family against PyTorch's: densities, moments, entropies, divergences, gradients; and its draws' moments."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import distributions as D
from genesis.functional import one_hot
from genesis.port.facade import facade

A, B = [0.5, 1.5, 3.0], [2.0, 0.7, 1.1]
P = [0.2, 0.5, 0.9]
TEMPERATURE = 0.7
MATRIX = [[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.5]]

# name → (arguments, another one's arguments, values); a list is a float64 tensor
FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "Normal": ((A, B), (B, A), [-1.0, 0.2, 2.0]),
    "Laplace": ((A, B), (B, A), [-1.0, 0.2, 2.0]),
    "Cauchy": ((A, B), None, [-1.0, 0.2, 2.0]),
    "Gumbel": ((A, B), None, [-1.0, 0.2, 2.0]),
    "Uniform": (([0.0, -1.0, 2.0], [1.0, 4.0, 3.0]), ([-1.0, 0.0, 2.0], [2.0, 4.0, 3.0]), [0.5, 0.0, 2.5]),
    "Exponential": ((A,), (B,), [0.1, 1.0, 2.0]),
    "Gamma": ((A, B), (B, A), [0.1, 1.0, 2.0]),
    "Chi2": ((A,), None, [0.1, 1.0, 2.0]),
    "Beta": ((A, B), (B, A), [0.1, 0.5, 0.8]),
    "Dirichlet": ((A,), (B,), [0.2, 0.3, 0.5]),
    "LogNormal": ((A, B), (B, A), [0.1, 1.0, 2.0]),
    "Bernoulli": ((P,), ([0.5, 0.1, 0.6],), [0.0, 1.0, 1.0]),
    "Geometric": ((P,), None, [0.0, 1.0, 4.0]),
    "Categorical": ((P,), ([0.5, 0.1, 0.6],), [0.0, 2.0, 1.0]),
    "OneHotCategorical": ((P,), ([0.5, 0.1, 0.6],), [0.0, 1.0, 0.0]),
    "Poisson": ((A,), (B,), [0.0, 2.0, 7.0]),
    "MultivariateNormal": ((A, MATRIX), (B, MATRIX), [0.0, 1.0, -1.0]),
    "StudentT": (([0.5, 1.5, 5.0], A, B), None, [-1.0, 0.2, 2.0]),
    "FisherSnedecor": (([1.5, 3.0, 5.0], [1.0, 3.0, 9.0]), None, [0.1, 1.0, 2.0]),
    "HalfNormal": ((A,), (B,), [0.1, 1.0, 2.0]),
    "HalfCauchy": ((A,), None, [0.1, 1.0, 2.0]),
    "Pareto": ((A, B), ([0.3, 1.0, 3.5], A), [0.6, 2.0, 4.0]),
    "Weibull": ((A, B), None, [0.1, 1.0, 2.0]),
    "InverseGamma": ((A, B), (B, A), [0.1, 1.0, 2.0]),
    "Kumaraswamy": ((A, B), None, [0.1, 0.5, 0.8]),
    "LogisticNormal": ((A, B), (B, A), [0.1, 0.2, 0.3, 0.4]),
    "Binomial": ((6, P), (6, [0.5, 0.1, 0.6]), [0.0, 2.0, 6.0]),
    "NegativeBinomial": ((A, P), None, [0.0, 2.0, 7.0]),
    "Multinomial": ((6, P), None, [1.0, 2.0, 3.0]),
    "RelaxedBernoulli": ((TEMPERATURE, P), None, [0.1, 0.5, 0.8]),
    "RelaxedOneHotCategorical": ((TEMPERATURE, P), None, [0.2, 0.3, 0.5]),
    "OneHotCategoricalStraightThrough": ((P,), ([0.5, 0.1, 0.6],), [0.0, 1.0, 0.0]),
}
WITH_CDF = (
    "Normal", "Laplace", "Cauchy", "Gumbel", "Uniform", "Exponential", "LogNormal", "Gamma", "Chi2", "HalfNormal",
    "HalfCauchy", "Pareto", "Weibull", "InverseGamma", "Kumaraswamy",
)  # fmt: skip
WITHOUT_ICDF = ("Gamma", "Chi2", "InverseGamma")
WITHOUT_MOMENTS = ("LogisticNormal", "RelaxedBernoulli", "RelaxedOneHotCategorical")
WITHOUT_ENTROPY = ("Poisson", "FisherSnedecor", "NegativeBinomial", "Multinomial", *WITHOUT_MOMENTS)
WITHOUT_MODE = ("Cauchy", "Categorical", "Kumaraswamy", "Multinomial", *WITHOUT_MOMENTS)
WITH_RSAMPLE = (
    "Normal", "Laplace", "Uniform", "Exponential", "Gamma", "Beta", "Dirichlet", "StudentT", "FisherSnedecor",
    "HalfNormal", "HalfCauchy", "Pareto", "Weibull", "InverseGamma", "Kumaraswamy", "LogisticNormal",
    "RelaxedBernoulli", "RelaxedOneHotCategorical", "OneHotCategoricalStraightThrough",
)  # fmt: skip
HEAVY_TAILS = ("Cauchy", "HalfCauchy", "StudentT", "FisherSnedecor", "Pareto", "InverseGamma")


def built(name: str, arguments: Any, space: Any, library: Any) -> tuple[Any, list[Any]]:
    """The distribution, and its parameters that are tensors; an int stays one."""
    tensors = [
        each if isinstance(each, int) else library.tensor(each, dtype=library.float64, requires_grad=True)
        for each in arguments
    ]
    return getattr(space, name)(*tensors), [each for each in tensors if not isinstance(each, int)]


def pair(name: str, which: int = 0) -> tuple[tuple[Any, list[Any]], tuple[Any, list[Any]]]:
    arguments = FAMILIES[name][which]
    return built(name, arguments, D, genesis), built(name, arguments, torch.distributions, torch)


def compare(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.detach().to_torch(), theirs.detach(), rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_densities_and_moments(name: str) -> None:
    (ours, mine), (theirs, its) = pair(name)
    assert (ours.batch_shape, ours.event_shape) == (tuple(theirs.batch_shape), tuple(theirs.event_shape))
    values = FAMILIES[name][2]
    found = ours.log_prob(genesis.tensor(values, dtype=genesis.float64))
    wanted = theirs.log_prob(torch.tensor(values, dtype=torch.float64))
    compare(found, wanted)
    for moment in ("mean", "variance", "stddev") if name not in WITHOUT_MOMENTS else ():
        compare(getattr(ours, moment), getattr(theirs, moment))
    if name not in WITHOUT_ENTROPY:
        compare(ours.entropy(), theirs.entropy())
    if name not in WITHOUT_MODE:
        compare(ours.mode.double(), theirs.mode.double())
    gradients = genesis.autograd.grad(found.sum(), mine, allow_unused=True)
    for gradient, same in zip(gradients, torch.autograd.grad(wanted.sum(), its, allow_unused=True), strict=True):
        compare(gradient, same)


@pytest.mark.parametrize("name", [name for name, entry in FAMILIES.items() if entry[1]])
def test_divergences(name: str) -> None:
    ((p, _), (same_p, _)), ((q, _), (same_q, _)) = pair(name), pair(name, 1)
    compare(D.kl_divergence(p, q), torch.distributions.kl_divergence(same_p, same_q))


@pytest.mark.parametrize("name", WITH_CDF)
def test_cumulated_probabilities(name: str) -> None:
    (ours, _), (theirs, _) = pair(name)
    values = FAMILIES[name][2]
    compare(
        ours.cdf(genesis.tensor(values, dtype=genesis.float64)), theirs.cdf(torch.tensor(values, dtype=torch.float64))
    )
    if name not in WITHOUT_ICDF:
        p = [0.1, 0.5, 0.8]
        compare(ours.icdf(genesis.tensor(p, dtype=genesis.float64)), theirs.icdf(torch.tensor(p, dtype=torch.float64)))


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("Categorical", *HEAVY_TAILS, *WITHOUT_MOMENTS)])
def test_draws_have_the_moments(name: str) -> None:
    genesis.manual_seed(1)
    (ours, _), _ = pair(name)
    draws = ours.sample((20000,))
    assert draws.shape == (20000, *ours.batch_shape, *ours.event_shape)
    assert not draws.requires_grad
    if name == "LogNormal":
        draws, ours = draws.log(), D.Normal(ours.loc, ours.scale)
    error = (draws.mean(0) - ours.mean).abs() / (ours.stddev / 20000**0.5)
    assert error.amax().item() < 5
    assert ((draws.var(0) / ours.variance) - 1).abs().amax().item() < 0.25


def test_categories_are_drawn_by_their_probabilities() -> None:
    genesis.manual_seed(1)
    draws = D.Categorical(genesis.tensor([1.0, 0.0, 3.0])).sample((4000,))
    counts = draws.bincount(minlength=3).tolist()
    assert counts[1] == 0
    assert abs(counts[0] - 1000) < 150
    assert D.Categorical(logits=genesis.zeros(2, 5)).sample((3,)).shape == (3, 2)


@pytest.mark.parametrize("a", [0.1, 0.9, 3.0, 40.0, 500.0])
def test_the_gradient_of_gamma_draws(a: float) -> None:
    genesis.manual_seed(2)
    concentration = genesis.full((50,), a, dtype=genesis.float64, requires_grad=True)
    draws = D.Gamma(concentration, 1.0).rsample()
    (found,) = genesis.autograd.grad(draws.sum(), concentration)
    exact = torch._standard_gamma_grad(concentration.detach().to_torch(), draws.detach().to_torch())
    torch.testing.assert_close(found.to_torch(), exact, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", WITH_RSAMPLE)
def test_gradients_flow_to_the_parameters(name: str) -> None:
    (ours, mine), _ = pair(name)
    gradients = genesis.autograd.grad(ours.rsample((5,)).square().sum(), mine)
    assert all(bool(gradient.isfinite().all()) and bool((gradient != 0).any()) for gradient in gradients)


def test_composed_distributions() -> None:
    loc, value = [[0.0, 1.0], [2.0, 3.0]], [[0.5, 0.5], [0.1, 0.2]]

    def made(space: Any, library: Any) -> list[Any]:
        normal = space.Normal(library.tensor(loc), 1.0)
        steps = [space.AffineTransform(1.0, -2.0), space.SigmoidTransform()]
        flow = space.TransformedDistribution(normal, steps)
        joint = space.Independent(normal, 1)
        at = library.tensor(value)
        return [flow.log_prob(at), flow.cdf(at), joint.log_prob(at), joint.entropy(), normal.expand((3, 2, 2)).mean]

    for ours, theirs in zip(made(D, genesis), made(torch.distributions, torch), strict=True):
        torch.testing.assert_close(ours.to_torch(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.Normal(0.0, -1.0), "Normal: argument 'scale': expected values above 0"),
        (lambda: D.Bernoulli(1.5), "Bernoulli: argument 'probs': expected values in"),
        (lambda: D.Bernoulli(), "either probs or logits, got neither"),
        (lambda: D.Uniform(1.0, 0.0), "Uniform: argument 'high': expected values above low"),
        (lambda: D.Independent(D.Normal(0.0, 1.0), 1), "at most 0, got 1"),
        (lambda: D.MultivariateNormal(genesis.zeros(2)), "one of the matrices, got 0"),
    ],
)
def test_wrong_parameters(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(NotImplementedError, match="kl_divergence: none is known from Normal to Poisson"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Poisson(1.0))
    with pytest.raises(NotImplementedError, match=r"Poisson\.rsample: the family is not reparametrised"):
        D.Poisson(1.0).rsample()
    with pytest.raises(RuntimeError, match="expected positive definite"):
        D.MultivariateNormal(genesis.zeros(2), -genesis.eye(2))


@pytest.mark.parametrize("name", ["normal", "categorical", "kl", "transforms", "multivariate_normal"])
def test_files_of_pytorchs_package_are_importable(name: str) -> None:
    ours, theirs = facade(f"torch.distributions.{name}"), importlib.import_module(f"torch.distributions.{name}")
    there = [each for each in theirs.__all__ if getattr(genesis.distributions, each, None) is not None]
    assert there
    assert all(getattr(ours, each) is getattr(genesis.distributions, each) for each in there)


@pytest.mark.parametrize("given", ["probs", "logits"])
def test_a_draw_leaves_categorical_its_gradients(given: str) -> None:
    """What is kept between its methods is computed with gradients, also where sample() asks for it first."""
    gradients = []
    for draws in (False, True):
        weights = genesis.tensor([[0.2, 0.3, 0.5]], requires_grad=True)
        m = D.Categorical(**{given: weights})
        if draws:
            m.sample()
        (m.entropy() + m.log_prob(genesis.tensor([1]))).sum().backward()
        gradients.append(weights.grad.tolist())
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_categorical_checks_its_values(kind: str) -> None:
    with pytest.raises(ValueError, match=f"Categorical: argument '{kind}'"):
        genesis.distributions.Categorical(**{kind: genesis.tensor([1.0, math.nan])})
    if kind == "probs":
        with pytest.raises(ValueError, match="Categorical: argument 'probs'"):
            genesis.distributions.Categorical(genesis.tensor([[0.5, 0.5], [1.5, -0.5]]))


def test_one_draw_of_a_categorical_has_its_probabilities() -> None:
    genesis.manual_seed(0)
    rows = genesis.tensor([[0.0, 1.0, 3.0], [0.5, 0.5, 0.0]]).expand(4000, 2, 3)
    counts = one_hot(genesis.distributions.Categorical(rows).sample(), 3).double().mean(0)
    assert np.allclose(counts.numpy(), [[0, 0.25, 0.75], [0.5, 0.5, 0]], atol=0.03)
    assert not counts[0, 0].item()
    assert not counts[1, 2].item()
