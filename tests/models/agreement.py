"""A network of Genesis and the same in PyTorch, with the same weights: results, gradients and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import genesis


def share_weights(theirs: torch.nn.Module, ours: Any) -> None:
    """Give ours the weights of theirs, and take dropout out of both."""
    ours.load_state_dict(theirs.state_dict())
    for module in (*theirs.modules(), *ours.modules()):
        if type(module).__name__ == "Dropout":
            module.p = 0.0


def assert_equal_shapes(theirs: torch.nn.Module, ours: Any) -> None:
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == {
        key: tuple(value.shape) for key, value in theirs.state_dict().items()
    }


def compare(theirs: torch.nn.Module, ours: Any, input: torch.Tensor, device: str = "cpu") -> None:
    """Training in float64 on the CPU; inference in float32 on a device; its gradients too.

    Training is compared in float64: the norm of two values, which the pooling of DeepLab makes of a batch of two, is
    ±1, and in float32 no two implementations agree after it.
    """
    run(theirs.double(), ours.double(), input.double(), results=1e-8, gradients=1e-6)
    move_from_kinks(theirs, ours, input.double())
    theirs, ours, input = theirs.float().eval().to(device), ours.float().eval().to(device), input.to(device)
    with torch.no_grad(), genesis.no_grad():
        expected, actual = outputs(theirs(input)), outputs(ours(genesis.from_torch(input)))
    for key, value in expected.items():
        assert_close(actual[key], value, 1e-4, key)
    average_instead_of_max(theirs, torch.nn.AvgPool2d)
    average_instead_of_max(ours, genesis.nn.AvgPool2d)
    run(theirs, ours, input, results=1e-4, gradients=1e-3)


def average_instead_of_max(model: Any, pooling: Any) -> None:
    """Of 100,000 windows some have two values that differ by rounding alone: it decides which one takes the gradient.
    Training in float64 has compared max pooling."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__ == "MaxPool2d":
                setattr(parent, name, pooling(module.kernel_size, module.stride, module.padding))


def move_from_kinks(theirs: torch.nn.Module, ours: Any, input: torch.Tensor) -> None:
    """Give the norms scales and shifts with which no ReLU sees a value near zero, where rounding decides its gradient.

    The running statistics become those of this input, but for variances of nearly nothing, which would make much of
    rounding.
    """
    norms = [module for module in theirs.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.05, 0.1)
        torch.nn.init.constant_(norm.bias, 1)
        norm.momentum = 1.0
    with torch.no_grad():
        theirs(input)
    for norm in norms:
        norm.running_var.clamp_(min=1e-2)
    ours.load_state_dict(theirs.state_dict())


def run(theirs: torch.nn.Module, ours: Any, input: torch.Tensor, results: float, gradients: float) -> None:
    """Forward and backward through all outputs at once; relative tolerances of results and of gradients."""
    theirs.zero_grad()
    ours.zero_grad()
    expected, actual = outputs(theirs(input)), outputs(ours(genesis.from_torch(input)))
    assert list(actual) == list(expected)
    weights = {key: torch.randn_like(value) for key, value in expected.items()}
    sum((value * weights[key]).sum() for key, value in expected.items()).backward()
    sum((value * genesis.from_torch(weights[key])).sum() for key, value in actual.items()).backward()
    for key, value in expected.items():
        assert_close(actual[key].detach(), value.detach(), results, key)
    # A gradient that is zero but for rounding (a bias before a norm has such) is compared on the scale of the others.
    floor = 1e-3 * max(parameter.grad.abs().max().item() for parameter in theirs.parameters())
    for (key, mine), parameter in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert_close(mine.grad, parameter.grad, gradients, key, floor)
    for (key, mine), buffer in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert_close(mine, buffer, results, key)


def outputs(result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else {"out": result}


def assert_close(mine: genesis.Tensor, theirs: torch.Tensor, relative: float, name: str, floor: float = 0) -> None:
    """No element differs by more than relative of the largest."""
    actual, expected = mine.cpu().numpy(), theirs.cpu().numpy()
    bound = relative * max(float(np.abs(expected).max()), floor)
    assert float(np.abs(actual - expected).max()) <= bound, name
