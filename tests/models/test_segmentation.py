"""VGG16-BN, FCN and DeepLabV3 against the same networks in PyTorch, with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from benchmarks import torch_segmentation
from genesis import models
from tests.models import agreement
from tests.narrow import narrow, unfilled

SIZES = {  # keys and parameters, as torchvision's models have them
    ("vgg16_bn", ()): (97, 138_365_992),
    ("fcn_resnet50", ()): (326, 32_957_013),
    ("fcn_resnet50", ("aux_loss",)): (334, 35_322_218),
    ("deeplabv3_resnet50", ()): (362, 39_638_869),
    ("deeplabv3_resnet50", ("aux_loss",)): (370, 42_004_074),
}


@pytest.mark.parametrize(("name", "options"), SIZES, ids=str)
def test_keys_shapes_and_sizes(name: str, options: tuple[str, ...]) -> None:
    kwargs = dict.fromkeys(options, True)
    with unfilled():
        ours = models.create(name, **kwargs)
    with torch.device("meta"):
        theirs = getattr(torch_segmentation, name)(**kwargs)
    agreement.assert_equal_shapes(theirs, ours)
    num_parameters = sum(parameter.numel() for parameter in ours.parameters())
    assert (len(ours.state_dict()), num_parameters) == SIZES[name, options]


@pytest.mark.parametrize("name", ["vgg16_bn", "fcn_resnet50", "deeplabv3_resnet50"])
def test_like_pytorch(name: str) -> None:
    kwargs = {} if name == "vgg16_bn" else {"aux_loss": True}  # without, there is less of the same
    torch.manual_seed(0)
    with narrow():
        theirs, ours = getattr(torch_segmentation, name)(**kwargs), models.create(name, **kwargs)
    agreement.share_weights(theirs, ours)
    agreement.compare(theirs, ours, torch.randn(2, 3, 33, 40))


def test_inference_without_the_auxiliary_head() -> None:
    genesis.manual_seed(0)
    with narrow():
        model = models.deeplabv3_resnet50(num_classes=2, aux_loss=True).eval()
    input = genesis.randn(1, 3, 32, 32)
    with genesis.no_grad():
        both = model(input)
        model.aux_classifier = None
        alone = model(input)
    assert list(alone) == ["out"]
    assert alone["out"].tolist() == both["out"].tolist()


def test_the_backbone_may_come_from_a_classifiers_file(tmp_path: Path) -> None:
    genesis.manual_seed(0)
    with narrow():
        classifier = models.resnet50()
        genesis.save(classifier, tmp_path / "resnet50.safetensors")
        model = models.fcn_resnet50(num_classes=2, weights_backbone=tmp_path / "resnet50.safetensors")
    key = "layer4.2.conv3.weight"
    assert model.backbone.state_dict()[key].numpy().tobytes() == classifier.state_dict()[key].numpy().tobytes()


def test_torchvisions_arguments() -> None:
    with narrow():
        assert isinstance(models.resnet18(weights=None, progress=False, num_classes=2), models.ResNet)
        model = models.deeplabv3_resnet50(
            weights=None, progress=True, num_classes=2, aux_loss=None, weights_backbone=None
        )
    assert isinstance(model, models.DeepLabV3)
    assert model.aux_classifier is None


# --- nn.Module.load ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [
    lambda state: state,
    lambda state: {"model": state, "epoch": 3},
    lambda state: {"state_dict": state},
    lambda state: {f"module.{key}": value for key, value in state.items()},
])  # fmt: skip
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_files_of_pytorch_and_genesis_load(tmp_path: Path, ending: str, wrap: Any) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    path = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save(wrap(theirs.state_dict()), path)
    else:
        state = {key: genesis.from_torch(value) for key, value in theirs.state_dict().items()}
        genesis.save(wrap(state), path)
    ours = models.FusedSequential(genesis.nn.Conv2d(3, 4, 3), genesis.nn.BatchNorm2d(4))
    assert ours.load(path) == ([], [])
    assert ours[0].weight.tolist() == theirs[0].weight.tolist()


def test_keys_that_do_not_fit_are_named_with_the_closest(tmp_path: Path) -> None:
    state = {
        f"{key}s" if key == "head.bias" else key: value for key, value in models.unet(width=2).state_dict().items()
    }
    genesis.save(state, tmp_path / "w.safetensors")
    model = models.unet(width=2)
    before = model.head.weight.tolist()
    with pytest.raises(ValueError, match=r"missing key 'head\.bias' \(the closest given is 'head\.biass'\)") as error:
        model.load(tmp_path / "w.safetensors")
    assert "unexpected key 'head.biass' (the closest expected is 'head.bias')" in str(error.value)
    assert model.head.weight.tolist() == before
    assert model.load(tmp_path / "w.safetensors", strict=False) == (["head.bias"], ["head.biass"])


@pytest.mark.parametrize(
    ("content", "said"), [({"epoch": 3, "loss": 0.5}, "entries epoch, loss"), ([1, 2], "list"), ({}, "entries ")]
)
def test_a_file_without_a_state_is_refused(tmp_path: Path, content: object, said: str) -> None:
    genesis.save(content, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=rf"expected a model's state, names and tensors, got {said}"):
        models.create("unet", width=2, weights=tmp_path / "w.safetensors")


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="refused: it is damaged, or contains objects"):
        models.unet(width=2).load(tmp_path / "w.pth")


# --- FusedSequential ------------------------------------------------------------------------------------------------


def test_fused_rows_are_the_rows() -> None:
    genesis.manual_seed(0)
    nn = genesis.nn
    parts = [
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1), nn.ReLU(),
        nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2),
    ]  # fmt: skip
    fused, plain = models.FusedSequential(*parts), nn.Sequential(*parts)
    input = genesis.randn(2, 3, 8, 8)
    np.testing.assert_allclose(fused(input).detach().numpy(), plain(input).detach().numpy(), rtol=1e-5, atol=1e-5)
    with genesis.no_grad():
        expected = plain.eval()(input)
        np.testing.assert_allclose(fused.eval()(input).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
        parts[0].weight.mul_(2)
        np.testing.assert_allclose(fused(input).numpy(), plain(input).numpy(), rtol=1e-5, atol=1e-5)
