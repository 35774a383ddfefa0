"""After a network has become wider, what was there learns as it would have learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import growth, nn, optim
from genesis.tensor import Tensor
from tests.growth.measure import OPTIMIZERS, train

DECAYING: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD, dampened": lambda parameters: optim.SGD(parameters, 0.01, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "Adam, decaying": lambda parameters: optim.Adam(parameters, lr=0.01, weight_decay=0.1),
    "AdamW, decaying": lambda parameters: optim.AdamW(parameters, lr=0.01, weight_decay=0.1, amsgrad=True),
}
EXACT = 1e-9  # of sums in float64, after steps that divide noise of 1e-17 by Adam's eps of 1e-8


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1), nn.Flatten(),
        nn.Linear(48, 2),
    )  # fmt: skip


@pytest.fixture
def x() -> Tensor:
    genesis.manual_seed(3)
    return genesis.randn(4, 2, 4, 4)


@pytest.mark.parametrize("name", [*OPTIMIZERS, *DECAYING])
def test_with_new_zeros_everything_old_gets_the_update_that_it_would_have_got(name: str, x: Tensor) -> None:
    x = x.double()
    plain, grown = _twins(name, x)
    growth.grow_width(grown[0], "0", channels=6, new="zero", optimizer=grown[1], example=x)
    growth.grow_width(grown[0], "3", channels=5, new="zero", optimizer=grown[1], example=x)
    for model, optimizer in (plain, grown):
        train(model, optimizer, x)
    for (key, old), new in zip(plain[0].named_parameters(), grown[0].parameters(), strict=True):
        if key == "5.weight":
            same = new.detach().numpy()[:, : old.shape[1]]
        else:
            same = new.detach().numpy()[tuple(slice(size) for size in old.shape)]
        np.testing.assert_allclose(same, old.detach().numpy(), rtol=0, atol=EXACT, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_copies_everything_but_the_copied_gets_the_update_that_it_would_have_got(name: str, x: Tensor) -> None:
    """Adam does so for the copied channels too: the share is in its moments as it is in the gradient."""
    x = x.double()
    plain, grown = _twins(name, x)
    before = {key: p.detach().clone().numpy() for key, p in plain[0].named_parameters()}
    growth.grow_width(grown[0], "0", channels=6, optimizer=grown[1], example=x)
    start, rows = grown[0][3].weight.detach().clone().numpy(), grown[0][0].weight.detach().numpy()
    copied = {row for row in range(4) if any((rows[row] == rows[new]).all() for new in (4, 5))}
    for model, optimizer in (plain, grown):
        train(model, optimizer, x)
    old, new = ({key: p.detach().numpy() for key, p in model.named_parameters()} for model, _ in (plain, grown))
    for key in ("3.bias", "5.weight", "5.bias"):
        np.testing.assert_allclose(new[key], old[key], rtol=0, atol=EXACT)
    update, grown_update = old["3.weight"] - before["3.weight"], new["3.weight"] - start
    np.testing.assert_allclose(grown_update[:, :4], update, rtol=0, atol=EXACT)
    assert len(copied) == 2
    for row in range(4) if name.startswith("Adam") else {0, 1, 2, 3} - copied:
        tolerance = 1e-6 if row in copied else EXACT  # beside half a moment, eps is twice as large
        np.testing.assert_allclose(new["0.weight"][row], old["0.weight"][row], rtol=0, atol=tolerance)


def _twins(name: str, x: Tensor) -> list[tuple[nn.Module, optim.Optimizer]]:
    """The same network twice, after the same three steps; in float64, as is x: the bias before the norm has a gradient
    of zero, and what rounding makes of it has to stay far below Adam's eps, or Adam makes whole steps of it."""
    pairs = []
    for _ in range(2):
        genesis.manual_seed(5)
        model = small().double()
        optimizer = (OPTIMIZERS | DECAYING)[name](model.parameters())
        train(model, optimizer, x, 3)
        pairs.append((model, optimizer))
    return pairs
