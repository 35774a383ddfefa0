"""What a network computes is kept in both modes, and measuring it leaves no traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
import genesis.nn.functional as F
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.growth.passes import RandomStates
from genesis.growth.preserved import relative_deviation
from genesis.tensor import Tensor
from tests.growth.measure import deviations, digest, outputs


class Net(nn.Module):
    """Two convolutions, and between them what is given."""

    def __init__(self, between: Callable[[Net, Tensor], Any], dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)
        self.drop, self.between, self.calls = nn.Dropout(dropout), between, 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.last(self.drop(self.between(self, F.relu(self.norm(self.first(x))))))


@pytest.fixture
def x() -> Tensor:
    genesis.manual_seed(0)
    return genesis.randn(2, 1, 5, 5)


def of_channels(net: Net, x: Tensor) -> Any:
    """Twice as large for twice the channels, in training only."""
    return x + x.detach().numpy().sum(1).mean().item() if net.training else x


def by_count(net: Net, x: Tensor) -> Any:
    return x * x.shape[1] if net.training else x


def fails(net: Net, x: Tensor) -> Any:
    if net.training and x.shape[1] != 4:
        raise RuntimeError("four channels are expected")
    return x


def noise(net: Net, x: Tensor) -> Any:
    return x + genesis.randn(*x.shape) if net.training else x


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (
            of_channels,
            "grow_width: the outputs in training mode changed by .* what first feeds is not fully underst",
        ),
        (by_count, "the outputs in training mode changed by"),
        (fails, "grow_width of first: the network does not run in training mode any more: RuntimeError: four channels"),
        (noise, "the outputs in training mode changed .*; it draws other random numbers than before, and not by drop"),
    ],
)
def test_what_changes_in_training_only_is_refused(between: Any, message: str, x: Tensor) -> None:
    net = Net(between)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    before = digest(net, optimizer), RandomStates(net).states
    with pytest.raises(GrowthError, match=message):
        growth.grow_width(net, "first", channels=8, optimizer=optimizer, example=x, seed=1)
    assert (digest(net, optimizer), RandomStates(net).states) == before
    assert len(growth.history(net)) == 0


def stochastic_depth(net: Net, x: Tensor) -> Any:
    """By Genesis' generator, NumPy's and Python's."""
    if not net.training:
        return x
    kept = genesis.rand(x.shape[0], 1, 1, 1) * random.random() * np.random.rand()
    return x * kept


def plain(net: Net, x: Tensor) -> Any:
    return x


@pytest.mark.parametrize("between", [plain, stochastic_depth])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_what_is_kept_in_training_is_measured_without_a_trace(between: Any, dropout: float, x: Tensor) -> None:
    net = Net(between, dropout)
    states, calls, statistics = RandomStates(net).states, net.calls, net.norm.running_mean.tolist()
    step = growth.grow_width(net, "first", channels=7, example=x, seed=1)
    assert step.training_deviation is not None
    assert step.training_deviation < 1e-5
    assert RandomStates(net).states == states
    assert net.norm.running_mean.tolist()[:4] == statistics
    assert net.norm.num_batches_tracked.item() == 0
    assert step.record()["training_deviation"] == step.training_deviation
    assert calls <= net.calls <= calls + 2  # of the passes in eval mode


def test_dropout_still_drops_outside() -> None:
    genesis.manual_seed(0)
    assert 0.0 in F.dropout(genesis.ones(100), 0.5).tolist()


def test_one_sample_is_too_few_for_training(x: Tensor) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with pytest.warns(UserWarning, match="grow_width: the network does not run on the example in training mode"):
        step = growth.grow_width(net, "0", channels=6, example=x[:1])
    assert (step.deviation is not None, step.training_deviation) == (True, None)
    assert max(deviations(outputs(net, x), outputs(net, x))) == 0


def test_what_a_norm_over_two_samples_makes_of_rounding_is_no_change() -> None:
    """Samples that hardly differ: their norm makes ±1 of the last bits of each, whatever computed them."""
    genesis.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8, eps=1e-14), nn.Tanh(), nn.Linear(8, 3)
    )  # fmt: skip
    x = genesis.randn(1, 6)
    x = genesis.cat([x, x * (1 + 1e-6)])
    step = growth.grow_width(net, "0", channels=11, example=x, seed=1)
    assert step.training_deviation is not None
    assert step.training_deviation > 1e-3  # or this would show nothing


def test_outputs_that_are_no_longer_finite_have_moved() -> None:
    nan = genesis.tensor([1.0, float("nan")])
    assert relative_deviation([genesis.tensor([1.0, 2.0])], [nan]) == float("inf")
    assert relative_deviation([nan], [nan]) == 0.0


def test_a_block_that_only_training_calls_can_grow(x: Tensor) -> None:
    class Aux(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.aux = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            x = self.body(x)
            return (self.head(x), self.aux(x)) if self.training else self.head(x)

    net = Aux()
    step = growth.grow_depth(net, "aux", example=x)
    assert step.training_deviation is not None
    growth.grow_width(net, "body", channels=6, example=x)
    assert net.aux.main.weight.shape == (2, 6)


def test_attention_is_left_at_its_width(x: Tensor) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 2)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            x = self.first(x.squeeze(1))
            return self.last(self.inner(x + self.attention(x, x, value=x, need_weights=False)[0]))

    net = Net()
    with pytest.raises(GrowthError, match="the channels of first cannot grow: attention splits it into heads"):
        growth.grow_width(net, "first", channels=8, example=x)
    growth.grow_width(net, factor=2, example=x)  # all that can
    assert (net.first.out_features, net.inner.out_features) == (4, 12)
