"""AdaptiveLogSoftmaxWithLoss against PyTorch's, and DataParallel on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import DeviceError, ShapeError

TARGETS = {"all": [0, 3, 4, 9, 10, 19, 5], "head": [0, 1, 2, 3, 0, 0, 1], "tail": [19] * 7, "one": 12}


def results(lib: Any, target: Any, bias: bool, device: str = "cpu") -> list[Any]:
    rng = np.random.default_rng(0)
    layer = lib.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], div_value=2.0, head_bias=bias)
    with lib.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(lib.tensor(rng.standard_normal(tuple(parameter.shape)).astype("float32")))
    layer.to(device)
    x = rng.standard_normal((7, 8)).astype("float32")
    rows = lib.tensor(x, device=device, requires_grad=True)
    output, loss = layer(rows if isinstance(target, list) else rows[0], lib.tensor(target, device=device))
    loss.backward()
    made = [output, loss, rows.grad, *[p.grad for p in layer.parameters() if p.grad is not None]]
    return [*made, layer.log_prob(rows), layer.predict(rows)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bias", [False, True])
def test_against_pytorch(target: str, bias: bool, device: str) -> None:
    found, wanted = results(genesis, TARGETS[target], bias, device), results(torch, TARGETS[target], bias)
    for mine, expected in zip(found, wanted, strict=True):
        assert mine.shape == tuple(expected.shape)
        np.testing.assert_allclose(mine.tolist(), expected.tolist(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cutoffs", [[], [0, 2], [2, 2], [3, 2], [20], [1.5]])
def test_wrong_cutoffs(cutoffs: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"'cutoffs': expected ascending integers in 1 … 19, at least one"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs)


def test_wrong_inputs() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4])
    with pytest.raises(ShapeError, match=r"'input': expected \(2,\) and one dimension more, got shape \(3, 8\)"):
        layer(genesis.ones(3, 8), genesis.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"'target': expected classes in 0 … 19, got 1 … 20"):
        layer(genesis.ones(2, 8), genesis.tensor([1, 20]))


def test_data_parallel_passes_through() -> None:
    inner = nn.Linear(3, 2)
    net = nn.DataParallel(inner, device_ids=[0])
    x = genesis.ones(4, 3)
    assert net(x).tolist() == inner(x).tolist()
    assert net.module is inner
    assert list(net.state_dict()) == ["module.weight", "module.bias"]
    with pytest.raises(DeviceError, match="'device_ids': expected one device; of several, use a process for each"):
        nn.DataParallel(inner, device_ids=[0, 1])
