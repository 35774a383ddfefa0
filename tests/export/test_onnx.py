"""genesis.export.onnx: networks, dynamic sizes, changes in place, refusals, and the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import genesis
import genesis.nn.functional as F
from genesis import export, growth, models, nn, optim
from genesis.errors import DTypeError, MismatchError, ShapeError
from genesis.export import checking, writing
from genesis.tensor import Tensor
from tests.narrow import narrow

IMAGE = {0: "batch", 2: "height", 3: "width"}
TOLERANCE = 1e-5  # relative, of float32


@pytest.fixture(autouse=True)
def seeded() -> None:
    genesis.manual_seed(0)


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def exported(model: nn.Module, example: Any, path: Path, dynamic: Any = None, **options: Any) -> Any:
    """The file's nodes, after the comparison with ONNX Runtime on the example and the other sizes."""
    done = export.onnx(model, example, path, dynamic, check=True, **options)
    assert done.difference is not None
    assert done.difference <= TOLERANCE
    import onnx

    onnx.checker.check_model(path, full_check=True)
    return loaded(path)


def loaded(path: Path) -> Any:
    import onnx_ir as ir

    return ir.load(path)


def kinds(model: Any) -> list[str]:
    return [node.op_type for node in model.graph]


def perturbed(model: nn.Module) -> nn.Module:
    """With running statistics and norms that are not those of a new network."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(genesis.randn(module.num_features) * 0.1)
            module.running_var.copy_(genesis.rand(module.num_features) + 0.5)
    return model


# --- networks ---------------------------------------------------------------------------------------------------------

SMALL = [name for name in models.names() if name not in ("vgg16_bn", "resnet101")]  # large; see tests.export.agreement


@pytest.mark.parametrize("name", SMALL)
def test_models_of_any_size(name: str, tmp_path: Path) -> None:
    with narrow():
        model = perturbed(models.create(name, **({"width": 4} if name == "unet" else {})))
    example = genesis.randn(1, 1 if name == "unet" else 3, 32, 32)
    made = exported(model, example, tmp_path / "model.onnx", IMAGE)
    (image,) = made.graph.inputs
    assert (image.name, list(map(str, image.shape))[0::2]) == ("input", ["batch", "height"])
    assert "BatchNormalization" not in kinds(made)
    assert set(made.graph.initializers) & {name for name, _ in model.named_parameters()}


def test_a_grown_network(tmp_path: Path) -> None:
    net = nn.Sequential(nn.ConvBNReLU(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))
    x = genesis.randn(2, 1, 8, 8)
    with growth.transaction(net, optim.SGD(net.parameters(), lr=0.1), example=x):
        growth.grow_width(net, "0", channels=6)
        growth.grow_depth(net, "0")
        growth.grow_branches(net, "3")
    exported(perturbed(net), x, tmp_path / "model.onnx", {0: "batch"})


class Block(nn.Module):
    """A transformer's block with rotary positions, whose tables follow the length of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out_norm = nn.RMSNorm(16), nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)
        self.feed_forward = nn.FeedForwardSwiGLU(16)

    def forward(self, x: Tensor) -> Tensor:
        n, length, features = x.shape
        query, key, value = (
            part.reshape(n, length, 2, 8).transpose(1, 2) for part in self.project(self.norm(x)).chunk(3, -1)
        )
        angles = genesis.arange(length).float()[:, None] * (10.0 ** -genesis.arange(4).float())
        query, key = self._turned(query, angles), self._turned(key, angles)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(n, length, features)
        return x + self.feed_forward(self.out_norm(x))

    @staticmethod
    def _turned(x: Tensor, angles: Tensor) -> Tensor:
        first, second = x[..., ::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return genesis.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


@pytest.mark.parametrize("opset", [18, 20])
def test_a_transformer_of_any_length(opset: int, tmp_path: Path) -> None:
    made = exported(Block(), genesis.randn(1, 6, 16), tmp_path / "m.onnx", {0: "batch", 1: "length"}, opset=opset)
    assert made.opset_imports[""] == opset


def test_attention_with_a_mask_and_several_inputs(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            return self.attention(tokens, tokens, tokens, attn_mask=mask)

    example = {"tokens": genesis.randn(2, 5, 8), "mask": genesis.ones(5, 5).triu(1) > 0}
    made = exported(Masked(), example, tmp_path / "m.onnx", {"tokens": {0: "batch"}})
    assert [each.name for each in made.graph.inputs] == ["tokens", "mask"]
    assert [each.name for each in made.graph.outputs] == ["output_0", "output_1"]


def test_embeddings_of_tokens(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    exported(model, genesis.tensor([[1, 2, 3]]), tmp_path / "m.onnx", [0, 1])


# --- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold", [True, False])
def test_batch_norms_are_folded_or_kept(fold: bool, tmp_path: Path) -> None:
    chain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvBNReLU(4, 4, 3, padding=1))
    net = perturbed(chain)
    made = exported(net, genesis.randn(1, 1, 8, 8), tmp_path / "m.onnx", fold_batch_norm=fold)
    norm = [] if fold else ["BatchNormalization"]
    assert kinds(made) == ["Conv", *norm, "Relu", "Conv", *norm, "Relu"]
    state = {name for name, _ in net.named_parameters()}
    assert ("1.running_mean" in made.graph.initializers) is not fold
    assert {"0.weight", "3.0.weight"} & state <= set(made.graph.initializers)


def test_a_weight_that_serves_twice_is_not_folded(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)) + self.conv(x + 1)

    exported(perturbed(Shared()), genesis.randn(1, 1, 6, 6), tmp_path / "m.onnx")


def test_a_residual_of_a_fused_layer(tmp_path: Path) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.ConvBNReLU(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x, residual=x)

    made = exported(perturbed(Residual()), genesis.randn(1, 4, 6, 6), tmp_path / "m.onnx")
    assert kinds(made) == ["Conv", "Add", "Relu"]


# --- dynamic sizes ----------------------------------------------------------------------------------------------------


def shapes_in_many_ways(x: Tensor) -> Sequence[Tensor]:
    n, c, h, w = x.shape
    flat = x.reshape(n, c, h * w).permute(0, 2, 1)
    weights = F.softmax(flat @ flat.permute(0, 2, 1), -1).reshape(n, h, w, h * w)
    places = genesis.arange(h * w).reshape(1, h, w).float()
    scaled = x * h + x.shape[3]
    larger = F.interpolate(x, size=(h * 2, w))
    parts = x[:, :, 1:-1, ::2], x[:, -1], x[:, :, : h - 1], x[..., w - 3 :], x[:, :, 1::3]
    return weights[..., -1] + places, scaled, larger, *parts, x.flatten(1), F.pad(x, (0, w, 1, 1)), x.mean((2, 3))


def test_numbers_that_follow_from_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = Call(shapes_in_many_ways)
    exported(model, genesis.randn(2, 3, 8, 6), path, IMAGE)
    x = genesis.randn(3, 3, 5, 9)  # sizes that the exporter has not tried
    for actual, expected in zip(checking.run(path, {"x": x}), shapes_in_many_ways(x), strict=True):
        assert checking.relative_difference(actual, expected.numpy()) <= TOLERANCE


def test_adaptive_means_of_any_size(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", nn.AdaptiveAvgPool2d((3, 5))
    exported(model, genesis.randn(2, 3, 8, 6), path, IMAGE)
    for size in ((1, 3, 3, 5), (2, 3, 7, 11), (1, 3, 1, 2)):  # also smaller than the result
        x = genesis.randn(*size)
        assert checking.relative_difference(checking.run(path, {"input": x})[0], model(x).numpy()) <= TOLERANCE


def a_branch(x: Tensor) -> Tensor:
    return x + 1 if x.shape[2] > 8 else x


def a_power(x: Tensor) -> Tensor:
    return x * 2.0 ** x.shape[2]


@pytest.mark.parametrize(
    ("function", "said"),
    [(a_branch, "what the model computes depends on the sizes.* add"), (a_power, "Mul: depends on dynamic sizes")],
)
def test_what_sizes_change_in_python_is_refused_with_the_line(
    function: Callable[[Tensor], Tensor], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(export.NotExportableError, match=rf"(?s){said}.*test_onnx\.py:{line_in(function)}"):
        export.onnx(Call(function), genesis.randn(1, 1, 8, 8), path, IMAGE)
    assert not path.exists()
    export.onnx(Call(function), genesis.randn(1, 1, 8, 8), path)  # of one size, it is exported


def line_in(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno + 1


def test_multiples_are_found_and_said(tmp_path: Path) -> None:
    def padded(x: Tensor) -> Tensor:
        return F.max_pool2d(F.pad(x, (0, 0, 0, -x.shape[2] % 4)), 2)

    path = tmp_path / "m.onnx"
    done = export.onnx(Call(padded), genesis.randn(1, 1, 8, 8), path, {2: "height"})
    assert done.multiples == {"height": 4}
    assert json.loads(loaded(path).metadata_props["multiples"]) == {"height": 4}


@pytest.mark.parametrize(
    ("dynamic", "error", "said"),
    [
        ({"y": [0]}, ValueError, r"names of inputs \(input\), got 'y'"),
        ({"input": {4: "depth"}}, ShapeError, "dimensions of 'input', which has 4, got 4"),
        ({0: 1}, DTypeError, "a name for each dimension, got 1"),
        ({"input": "batch"}, DTypeError, "{dimension: name} or dimensions, got 'batch'"),
        ({2: "side", 3: "side"}, ShapeError, r"one size for 'side', got \(8, 6\)"),
    ],
)
def test_what_is_wrong_with_dynamic_is_said(dynamic: Any, error: type, said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=f"export.onnx: argument 'dynamic': expected {said}"):
        export.onnx(nn.ReLU(), genesis.ones(1, 1, 8, 6), tmp_path / "m.onnx", dynamic)
    assert not list(tmp_path.iterdir())


# --- changes in place -------------------------------------------------------------------------------------------------


def of_views(x: Tensor) -> Sequence[Tensor]:
    y = x * 1
    y.add_(1)
    y[:, 0] = 5  # by an index
    y[1:, 1].mul_(2)  # through a view
    flat, turned = y.reshape(-1), y.permute(1, 0)
    flat[3] = 7.0  # seen by y and by the other view
    turned.relu_()
    turned[0, :] += 1
    return y, flat, turned, y.narrow(1, 1, 2).neg_(), y


def by_arrays(x: Tensor) -> Tensor:
    y = x.clone()
    y[genesis.tensor([0, 2]), genesis.tensor([1, 3])] = x[0, 0]
    y.masked_fill_(x > 1, 0.5)
    return y


@pytest.mark.parametrize("function", [of_views, by_arrays])
@pytest.mark.parametrize("dynamic", [None, {0: "rows"}])
def test_changes_in_place(function: Callable[[Tensor], Any], dynamic: Any, tmp_path: Path) -> None:
    exported(Call(function), genesis.randn(4, 5), tmp_path / "m.onnx", dynamic)


class Halves(nn.Module):
    """Views of a parameter and of a tensor from outside, both changed in place before the run."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(genesis.empty(4, 5)))
        self.offset = genesis.zeros(2, 5).add_(1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.weight.chunk(2)
        up, down = self.offset.unbind()
        return F.linear(x, first, up[:2]) + F.linear(x, second, down[3:])


def test_views_of_what_was_changed_before_the_run(tmp_path: Path) -> None:
    exported(Halves(), genesis.randn(4, 5), tmp_path / "m.onnx")


# --- refusals and custom functions ------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", genesis.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Call(lambda x: x * x.max().item()), r"reads values of a tensor that depends on .* \(.*test_onnx.py:\d+\)"),
        (Call(lambda x: genesis.nextafter(x, x)), r"NextAfter: has no translation to ONNX \(.*test_onnx.py:\d+\)"),
        (Call(lambda x: x[x > 0].sum()), "shape depends on values"),
        (Call(lambda x: x + genesis.randn(4)), "draws random numbers"),
        (Call(lambda x: F.dropout(x, 0.5)), "Dropout: draws random numbers"),
        (Counting(), "changes a parameter, a buffer"),
    ],
)  # fmt: skip
def test_refusals(model: nn.Module, said: str, tmp_path: Path) -> None:
    with pytest.raises(export.NotExportableError, match=said):
        export.onnx(model, genesis.randn(4, 4), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_packed_weight_is_refused(tmp_path: Path) -> None:
    packed = F.conv_prepack(genesis.ones(1, 1, 3, 3), None, (1, 1, 8, 8))
    with pytest.raises(export.NotExportableError, match="ConvPrepacked: a weight that was packed beforehand"):
        export.onnx(Call(lambda x: F.conv_prepacked(x, packed)), genesis.ones(1, 1, 8, 8), tmp_path / "m.onnx")


class Cube(genesis.autograd.Function):
    """Without a symbolic form: the ops of its forward are exported."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x * x


class Wave(Cube):
    """With one."""

    @staticmethod
    def symbolic(e: Any, x: Any) -> Any:
        return e.op("Pow", x, e.number(3, x.dtype))


@pytest.mark.parametrize(("function", "said"), [(Cube, ["Mul", "Mul"]), (Wave, ["Pow"])])
def test_custom_functions(function: Any, said: list[str], tmp_path: Path) -> None:
    assert kinds(exported(Call(function.apply), genesis.randn(3), tmp_path / "m.onnx")) == said


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.Dropout(0.5)))
    net[2].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    exported(net, genesis.randn(1, 1, 8, 8), tmp_path / "m.onnx")
    assert [module.training for module in net.modules()] == [True, True, True, False, False]
    assert all(genesis.eq(tensor, before[name]).all() for name, tensor in net.state_dict().items())


# --- the file ---------------------------------------------------------------------------------------------------------


def test_metadata(tmp_path: Path) -> None:
    said = {"classes": ["sky", "sea"], "note": "plain"}
    made = exported(nn.ReLU(), genesis.ones(2), tmp_path / "m.onnx", metadata=said)
    assert dict(made.metadata_props) == {"classes": '["sky", "sea"]', "note": "plain"}
    assert (made.producer_name, made.ir_version, made.opset_imports[""]) == ("genesis", 8, 18)


def test_large_weights_lie_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LARGEST", 1000)
    path, model = tmp_path / "m.onnx", nn.Linear(64, 64)
    for _ in range(2):  # the second replaces the first, and takes its weights away
        exported(model, genesis.randn(2, 64), path)
        beside = [file.name for file in tmp_path.iterdir() if file != path]
        assert len(beside) == 1
        assert beside[0].startswith("m.onnx.")
        assert beside[0].endswith(".data")
    monkeypatch.setattr(writing, "LARGEST", 2_000_000_000)
    exported(model, genesis.randn(2, 64), path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onnx_ir.save", fails)
    with pytest.raises(OSError, match="No space left"):
        export.onnx(nn.ReLU(), genesis.ones(2), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_computes_something_else_is_found(tmp_path: Path) -> None:
    class Wrong(Cube):
        @staticmethod
        def symbolic(e: Any, x: Any) -> Any:
            return e.op("Mul", x, x)

    with pytest.raises(MismatchError, match="output 'output': ONNX Runtime differs from Genesis by"):
        export.onnx(Call(Wrong.apply), genesis.randn(3), tmp_path / "m.onnx", check=True)
    assert not list(tmp_path.iterdir())


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"argument 'opset': expected one of 18, .*, got 9"):
        export.onnx(nn.ReLU(), genesis.ones(2), tmp_path / "m.onnx", opset=9)
    with pytest.raises(DTypeError, match="argument 'model': expected a Module, got function"):
        export.onnx(a_branch, genesis.ones(2), tmp_path / "m.onnx")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="argument 'example': expected a tensor for 'input', got int"):
        export.onnx(nn.ReLU(), [3], tmp_path / "m.onnx")  # type: ignore[list-item]
