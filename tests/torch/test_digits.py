"""A ResNet-18 learns digits, fused and unfused from one seed: the same curve in float64, the same skill in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from tests.models.torch_resnet import BasicBlock, ResNet


def digits(size: int, device: str) -> tuple[Tensor, Tensor]:
    """Scans of 1797 handwritten digits, 8 × 8, resized to three equal channels of size²."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    scans = torch.from_numpy(images).reshape(-1, 1, 8, 8).float() / 16 - 0.5
    resized = nn.functional.interpolate(scans, size=(size, size), mode="bilinear", align_corners=False)
    return resized.repeat(1, 3, 1, 1).to(device), torch.from_numpy(labels).to(device)


def train(
    model: nn.Module, images: Tensor, labels: Tensor, steps: int, batch: int, lr: float, **autocast: Any
) -> list[float]:
    """The loss of each step. The learning rate falls to nothing: what is compared in the end has come to rest."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 / steps, total_iters=steps)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        chosen = torch.randint(0, len(images), (batch,), generator=generator).to(images.device)
        optimizer.zero_grad()
        with torch.autocast(images.device.type, torch.bfloat16, **autocast):
            loss = nn.functional.cross_entropy(model(images[chosen]).to(images.dtype), labels[chosen])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def resnet18(fused: bool, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = ResNet(BasicBlock, (2, 2, 2, 2), 10)
    return genesis.torch.fuse(model) if fused else model


def test_loss_curves_coincide() -> None:
    images, labels = digits(16, "cpu")
    curves = []
    for fused in (False, True):
        model = resnet18(fused).double()
        curves.append(train(model, images.double(), labels, steps=12, batch=12, lr=1e-3, enabled=False))
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-7, atol=1e-9)
    assert max(curves[0]) > min(curves[0]) + 0.1  # it is no constant that they agree on


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_accuracy_in_bfloat16(seed: int) -> None:
    """With a constant learning rate the layers alone end between 0.975 and 0.998, from seed to seed."""
    images, labels = digits(32, "cuda")
    images = images.to(memory_format=torch.channels_last)
    accuracies = []
    for fused in (False, True):
        model = resnet18(fused, seed).cuda().to(memory_format=torch.channels_last)
        losses = train(model, images, labels, steps=200, batch=64, lr=0.01)
        assert sum(losses[-20:]) / 20 < 0.1
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            right = model.eval()(images).argmax(1) == labels
        accuracies.append(right.float().mean().item())
    assert abs(accuracies[1] - accuracies[0]) <= 0.005, accuracies
