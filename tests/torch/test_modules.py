"""genesis.torch.ConvBNReLU against PyTorch's Sequential; and the CUDA kernels on PyTorch's memory, simulated."""

from __future__ import annotations

import copy
import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.errors import ShapeError
from tests.fused_activations import FUNCTIONS

SETTINGS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 0, "bias": True},
    {"kernel_size": (3, 5), "dilation": (1, 2)},
    {"kernel_size": 1},
    {"groups": 2, "padding": "same", "dilation": 2},
    {"affine": False, "momentum": None, "eps": 1e-3},
    {"activation": None},
    {"track_running_stats": False},
]


def pair_of(settings: dict[str, Any], dtype: torch.dtype) -> tuple[nn.Sequential, genesis.torch.ConvBNReLU]:
    torch.manual_seed(0)
    ours = genesis.torch.ConvBNReLU(4, 6, **{"kernel_size": 3, **settings}, dtype=dtype)
    theirs = nn.Sequential(*copy.deepcopy(list(ours.children())))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    return theirs, ours


def agree(settings: dict[str, Any], dtype: torch.dtype, training: bool, tolerance: float) -> None:
    theirs, ours = pair_of(settings, dtype)
    theirs.train(training)
    ours.train(training)
    for with_residual in (False, True):
        x = torch.randn(2, 4, 7, 6, dtype=dtype)
        xs: list[Any] = [x.clone().requires_grad_() for _ in range(2)]
        shape = theirs[0](xs[0]).shape
        residuals: list[Any] = [None, None]
        if with_residual:
            residuals = [torch.ones(shape, dtype=dtype).requires_grad_() for _ in range(2)]
        y = theirs[1](theirs[0](xs[0]))
        y = y if residuals[0] is None else y + residuals[0]
        y = y.relu() if ours.activation else y
        result = ours(xs[1], residuals[1])
        torch.testing.assert_close(result, y, rtol=tolerance, atol=tolerance)
        weights = torch.randn_like(y)
        for value in (y, result):
            value.backward(weights.to(value.dtype))
        torch.testing.assert_close(xs[1].grad, xs[0].grad, rtol=tolerance, atol=tolerance)
        if residuals[0] is not None:
            torch.testing.assert_close(residuals[1].grad, residuals[0].grad, rtol=tolerance, atol=tolerance)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=tolerance, atol=10 * tolerance, msg=name)
        for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_agrees_with_the_layers(settings: dict[str, Any], training: bool) -> None:
    agree(settings, torch.float64, training, 1e-9)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("settings", [SETTINGS[1], SETTINGS[5]], ids=str)
def test_cuda_kernels_agree_with_the_layers(cuda_kernels: None, settings: dict[str, Any], training: bool) -> None:
    agree(settings, torch.float64, training, 1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_inference(settings: dict[str, Any]) -> None:
    theirs, ours = pair_of(settings, torch.float64)
    theirs.eval()
    ours.eval()
    for shape in ((2, 4, 7, 6), (1, 4, 9, 9)):
        x = torch.randn(shape, dtype=torch.float64)
        for grad_free in (torch.no_grad, torch.inference_mode):
            with grad_free():
                torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_cuda_kernels_infer(cuda_kernels: None) -> None:
    theirs, ours = pair_of({}, torch.float32)
    with torch.no_grad():
        x = torch.randn(2, 4, 7, 6)
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


def test_autocast() -> None:
    theirs, ours = pair_of({}, torch.float32)
    x = torch.randn(2, 4, 7, 6)
    exact = copy.deepcopy(theirs).double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        y, reference = ours(x), theirs(x)
    assert y.dtype is torch.bfloat16
    assert (y - exact).norm() <= 1.1 * (reference - exact).norm()
    y.sum().backward()
    assert ours.conv.weight.grad.dtype is torch.float32


@pytest.mark.filterwarnings("ignore")
def test_opaque_to_the_compiler() -> None:
    theirs, ours = pair_of({}, torch.float32)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4, 7, 6)
    for model in (theirs, compiled):
        model(x).square().sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.norm.running_var, theirs[1].running_var)


@pytest.mark.parametrize("activation", ["relu", "silu", "leaky_relu(0.1)", None])
def test_custom_ops_keep_what_they_promise(activation: str | None) -> None:
    def arguments(*shape: int) -> tuple[Any, ...]:
        w, g, b = torch.randn(6, 4, 3, 3), torch.rand(6), torch.rand(6)
        x, mean, var = torch.randn(*shape), torch.zeros(6), torch.ones(6)
        leaves = [value.requires_grad_() for value in (x, w, g, b)]
        how = (True, 0.1, 1e-5, (2, 2), (1, 1), (1, 1), 1, activation)
        return (*leaves[:2], None, *leaves[2:], mean, var, None, *how)

    for op_tests in ("test_schema", "test_faketensor"):
        torch.library.opcheck(torch.ops.genesis.conv_bn_relu.default, arguments(2, 4, 7, 6), test_utils=op_tests)


def test_what_the_op_cannot_take_the_layers_do() -> None:
    theirs, ours = pair_of({}, torch.float64)
    x, residual = torch.randn(4, 7, 6, dtype=torch.float64), torch.ones(1, 6, 1, 1, dtype=torch.float64)
    ours.eval()
    theirs.eval()
    batch = x[None]
    torch.testing.assert_close(ours(batch, residual), (theirs[1](theirs[0](batch)) + residual).relu())
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(x)
    with pytest.raises(RuntimeError, match="channels"):
        ours(torch.ones(1, 3, 7, 6, dtype=torch.float64))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"ConvBNReLU: argument 'activation': expected .* or None, got 'swish'"):
        genesis.torch.ConvBNReLU(3, 8, 3, activation="swish")
    layer = genesis.torch.ConvBNReLU(3, 8, 3, padding=0)
    with pytest.raises(ShapeError, match="more than 1 value per channel in training"):
        layer(torch.ones(1, 3, 3, 3))


def test_training_counts_as_a_change_of_the_running_statistics(cuda_kernels: None) -> None:
    layer = genesis.torch.ConvBNReLU(4, 6, 3)
    before = [layer.norm.running_mean._version, layer.norm.running_var._version]
    layer(torch.ones(2, 4, 5, 5))
    after = [layer.norm.running_mean._version, layer.norm.running_var._version]
    assert all(now > then for now, then in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("activation", "simulated"), [*[(each, False) for each in FUNCTIONS], ("relu", True), ("relu6", True)]
)
def test_the_result_may_change_where_that_of_the_layers_may(
    activation: str, simulated: bool, request: pytest.FixtureRequest
) -> None:
    """Gradients are the same, whatever is done to the result; or PyTorch refuses as with the layers."""
    if simulated:
        request.getfixturevalue("cuda_kernels")
    refuses = activation in ("relu", "sigmoid", "tanh") and not simulated  # CUDA's op keeps the norm's input
    for training, with_residual in itertools.product((True, False), repeat=2):
        conv, norm = nn.Conv2d(4, 6, 3).double(), nn.BatchNorm2d(6).double().train(training)
        x = torch.randn(2, 4, 7, 6, dtype=torch.float64).to(memory_format=torch.channels_last)
        residual = torch.randn(2, 6, 5, 4, dtype=torch.float64).to(memory_format=torch.channels_last)
        residual = residual.requires_grad_() if with_residual else None
        weights = torch.randn(2, 6, 5, 4, dtype=torch.float64)
        operands = [*conv.parameters(), *norm.parameters(), *([residual] if with_residual else [])]
        y = genesis.torch.conv_bn_relu(conv, norm, x, residual, activation)
        expected = torch.autograd.grad(y, operands, weights)
        y = genesis.torch.conv_bn_relu(conv, norm, x, residual, activation)
        y[:, :5].sub_(100)
        if refuses:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(y, operands, weights)
        else:
            torch.testing.assert_close(torch.autograd.grad(y, operands, weights), expected, rtol=1e-9, atol=1e-9)


def test_what_is_kept_of_a_result_that_may_change() -> None:
    """No more memory than the result itself, and nothing once that and the graph are gone."""
    conv, norm = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(6)
    y = genesis.torch.conv_bn_relu(conv, norm, torch.randn(2, 4, 7, 6), None, "relu6")
    kept = weakref.ref(y), [each for each in y.grad_fn.saved_tensors if each.data_ptr() == y.data_ptr()]
    assert len(kept[1]) == 1
    version = y.grad_fn.result
    assert version._alias.untyped_storage().nbytes() == 0
    del y
    assert kept[0]() is None
    assert not version.has_changed()
