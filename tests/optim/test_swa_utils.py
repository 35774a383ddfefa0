"""Averaged models beside PyTorch's: the same averages, buffers and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import ShapeError
from genesis.optim import swa_utils

FUNCTIONS: dict[str, Any] = {
    "mean": lambda m: {},
    "ema": lambda m: {"multi_avg_fn": m.get_ema_multi_avg_fn(0.9)},
    "ema, one by one": lambda m: {"avg_fn": m.get_ema_avg_fn(0.75)},
    "mean of buffers too": lambda m: {"use_buffers": True},
    "ema of buffers too": lambda m: {"multi_avg_fn": m.get_ema_multi_avg_fn(0.5), "use_buffers": True},
    "mean, one by one": lambda m: {"avg_fn": m.get_swa_avg_fn()},
}


def models() -> tuple[nn.Module, torch.nn.Module]:
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).double()
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def same(ours: nn.Module, theirs: torch.nn.Module) -> None:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    for name, value in other.items():
        np.testing.assert_allclose(mine[name].numpy(), value.numpy(), rtol=1e-10, atol=1e-12, err_msg=name)


def change(ours: nn.Module, theirs: torch.nn.Module, seed: int) -> None:
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.tensor(random.standard_normal(parameter.shape)))
        theirs(torch.tensor(random.standard_normal((5, 3))))
    ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_averages_as_pytorch(name: str) -> None:
    ours, theirs = models()
    mine = swa_utils.AveragedModel(ours, **FUNCTIONS[name](swa_utils))
    other = torch.optim.swa_utils.AveragedModel(theirs, **FUNCTIONS[name](torch.optim.swa_utils))
    for seed in range(4):
        change(ours, theirs, seed)
        mine.update_parameters(ours)
        other.update_parameters(theirs)
        same(mine, other)
    mine.eval()
    other.eval()
    x = np.ones((2, 3))
    np.testing.assert_allclose(mine(genesis.tensor(x)).numpy(force=True), other(torch.tensor(x)).detach().numpy())


def test_a_state_goes_both_ways() -> None:
    ours, theirs = models()
    mine, other = swa_utils.AveragedModel(ours), torch.optim.swa_utils.AveragedModel(theirs)
    other.update_parameters(theirs)
    mine.load_state_dict(other.state_dict())
    change(ours, theirs, 1)
    mine.update_parameters(ours)
    other.update_parameters(theirs)
    same(mine, other)


@pytest.mark.parametrize("batches", ["tensors", "pairs"])
def test_batch_norms_are_computed_anew(batches: str) -> None:
    ours, theirs = models()
    ours[0].eval()  # type: ignore[index]
    data = [np.random.default_rng(seed).standard_normal((6, 3)) for seed in range(3)]
    ours_data, theirs_data = [genesis.tensor(x) for x in data], [torch.tensor(x) for x in data]
    if batches == "pairs":
        swa_utils.update_bn([(x, genesis.zeros(6)) for x in ours_data], ours, "cpu")
        torch.optim.swa_utils.update_bn([(x, torch.zeros(6)) for x in theirs_data], theirs)
    else:
        swa_utils.update_bn(ours_data, ours)
        torch.optim.swa_utils.update_bn(theirs_data, theirs)
    same(ours, theirs)
    assert (ours[1].momentum, ours[0].training, ours[1].training) == (0.1, False, True)  # type: ignore[index]


def test_refusals() -> None:
    ours, _ = models()
    both = {"avg_fn": swa_utils.get_swa_avg_fn(), "multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}
    with pytest.raises(ValueError, match="AveragedModel: argument 'avg_fn': expected None beside multi_avg_fn"):
        swa_utils.AveragedModel(ours, **both)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'decay': expected a number in \[0, 1\], got 2"):
        swa_utils.get_ema_multi_avg_fn(2)
    averaged = swa_utils.AveragedModel(ours)
    before = repr(averaged.state_dict())
    with pytest.raises(ShapeError, match="argument 'model': expected parameters as of the copied model, got others"):
        averaged.update_parameters(nn.Linear(3, 4))
    assert repr(averaged.state_dict()) == before
