"""Depth and branches: identities that learn, gates that begin at zero, and branches that go again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import growth, nn, optim
from genesis.errors import GrowthError
from genesis.tensor import Tensor
from tests.growth.measure import deviations, digest, outputs, train
from tests.growth.networks import CASES


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


@pytest.mark.parametrize("name", CASES)
def test_the_function_is_kept_and_what_is_new_learns(name: str) -> None:
    genesis.manual_seed(1)
    case = CASES[name]
    model, x = case.build(), genesis.randn(case.shape)
    optimizer = optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    train(model, optimizer, x, 2)
    steps = [(growth.grow_depth, place, {}) for place in case.deep]
    steps += [(growth.grow_branches, place, {"channels": 3}) for place in case.branched]
    steps += [(growth.grow_branches, place, {}) for place in case.branched]
    for operation, place, options in steps:
        known = {id(parameter) for parameter in model.parameters()}
        before = outputs(model, x)
        operation(model, place, optimizer=optimizer, example=x[:2], **options)
        assert max(deviations(before, outputs(model, x))) <= 1e-5
        new = {key: p for key, p in model.named_parameters() if id(p) not in known}
        assert new
        train(model, optimizer, x, 1 if operation is growth.grow_depth else 2)  # a branch learns after its gate
        silent = [key for key, parameter in new.items() if not np.abs(parameter.grad.numpy()).max() > 0]
        assert silent == []


def test_what_was_there_learns_as_if_there_were_no_new_block() -> None:
    twins = []
    for deeper in (False, True):
        genesis.manual_seed(4)
        model = CASES["vgg"].build()
        x = genesis.randn(4, 3, 8, 8)
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        train(model, optimizer, x, 2)
        if deeper:
            growth.grow_depth(model, "5", optimizer=optimizer, example=x)
            growth.grow_branches(model, "3", optimizer=optimizer, example=x)
        train(model, optimizer, x)
        twins.append(model)
    for key, old in twins[0].named_parameters():
        new = twins[1].get_parameter(key.replace("3.", "3.main.", 1) if key.startswith("3.") else key)
        np.testing.assert_allclose(new.detach().numpy(), old.detach().numpy(), rtol=0, atol=1e-6, err_msg=key)


# --- where blocks go ----------------------------------------------------------------------------------------------


def test_places_of_new_blocks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 2, 1)
            self.rows = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU())
            self.listed = nn.ModuleList([nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1)])

        def forward(self, x: Tensor) -> Any:
            x = self.rows(self.stem(x))
            for module in self.listed:
                x = module(x)
            return x

    model, x = Net(), genesis.ones(2, 1, 4, 4)
    for place in ("stem", "rows", "rows.0", "rows.0", "listed.0"):
        growth.grow_depth(model, place, example=x)
    assert names(model.stem) == ["main", "deeper1"]
    assert names(model.rows) == ["0", "0_deeper2", "0_deeper1", "1", "deeper1"]
    assert len(model.listed) == 2
    assert names(model.listed[0]) == ["main", "deeper1"]
    growth.grow_depth(model, model.stem, channels=5, kernel_size=5, example=x)
    block = model.stem.deeper2.module
    assert (block[0].out_channels, block[0].kernel_size) == (6, (5, 5))


def test_blocks_take_the_place_s_dtype_mode_and_dimensions() -> None:
    sequence = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 1, 3)).double().eval()
    growth.grow_depth(sequence, "1", example=genesis.ones(2, 2, 9).double())
    growth.grow_branches(sequence, "2", example=genesis.ones(2, 2, 9).double())
    assert {p.dtype for p in sequence.parameters()} == {genesis.float64}
    assert not any(module.training for module in sequence.modules())
    assert isinstance(sequence[2].module[0], nn.Conv1d)
    tokens = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    growth.grow_depth(tokens, "1", example=genesis.ones(2, 5, 3))
    growth.grow_branches(tokens, "0", channels=6, example=genesis.ones(2, 5, 3))
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1))
    growth.grow_depth(pooled, "1", example=genesis.ones(1, 1, 8, 8))
    pooled(genesis.ones(1, 1, 8, 8))  # one value per channel: no norm could have taken it in training
    assert [type(m).__name__ for m in pooled[2].module] == ["Conv2d", "ReLU", "Conv2d"]


def test_branches_have_the_settings_of_the_convolution_beside_them() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, (3, 5), stride=(2, 1), padding=(1, 4), dilation=(1, 2), groups=1, padding_mode="reflect"),
        nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1),
        nn.Sequential(nn.Conv2d(2, 4, 3, stride=3, padding=1), nn.ReLU()),
        nn.Conv2d(4, 1, 1),
    )
    x = genesis.randn(2, 1, 9, 9)
    before = outputs(model, x)
    for place in ("0", "1", "2"):
        growth.grow_branches(model, place, example=x)
    conv, transposed, strided = (model[i].branches[0].module[0] for i in range(3))
    assert repr(conv) == (
        "Conv2d(1, 4, kernel_size=(3, 5), stride=(2, 1), padding=(1, 4), dilation=(1, 2), bias=False, "
        "padding_mode=reflect)"
    )
    assert (transposed.output_padding, strided.stride) == ((1, 1), (3, 3))
    assert max(deviations(before, outputs(model, x))) <= 1e-6


# --- gates --------------------------------------------------------------------------------------------------------


def test_more_branches_leave_what_the_others_add() -> None:
    model, x = CASES["original"].build(), genesis.randn(4, 1, 8, 8)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, x)
    momentum = optimizer.state[model[1].branches[0].gate]["momentum_buffer"].item()
    gate = model[1].branches[0].gate.item()
    before = outputs(model, x)
    growth.grow_branches(model, "1", optimizer=optimizer, example=x)
    assert model[1].branches[0].gate.item() == pytest.approx(gate * 3 / 2)
    assert optimizer.state[model[1].branches[0].gate]["momentum_buffer"].item() == pytest.approx(momentum * 2 / 3)
    growth.prune_branches(model, "1", which=[2], optimizer=optimizer, example=x)
    assert model[1].branches[0].gate.item() == pytest.approx(gate)
    assert max(deviations(before, outputs(model, x))) <= 1e-5


def test_branches_without_gates_get_them() -> None:
    model = nn.Sequential(nn.MultiBranch(nn.Conv2d(1, 2, 1), [nn.Conv2d(1, 2, 1)]), nn.Conv2d(2, 1, 1))
    x = genesis.randn(2, 1, 4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    before = outputs(model, x)
    growth.grow_branches(model, "0", optimizer=optimizer, example=x)
    assert max(deviations(before, outputs(model, x))) <= 1e-6
    assert model[0].branches[0].gate.item() == 2.0
    assert any(p is model[0].branches[0].gate for p in optimizer.param_groups[0]["params"])


def test_the_weakest_branch_goes_and_with_the_last_one_the_multi_branch() -> None:
    model, x = CASES["original"].build(), genesis.randn(4, 1, 8, 8)
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, x)
    main, strong = model[1].main, model[1].branches[1]
    with genesis.no_grad():
        model[1].branches[0].gate.copy_(genesis.tensor(-0.01))
    growth.prune_branches(model, "1", optimizer=optimizer, example=x)
    assert list(model[1].branches) == [strong]
    growth.prune_branches(model, "1", optimizer=optimizer, example=x)
    assert model[1] is main
    learned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(p) for p in learned} == {id(p) for p in model.parameters()} == {id(p) for p in optimizer.state}
    train(model, optimizer, x)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_messages() -> None:
    model, x = CASES["original"].build(), genesis.ones(2, 1, 8, 8)
    before = digest(model)
    for call, message in (
        (lambda: growth.grow_depth(model, "", example=x), "a module below the network's root .*, got the root"),
        (lambda: growth.grow_depth(model, "0.0", example=x), "is called with a tensor and gives one, got 0.0"),
        (lambda: growth.grow_depth(model, "0", channels=0, example=x), "at least 1 channel, and an odd kernel size"),
        (lambda: growth.grow_depth(model, "0", kernel_size=2, example=x), "at least 1 channel, and an odd kernel size"),
        (
            lambda: growth.grow_branches(model, "5", example=x),
            r"a module that gives \(N, C, …\) or \(…, C\), got \(2, 48, 2, 2\) → \(2, 192\)",
        ),
        (lambda: growth.prune_branches(model, "0", example=x), "expected an nn.MultiBranch, got 0, a ConvBNReLU"),
        (lambda: growth.prune_branches(model, "1", 3, example=x), "'count': expected from 1 to the 2 branches, got 3"),
        (lambda: growth.prune_branches(model, "1", which=[0, 0], example=x), "different indices below 2, got"),
    ):
        with pytest.raises(GrowthError, match=message):
            call()
        assert digest(model) == before
    up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(1, 1, 1))
    with pytest.raises(GrowthError, match="a module whose planes are as large as its input's, or smaller by a stride"):
        growth.grow_branches(up, "0", example=x)


def test_an_average_stays_frozen_and_in_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    average = copy.deepcopy(model).eval().requires_grad_(False)
    x = genesis.randn(2, 2, 4, 4)
    growth.grow_depth(model, "2", averages=average, example=x)
    growth.grow_branches(model, "0", averages=average, example=x)
    assert not any(module.training for module in average.modules())
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_the_network_does_not_call_is_not_put_there() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)])
            self.order = list(self.layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.order:
                x = layer(x)
            return x

    model, x = Listed(), genesis.randn(2, 3)
    before = digest(model)
    for grow in (growth.grow_depth, growth.grow_branches):
        with pytest.raises(GrowthError, match=rf"{grow.__name__} of layers.0: the network does not call what was put"):
            grow(model, "layers.0", example=x)
    assert digest(model) == before
