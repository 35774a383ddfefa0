"""What a compiled graph leaves to PyTorch's compiler on the CPU, as that runs it faster."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.torch import bridge, graph_choices


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask as a program does: for other tests, all chains are worth it."""
    monkeypatch.setattr(bridge, "trains", lambda x: x.is_cuda)
    monkeypatch.setattr(graph_choices, "_LEAST_FLOPS", 0)


LAYERS = {  # kernel, groups
    "dense": (3, 1),
    "pointwise": (1, 1),
    "depthwise": (3, 8),
    "grouped": (3, 2),
}


def block(kernel: int, groups: int, *activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, kernel, groups=groups), nn.BatchNorm2d(8), *activation)


def compiled(model: nn.Module, in_training: bool, images: int = 2) -> list[str]:
    """Its fused chains, and the reasons of those that are left."""
    plain = copy.deepcopy(model).train(in_training)
    fused = genesis.torch.compile(model.train(in_training), compiler="aot_eager")
    x = torch.randn(images, 8, 9, 9)
    with torch.set_grad_enabled(in_training):
        torch.testing.assert_close(fused(x), plain(x))
    (recording,) = genesis.torch.report(fused).graphs
    fusion = recording.fusion
    return [*["fused"] * len(fusion.fused), *sorted({reason for _, reason in fusion.left})]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("in_training", [True, False])
def test_in_training_only_dense_convolutions_of_several_taps_are_fused(kind: str, in_training: bool) -> None:
    reason = "in training, PyTorch's compiler runs such layers faster on a CPU"
    found = compiled(block(*LAYERS[kind], nn.ReLU()), in_training)
    assert found == (["fused"] if kind == "dense" or not in_training else [reason])


@pytest.mark.parametrize("in_training", [True, False])
@pytest.mark.parametrize(("activation", "is_fast"), [(nn.SiLU(), False), (nn.ReLU6(), False), (nn.Identity(), True)])
def test_in_training_only_a_relu_is_fused(activation: nn.Module, is_fast: bool, in_training: bool) -> None:
    reason = "in training, PyTorch's compiler runs layers with its activation faster on a CPU"
    found = compiled(block(3, 1, activation), in_training)
    assert found == (["fused"] if is_fast or not in_training else [reason])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("images", "least_flops", "reason"),
    [
        (1, 0, "in training, PyTorch runs layers of one image faster on a CPU"),
        (2, 2 * (2 * 8 * 49) * 72 + 4, "in training, PyTorch's compiler runs such small layers faster on a CPU"),
        (2, 2 * (2 * 8 * 49) * 72, ""),
    ],
)
def test_in_training_one_image_and_small_layers_are_left(
    images: int, least_flops: int, reason: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(graph_choices, "_LEAST_FLOPS", least_flops / threads)
    assert compiled(block(3, 1, nn.ReLU()), True, images) == ([reason] if reason else ["fused"])
    assert compiled(block(3, 1, nn.ReLU()), False, images) == ["fused"]


def test_elsewhere_all_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "trains", lambda x: True)
    for kernel, groups in LAYERS.values():
        assert compiled(block(kernel, groups, nn.SiLU()), in_training=True) == ["fused"]


@pytest.mark.parametrize(("others", "is_fused"), [(0, True), (3, True), (4, False)])
def test_in_inference_few_among_many_are_left(others: int, is_fused: bool) -> None:
    model = nn.Sequential(block(3, 1, nn.ReLU()), *[nn.Conv2d(8, 8, 1) for _ in range(others)])
    found = compiled(model, in_training=False)
    reason = "few of the graph's convolutions have such a norm, too few on a CPU"
    assert ("fused" in found) == is_fused
    assert (reason in found) == (not is_fused)
