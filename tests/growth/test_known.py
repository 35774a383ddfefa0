"""The map that a growth leaves for the next one: the same as a pass would give, and never that of another network."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.growth import rules
from genesis.growth.channel_map import ChannelMap
from genesis.growth.known import Look
from genesis.tensor import Tensor
from tests.growth.measure import digest
from tests.growth.networks import CASES

transaction = importlib.import_module("genesis.growth.transaction")  # the module, not the function


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks that were followed, one for each channel map that growth makes by a pass."""
    made: list[nn.Module] = []
    follow = transaction.channel_map

    def counted(model: nn.Module, example: Any) -> ChannelMap:
        made.append(model)
        return follow(model, example)

    monkeypatch.setattr(transaction, "channel_map", counted)
    return made


def shown(mapped: ChannelMap) -> Any:
    """All that a map says of channels."""
    return mapped.sites, mapped.groups, mapped.passages


@pytest.mark.parametrize("name", CASES)
def test_a_carried_map_says_what_a_pass_would(name: str, passes: list[nn.Module]) -> None:
    """Every place of every network grows in turn; after the first, each begins with the map that it was left."""
    case = CASES[name]
    model, x = case.build(), genesis.randn(case.shape)
    for place in case.wide:
        growth.grow_width(model, place, factor=2, example=x)
        carried = growth.history(model).known.of(Look(model, (x,)))
        assert carried is not None
        assert shown(carried) == shown(growth.channel_map(model, x))
    assert len(passes) == 1


def test_growths_follow_the_network_once(passes: list[nn.Module]) -> None:
    case = CASES["vgg"]
    model, x = case.build(), genesis.randn(case.shape)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = growth.grow_width(model, ["0", "3", "7"], factor=1.5, example=x, optimizer=optimizer)
    assert len(passes) == 1
    growth.rollback(step)
    growth.grow_width(model, "3", channels=8, example=x)  # with the map from before the step
    growth.grow_width(model, "12", factor=1.2, new="zero", example=x)
    assert len(passes) == 1
    growth.grow_depth(model, "2", example=x)  # makes a map of its own, and says nothing of what it does to it
    growth.grow_width(model, "3", channels=9, example=x)
    assert len(passes) == 3
    growth.grow_width(copy.deepcopy(model), "3", channels=10, example=x)
    assert len(passes) == 4


def test_what_one_channel_has_is_seen_by_a_pass(passes: list[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 1, 3), nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3))
    x = genesis.randn(2, 3, 8, 8)
    growth.grow_width(model, "0", channels=2, example=x)
    growth.grow_width(model, "0", channels=3, example=x)
    assert len(passes) == 2


class Net(nn.Module):
    """Two layers side by side, added or not, as `route` says: a setting that this test keeps outside of the network."""

    def __init__(self, route: dict[str, bool]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.scale, self.steps = 1.0, [nn.functional.relu]
        self._get = route.get

    def forward(self, x: Tensor) -> Any:
        y = self.first(x) + self.second(x) if self._get("both") else self.first(x)
        for step in self.steps:
            y = step(y)
        return self.last(y * self.scale)


def swap(model: Net, x: Tensor) -> None:
    model.last = nn.Linear(4, 2)


CHANGES: dict[str, Callable[[Net, Tensor], Any]] = {
    "another module": swap,
    "another parameter": lambda model, x: model.last._parameters.update(weight=nn.Parameter(genesis.ones(2, 4))),
    "another name": lambda model, x: model._modules.update(other=model._modules.pop("second")),
    "another shape": lambda model, x: setattr(model.last.weight, "array", genesis.ones(3, 4).array),
    "another dtype": lambda model, x: model.to(genesis.float64),
    "another setting": lambda model, x: setattr(model, "scale", 2.0),
    "another step": lambda model, x: model.steps.append(nn.functional.relu),
    "another class": lambda model, x: setattr(model, "__class__", type("Other", (Net,), {})),
    "a buffer": lambda model, x: model.register_buffer("more", genesis.ones(1)),
    "a hook": lambda model, x: model.last.register_forward_hook(lambda module, args, output: output * 2),
    "a forward of its own": lambda model, x: setattr(model.last, "forward", nn.functional.relu),
    "another example": lambda model, x: setattr(x, "array", genesis.ones(3, 3).array),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_can_be_seen_is_seen(case: str) -> None:
    model, x = Net({}), genesis.ones(2, 3)
    before = Look(model, (x, 3))
    assert before.is_of_the_same_as(Look(model, (x, 3)))
    assert not before.is_of_the_same_as(Look(model, (x, 4)))
    CHANGES[case](model, x)
    assert not before.is_of_the_same_as(Look(model, (x, 3)))


def test_a_new_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net({}), genesis.ones(2, 3)
    before = Look(model, (x,))
    monkeypatch.setitem(rules.RULES, Net, growth.elementwise)
    assert not before.is_of_the_same_as(Look(model, (x,)))


@pytest.mark.filterwarnings("ignore:grow_width. the example does not run")
def test_training_is_not_another_network(passes: list[nn.Module]) -> None:
    model, x = Net({}), genesis.randn(2, 3)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for channels in (5, 6, 7):
        model(x).sum().backward()
        optimizer.step()
        growth.grow_width(model, "first", channels=channels, example=x, optimizer=optimizer)
    assert len(passes) == 1


@pytest.mark.filterwarnings("ignore:grow_width. the example does not run")
def test_what_cannot_be_seen_costs_another_pass(passes: list[nn.Module]) -> None:
    """The network takes another way than when its map was made. The growth that found out makes its own."""
    route = {"both": False}
    model, x = Net(route), genesis.randn(2, 3)
    growth.grow_width(model, "first", channels=6, example=x)
    growth.rollback(growth.history(model)[-1])
    route["both"] = True
    before = model(x)
    step = growth.grow_width(model, "first", channels=6, example=x)
    assert step.deviation is not None
    assert step.deviation < 1e-6
    assert model.second.out_features == 6
    assert (model(x) - before).abs().max().item() < 1e-5
    assert len(passes) == 2
    assert growth.history(model).failures == []


@pytest.mark.filterwarnings("ignore:grow_width. the example does not run")
def test_what_cannot_be_done_is_not_done_with_a_carried_map_either(passes: list[nn.Module]) -> None:
    model, x = Net({}), genesis.randn(2, 3)
    growth.grow_width(model, "first", channels=6, example=x)
    before = digest(model)
    with pytest.raises(GrowthError, match="expected more than the 6 of first, got 6"):
        growth.grow_width(model, "first", channels=6, example=x)
    assert digest(model) == before
    assert len(growth.history(model).failures) == 1


def test_networks_that_differentiate_on_the_way_can_grow() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Any:
            x = x.detach().requires_grad_()
            energy = self.last(nn.functional.relu(self.first(x))).square().sum()
            return genesis.autograd.grad(energy, x)[0]

    step = growth.grow_width(Slope(), "first", channels=6, example=genesis.randn(2, 3))
    assert step.deviation is not None
    assert step.deviation < 1e-5
