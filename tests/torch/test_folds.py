"""Folded and packed weights of inference on the CPU: used again while nothing has changed, not a bit, and no longer."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.backends.cpu.x86 import fingerprint
from genesis.torch import folds, inferring
from genesis.torch.folds import Fold
from genesis.torch.reasons import LEFT_IN_INFERENCE

Change = Callable[[nn.Conv2d, nn.BatchNorm2d], object]


def layers(groups: int = 1, dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(32)
    for each in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(each)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, groups=groups, bias=bias), norm, nn.ReLU()).eval().to(dtype)


def fold_of(model: nn.Sequential) -> Fold | None:
    entry: Any = model[0].forward
    found: Fold | None = entry.folds._fold
    return found


def run(model: nn.Module, x: Tensor, times: int = 3) -> Tensor:
    with torch.no_grad():
        return [model(x) for _ in range(times)][-1]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backend's ops that folds called."""
    found: list[str] = []

    def called(op: str, *args: Any) -> Any:
        found.append(op)
        return call(op, *args)

    call = folds.call
    monkeypatch.setattr(folds, "call", called)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 4, 32])
def test_equal_weights_are_packed_once(groups: int, dtype: torch.dtype, packed: list[str]) -> None:
    plain = layers(groups, dtype)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 32, 9, 7, dtype=dtype)
    expected = plain.double()(x.double())
    for _ in range(5):
        y = run(fused, x, 1)
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps * 8)
    assert packed == ["conv_prepack", *["conv_prepacked"] * 3]  # the second call keeps copies


CHANGES: dict[str, Change] = {
    "weight by .data": lambda conv, norm: conv.weight.data.mul_(1.5),
    "weight by NumPy": lambda conv, norm: np.copyto(conv.weight.detach().numpy()[3, 2], 1.0),
    "weight is replaced": lambda conv, norm: setattr(conv, "weight", nn.Parameter(conv.weight.detach() * 2)),
    ".data is replaced": lambda conv, norm: setattr(conv.weight, "data", conv.weight.data * 2),
    "weight in another order": lambda conv, norm: conv.to(memory_format=torch.channels_last),
    "weight and its NaN": lambda conv, norm: conv.weight.data[0, 0, 0].fill_(float("nan")),
    "bias": lambda conv, norm: conv.bias.data.add_(1.0),
    "no bias": lambda conv, norm: setattr(conv, "bias", None),
    "gamma": lambda conv, norm: norm.weight.data.mul_(-1),
    "beta": lambda conv, norm: norm.bias.data.add_(1),
    "mean": lambda conv, norm: norm.running_mean.data.add_(1),
    "var": lambda conv, norm: norm.running_var.numpy().fill(3.0),
    "an infinite gamma": lambda conv, norm: norm.weight.data.fill_(float("inf")),
    "eps": lambda conv, norm: setattr(norm, "eps", 1.0),
    "padding": lambda conv, norm: setattr(conv, "padding", (0, 0)),
}


@pytest.fixture(params=["copies", "fingerprints"])
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By what weights are compared, however small they are."""
    how: str = request.param
    if how == "fingerprints" and not fingerprint.is_available():
        pytest.skip("they need x86-64")
    monkeypatch.setattr(folds, "_FINGERPRINTED", 0 if how == "fingerprints" else 1 << 40)
    return how


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen_at_the_next_call(name: str, compared: str) -> None:
    plain = layers()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 32, 9, 7)
    run(fused, x)
    fold = fold_of(fused)
    assert fold is not None
    assert fold.packed
    assert (fold.kept[0].copy is None) == (compared == "fingerprints")  # type: ignore[union-attr]
    for model in (plain, fused):
        CHANGES[name](model[0], model[1])
    for _ in range(4):
        torch.testing.assert_close(run(fused, x, 1), run(plain, x, 1), rtol=1e-5, atol=1e-5, equal_nan=True)


def layer_of(plain: nn.Sequential) -> genesis.torch.ConvBNReLU:
    conv: Any = plain[0]
    layer = genesis.torch.ConvBNReLU(32, 32, 3, groups=conv.groups, bias=True, dtype=conv.weight.dtype).eval()
    layer.load_state_dict(plain.state_dict())
    return layer


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, "cpu") for name in CHANGES),
        ("weight by .data", "simulated"),
        ("var", "simulated"),
        ("eps", "simulated"),
    ],
)
def test_the_layer_sees_each_change_at_the_next_call(name: str, device: str, request: pytest.FixtureRequest) -> None:
    if device == "simulated":
        request.getfixturevalue("cuda_kernels")
    plain = layers()
    layer = layer_of(plain)
    x = torch.randn(2, 32, 5, 3)
    for model in (plain, layer):
        run(model, x)
    CHANGES[name](plain[0], plain[1])  # type: ignore[arg-type]
    CHANGES[name](layer.conv, layer.norm)
    for grad_free in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with grad_free():
            torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("change", ["meta", "another dtype"])
def test_the_layer_reads_only_what_is_there(change: str) -> None:
    """Tensors that PyTorch's layers refuse: none of their memory is compared."""
    layer = layer_of(layers())
    x = torch.randn(2, 32, 5, 3)
    run(layer, x)
    mean = layer.norm.running_mean
    assert mean is not None
    layer.norm.running_mean = {"meta": mean.to("meta"), "another dtype": mean.view(torch.int32)}[change]
    with pytest.raises(RuntimeError):
        run(layer, x)
    layer.norm.running_mean = mean
    run(layer, x)


def test_the_layer_packs_once(packed: list[str]) -> None:
    layer = layer_of(layers())
    x = torch.randn(2, 32, 9, 7)
    run(layer, x, 5)
    assert packed == ["conv_prepack", *["conv_prepacked"] * 4]
    kept = weakref.ref(inferring.inferred(layer.conv)._folds._fold.kept[0].copy)  # type: ignore[union-attr, arg-type]
    layer.train()
    gc.collect()
    assert kept() is None


@pytest.mark.usefixtures("compared")
def test_a_zero_that_changes_its_sign_is_seen() -> None:
    fused = genesis.torch.fuse(layers())
    fused[0].weight.data[0, 0, 0, 0] = 0.0
    x = torch.randn(2, 32, 9, 7)
    run(fused, x)
    first = fold_of(fused)
    fused[0].weight.data[0, 0, 0, 0] = -0.0
    run(fused, x, 1)
    assert fold_of(fused) is not first


@pytest.mark.parametrize("fingerprinted", [False, True])
@pytest.mark.parametrize("threads", [1, folds._MANY_THREADS])
def test_large_weights_are_compared_to_the_last_number(
    threads: int, fingerprinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(folds, "_MANY_BYTES", 1 << 18)
    monkeypatch.setattr(folds, "_FINGERPRINTED", 1 << (18 if fingerprinted else 40))
    model = nn.Sequential(nn.Conv2d(256, 257, 1), nn.BatchNorm2d(257), nn.ReLU()).eval()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(1, 256, 3, 3)
    run(fused, x)
    for each in (model, fused):
        each[0].weight.data[-1, -1] += 1
    torch.testing.assert_close(run(fused, x, 1), run(model, x, 1), rtol=1e-4, atol=1e-5)


def test_weights_that_change_from_call_to_call_are_not_packed(packed: list[str]) -> None:
    fused = genesis.torch.fuse(layers())
    x = torch.randn(2, 32, 9, 7)
    for _ in range(20):
        fused[0].weight.data.mul_(0.99)
        run(fused, x, 1)
    assert not packed
    run(fused, x, 20)
    assert packed.count("conv_prepack") == 1


def test_training_frees_the_fold() -> None:
    fused = genesis.torch.fuse(layers())
    run(fused, torch.randn(2, 32, 9, 7))
    kept = weakref.ref(fold_of(fused).kept[0].copy)  # type: ignore[union-attr, arg-type]
    fused.train()(torch.randn(2, 32, 9, 7))
    gc.collect()
    assert kept() is None


def test_copies_and_files_don_t_have_the_fold() -> None:
    fused = genesis.torch.fuse(layers())
    x = torch.randn(2, 32, 9, 7)
    names = list(fused.state_dict())
    empty = len(pickle.dumps(fused))
    y = run(fused, x)
    assert list(fused.state_dict()) == names
    assert len(pickle.dumps(fused)) == empty
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    for other in (copy.deepcopy(fused), torch.load(file, weights_only=False)):
        assert fold_of(other) is None
        torch.testing.assert_close(run(other, x), y)
    kept = weakref.ref(fold_of(fused).kept[0].copy)  # type: ignore[union-attr, arg-type]
    del fused
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_takes_a_chain_s_result_as_it_is(ceil: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Sequential(*layers(), nn.MaxPool2d(3, 2, 1, ceil_mode=ceil), *layers()).eval()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 32, 9, 7)
    seen: list[bool] = []

    def watched(layer: nn.MaxPool2d, input: Tensor) -> Tensor:
        seen.append(input.is_contiguous(memory_format=torch.channels_last))
        return forward(layer, input)

    forward = nn.MaxPool2d.forward
    monkeypatch.setattr(nn.MaxPool2d, "forward", watched)
    y, expected = run(fused[:4], x), run(plain[:4], x, 1)
    assert seen == [True, True, True, False]
    assert y.stride() == expected.stride()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(run(fused, x), run(plain, x, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_sequentials_are_folded_under_inference_mode(order: torch.memory_format, packed: list[str]) -> None:
    plain = nn.Sequential(*layers(), *layers()).eval().to(memory_format=order)  # type: ignore[call-overload]
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    for change in (*CHANGES.values(), lambda conv, norm: None):
        with torch.inference_mode():
            x = torch.randn(2, 32, 9, 7).contiguous(memory_format=order)
            for _ in range(3):
                y, expected = fused(x), plain(x)
                assert y.is_inference()
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
                x.mul_(2)
        for model in (plain, fused):
            change(model[0], model[1])  # type: ignore[arg-type]
    assert packed.count("conv_prepacked") > packed.count("conv_prepack") > 2


def test_a_norm_without_an_activation_is_folded_under_inference_mode(packed: list[str]) -> None:
    """And computed at once: what follows the Sequential may change its input."""
    plain = nn.Sequential(*layers()[:2], *layers(), *layers()[:2]).eval()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(2, 32, 9, 7)
            y, expected = fused(x), plain(x)
            assert type(y) is Tensor
            x.zero_()
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert (packed.count("conv_prepack"), packed.count("conv_prepacked") >= 6) == (3, True)
    x = torch.randn(2, 32, 9, 7)
    torch.testing.assert_close(run(fused, x), run(plain, x, 1), rtol=1e-4, atol=1e-4)


def test_outside_of_sequentials_layers_are_pytorchs_under_inference_mode(packed: list[str]) -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.act = layers()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.norm(self.conv(x)))  # type: ignore[no-any-return]

    plain = nn.Sequential(Chain(), nn.Identity(), Chain()).eval()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    with torch.inference_mode():
        for _ in range(3):
            x = torch.randn(2, 32, 9, 7)
            assert torch.equal(fused(x), plain(x))
    assert packed == []
    assert {reason for _, reason in genesis.torch.report(fused).left} == {LEFT_IN_INFERENCE}
    x = torch.randn(2, 32, 9, 7)
    torch.testing.assert_close(run(fused, x), run(plain, x, 1), rtol=1e-4, atol=1e-4)
    assert packed.count("conv_prepacked") == 2, "other modes have learnt nothing from it"
    assert len(genesis.torch.report(fused).fused) == 2


def test_changes_that_nothing_counts_are_seen_under_inference_mode() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.act = layers()

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            x.zero_()
            y = self.norm(y)
            x.fill_(3.0)
            return self.act(y)  # type: ignore[no-any-return]

    plain = Changes().eval()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(2, 32, 9, 7)
            torch.testing.assert_close(fused(x.clone()), plain(x.clone()), rtol=1e-4, atol=1e-4)
