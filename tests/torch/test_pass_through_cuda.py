"""Chains that hand on their inputs, on the simulated device: what is launched, and what comes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import genesis.torch
from genesis.backends.cuda.driver.simulated import SimulatedKernel
from genesis.torch.modules import conv_bn_relu, conv_bn_relu_and_input
from tests.models.torch_resnet import BasicBlock, Bottleneck
from tests.torch.residual_blocks import InPlace, Make, gradients, same


class Adds(TorchDispatchMode):
    """Counts sums of tensors of a shape."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape, self.names = shape, list[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "add" in op.name() and isinstance(args[0], Tensor) and args[0].shape == self.shape:
            self.names.append(op.name())
        return op(*args, **(kwargs or {}))


WIDE_BLOCKS: dict[str, Make] = {
    "basic": lambda: BasicBlock(32, 32, 1),
    "bottleneck": lambda: Bottleneck(32, 8, 1),
    "in place, downsampling": lambda: InPlace(32, 8, 2),
}


@pytest.mark.parametrize("name", WIDE_BLOCKS)
@pytest.mark.usefixtures("cuda_kernels")
def test_no_pass_adds_the_gradients(name: str, apart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device: neither PyTorch nor a kernel of ours goes over the memory for that."""
    launched: list[str] = []
    launch = SimulatedKernel.launch
    monkeypatch.setattr(SimulatedKernel, "launch", lambda self, *a: (launched.append(self.name), launch(self, *a))[1])
    torch.manual_seed(0)
    model = WIDE_BLOCKS[name]()
    x = torch.randn(2, 32, 4, 4)
    found, counts, kernels = [], [], []
    for fused in (genesis.torch.fuse(copy.deepcopy(model)), apart(model)):
        launched.clear()
        adds = Adds(x.shape)
        found.append(gradients(fused, x, adds))
        counts.append(len(adds.names))
        kernels.append(sorted(launched))
    assert counts == [0, 1]
    assert kernels[0] == kernels[1]  # as many launches, of the same kernels
    assert not [each for each in kernels[0] if "add" in each]
    same(*found)


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_the_simulated_device(
    block: tuple[nn.Module, int], handed: list[bool], apart: Any, dtype: torch.dtype
) -> None:
    """Sums are rounded once, in place of twice: by 2⁻⁹ of what is rounded, of which sums that cancel make more."""
    model, number = block
    model = model.to(dtype)
    x = torch.randn(2, 8, 4, 4).to(dtype)
    plain, ours = gradients(apart(model), x), gradients(genesis.torch.fuse(model), x)
    assert handed.count(True) == number
    assert torch.equal(ours[0], plain[0])
    mine, other = (torch.cat([each.double().flatten() for each in found[1:]]) for found in (ours, plain))
    assert (mine - other).norm() <= (1e-6 if dtype is torch.float32 else 2.0**-6) * other.norm()


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("outputs", [32, 64])
def test_where_the_convolutions_output_is_never_written(handed: list[bool], outputs: int) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(32, outputs, 1, bias=False), nn.BatchNorm2d(outputs)).bfloat16()
    x = torch.randn(2, 32, 5, 7).bfloat16()
    found = []
    for hand_on in (True, False):
        leaf = x.clone().requires_grad_()
        y, view = conv_bn_relu_and_input(*first, leaf) if hand_on else (conv_bn_relu(*first, leaf), leaf)
        (y.square().sum() + (view * torch.linspace(-3, 3, view.numel()).bfloat16().view(view.shape)).sum()).backward()
        found.append(leaf.grad.double())
    assert handed.count(True) == 1
    assert (found[0] - found[1]).norm() <= 2.0**-8 * found[1].norm()


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("with_sum", [True, False])
def test_statistics_come_first_and_the_rest_later(with_sum: bool) -> None:
    """Where the convolution's output is never written, in two calls of the backend as in one."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(32, 64, 1).bfloat16(), nn.BatchNorm2d(64)

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            y = self.norm(self.conv(x))
            return torch.relu(y + residual if with_sum else y)

    torch.manual_seed(0)
    model = Block()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x, residual = torch.randn(2, 32, 5, 7).bfloat16(), torch.randn(2, 64, 5, 7).bfloat16()
    for _ in range(2):  # the second time it is known what follows
        found = []
        for net in (model, fused):
            leaf = x.clone().requires_grad_()
            if net is model:
                y = conv_bn_relu(net.conv, net.norm, leaf, residual if with_sum else None)
            else:
                y = net(leaf, residual)
            y.square().sum().backward()
            found.append([y.detach(), leaf.grad, *[p.grad.clone() for p in net.parameters()], *net.buffers()])
            net.zero_grad()
        same(*found)


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Bottleneck(256, 64, 1), lambda: Bottleneck(64, 64, 1), lambda: Bottleneck(256, 128, 2),
        lambda: BasicBlock(64, 64, 1), lambda: BasicBlock(64, 128, 2),
    ],
    ids=["bottleneck", "first bottleneck", "bottleneck, downsampling", "basic", "basic, downsampling"],
)  # fmt: skip
def test_no_farther_from_the_truth_than_the_layers(
    handed: list[bool], apart: Any, make: Make, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = make().cuda().to(dtype).to(memory_format=torch.channels_last)
    x = torch.randn(8, model.conv1.in_channels, 14, 14, device="cuda").to(dtype)  # type: ignore[union-attr]
    x = x.contiguous(memory_format=torch.channels_last)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    adds = Adds(x.shape)
    ours = gradients(genesis.torch.fuse(copy.deepcopy(model)), x, adds)
    assert adds.names == []
    assert handed.count(True) == 1
    for mine, other, truth in zip(ours, gradients(apart(model), x), exact, strict=True):
        error, allowed = ((each.double() - truth).norm() / truth.norm().clamp_min(1e-2) for each in (mine, other))
        assert error <= max(1.1 * allowed, 1e-5), f"{error:.2e}, with a pass {allowed:.2e}"
