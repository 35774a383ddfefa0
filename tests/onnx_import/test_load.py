"""genesis.load_onnx: what Genesis and PyTorch export comes back; modules that are trained, moved, saved and copied."""

from __future__ import annotations

import copy
import json
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import export, models, nn, optim
from genesis.errors import DTypeError, ShapeError
from genesis.export import checking
from genesis.tensor import Tensor
from tests.export import fuzz_models
from tests.narrow import narrow
from tests.onnx_import.files import arrays, both, normal, write

IMAGE = {0: "batch", 2: "height", 3: "width"}
TOLERANCE = 1e-5  # relative, of float32


@pytest.fixture(autouse=True)
def seeded() -> None:
    genesis.manual_seed(0)


def difference(loaded: nn.Module, model: nn.Module, x: Tensor) -> float:
    with genesis.no_grad():
        ours, theirs = loaded(x), model(x)
    if isinstance(theirs, dict) and len(theirs) > 1:
        assert list(ours) == list(theirs)
        return max(checking.relative_difference(ours[name].numpy(), theirs[name].numpy()) for name in theirs)
    (theirs,) = theirs.values() if isinstance(theirs, dict) else (theirs,)
    return checking.relative_difference(ours.numpy(), theirs.numpy())


SMALL = [name for name in models.names() if name not in ("vgg16_bn", "resnet101")]  # those are the same, and large


@pytest.mark.parametrize(
    ("name", "fold"), [(name, fold) for name in SMALL for fold in (True, False) if fold or "_resnet" not in name]
)
def test_models_come_back(name: str, fold: bool, tmp_path: Path) -> None:
    with narrow():
        model = models.create(name, **({"width": 4} if name == "unet" else {}))
    fuzz_models.varied(model, random.Random(0)).eval()
    channels = 1 if name == "unet" else 3
    export.onnx(
        model, genesis.randn(1, channels, 32, 32), tmp_path / "m.onnx", IMAGE, fold_batch_norm=fold, check=False
    )
    loaded = genesis.load_onnx(tmp_path / "m.onnx")
    assert difference(loaded, model, genesis.randn(2, channels, 64, 32)) <= TOLERANCE
    if not fold:  # all weights have their names back
        theirs = {name: tensor for name, tensor in model.state_dict().items() if "num_batches_tracked" not in name}
        ours = loaded.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(genesis.eq(ours[name], theirs[name]).all() for name in theirs)
        assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("seed", range(25))
def test_random_networks_come_back(seed: int, tmp_path: Path) -> None:
    drawn = fuzz_models.draw(random.Random(seed))
    model = drawn.model.eval()
    export.onnx(model, drawn.example, tmp_path / "m.onnx", drawn.dynamic or None, check=False)
    assert difference(genesis.load_onnx(tmp_path / "m.onnx"), model, drawn.example) <= TOLERANCE


# --- PyTorch's exports ------------------------------------------------------------------------------------------------


class TorchNet(torch.nn.Module):
    """The parts of networks that others export: convolutions, squeeze and excitation, shapes, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn
        self.stem = layers.Sequential(layers.Conv2d(3, 8, 3, 2, 1, bias=False), layers.BatchNorm2d(8), layers.ReLU6())
        self.wide = layers.Conv2d(8, 8, 5, padding=2, groups=8)
        self.gate = layers.Sequential(layers.Conv2d(8, 2, 1), layers.SiLU(), layers.Conv2d(2, 8, 1))
        self.up, self.norm = layers.ConvTranspose2d(8, 8, 2, 2), layers.LayerNorm(8)
        self.group = layers.GroupNorm(2, 8)
        self.head = layers.Sequential(layers.Dropout(0.2), layers.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.nn.functional.hardswish(self.wide(self.stem(x)))
        y = y * torch.nn.functional.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        first, second = torch.nn.functional.gelu(y).chunk(2, 1)
        y = torch.cat([second, first.abs()], 1)
        y = self.group(torch.nn.functional.max_pool2d(y, 3, 2, 1))
        y = torch.nn.functional.interpolate(self.up(y), size=(h, w), mode="bilinear", align_corners=False)
        y = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(y, (1, 0, 1, 0)), 2)
        y = self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)).softmax(-1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [11, 13, 17, 20, "programs"])
def test_what_pytorch_exports(opset: int | str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TorchNet().eval(), torch.randn(3, 3, 32, 32)
    path, sizes = tmp_path / "m.onnx", {"x": {0: "batch"}}
    if opset == "programs":
        pytest.importorskip("onnxscript", reason="onnxscript, which torch.onnx.export needs, is not installed")
        dims = ({0: torch.export.Dim("batch", min=1, max=64)},)
        torch.onnx.export(model, (x,), path, dynamic_shapes=dims, external_data=False, verbose=False)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, (x,), path, dynamo=False, opset_version=opset, input_names=["x"], dynamic_axes=sizes
            )
    loaded = genesis.load_onnx(path)
    for count in (1, 3):
        found = loaded(genesis.from_torch(x[:count])).detach().numpy()
        assert checking.relative_difference(found, model(x[:count]).detach().numpy()) <= TOLERANCE
    assert {"wide.weight", "head.1.bias", "gate.0.weight"} <= set(loaded.state_dict())


# --- the module -------------------------------------------------------------------------------------------------------


@pytest.fixture
def net(tmp_path: Path) -> tuple[nn.Module, Any]:
    """A network, and what came back of its file."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model = fuzz_models.varied(model, random.Random(1)).eval()
    said = {"classes": ["a", "b"]}
    export.onnx(
        model, genesis.randn(1, 2, 4, 4), tmp_path / "m.onnx", [0], fold_batch_norm=False, metadata=said, check=False
    )
    return model, genesis.load_onnx(tmp_path / "m.onnx")


def test_training_gives_the_gradients_of_the_network(net: tuple[nn.Module, Any]) -> None:
    model, loaded = net
    x, target = genesis.randn(3, 2, 4, 4), genesis.tensor([0, 1, 2])
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    for each in (model, loaded.train()):  # its norms go on with their running statistics
        optimizer = optim.SGD(each.parameters(), lr=0.1)
        F.cross_entropy(each(x), target).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(loaded.state_dict()[name].numpy(), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert genesis.eq(loaded.state_dict()["1.running_mean"], model.state_dict()["1.running_mean"]).all()


def test_copies_pickles_and_states(net: tuple[nn.Module, Any]) -> None:
    model, loaded = net
    x = genesis.randn(2, 2, 4, 4)
    for other in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert difference(other, model, x) <= TOLERANCE
    with genesis.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    state = {name: tensor for name, tensor in model.state_dict().items() if "num_batches" not in name}
    loaded.load_state_dict(state)
    assert difference(loaded, model, x) <= TOLERANCE


def test_other_dtypes_and_devices(net: tuple[nn.Module, Any]) -> None:
    model, loaded = net
    x = genesis.randn(2, 2, 4, 4).double()
    assert loaded.double()(x).dtype is genesis.float64
    assert difference(loaded, model.double(), x) <= TOLERANCE


def test_compiled(net: tuple[nn.Module, Any]) -> None:
    model, loaded = net
    compiled = genesis.compile(loaded)
    with genesis.no_grad():
        for _ in range(3):
            x = genesis.randn(2, 2, 4, 4)
            found = compiled(x)
            assert checking.relative_difference(found.numpy(), model(x).numpy()) <= TOLERANCE


def test_what_the_module_says(net: tuple[nn.Module, Any]) -> None:
    _, loaded = net
    assert [(each.name, each.shape, each.dtype) for each in loaded.inputs] == [
        ("input", ("input_dim_0", 2, 4, 4), "float32")
    ]
    assert loaded.outputs == ("output",)
    assert json.loads(loaded.metadata["classes"]) == ["a", "b"]
    assert not loaded.training
    assert "input: float32 (input_dim_0, 2, 4, 4) → output, 5 nodes" in repr(loaded)


def test_inputs_are_checked(net: tuple[nn.Module, Any]) -> None:
    _, loaded = net
    x = genesis.randn(1, 2, 4, 4)
    assert genesis.eq(loaded(input=x), loaded(x)).all()
    for args, named, said in (
        ((x, x), {}, "argument 'inputs': expected input, got 2"), ((), {}, "expected input, got 0"),
        ((), {"x": x}, "argument 'inputs': expected input, got 0 and"),
        ((x,), {"input": x}, "expected input, got 1 and"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            loaded(*args, **named)
    expected = r"OnnxModule: argument 'input': expected float32 \(input_dim_0, 2, 4, 4\), got shape \(1, 3, 4, 4\)"
    with pytest.raises(ShapeError, match=expected):
        loaded(genesis.randn(1, 3, 4, 4))
    with pytest.raises(DTypeError, match="argument 'input': expected a tensor, got int"):
        loaded(3)
    with pytest.raises(DTypeError, match=r"argument 'input': expected float32 .*, got int64"):
        loaded(x.to(genesis.int64))


def test_several_outputs_and_what_is_left_out(tmp_path: Path) -> None:
    from onnx import helper

    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["y"]), helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Dropout", ["z"], ["w"]), helper.make_node("Neg", ["y"], ["unused"]),
    ]  # fmt: skip
    inputs = {"x": normal(2, 3)}
    weights = {"scale": np.arange(3, dtype=np.float32), "unused_weight": normal(9)}
    path = write(tmp_path / "m.onnx", nodes, inputs, ["y", "w", "x", "scale"], weights)
    for ours, theirs in both(path, inputs):
        np.testing.assert_array_equal(ours, theirs)
    loaded = genesis.load_onnx(path)
    assert list(loaded(genesis.tensor(inputs["x"]))) == ["y", "w", "x", "scale"]
    assert list(loaded.state_dict()) == ["scale"]  # a buffer: it scales the network's own input
    assert not list(loaded.parameters())


@pytest.mark.parametrize(
    "names",
    [["forward", "a.b"], ["a", "a.b"], ["a.b", "a"], ["training", "_parameters"], ["a..b", ".x"], ["__class__", "a b"]],
)
def test_names_of_weights(names: list[str], tmp_path: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node("MatMul", ["x", names[0]], ["y"]), helper.make_node("Add", ["y", names[1]], ["z"])]
    inputs, weights = {"x": normal(2, 3)}, {names[0]: normal(3, 3), names[1]: normal(3)}
    path = write(tmp_path / "m.onnx", nodes, inputs, ["z"], weights)
    ((ours, theirs),) = both(path, inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    loaded = genesis.load_onnx(path)
    assert len(list(loaded.parameters())) == 2
    assert np.array_equal(arrays(copy.deepcopy(loaded), inputs)[0], ours)


@pytest.mark.gpu
def test_on_a_gpu(net: tuple[nn.Module, Any], tmp_path: Path) -> None:
    x = genesis.randn(2, 2, 4, 4)
    assert difference_on_cuda(net[1], net[0], x) <= TOLERANCE
    unet = fuzz_models.varied(models.create("unet"), random.Random(0)).eval()
    export.onnx(unet, genesis.randn(1, 1, 32, 32), tmp_path / "unet.onnx", IMAGE, check=False)
    assert difference_on_cuda(genesis.load_onnx(tmp_path / "unet.onnx"), unet, genesis.randn(2, 1, 64, 48)) <= TOLERANCE


def difference_on_cuda(loaded: nn.Module, model: nn.Module, x: Tensor) -> float:
    with genesis.no_grad(), genesis.float32_precision("highest"):
        found = loaded.to("cuda")(x.to("cuda"))
    assert found.device.type == "cuda"
    with genesis.no_grad():
        return checking.relative_difference(found.cpu().numpy(), model(x).numpy())
