"""How near float64 the gradients of conv_bn_relu are in float32, compared with PyTorch's separate layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.backends import get
from genesis.backends.cpu import conv, replay
from genesis.backends.cpu.x86.packed import BlockedPlan
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry, NormOptions, NormState, SavedConvNorm
from tests.fused_activations import FUNCTIONS, activated

NAMES = ("y", "input", "weight", "gamma", "beta")
GEOMETRY = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
KINKS = {"relu": (0,), "relu6": (0, 6), "leaky_relu": (0,), "elu": (0,), "hardswish": (-3, 3), "hardsigmoid": (-3, 3)}
FLOOR = 2e-7  # where PyTorch happens to be nearer than rounding once


def layers(operands: tuple[Tensor, ...], activation: str | None, dtype: torch.dtype, grad: Tensor) -> list[Tensor]:
    leaves = [each.to(dtype, copy=True).requires_grad_() for each in operands]
    x, weight, gamma, beta = leaves
    y = activated(F.batch_norm(F.conv2d(x, weight, None, 1, 1), None, None, gamma, beta, True, 0.1, 1e-5), activation)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(dtype))]


def fused(operands: tuple[Tensor, ...], activation: str | None, grad: Tensor) -> list[Tensor]:
    cpu, (x, weight, gamma, beta) = get("cpu"), operands
    norm, options = NormState(gamma, beta, None, None), NormOptions(True, 0.1, 1e-5)
    y, *found = cpu.conv_bn_relu(x, weight, None, norm, None, options, GEOMETRY, activation)
    saved = SavedConvNorm(x, weight, None, gamma, beta, *found)
    needs = (True, True, False, True, True, False)
    grads = cpu.conv_bn_relu_backward(grad, saved, True, GEOMETRY, activation, needs)
    return [y, grads[0], grads[1], grads[3], grads[4]]


def away_from_kinks(grad: Tensor, operands: tuple[Tensor, ...], activation: str | None) -> Tensor:
    """0 where rounding would decide which derivative it is."""
    x, weight, gamma, beta = (each.double() for each in operands)
    before = F.batch_norm(F.conv2d(x, weight, None, 1, 1), None, None, gamma, beta, True, 0.1, 1e-5)
    for kink in KINKS.get((activation or "").partition("(")[0], ()):
        grad = torch.where((before - kink).abs() < 1e-3, 0.0, grad)
    return grad


def distance(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("mean", [0.0, 3.0])
@pytest.mark.parametrize("activation", [None, *FUNCTIONS])
def test_as_near_float64_as_separate_layers(activation: str | None, mean: float) -> None:
    worst = {name: [0.0, 0.0] for name in NAMES}
    for shape, outputs in (((2, 6, 9, 9), 8), ((4, 16, 24, 24), 32)):  # below and above the size of our own sums
        for seed in range(3):
            torch.manual_seed(seed)
            x = (torch.randn(shape) + mean).contiguous(memory_format=torch.channels_last)
            weight = torch.randn(outputs, shape[1], 3, 3) / (9 * shape[1]) ** 0.5
            operands = x, weight, torch.rand(outputs) + 0.5, torch.randn(outputs)
            grad = away_from_kinks(torch.randn(shape[0], outputs, *shape[2:]), operands, activation)
            exact = layers(operands, activation, torch.float64, grad)
            plain = tuple(each.contiguous() for each in operands)
            theirs, ours = layers(plain, activation, torch.float32, grad), fused(operands, activation, grad)
            for name, *values in zip(NAMES, ours, theirs, exact, strict=True):
                for place in (0, 1):
                    worst[name][place] += distance(values[place], values[2])
    for name, (mine, theirs_) in worst.items():
        assert mine <= 2 * theirs_ + FLOOR, (name, mine, theirs_)


SHAPES = {"3×3": (8, 3, 1, 1), "groups": (8, 3, 1, 2), "depthwise": (8, 3, 1, 8), "1×1": (8, 1, 1, 1),
          "1×1, stride": (8, 1, 2, 1), "long sums": (48, 3, 1, 1)}  # fmt: skip


@pytest.mark.parametrize("kernels", ["ours", "oneDNN", "oneDNN, measured", "oneDNN, replayed"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("activation", [None, *FUNCTIONS])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_not_a_number_stays_so_in_inference(
    name: str, activation: str | None, has_residual: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor's max and min, by which oneDNN applies a ReLU to a convolution, would make numbers of it."""
    channels, size, stride, groups = SHAPES[name]
    geometry = ConvGeometry((stride, stride), (size // 2, size // 2), (1, 1), groups)
    torch.manual_seed(0)
    x = torch.randn(1, channels, 9, 9).contiguous(memory_format=torch.channels_last)
    x[0, 0, 4, 4] = float("nan")
    weight = torch.randn(16, channels // groups, size, size)
    exact = torch.conv2d(x, weight, None, *geometry)
    residual = torch.randn(exact.shape).contiguous(memory_format=torch.channels_last) if has_residual else None
    assert exact.isnan().any()
    assert not exact.isnan().all()
    if kernels == "oneDNN, measured":
        shapes = tuple(x.shape), x.stride(), tuple(weight.shape)
        found = BlockedPlan(Problem(*shapes, geometry, False, has_residual, activation), weight, None).run(x, residual)
    else:
        if kernels != "ours":
            monkeypatch.setattr(conv, "is_supported", lambda *args: False)
        packed = conv.conv_prepack(weight, None, tuple(x.shape), geometry)
        operands = x, packed, residual, activation
        replayed = replay.prepare("conv_prepacked", operands) if kernels == "oneDNN, replayed" else None
        found = conv.conv_prepacked(*operands) if replayed is None else replayed(x)
    assert torch.equal(found.isnan(), exact.isnan())
    expected = exact if residual is None else exact + residual
    torch.testing.assert_close(found, activated(expected, activation), rtol=1e-4, atol=1e-4, equal_nan=True)
