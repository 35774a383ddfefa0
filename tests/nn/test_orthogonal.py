"""parametrizations.orthogonal against PyTorch's: the weight, its gradient, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import ShapeError

SHAPES = [(4, 4), (5, 3), (3, 5), (2, 3, 3)]


class Weighted:
    """A layer with a weight of a given value, and what its gradient is to be taken by."""

    def __init__(self, lib: Any, shape: tuple[int, ...], device: str) -> None:
        self.values = np.random.default_rng(1).standard_normal(shape)
        self.layer = lib.nn.Module()
        self.layer.weight = lib.nn.Parameter(lib.tensor(self.values, device=device))


@pytest.mark.parametrize("trivialized", [True, False])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights(shape: tuple[int, ...], kind: str, trivialized: bool, device: str) -> None:
    found = []
    for lib in (genesis, torch):
        one = Weighted(lib, shape, device if lib is genesis else "cpu")
        layer = lib.nn.utils.parametrizations.orthogonal(one.layer, "weight", kind, use_trivialization=trivialized)
        start, original = layer.weight.detach().cpu().numpy(), layer.parametrizations.weight.original
        with lib.no_grad():  # elsewhere, but for the signs of Householder's reflections
            keeps = np.eye(*shape[-2:]) if kind == "householder" else 0
            step = lib.tensor(one.values * (1 - keeps), device=original.device)
            original += step
        weight = layer.weight
        (weight * lib.tensor(one.values, device=original.device)).sum().backward()
        found.append([start, weight.detach().cpu().numpy(), original.grad.cpu().numpy()])
        tall = found[-1][1] if shape[-2] >= shape[-1] else found[-1][1].swapaxes(-1, -2)
        ones = np.broadcast_to(np.eye(tall.shape[-1]), (*tall.shape[:-2], tall.shape[-1], tall.shape[-1]))
        np.testing.assert_allclose(tall.swapaxes(-1, -2) @ tall, ones, atol=1e-12)
    is_random = trivialized and shape[-2] != shape[-1]  # what completes the base to a square is drawn
    for mine, expected in list(zip(*found, strict=True))[: 1 if is_random else 3]:
        np.testing.assert_allclose(mine, expected, atol=1e-10)


def test_refusals() -> None:
    orthogonal = genesis.nn.utils.parametrizations.orthogonal
    layer = genesis.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="'name': expected a parameter"):
        orthogonal(layer, "wait")
    with pytest.raises(ValueError, match="'name': expected matrices"):
        orthogonal(layer, "bias")
    with pytest.raises(ValueError, match="'orthogonal_map': expected matrix_exp"):
        orthogonal(layer, orthogonal_map="exp")
    orthogonal(layer, use_trivialization=False)
    with pytest.raises(NotImplementedError, match="expected 'householder'"):
        layer.weight = genesis.eye(3)
    with pytest.raises(ShapeError, match="'Q': expected shape"):
        orthogonal(genesis.nn.Linear(3, 3)).weight = genesis.eye(2)
