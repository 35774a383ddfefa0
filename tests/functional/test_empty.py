"""Inputs without elements, forward and backward: shapes and gradients are those of PyTorch, and no process dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from tests.functional.agreement import assert_close, normal

BATCHES = [(0, 6, 9), (0, 6), (0, 6, 3, 3), (3, 6, 0), (2, 6, 0, 4)]
IMAGES = [(0, 3, 8, 8), (0, 3, 8)]


def _of_rank(name: str, *args: Any, **options: Any) -> Callable[..., Any]:
    """The function of that name with 1d or 2d at its end, as the input's rank asks for."""
    return lambda f, x, *rest: getattr(f, f"{name}{x.ndim - 2}d")(x, *rest, *args, **options)


def _kernel(shape: tuple[int, ...], *channels: int) -> tuple[int, ...]:
    return (*channels, *[3] * (len(shape) - 2))


# name → (a function of a library and operands, the shapes of these)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{
        f"batch_norm {shape}, {training=}": (
            lambda f, x, w, b, training=training: f.batch_norm(
                x, w.detach() * 0, w.detach() * 0 + 1, w, b, training=training
            ),
            [shape, (6,), (6,)],
        )
        for shape in BATCHES
        for training in (False, True)
    },
    **{f"group_norm {shape}": (lambda f, x, w, b: f.group_norm(x, 3, w, b), [shape, (6,), (6,)]) for shape in BATCHES},
    "instance_norm": (lambda f, x, w, b: f.instance_norm(x, weight=w, bias=b), [(2, 6, 0, 4), (6,), (6,)]),
    "layer_norm": (lambda f, x, w, b: f.layer_norm(x, (4,), w, b), [(2, 0, 4), (4,), (4,)]),
    "rms_norm": (lambda f, x, w: f.rms_norm(x, (4,), w), [(0, 4), (4,)]),
    **{f"max_pool {shape}": (_of_rank("max_pool", 2), [shape]) for shape in IMAGES},
    **{f"avg_pool {shape}": (_of_rank("avg_pool", 2), [shape]) for shape in IMAGES},
    **{f"adaptive_avg_pool {shape}": (_of_rank("adaptive_avg_pool", 2), [shape]) for shape in IMAGES},
    **{f"conv {shape}": (_of_rank("conv", padding=1), [shape, _kernel(shape, 4, 3), (4,)]) for shape in IMAGES},
    **{f"grouped conv {shape}": (_of_rank("conv", groups=3), [shape, _kernel(shape, 3, 1)]) for shape in IMAGES},
    **{
        f"conv_transpose {shape}": (_of_rank("conv_transpose", stride=2), [shape, _kernel(shape, 3, 4), (4,)])
        for shape in IMAGES
    },
    **{f"interpolate {shape}": (lambda f, x: f.interpolate(x, scale_factor=2.0), [shape]) for shape in IMAGES},
    "linear": (lambda f, x, w, b: f.linear(x, w, b), [(0, 4), (3, 4), (3,)]),
    "linear of nothing": (lambda f, x, w, b: f.linear(x, w, b), [(2, 0), (3, 0), (3,)]),
    "attention": (lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v), [(0, 2, 3, 4)] * 3),
    "attention to nothing": (
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        [(1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 4)],
    ),
    "softmax": (lambda f, x: f.softmax(x, 1), [(2, 0)]),
    "mse_loss": (lambda f, x, y: f.mse_loss(x, y), [(0, 3), (0, 3)]),
    "sum of a loss": (lambda f, x, y: f.l1_loss(x, y, reduction="sum"), [(0, 3), (0, 3)]),
}


@pytest.mark.parametrize("case", CASES)
def test_empty_inputs(case: str, device: str) -> None:
    function, shapes = CASES[case]
    theirs = [normal(*shape, dtype=torch.float32).requires_grad_() for shape in shapes]
    mine = [genesis.from_torch(x.detach().clone()).to(device).requires_grad_() for x in theirs]
    expected, actual = function(TF, *theirs), function(F, *mine)
    assert_close(actual.cpu(), expected, 1e-6)
    expected.backward(torch.ones_like(expected))
    actual.backward(genesis.ones_like(actual))
    for x, x_theirs in zip(mine, theirs, strict=True):
        assert_close(x.grad.cpu(), x_theirs.grad, 1e-6)


def test_the_fused_layer(device: str) -> None:
    layer = genesis.nn.ConvBNReLU(3, 4, 3, padding=1).to(device)
    for training in (True, False):
        x = genesis.zeros(0, 3, 6, 6, device=device).requires_grad_()
        y = layer.train(training)(x)
        y.sum().backward()
        assert (y.shape, x.grad.shape) == ((0, 4, 6, 6), x.shape)
        assert not next(layer.parameters()).grad.any()
