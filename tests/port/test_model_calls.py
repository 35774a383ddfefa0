"""Calls of model files that had no counterpart, beside PyTorch's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis

X = torch.arange(24.0).reshape(2, 3, 4)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda t, x: x.reshape(shape=(4, 6)),
    "view": lambda t, x: x.view(size=(6, 4)),
    "permute": lambda t, x: x.permute(dims=(2, 0, 1)),
    "expand": lambda t, x: x[:, :1].expand(size=(2, 5, 4)),
    "repeat": lambda t, x: x.repeat(repeats=(1, 2, 1)),
    "tile": lambda t, x: x.tile(dims=(2,)),
    "flip": lambda t, x: x.flip(dims=(0, 2)),
    "zeros": lambda t, x: t.zeros(size=(2, 1)),
    "ones": lambda t, x: t.ones(size=[3]),
    "empty": lambda t, x: t.empty(size=(0, 2)),
    "divide": lambda t, x: t.divide(x, 3, rounding_mode="floor") + t.true_divide(x, 2) + x.multiply(2).subtract(1),
    "concat": lambda t, x: t.concat([x, t.negative(x)], dim=1).absolute(),
    "meshgrid": lambda t, x: t.stack(t.meshgrid(x[0, 0], x[0, :, 0], indexing="xy")),
    "unique": lambda t, x: (x // 5).unique(),
    "repeat_interleave": lambda t, x: x.repeat_interleave(t.tensor([2, 0, 1]), dim=1, output_size=3),
    "diff": lambda t, x: (x * x).diff(dim=0, prepend=x[:1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_in_pytorch(name: str) -> None:
    expected, actual = CALLS[name](torch, X), CALLS[name](genesis, genesis.from_torch(X))
    assert actual.shape == tuple(expected.shape)
    assert actual.tolist() == expected.tolist()


def test_lists_of_modules_add_up() -> None:
    nn = genesis.nn
    layers = nn.ModuleList([nn.ReLU()])
    same = layers
    layers += [nn.Tanh()]
    assert same is layers
    both = operator.add(layers, [nn.GELU()])
    assert [type(each).__name__ for each in both] == ["ReLU", "Tanh", "GELU"]
    assert len(layers) == 2


@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_norms_are_reset(norm: str) -> None:
    layer = getattr(genesis.nn, norm)(3)
    for parameter in layer.parameters():
        genesis.nn.init.constant_(parameter, 7.0)
    layer.reset_parameters()
    assert [parameter.tolist() for parameter in layer.parameters()] == [[1.0] * 3, [0.0] * 3][: len(layer.state_dict())]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda x: genesis.zeros(2, size=(2,)), TypeError, "zeros: argument 'size': expected sizes by position or by"),
        (lambda x: genesis.meshgrid(x), ValueError, "meshgrid: argument 'tensors': expected at most 1 dimension each"),
        (lambda x: genesis.meshgrid(), TypeError, "meshgrid: argument 'tensors': expected one tensor or more"),
        (lambda x: genesis.meshgrid(x[0], indexing="yx"), ValueError, "'indexing': expected 'ij' or 'xy', got 'yx'"),
        (lambda x: genesis.meshgrid(x[0], x[0].int()), TypeError, "expected one dtype, genesis.float32"),
        (lambda x: x.repeat_interleave(1.5), TypeError, "'repeats': expected an int, got 1.5"),
        (lambda x: x.repeat_interleave(x[0]), TypeError, "'repeats': expected int64 or int32, got genesis.float32"),
        (lambda x: x.repeat_interleave(-1), ValueError, "'repeats': expected numbers of at least 0, got a negative"),
        (lambda x: x.repeat_interleave(genesis.tensor([1, 2]), 1), ValueError, "expected 1 number, or 3, got shape"),
        (lambda x: x.repeat_interleave(2, 0, output_size=3), ValueError, "'output_size': expected 4, got 3"),
        (lambda x: x.diff(n=-1), ValueError, "diff: argument 'n': expected at least 0, got -1"),
        (lambda x: x.sum().diff(), ValueError, "diff: argument 'input': expected at least 1 dimension, got a 0-d"),
        (lambda x: x[:, :0].unique(dim=0), ValueError, "unique: argument 'input': expected slices with elements"),
        (lambda x: genesis.unique([1]), TypeError, "unique: argument 'input': expected a tensor, got list"),
    ],
)
def test_wrong_calls(call: Callable[[Any], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call(genesis.ones(2, 3))
    assert message in str(caught.value)


@pytest.mark.parametrize("pool", ["adaptive_avg_pool2d", "avg_pool2d"])
def test_pooled_means_read_no_values_in_backward(pool: str) -> None:
    def gated(t: Any, x: Any) -> Any:
        y = x * 2
        y *= getattr(t.nn.functional, pool)(y, (1, 1) if pool.startswith("adaptive") else (3, 4))
        y.square().sum().backward()
        return x.grad

    x = X[None].clone()
    if pool == "avg_pool2d":  # PyTorch saves its input and refuses; the gradient is that of the sum out of place
        y = x.clone().requires_grad_()
        ((y * 2) * (y * 2).mean((2, 3), keepdim=True)).square().sum().backward()
        expected = y.grad
    else:
        expected = gated(torch, x.clone().requires_grad_())
    actual = gated(genesis, genesis.from_torch(x).requires_grad_())
    torch.testing.assert_close(actual.to_torch(), expected)
