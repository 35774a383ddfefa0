"""genesis.torch on a GPU: PyTorch's memory and streams, accuracy beside the unfused layers, graphs and compilers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import genesis
import genesis.torch
from genesis.backends.cuda.conv.plans import all_plans
from genesis.settings import override
from tests.models.torch_resnet import Bottleneck, ResNet

pytestmark = pytest.mark.gpu

SHAPES = [(8, 64, 64, 3, 1, 14), (8, 64, 256, 1, 1, 14), (8, 96, 48, 1, 1, 9), (4, 3, 16, 7, 2, 30)]


def layers(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    _, channels, filters, kernel, stride, _ = shape
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
    chain = nn.Sequential(conv, nn.BatchNorm2d(filters), nn.ReLU()).cuda().to(memory_format=torch.channels_last)
    chain[0].to(dtype)
    return chain


def results(model: Any, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Output, running statistics and gradients."""
    x = x.clone().requires_grad_()
    y = model(x)
    grads = torch.autograd.grad(y, [x, *model.parameters()], grad.to(y.dtype))
    return [y.detach(), *[b.clone() for b in model.buffers() if b.is_floating_point()], *grads]


@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize("mean", [0.5, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_farther_from_the_truth_than_the_layers(shape: tuple[int, ...], dtype: torch.dtype, mean: float) -> None:
    theirs = layers(shape, dtype)
    exact, ours = copy.deepcopy(theirs).double(), genesis.torch.fuse(copy.deepcopy(theirs))
    x = (torch.randn(shape[0], shape[1], shape[5], shape[5], device="cuda") + mean).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(theirs(x))
    theirs = copy.deepcopy(exact).to(torch.float32)
    theirs[0].to(dtype)
    truth, reference, actual = results(exact, x.double(), grad), results(theirs, x, grad), results(ours, x, grad)
    for index, (mine, other, right) in enumerate(zip(actual, reference, truth, strict=True)):
        scale = right.norm().clamp_min(1e-2)  # constant channels come to nothing
        error, allowed = ((value.double() - right).norm() / scale for value in (mine, other))
        # In float32 the rounding of two convolutions of equal quality differs; in 16 bits that of the layers is larger.
        allowed = max(2 * allowed, 1e-5) if dtype is torch.float32 else max(1.2 * allowed, 2e-4)
        assert error <= allowed, f"result {index}: {error:.1e}, allowed {allowed:.1e}"


def test_memory_is_pytorchs_and_a_step_can_be_captured() -> None:
    model = ResNet(Bottleneck, (1, 1, 1, 1), 5).cuda().to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)

    def step(net: Any) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(x).float().square().mean()
        return loss, *torch.autograd.grad(loss, list(net.parameters()))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = [value.clone() for value in step(fused)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step(fused)
    graph.replay()
    torch.cuda.synchronize()
    for before, after in zip(eager, captured, strict=True):
        assert (before - after).norm() <= 2e-2 * before.norm() + 1e-6
    graph.replay()
    again = [value.clone() for value in captured]
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(first, second) for first, second in zip(again, captured, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_opaque_to_the_compiler() -> None:
    for shape in SHAPES[:2]:
        chain = layers(shape, torch.bfloat16)
        fused = genesis.torch.fuse(copy.deepcopy(chain))
        compiled = torch.compile(copy.deepcopy(fused), backend="aot_eager", fullgraph=True)
        x = torch.randn(shape[0], shape[1], shape[5], shape[5], device="cuda").bfloat16()
        x = x.contiguous(memory_format=torch.channels_last)
        grad = torch.randn_like(chain(x))
        pairs = zip(results(fused, x, grad), results(compiled, x, grad), strict=True)
        assert all(torch.equal(eager, traced) for eager, traced in pairs)


def test_tuning_a_step_reaches_both_passes(tmp_path: Path) -> None:
    """genesis.tune() of a function that runs PyTorch's backward, on a thread of PyTorch's, itself."""
    model = genesis.torch.fuse(layers(SHAPES[0], torch.float32))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(8, 64, 14, 14, device="cuda").to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            model(x).float().sum().backward()

    with override(cache_dir=tmp_path):
        report = genesis.tune(step, budget=3)
        plans = {plan.problem: plan.candidate for plan in all_plans()}
    assert {each.problem.direction for each in report.outcomes} == {"forward", "input_grad", "weight_grad"}
    assert all(plans[each.problem] == each.candidate for each in report.outcomes)  # they are what computes now
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
