"""After a network has become wider, what was there learns as it would have learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import growth, nn, optim
from genesis.growth.edits import rescale
from genesis.tensor import Tensor
from tests.growth.measure import OPTIMIZERS, train
from tests.growth.networks import small

DECAYING: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD, dampened": lambda parameters: optim.SGD(parameters, 0.01, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "Adam, decaying": lambda parameters: optim.Adam(parameters, lr=0.01, weight_decay=0.1),
    "AdamW, decaying": lambda parameters: optim.AdamW(parameters, lr=0.01, weight_decay=0.1, amsgrad=True),
}
COMPOSED: dict[str, Callable[[Any], optim.Optimizer]] = {
    "RMSprop": lambda parameters: optim.RMSprop(parameters, 0.001, momentum=0.9, centered=True, weight_decay=0.1),
    "Adagrad": lambda parameters: optim.Adagrad(parameters, 0.01, eps=1e-8),
    "Adadelta": lambda parameters: optim.Adadelta(parameters, 0.5),
    "Adamax": lambda parameters: optim.Adamax(parameters, weight_decay=0.1),
    "NAdam": lambda parameters: optim.NAdam(parameters, weight_decay=0.1),
    "RAdam": lambda parameters: optim.RAdam(parameters),
    "ASGD": lambda parameters: optim.ASGD(parameters, t0=1),
    "Rprop": lambda parameters: optim.Rprop([p for p in parameters if p.shape != (4,)], 0.001),  # of noise, see _twins
}
EXACT = 1e-9  # of sums in float64, after steps that divide noise of 1e-17 by Adam's eps of 1e-8


@pytest.mark.parametrize("name", [*OPTIMIZERS, *DECAYING, *COMPOSED])
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


def test_adafactor_grows_its_rows_and_columns(x: Tensor, tmp_path: Path) -> None:
    """Its steps depend on the norms of whole tensors, which grow; the means over a dimension do not know its size."""
    model = small()
    optimizer = optim.Adafactor(model.parameters())
    train(model, optimizer, x, 3)
    before = {name: entry.tolist() for name, entry in optimizer.state[model[3].weight].items() if name != "step"}
    growth.grow_width(model, "0", channels=6, new="zero", optimizer=optimizer, example=x)
    after = {name: entry for name, entry in optimizer.state[model[3].weight].items() if name != "step"}
    assert {name: entry.shape for name, entry in after.items()} == {
        "row_var": (3, 6, 3, 1), "col_var": (3, 6, 1, 3),
    }  # fmt: skip
    assert {name: entry[:, :4].tolist() for name, entry in after.items()} == before
    growth.grow_width(model, "3", channels=5, optimizer=optimizer, example=x)
    state = optimizer.state[model[5].weight]
    assert (state["row_var"].shape, state["col_var"].shape) == ((2, 1), (1, 80))
    loss = train(model, optimizer, x)
    assert train(model, optimizer, x, 20) < loss
    growth.save(tmp_path / "grown", model, optimizer)
    fresh = small()
    other = optim.Adafactor(fresh.parameters())
    growth.load(tmp_path / "grown", fresh, other)
    assert train(fresh, other, x, 2) == train(model, optimizer, x, 2)


# How the step of a parameter p that has become f·p, with gradient g / f, relates to that before: f to which power?
STEPS: list[tuple[str, dict[str, Any], int]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}, -1), ("Adam", {"amsgrad": True}, 0), ("AdamW", {"weight_decay": 0.0}, 0),
    ("RMSprop", {"momentum": 0.9, "centered": True}, 0), ("Adagrad", {}, 0), ("Adamax", {}, 0), ("NAdam", {}, 0),
    ("RAdam", {}, 0), ("Adadelta", {}, 1), ("Rprop", {"step_sizes": (0, 50)}, 1), ("Adafactor", {}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "power"), STEPS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_rescaled_parameter_keeps_its_history(name: str, options: dict[str, Any], power: int) -> None:
    """All entries of a state scale with their own power of the gradient, or the next steps would differ."""
    factor, steps = 2.0, []
    for scaled in (False, True):
        p = genesis.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], dtype=genesis.float64, requires_grad=True)
        optimizer = getattr(optim, name)([p], **options)
        for number in range(9):
            if number == 7:  # from here on, eps vanishes beside the squares
                optimizer.param_groups[0]["eps"] = (1e-12, 1e-3) if name == "Adafactor" else 1e-20
            if scaled and number == 7:
                rescale(p, factor, [optimizer])
            p.grad = (genesis.arange(6.0, dtype=genesis.float64).reshape(2, 3) + number).cos()
            if scaled and number >= 7:
                p.grad = p.grad / factor
            before = p.detach().clone()
            optimizer.step()
        steps.append((p.detach() - before).numpy())
    np.testing.assert_allclose(steps[1], steps[0] * factor**power, rtol=1e-5)


def test_an_average_of_a_rescaled_parameter_is_one_of_it() -> None:
    p = genesis.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.ASGD([p], t0=1)
    for _ in range(4):
        p.grad = genesis.ones(2)
        optimizer.step()
    average = optimizer.state[p]["ax"].numpy()
    rescale(p, 3.0, [optimizer])
    np.testing.assert_allclose(optimizer.state[p]["ax"].numpy(), average * 3, rtol=1e-6)


def _twins(name: str, x: Tensor) -> list[tuple[nn.Module, optim.Optimizer]]:
    """The same network twice, after the same three steps; in float64, as is x: the bias before the norm has a gradient
    of zero, and what rounding makes of it has to stay far below Adam's eps, or Adam makes whole steps of it."""
    pairs = []
    for _ in range(2):
        genesis.manual_seed(5)
        model = small().double()
        optimizer = (OPTIMIZERS | DECAYING | COMPOSED)[name](model.parameters())
        train(model, optimizer, x, 3)
        pairs.append((model, optimizer))
    return pairs
