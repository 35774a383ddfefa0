"""A share of the fuzzers of fused models, and that they find what is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from tests.torch import fuzz, zoo
from tests.torch.residual_blocks import chain
from tests.torch.zoo_networks import Network


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize("seed", range(40))
def test_random_models_and_what_people_do_to_them(seed: int) -> None:
    failure, _ = fuzz.case(seed)
    assert not failure


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize("seed", range(8))
def test_average_pooling(seed: int) -> None:
    failure, _ = fuzz.case(seed, "Pools")
    assert not failure


def test_a_wrong_gradient_is_no_kink(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        head: Any = model.head
        head.register_full_backward_hook(lambda layer, given, grads: (given[0] * 1.001,))
        return model

    monkeypatch.setattr(genesis.torch, "fuse", wrong)
    found = [fuzz.case(seed)[0] for seed in range(5)]
    assert any("gradient of" in each for each in found)


def test_a_model_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        head: Any = model.head
        head.weight.data.mul_(1.001)
        return model

    monkeypatch.setattr(genesis.torch, "fuse", wrong)
    assert all(fuzz.case(seed)[0] for seed in range(5))


@pytest.mark.parametrize("check", ["eager", "float32", "unfuse", "backend"])
def test_the_zoo_on_a_network_of_ours(check: str) -> None:
    network = Network("chains", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), chain(4, 4), chain(4, 2, 3), nn.Flatten()), 8)
    found = zoo.check(network, [check])
    assert found["verdict"] == "right", found["detail"]
    assert found["detail"].startswith("3 convolutions; 2 fused")


@pytest.mark.parametrize(("check", "message"), [("eager", "step 0"), ("float32", "float32: buffers")])
def test_the_zoo_finds_what_is_wrong(check: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = genesis.torch.fuse

    def wrong(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            next(model.parameters()).mul_(1 + 1e-5)
        return fuse(copy.deepcopy(model))

    monkeypatch.setattr(genesis.torch, "fuse", wrong)
    found = zoo.check(Network("plain", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), 8), [check])
    assert found["verdict"] == "wrong"
    assert message in found["detail"]
