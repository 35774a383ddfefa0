"""ConvBNReLU against PyTorch's Sequential: training, eval with gradients, folded inference, and no stale fold ever."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.autograd import modes
from genesis.backends.cpu import conv as cpu_conv
from genesis.backends.cpu import packing
from genesis.records import SGDOptions
from tests.draws import needs_equal_draws

X_SHAPE = (2, 4, 7, 6)

SETTINGS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 0},
    {"kernel_size": (3, 5), "dilation": (1, 2)},
    {"kernel_size": 1, "bias": True, "dtype": "float64"},  # in training the bias has no effect: its gradient is noise
    {"groups": 2, "padding": "same", "dilation": 2},
    {"affine": False},
    {"momentum": None, "eps": 1e-3},
    {"activation": None},
    {"track_running_stats": False},
    {"dtype": "float64"},
]


def pair_of(settings: dict[str, Any]) -> tuple[torch.nn.Sequential, nn.ConvBNReLU]:
    """PyTorch's chain with random parameters and statistics, and ours after loading its state_dict."""
    given = {"kernel_size": 3, "padding": None, **settings}
    dtype = given.pop("dtype", "float32")
    ours = nn.ConvBNReLU(4, 6, **given, dtype=getattr(genesis, dtype))
    conv = {key: given[key] for key in ("kernel_size", "stride", "dilation", "groups") if key in given}
    norm = {key: given[key] for key in ("eps", "momentum", "affine", "track_running_stats") if key in given}
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, **conv, padding=ours.conv.padding, bias=given.get("bias", False)),
        torch.nn.BatchNorm2d(6, **norm),
        *([] if given.get("activation", "relu") is None else [torch.nn.ReLU()]),
    ).to(getattr(torch, dtype))
    for tensor in (*theirs[1].parameters(), *theirs[1].buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand_like(tensor) + 0.5)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def check(actual: genesis.Tensor, expected: torch.Tensor) -> None:
    """float64 element by element; float32 as a whole, since sums in another order differ where they cancel."""
    values, expected = actual.detach().to_torch(), expected.detach()
    if expected.dtype == torch.float32:
        assert torch.linalg.vector_norm(values - expected) <= 1e-5 * torch.linalg.vector_norm(expected)
    else:
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)


def inputs(dtype: torch.dtype, residual_like: torch.Tensor | None) -> tuple[list[Any], list[Any]]:
    theirs = [torch.randn(X_SHAPE, dtype=dtype)]
    theirs += [] if residual_like is None else [torch.randn(residual_like.shape, dtype=dtype)]
    ours = [genesis.tensor(x.numpy(), requires_grad=True) for x in theirs]
    return [x.requires_grad_() for x in theirs], ours


def their_forward(chain: torch.nn.Sequential, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    y = chain[1](chain[0](x))
    y = y if residual is None else y + residual
    return chain[2](y) if len(chain) > 2 else y


@pytest.mark.parametrize("with_residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_steps_with_gradients(settings: dict[str, Any], training: bool, with_residual: bool) -> None:
    torch.manual_seed(0)
    theirs, ours = pair_of(settings)
    theirs.train(training)
    ours.train(training)
    dtype = theirs[0].weight.dtype
    for _ in range(3):  # the running statistics of a step count in the next
        like = theirs[0](torch.zeros(X_SHAPE, dtype=dtype)) if with_residual else None
        their_inputs, our_inputs = inputs(dtype, like)
        y = their_forward(theirs, their_inputs[0], their_inputs[1] if with_residual else None)
        actual = ours(*our_inputs)
        check(actual, y)
        weights = torch.randn(y.shape, dtype=dtype)
        (y * weights).sum().backward()
        (actual * genesis.tensor(weights.numpy())).sum().backward()
        for mine, other in zip(our_inputs, their_inputs, strict=True):
            check(mine.grad, other.grad)
    for name, parameter in theirs.named_parameters():
        check(ours.get_parameter(name).grad, parameter.grad)
    for name, buffer in theirs.named_buffers():
        check(ours.get_buffer(name), buffer)


@pytest.mark.parametrize("with_residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_inference(settings: dict[str, Any], with_residual: bool) -> None:
    torch.manual_seed(0)
    theirs, ours = pair_of(settings)
    theirs.eval()
    ours.eval()
    dtype = theirs[0].weight.dtype
    with torch.no_grad(), genesis.no_grad():
        for shape in (X_SHAPE, X_SHAPE, (1, 4, 9, 9)):
            x = torch.randn(shape, dtype=dtype)
            residual = torch.randn_like(theirs[0](x)) if with_residual else None
            y = their_forward(theirs, x, residual)
            residual_of_ours = None if residual is None else genesis.tensor(residual.numpy())
            check(ours(genesis.tensor(x.numpy()), residual_of_ours), y)


@needs_equal_draws
def test_keys_repr_and_initial_values_are_those_of_the_chain() -> None:
    def chain(space: Any) -> Any:
        return space.Sequential(space.Conv2d(3, 8, 3, padding=1, bias=False), space.BatchNorm2d(8), space.ReLU())

    torch.manual_seed(0)
    theirs = chain(torch.nn)
    genesis.manual_seed(0)
    ours = nn.ConvBNReLU(3, 8, 3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict({key: value.to_torch() for key, value in ours.state_dict().items()})
    expected = repr(theirs).replace("Sequential", "ConvBNReLU")
    if "bias" not in inspect.signature(torch.nn.BatchNorm2d).parameters:  # before PyTorch 2.13
        expected = expected.replace("affine=True,", "affine=True, bias=True,")
    assert repr(ours) == expected
    assert torch.equal(ours.conv.weight.detach().to_torch(), chain_weight(chain))
    chain(nn).load_state_dict(ours.state_dict())


def chain_weight(chain: Callable[[Any], Any]) -> torch.Tensor:
    torch.manual_seed(0)
    return chain(torch.nn)[0].weight.detach()


# --- the fold is used, and never a stale one ---


class Counter:
    """Counts how often weights are packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from genesis import functional as F

        self.count = 0
        prepack = F.conv_prepack

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return prepack(*args, **kwargs)

        monkeypatch.setattr(F, "conv_prepack", counted)


def warm_layer(**settings: Any) -> tuple[nn.ConvBNReLU, genesis.Tensor]:
    """A layer in eval mode that has folded and packed already, and its input."""
    torch.manual_seed(0)
    layer = pair_of(settings)[1].eval()
    x = genesis.randn(*X_SHAPE, dtype=layer.conv.weight.dtype)
    with genesis.no_grad():
        layer(x)
    return layer, x


@pytest.fixture
def on_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors that our own kernels are not for."""
    monkeypatch.setattr(cpu_conv, "is_supported", lambda *args: False)


@pytest.mark.usefixtures("on_onednn")
def test_packed_once_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    layer, x = warm_layer()
    with genesis.no_grad():
        for _ in range(3):
            layer(x)
            layer(genesis.ones(1, 4, 8, 8))
    assert counter.count == 2
    with genesis.no_grad():
        for size in range(4, 40):
            layer(genesis.ones(1, 4, size, size))
    assert len(layer._fused._entries) <= layer._fused.max_shapes


def test_frozen_parameters_fold_without_no_grad(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    layer, x = warm_layer()
    layer(x)
    assert layer(x).requires_grad
    assert counter.count == 1
    layer.requires_grad_(False)
    assert not layer(x).requires_grad
    assert layer(genesis.tensor(x, requires_grad=True)).requires_grad


def step(layer: nn.ConvBNReLU) -> None:
    from genesis.ndarray import ops

    arrays = [p.array for p in layer.parameters()]
    ops.sgd_step(
        arrays, [array.full_like(0.5) for array in arrays], None, SGDOptions(0.1, 0.0, 0.0, 0.0, False, False), True
    )


def train_once(layer: nn.ConvBNReLU) -> None:
    layer.train()(genesis.randn(*X_SHAPE))
    layer.eval()


def train_the_norm_alone(layer: nn.ConvBNReLU) -> None:
    """The layer stays in eval mode; its statistics change behind its back."""
    layer.norm.train()(genesis.randn(2, 6, 5, 5))
    layer.norm.eval()


def scale_in_place(name: str) -> Callable[[nn.ConvBNReLU], None]:
    def change(layer: nn.ConvBNReLU) -> None:
        with genesis.no_grad():
            tensor = layer.state_dict()[name]
            tensor.mul_(1.7).add_(0.1)

    change.__name__ = f"in place: {name}"
    return change


def assign_data(layer: nn.ConvBNReLU) -> None:
    layer.norm.weight.data = genesis.full((6,), 2.0)


def replace_parameter(layer: nn.ConvBNReLU) -> None:
    layer.conv.weight = nn.Parameter(genesis.ones(6, 4, 3, 3))


def replace_buffer(layer: nn.ConvBNReLU) -> None:
    layer.norm.running_mean = genesis.ones(6)


def replace_norm(layer: nn.ConvBNReLU) -> None:
    layer.add_module("1", nn.BatchNorm2d(6).eval())


def write_through_a_view(layer: nn.ConvBNReLU) -> None:
    with genesis.no_grad():
        layer.conv.weight[0].fill_(2.0)


def load_state(layer: nn.ConvBNReLU) -> None:
    layer.load_state_dict(nn.ConvBNReLU(4, 6, 3, bias=True).state_dict())


def assign_state(layer: nn.ConvBNReLU) -> None:
    layer.load_state_dict(nn.ConvBNReLU(4, 6, 3, bias=True).state_dict(), assign=True)


def reset_statistics(layer: nn.ConvBNReLU) -> None:
    layer.norm.reset_running_stats()


def there_and_back(layer: nn.ConvBNReLU) -> None:
    layer.half().float()


def write_from_numpy(layer: nn.ConvBNReLU) -> None:
    layer.norm.bias.detach().numpy()[:] = 3.0


def write_through_a_memoryview(layer: nn.ConvBNReLU) -> None:
    memoryview(np.asarray(layer.norm.running_var))[2] = 9.0


def write_from_torch(layer: nn.ConvBNReLU) -> None:
    layer.conv.weight.to_torch()[1].mul_(3.0)


def write_through_dlpack(layer: nn.ConvBNReLU) -> None:
    torch.from_dlpack(layer.norm.running_mean).add_(1.0)


def write_into_imported_memory(layer: nn.ConvBNReLU) -> None:
    ours = torch.ones(6)
    layer.norm.bias.data = genesis.from_torch(ours)
    with genesis.no_grad():
        layer(genesis.ones(*X_SHAPE))
    ours.add_(2.0)


def set_eps(layer: nn.ConvBNReLU) -> None:
    layer.norm.eps = 0.5


CHANGES = [
    step, train_once, train_the_norm_alone, assign_data, replace_parameter, replace_buffer, replace_norm,
    write_through_a_view, load_state, assign_state, reset_statistics, there_and_back, write_from_numpy,
    write_through_a_memoryview, write_from_torch, write_through_dlpack, write_into_imported_memory,
    set_eps, *map(scale_in_place, ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_stale_fold(change: Callable[[nn.ConvBNReLU], None]) -> None:
    layer, x = warm_layer(bias=True)
    with genesis.no_grad():
        before = layer(x).to_torch()
    change(layer)
    with genesis.no_grad():
        after = layer(x).to_torch()
    # Through the parts, each on its own: nothing is folded there.
    expected = nn.ReLU()(layer.norm(layer.conv(x))).detach().to_torch()
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(after, before)


HOLDERS: dict[str, Callable[[genesis.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy()[:3],
    "asarray": np.asarray,
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "to_torch": lambda tensor: tensor.to_torch()[:3],
    "torch through numpy": lambda tensor: torch.from_numpy(tensor.numpy()),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_while_memory_is_held_outside_nothing_is_folded_and_then_it_is_again(
    hold: Callable[[genesis.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = warm_layer()
    counter = Counter(monkeypatch)
    held = hold(layer.norm.bias.detach())
    with genesis.no_grad():
        for value in (1.0, 2.0, 3.0):
            held[0] = value
            expected = nn.ReLU()(layer.norm(layer.conv(x))).to_torch()
            torch.testing.assert_close(layer(x).to_torch(), expected, rtol=1e-5, atol=1e-5)
        assert counter.count == 0
        held[0] = 4.0
        del held
        expected = nn.ReLU()(layer.norm(layer.conv(x))).to_torch()
        for _ in range(3):
            torch.testing.assert_close(layer(x).to_torch(), expected, rtol=1e-5, atol=1e-5)
    assert counter.count == 1


def test_loaded_weights_are_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that others had their hands on is copied from, and a checkpoint's belongs to nobody else."""
    layer, x = warm_layer()
    state = {name: value.detach().to_torch() for name, value in layer.state_dict().items()}
    torch.save(state, tmp_path / "layer.pth")
    genesis.save(layer, tmp_path / "layer.safetensors")
    loaded = [genesis.load_torch(tmp_path / "layer.pth"), genesis.load(tmp_path / "layer.safetensors")]
    given = [
        (state, False),
        ({name: value.numpy() for name, value in state.items()}, False),
        *((checkpoint, assign) for checkpoint in loaded for assign in (False, True)),
    ]
    counter = Counter(monkeypatch)
    for number, (weights, assign) in enumerate(given):
        fresh = nn.ConvBNReLU(4, 6, 3).eval()
        fresh.load_state_dict(weights, assign=assign)
        with genesis.no_grad():
            torch.testing.assert_close(fresh(x).to_torch(), fresh(x).to_torch())
        assert counter.count == number + 1


def test_copies_of_a_layer_whose_memory_is_held() -> None:
    layer, x = warm_layer()
    held = layer.norm.bias.detach().numpy()
    copied = copy.deepcopy(layer)
    held[:] = 3.0
    with genesis.no_grad():
        assert not torch.equal(copied(x).to_torch(), layer(x).to_torch())


def _layout(packed: torch.Tensor) -> bytes:
    described = bytearray(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).numpy())
    described[packing._PADDING] = bytes(4)
    return bytes(described)


@pytest.mark.usefixtures("on_onednn")
def test_equal_layouts_of_a_weight_are_kept_once() -> None:
    torch.manual_seed(0)
    layer = nn.ConvBNReLU(16, 32, 3, stride=2).eval()  # with a stride there are no tiles, which are of one size
    with genesis.no_grad():
        for size in (8, 16, 20, 24):
            layer(genesis.ones(1, 16, size, size))
    packed = [packed.packed.weight for _, _, packed in layer._fused._entries.values()]
    weights = set(map(id, packed))
    assert len(packed) == 4
    assert len(weights) == len(set(map(_layout, packed))) < 4  # the processor decides how many
    other = nn.ConvBNReLU(16, 32, 3, stride=2).eval()
    with genesis.no_grad():
        other(genesis.ones(1, 16, 8, 8))
    assert weights.isdisjoint(id(packed.packed.weight) for _, _, packed in other._fused._entries.values())


def test_on_a_gpu_one_packed_weight_is_for_all_shapes(cuda: str) -> None:
    layer = nn.ConvBNReLU(4, 6, 3).eval().to("cuda")
    with genesis.no_grad():
        for _ in range(2):
            results = {size: layer(genesis.ones(1, 4, size, size, device="cuda")) for size in (4, 5)}
            weights = {id(packed) for _, _, packed in layer._fused._entries.values()}
            assert len(layer._fused._entries) == 2
            assert len(weights) == 1
            for size, result in results.items():
                expected = nn.ReLU()(layer.norm(layer.conv(genesis.ones(1, 4, size, size, device="cuda"))))
                torch.testing.assert_close(result.cpu().to_torch(), expected.cpu().to_torch(), rtol=1e-5, atol=1e-5)
            layer.conv.weight.mul_(2.0)  # then all of them are packed anew


def test_without_folding_the_parameters_are_used_as_they_are() -> None:
    layer, x = warm_layer()
    expected = nn.ReLU()(layer.norm(layer.conv(x))).detach().to_torch()
    layer.eval()  # forgets what was folded
    with genesis.no_grad(), modes.without_folding():
        torch.testing.assert_close(layer(x).to_torch(), expected, rtol=1e-5, atol=1e-5)
    assert not layer._fused._entries
    with genesis.no_grad():
        layer(x)
    assert layer._fused._entries


def test_to_another_dtype() -> None:
    layer, x = warm_layer()
    layer.double()
    with genesis.no_grad():
        y = layer(x.double())
    assert y.dtype is genesis.float64
    expected = nn.ReLU()(layer.norm(layer.conv(x.double()))).detach().to_torch()
    torch.testing.assert_close(y.to_torch(), expected, rtol=1e-12, atol=1e-12)


def test_nested_layers_hear_of_eval() -> None:
    layer, x = warm_layer()
    net = nn.Sequential(layer)
    layer.norm.bias.detach().numpy()[:] = 3.0
    net.eval()
    with genesis.no_grad():
        torch.testing.assert_close(
            net(x).to_torch(), nn.ReLU()(layer.norm(layer.conv(x))).to_torch(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deepcopy", "pickle"]
)
def test_copies_fold_anew(copied: Any) -> None:
    layer, x = warm_layer()
    other = copied(layer)
    with genesis.no_grad():
        torch.testing.assert_close(other(x).to_torch(), layer(x).to_torch())
        other.norm.bias.add_(1.0)
        assert not torch.equal(other(x).to_torch(), layer(x).to_torch())


@pytest.mark.parametrize(
    ("part", "name"), [("conv", "weight"), ("norm", "weight"), ("norm", "bias"), ("norm", "running_mean")]
)
def test_what_is_put_in_place_of_a_parameter_counts(part: str, name: str) -> None:
    """As of every layer: a weight that is computed from others stands there as a plain tensor."""
    layer, x = warm_layer()
    of = getattr(layer, part)
    value = getattr(of, name).detach() * 2 + 1
    delattr(of, name)
    setattr(of, name, value)
    for training in (True, False):
        layer.train(training)
        expected = nn.ReLU()(copy.deepcopy(layer.norm)(layer.conv(x)))
        torch.testing.assert_close(layer(x).detach().to_torch(), expected.detach().to_torch(), rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"ConvBNReLU: argument 'activation': expected .* or None, got 'swish'"):
        nn.ConvBNReLU(3, 8, 3, activation="swish")
    layer = nn.ConvBNReLU(3, 8, 3)
    for mode in (True, False):
        layer.train(mode)
        with genesis.no_grad(), pytest.raises(ValueError, match="channels"):
            layer(genesis.ones(1, 4, 8, 8))
        with genesis.no_grad(), pytest.raises(ValueError, match="'residual': expected the result's shape"):
            layer(genesis.ones(1, 3, 8, 8), genesis.ones(1, 8, 4, 4))
    with pytest.raises(ValueError, match="multiple of groups"):
        nn.ConvBNReLU(3, 8, 3, groups=2)
    with pytest.raises(AttributeError, match="no setter"):
        layer.conv = nn.Conv2d(3, 8, 3)
