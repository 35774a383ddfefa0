"""create_graph: gradients of gradients beside PyTorch's, over its own samples, in whole programs, on both devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from tests.conformance import second_order
from tests.conformance.opinfo import ITS_WARNINGS, NAMES, OPS
from tests.draws import needs_equal_draws

REFUSED = {"prod", "nn.functional.ctc_loss"}  # samples that are refused by name
NOT_COMPARED = {"nn.functional.linear_cross_entropy"}  # PyTorch's computes its gradients in the forward, as constants


@pytest.mark.filterwarnings(*ITS_WARNINGS)
@pytest.mark.parametrize("name", [name for name in NAMES if name in OPS and name not in NOT_COMPARED])
def test_samples(name: str) -> None:
    """One of each op; `python -m tests.conformance.second_order` compares them all."""
    counts = second_order.check_op(name, most=1)
    assert name in REFUSED or not any("refused" in what for what in counts), counts


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def critic(lib: Any) -> Any:
    lib.manual_seed(0)
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.MaxPool2d(3, 1), nn.ConvTranspose2d(4, 3, 3),
        nn.InstanceNorm2d(3, affine=True), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(12),
        nn.Linear(12, 1),
    ).double()  # fmt: skip


def gradient_penalty(lib: Any) -> Any:
    """WGAN-GP: the penalty's gradients reach the weights."""
    net, x = critic(lib), lib.tensor(values(3, 2, 8, 8), requires_grad=True)
    (grad,) = lib.autograd.grad(net(x).sum(), x, create_graph=True)
    penalty = ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
    penalty.backward()
    return [penalty, x.grad, *(each.grad for each in net.parameters())]


def inner_steps(lib: Any) -> Any:
    """MAML: differentiate through two steps of gradient descent."""
    x, y = lib.tensor(values(5, 3)), lib.tensor(values(5, 1, seed=1))
    start = lib.tensor(values(3, 1, seed=2), requires_grad=True)
    w = start
    for _ in range(2):
        loss = lib.nn.functional.mse_loss(lib.tanh(x @ w), y)
        (grad,) = lib.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * grad
    ((x @ w - y) ** 2).sum().backward()
    return [start.grad]


def third_order(lib: Any) -> Any:
    x, w = lib.tensor(values(2, 3, 6, 6), requires_grad=True), lib.tensor(values(4, 3, 3, 3), requires_grad=True)
    total = lib.tanh(lib.nn.functional.conv2d(x, w)).sum()
    found = []
    for _ in range(3):
        grads = lib.autograd.grad(total, (x, w), create_graph=True)
        found += grads
        total = sum((grad * grad).sum() for grad in grads)
    return found


def accumulated(lib: Any) -> Any:
    """backward(create_graph=True): the gradient in .grad has a graph; hooks see and replace tensors with theirs."""
    x = lib.tensor(values(4), requires_grad=True)
    y = x.exp()
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    x.register_hook(lambda grad: grad * x)
    (y * y).sum().backward(create_graph=True)
    (second,) = lib.autograd.grad(x.grad.sum(), x, retain_graph=True)
    return [x.grad, second, y.grad]


def a_function_of_users(lib: Any) -> Any:
    class Cube(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, factor: Any) -> Any:
            y = x.exp()
            ctx.save_for_backward(x, y, factor)
            return y * factor

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, _, factor = ctx.saved_tensors
            return grad * x * x * factor, (grad * x).sum()

    x, factor = lib.tensor(values(4), requires_grad=True), lib.tensor(2.0, dtype=lib.float64, requires_grad=True)
    first = lib.autograd.grad(Cube.apply(x * 2, factor).sum(), (x, factor), create_graph=True)
    return [*first, *lib.autograd.grad(sum(each.sum() for each in first), (x, factor))]


def changed_in_place(lib: Any) -> Any:
    x = lib.tensor(values(3, 4), requires_grad=True)
    y = x * x
    y[2].copy_(x[0])
    y[1, 1].fill_(2.0)
    y[0] *= x[1]
    y[:, 1].exp_()
    (grad,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
    return [grad, *lib.autograd.grad(grad.square().sum(), x)]


def of_inputs_alone(lib: Any) -> Any:
    x, unused = (lib.tensor(values(3), requires_grad=True) for _ in range(2))
    y = x * x
    found = lib.autograd.grad((y * x).sum(), (y, unused), create_graph=True, allow_unused=True)
    (y * 3).sum().backward(inputs=[x], create_graph=True)
    return [found[0], x.grad]


PROGRAMS: list[Callable[[Any], Any]] = [
    gradient_penalty, inner_steps, third_order, accumulated, a_function_of_users, of_inputs_alone,
    changed_in_place,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@needs_equal_draws
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[[Any], Any]) -> None:
    for mine, other in zip(program(genesis), program(torch), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-8, atol=1e-10)


def test_the_same_on_a_cuda_device(cuda: str) -> None:
    found = []
    for device in ("cpu", "cuda"):
        genesis.manual_seed(0)
        nn = genesis.nn
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 1)).to(device)
        x = genesis.tensor(values(2, 1, 6, 6).astype("float32"), device=device, requires_grad=True)
        (grad,) = genesis.autograd.grad(net(x).sum(), x, create_graph=True)
        (grad.flatten(1).norm(2, dim=1) - 1).square().mean().backward()
        found.append([each.grad.cpu().numpy() for each in (x, net[0].weight, net[4].weight)])
    for mine, expected in zip(*found, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)


def test_what_is_refused_names_the_op() -> None:
    x = genesis.tensor([2.0, 0.0], requires_grad=True)
    with pytest.raises(NotImplementedError, match="prod: create_graph=True is not supported where an element is zero"):
        genesis.autograd.grad(x.prod(), x, create_graph=True)
    y = genesis.nn.functional.dice_loss(x.reshape(1, 2).sigmoid(), genesis.ones(1, 2))
    with pytest.raises(NotImplementedError, match="DiceLoss: create_graph=True is not supported"):
        genesis.autograd.grad(y, x, create_graph=True)


def test_the_graph_is_kept_unless_it_is_not_wanted() -> None:
    x = genesis.tensor([2.0], requires_grad=True)
    y = (x * x).sum()
    genesis.autograd.grad(y, x, create_graph=True)
    genesis.autograd.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(genesis.errors.GraphError, match="the graph was freed"):
        genesis.autograd.grad(y, x, create_graph=True)
