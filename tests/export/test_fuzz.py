"""A share of the fuzzer of the export, that it finds what is wrong, and networks by name that grew or were pruned."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import genesis
import genesis.nn.functional as F
from genesis import export, growth, models, nn
from genesis.export import checking, ops_activation, registry
from genesis.tensor import Tensor
from tests.export import fuzz, fuzz_models

IMAGE = {0: "batch", 2: "height", 3: "width"}


@pytest.mark.parametrize("seed", range(25))
def test_random_networks(seed: int) -> None:
    found = fuzz.case(seed)
    assert not found.failure
    assert not found.refused


def test_a_wrong_translation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(e: registry.Translation, x: object) -> object:
        return e.op("Mul", ops_activation.relu(e, x), e.number(1 + 1e-4, x.dtype))  # type: ignore[attr-defined,arg-type]

    monkeypatch.setitem(registry._TABLE, "ReLU", scaled)
    rng = random.Random(0)
    monkeypatch.setattr(fuzz, "draw", lambda _: fuzz_models.Drawn(nn.ReLU(), genesis.randn(2, rng.randint(1, 5)), {}))
    assert "differs" in fuzz.case(0).failure


def exported(model: nn.Module, x: Tensor, path: Path) -> None:
    done = export.onnx(model, x, path, IMAGE, check=True)
    assert done.difference is not None
    assert done.difference <= fuzz.TOLERANCE


def test_a_grown_unet(tmp_path: Path) -> None:
    genesis.manual_seed(0)
    unet = models.create("unet", in_channels=1, num_classes=2, width=4, depth=3)
    x = genesis.randn(1, 1, 16, 16)
    growth.grow_width(unet, factor=1.5, example=x)
    growth.grow_depth(unet, "encoder.0", example=x)
    exported(fuzz_models.varied(unet, random.Random(0)), x, tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["unet", "resnet18"])
def test_a_pruned_network(name: str, tmp_path: Path) -> None:
    genesis.manual_seed(0)
    model = fuzz_models.varied(models.create(name), random.Random(0))
    x = genesis.randn(1, 1 if name == "unet" else 3, 32, 32)
    before = sum(parameter.numel() for parameter in model.parameters())
    growth.prune_width(model, factor=0.6, example=x)
    assert sum(parameter.numel() for parameter in model.parameters()) < 0.8 * before
    exported(model, x, tmp_path / "m.onnx")


def test_a_pruned_branch(tmp_path: Path) -> None:
    genesis.manual_seed(0)
    x = genesis.randn(1, 2, 8, 8)
    net = nn.Sequential(nn.ConvBNReLU(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1))
    growth.grow_branches(net, "1", example=x)
    growth.prune_branches(net, "1", example=x)
    exported(net, x, tmp_path / "m.onnx")


def test_height_and_width_of_a_square_example_are_told_apart(tmp_path: Path) -> None:
    deep = nn.Sequential(*[nn.Conv2d(1, 1, 3, stride=2, padding=1) for _ in range(4)])

    def spread(x: Tensor, deep: nn.Module) -> Tensor:
        y = deep(x)
        return y + F.interpolate(y.mean((2, 3), keepdim=True), size=y.shape[2:]) + genesis.ones(y.shape[3])

    model, path = fuzz_models.Step("spread", spread, deep), tmp_path / "m.onnx"
    export.onnx(model, genesis.randn(1, 1, 32, 32), path, IMAGE)
    for shape in ((1, 1, 32, 64), (2, 1, 96, 48)):
        x = genesis.randn(*shape)
        (found,) = checking.run(path, {"x": x})
        assert checking.relative_difference(found, model(x).detach().numpy()) <= fuzz.TOLERANCE


def test_rotary_positions_swiglu_and_attention(tmp_path: Path) -> None:
    rng = random.Random(0)
    parts = [fuzz_models.rotary_attention(rng, 16, 2), nn.FeedForwardSwiGLU(16), fuzz_models.multihead(rng, 16, 4)]
    done = export.onnx(
        nn.Sequential(*parts), genesis.randn(1, 6, 16), tmp_path / "m.onnx", {0: "batch", 1: "length"}, check=True
    )
    assert done.difference is not None
    assert done.difference <= fuzz.TOLERANCE
