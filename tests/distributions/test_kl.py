"""Divergences between different families, against PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import genesis
from genesis import distributions as D

A, B = [0.6, 1.5, 3.0], [2.0, 0.7, 1.1]
ARGUMENTS = {
    "Bernoulli": ([0.2, 0.5, 0.9],), "Poisson": (A,), "Binomial": ([3.0, 3.0, 3.0], [0.2, 0.5, 0.9]), "Beta": (A, B),
    "Exponential": (A,), "Gamma": (A, B), "Gumbel": (A, B), "Laplace": (A, B), "Normal": (A, B), "Pareto": (A, B),
    "Uniform": ([0.5, 0.1, -1.0], [0.8, 2.0, 0.5]), "Cauchy": (A, B), "Geometric": ([0.2, 0.5, 0.9],),
    "HalfNormal": (A,), "LogNormal": (A, B),
}  # fmt: skip


def made(name: str, library: Any, swapped: bool = False) -> Any:
    arguments = ARGUMENTS[name][:: -1 if swapped and name != "Uniform" else 1]
    return getattr(library.distributions, name)(*(library.tensor(each, dtype=library.float64) for each in arguments))


@pytest.mark.parametrize("first", ARGUMENTS)
def test_divergences_as_in_pytorch(first: str) -> None:
    for second in ARGUMENTS:
        p, q = made(first, torch), made(second, torch)
        mine, other = made(first, genesis), made(second, genesis)
        try:
            wanted = torch.distributions.kl_divergence(p, q)
        except NotImplementedError:
            with pytest.raises(NotImplementedError, match="kl_divergence: "):
                D.kl_divergence(mine, other)
            continue
        found = D.kl_divergence(mine, other).to_torch()
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["Cauchy", "Gumbel", "Pareto", "Laplace", "Normal", "Beta", "Gamma"])
def test_divergences_from_other_parameters(name: str) -> None:
    found = D.kl_divergence(made(name, genesis), made(name, genesis, True)).to_torch()
    wanted = torch.distributions.kl_divergence(made(name, torch), made(name, torch, True))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_divergences_of_transformed_distributions() -> None:
    p, q = (D.TransformedDistribution(D.Normal(loc, 1.0), D.TanhTransform()) for loc in (0.0, 1.0))
    assert D.kl_divergence(p, q).item() == 0.5
    with pytest.raises(NotImplementedError, match="both TransformedDistribution need the same transforms"):
        D.kl_divergence(p, D.TransformedDistribution(D.Normal(0.0, 1.0), D.ExpTransform()))
    with pytest.raises(NotImplementedError, match="total_count of p is below that of q"):
        D.kl_divergence(D.Binomial(1, 0.5), D.Binomial(2, 0.5))
    assert D.kl_divergence(D.Binomial(2, 0.5), D.Binomial(1, 0.5)).item() == float("inf")
