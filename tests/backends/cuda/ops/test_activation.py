"""Activations and their backwards against torch.autograd on the CPU, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from genesis.backends.backend import Backend

# torch's function, its arguments, and does the backward take the output?
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[Any, ...], bool]] = {
    "relu": (F.relu, (), True),
    "leaky_relu": (F.leaky_relu, (0.1,), False),
    "elu": (F.elu, (1.3,), False),
    "gelu": (lambda x, approximate: F.gelu(x, approximate=approximate), ("none",), False),
    "gelu tanh": (lambda x, approximate: F.gelu(x, approximate=approximate), ("tanh",), False),
    "silu": (F.silu, (), False),
    "softplus": (F.softplus, (2.0, 5.0), False),
    "hardswish": (F.hardswish, (), False),
    "hardsigmoid": (F.hardsigmoid, (), False),
    "sigmoid": (torch.sigmoid, (), True),
    "tanh": (torch.tanh, (), True),
}

OF_OUTPUT = {
    "relu": lambda grad, y: grad * (y > 0),
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "tanh": torch.ops.aten.tanh_backward,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_activation_and_its_backward(cuda: Backend, put: Any, get: Any, case: str, dtype: torch.dtype) -> None:
    function, arguments, from_output = CASES[case]
    op = case.split()[0]
    corners = torch.tensor([0.0, -0.0, 3.0, -3.0, 50.0, -50.0, 6.0, 2.5])
    x = torch.cat([corners, 3 * torch.randn(40, generator=torch.manual_seed(0))]).to(dtype)
    grad = torch.randn(48, generator=torch.manual_seed(1)).to(dtype)
    exact = x.double().clone().requires_grad_()
    y = function(exact, *arguments)
    y.backward(grad.double())
    assert exact.grad is not None
    expected = exact.grad
    if op == "hardsigmoid":  # torch holds the 1/6 of its derivative in float32
        expected = grad.double() * ((x > -3) & (x < 3)) / 6
    saved = (y if from_output else exact).detach().to(dtype)
    if from_output:  # of the output as it was rounded
        expected = OF_OUTPUT[op](grad.double(), saved.double())
    relative = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    tolerance = {"rtol": relative, "atol": relative * 0.1}

    result = getattr(cuda, op)(put(x), *arguments)
    torch.testing.assert_close(get(result), y.detach().to(dtype), **tolerance)
    grad_input = getattr(cuda, f"{op}_backward")(put(grad), put(saved), *arguments)
    torch.testing.assert_close(get(grad_input), expected.to(dtype), **tolerance)


def test_relu_keeps_nan(cuda: Backend, put: Any, get: Any) -> None:
    assert get(cuda.relu(put(torch.tensor([float("nan"), -1.0])))).isnan().tolist() == [True, False]


@pytest.mark.parametrize("case", [case for case in CASES if "gelu" not in case])  # PyTorch's own differ there
def test_infinities(cuda: Backend, put: Any, get: Any, case: str) -> None:
    function, arguments, _ = CASES[case]
    x = torch.tensor([-float("inf"), float("inf"), float("nan"), 1.0])
    torch.testing.assert_close(get(getattr(cuda, case)(put(x), *arguments)), function(x, *arguments), equal_nan=True)


def test_where_relu_is_flat_an_infinite_gradient_ends(cuda: Backend, put: Any, get: Any) -> None:
    grad, y = torch.full((3,), float("inf")), torch.tensor([0.0, 2.0, float("nan")])
    assert get(cuda.relu_backward(put(grad), put(y))).tolist() == [0.0, float("inf"), float("inf")]


def test_backward_broadcasts_an_expanded_gradient(cuda: Backend, put: Any, get: Any) -> None:
    x = torch.randn(3, 4)
    grad = torch.ones(()).expand(3, 4)
    torch.testing.assert_close(get(cuda.relu_backward(put(grad), put(x))), (x > 0).float())
