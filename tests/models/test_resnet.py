"""ResNet against the same network in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import genesis
from genesis import models
from tests.models import torch_resnet
from tests.narrow import narrow, unfilled

NETWORKS = {
    "resnet18": (torch_resnet.BasicBlock, (2, 2, 2, 2)),
    "resnet34": (torch_resnet.BasicBlock, (3, 4, 6, 3)),
    "resnet50": (torch_resnet.Bottleneck, (3, 4, 6, 3)),
    "resnet101": (torch_resnet.Bottleneck, (3, 4, 23, 3)),
}
NUM_PARAMETERS = {"resnet18": 11689512, "resnet34": 21797672, "resnet50": 25557032, "resnet101": 44549160}


@pytest.mark.parametrize("name", NETWORKS)
def test_keys_shapes_and_sizes(name: str) -> None:
    with unfilled():
        ours = models.create(name)
    with torch.device("meta"):
        theirs = torch_resnet.ResNet(*NETWORKS[name], num_classes=1000)
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == {
        key: tuple(value.shape) for key, value in theirs.state_dict().items()
    }
    assert sum(parameter.numel() for parameter in ours.parameters()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_results_gradients_and_statistics(name: str) -> None:
    torch.manual_seed(0)
    with narrow():
        theirs = torch_resnet.ResNet(*NETWORKS[name], num_classes=5).double()
        ours = models.create(name, num_classes=5).double()
    ours.load_state_dict(theirs.state_dict())
    input = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    weights = torch.randn(4, 5, dtype=torch.float64)

    expected = theirs(input)
    (expected * weights).sum().backward()
    actual = ours(genesis.from_torch(input))
    (actual * genesis.from_torch(weights)).sum().backward()

    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-9)
    for (key, mine), parameter in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        largest = parameter.grad.abs().max().item()
        np.testing.assert_allclose(
            mine.grad.numpy(), parameter.grad.numpy(), rtol=1e-7, atol=1e-9 * largest, err_msg=key
        )
    for (key, mine), buffer in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        np.testing.assert_allclose(mine.numpy(), buffer.numpy(), rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_inference(name: str) -> None:
    torch.manual_seed(0)
    with narrow():
        theirs, ours = torch_resnet.ResNet(*NETWORKS[name], num_classes=5), models.create(name, num_classes=5)
    input = torch.randn(2, 3, 64, 64)
    theirs(input)
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        expected = theirs.eval()(input).numpy()
    with genesis.no_grad():
        actual = ours.eval()(genesis.from_torch(input)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_dilation_keeps_the_resolution() -> None:
    with narrow():
        model = models.resnet50(replace_stride_with_dilation=(False, True, True), num_classes=2)
    shapes = []
    model.layer4.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    with genesis.no_grad():
        model.eval()(genesis.zeros(1, 3, 64, 64))
    assert shapes == [(1, 2048 // 8, 8, 8)]
    dilations = [block.conv2.dilation for block in (*model.layer3, *model.layer4)]
    assert dilations == [(1, 1)] + [(2, 2)] * 6 + [(4, 4)] * 2


def test_zero_init_residual_begins_with_the_identity() -> None:
    for name, last in [("resnet18", "bn2"), ("resnet50", "bn3")]:
        with narrow():
            model = models.create(name, zero_init_residual=True, num_classes=2)
        assert getattr(model.layer1[0], last).weight.abs().sum().item() == 0
        assert model.bn1.weight.min().item() == 1


def test_the_folded_weights_follow_the_parameters() -> None:
    genesis.manual_seed(0)
    with narrow():
        model, fresh = models.resnet18(num_classes=2).eval(), models.resnet18(num_classes=2).eval()
    input = genesis.randn(1, 3, 32, 32)
    with genesis.no_grad():
        before = model(input)
        model.conv1.weight.mul_(2)
        changed = model(input)
        assert changed.tolist() != before.tolist()
        fresh.load_state_dict(model.state_dict())
        assert fresh(input).tolist() == changed.tolist()
