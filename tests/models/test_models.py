"""What holds for every registered model: shapes, gradients, state, repeatability; and the registry itself."""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis import models, nn
from tests.narrow import narrow

SMALL = {  # per model: how to build it small, and an input
    "deeplabv3_resnet50": ({"num_classes": 3}, (2, 3, 16, 16)),
    "fcn_resnet50": ({"num_classes": 3}, (2, 3, 16, 16)),
    "resnet18": ({"num_classes": 3}, (2, 3, 32, 32)),
    "resnet34": ({"num_classes": 3}, (2, 3, 32, 32)),
    "resnet50": ({"num_classes": 3}, (2, 3, 32, 32)),
    "resnet101": ({"num_classes": 3}, (2, 3, 32, 32)),
    "unet": ({"num_classes": 3, "width": 4}, (2, 1, 8, 12)),
    "vgg16_bn": ({"num_classes": 3, "dropout": 0.0}, (2, 3, 32, 32)),
}
OUTPUTS = {"deeplabv3_resnet50": (2, 3, 16, 16), "fcn_resnet50": (2, 3, 16, 16), "unet": (2, 3, 8, 12)}


def build(name: str) -> Any:
    with narrow():
        return models.create(name, **SMALL[name][0])


def run(model: nn.Module, input: genesis.Tensor) -> genesis.Tensor:
    """The model's output, of several that which its name says."""
    output = model(input)
    return output["out"] if isinstance(output, dict) else output


@pytest.fixture(params=models.names())
def small(request: pytest.FixtureRequest) -> tuple[str, nn.Module, genesis.Tensor]:
    genesis.manual_seed(0)
    _, shape = SMALL[request.param]
    return request.param, build(request.param), genesis.randn(shape)


def test_forward_and_backward(small: tuple[str, nn.Module, genesis.Tensor]) -> None:
    name, model, input = small
    output = run(model, input)
    assert output.shape == OUTPUTS.get(name, (2, 3))
    (output * output).sum().backward()
    without = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    silent = [key for key, parameter in model.named_parameters() if not parameter.grad.abs().sum().item() > 0]
    assert silent == []


def test_state_round_trip_and_inference(small: tuple[str, nn.Module, genesis.Tensor]) -> None:
    name, model, input = small
    model(input)  # running statistics that are not those of a new model
    model.eval()
    expected = run(model, input)
    with genesis.no_grad():
        folded = run(model, input)
        assert folded.tolist() == run(model, input).tolist(), "inference is repeatable"
        scale = expected.abs().max().item()
        assert (folded - expected).abs().max().item() <= 1e-4 * scale, "folded and not folded are the same"
        other = build(name).eval()
        assert run(other, input).tolist() != folded.tolist()
        other.load_state_dict(model.state_dict())
        assert run(other, input).tolist() == folded.tolist()


# --- the registry ----------------------------------------------------------------------------------------------------


def test_a_name_that_is_taken() -> None:
    def unet() -> nn.Module:
        return nn.Identity()

    with pytest.raises(ValueError, match=r"there is a model 'unet' already, in genesis\.models\.unet"):
        models.register(unet)
    assert isinstance(models.create("unet", width=1, depth=1), models.UNet)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"'name': expected one of .*, got 'resnet5'; did you mean resnet50\?"):
        models.create("resnet5")
    with pytest.raises(ValueError, match=rf"expected one of {', '.join(models.names())}, got 'nope'$"):
        models.create("nope")


# --- arguments -------------------------------------------------------------------------------------------------------


def test_unet_refuses_sizes_that_do_not_halve() -> None:
    with pytest.raises(
        ValueError, match=r"'input': expected \(N, C, H, W\) with H and W multiples of 4, got \(1, 1, 8"
    ):
        models.unet(width=2)(genesis.ones(1, 1, 8, 6))


@pytest.mark.parametrize("name", ["in_channels", "num_classes", "width", "depth"])
def test_unet_refuses_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unet: argument '{name}': expected at least 1, got 0"):
        models.unet(**{name: 0})


@pytest.mark.parametrize(("name", "value"), [("groups", 2), ("width_per_group", 32)])
def test_basic_blocks_refuse_what_only_bottlenecks_have(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"BasicBlock: argument '{name}': expected \d+, got {value}"):
        models.resnet18(**{name: value})


def test_resnet_refuses_a_wrong_number_of_dilations() -> None:
    with pytest.raises(
        ValueError, match=r"'replace_stride_with_dilation': expected None or three bools, got \(True,\)"
    ):
        models.resnet50(replace_stride_with_dilation=(True,))
