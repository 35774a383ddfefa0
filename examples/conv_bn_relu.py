"""Convolution, batch norm and ReLU: PyTorch's layers beside Genesis' one op, forward and every gradient.

    python examples/conv_bn_relu.py [--device cuda] [--dtype bfloat16]

Each line is a result: its norm by PyTorch's layers in float64 (the truth), and how far PyTorch's layers and the fused
op, both in the given dtype, are from that.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn

import genesis.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()).to(arguments.device)
    layers[0].to(dtype)
    if dtype is torch.float64:
        layers.double()
    exact = copy.deepcopy(layers).double()
    fused = genesis.torch.ConvBNReLU(16, 32, 3, bias=True, device=arguments.device)
    fused.load_state_dict(layers.state_dict())
    fused.conv.to(dtype)
    if dtype is torch.float64:
        fused.double()
    x = torch.randn(8, 16, 24, 24, device=arguments.device).to(dtype)
    residual = torch.randn(8, 32, 24, 24, device=arguments.device).to(dtype)
    grad = torch.randn(8, 32, 24, 24, device=arguments.device).to(dtype)

    truth = step(exact, x.double(), residual.double(), grad.double())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        standard = step(layers, x, residual, grad)
    ours = step(fused, x, residual, grad)
    print(f"{'result':<18} {'norm':>12} {'standard layers':>16} {'fused':>12}")
    for name, right in truth.items():
        errors = [(side[name].double() - right).norm().item() for side in (standard, ours)]
        print(f"{name:<18} {right.norm().item():12.4f} {errors[0]:16.2e} {errors[1]:12.2e}")


def step(model: nn.Module, x: Tensor, residual: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The output, the running statistics and all gradients of one training step."""
    x, residual = x.clone().requires_grad_(), residual.clone().requires_grad_()
    if isinstance(model, genesis.torch.ConvBNReLU):
        y = model(x, residual)
    else:
        conv, norm, relu = model.children()
        y = relu(norm(conv(x)) + residual)
    names = ["grad input", "grad residual", "grad weight", "grad bias", "grad gamma", "grad beta"]
    grads = torch.autograd.grad(y, [x, residual, *model.parameters()], grad)
    norm = list(model.children())[1]
    results = {"output": y.detach(), "running mean": norm.running_mean, "running variance": norm.running_var}
    return results | dict(zip(names, grads, strict=True))


if __name__ == "__main__":
    main()
