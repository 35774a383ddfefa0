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
    "arange to an end": lambda t, x: t.arange(end=3),
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


def test_sizes_are_given_once() -> None:
    with pytest.raises(TypeError, match="zeros: argument 'size': expected sizes by position or by keyword, got both"):
        genesis.zeros(2, size=(2,))
    with pytest.raises(TypeError, match="reshape: argument 'shape': expected a sequence of ints"):
        genesis.ones(2).reshape(1, shape=(2,))


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


def test_an_element_is_looked_for_in_all_dimensions() -> None:
    for t, x in ((torch, X), (genesis, genesis.from_torch(X))):
        own: Any = t
        assert 23 in x
        assert 23.5 not in x
        assert own.tensor([4.0, -1.0, -1.0, -1.0]) in x  # broadcast: one equal element will do
        assert x[0, 0, 0] not in x[1]
    assert True in genesis.tensor([[False, True]])
    with pytest.raises(TypeError, match="in: argument 'element': expected a tensor or a number, got str"):
        assert "a" in genesis.ones(2)
    with pytest.raises(TypeError, match="arange: argument 'end': expected a number, got None"):
        genesis.arange()


def test_embeddings_of_given_vectors() -> None:
    table = genesis.ones(3, 2)
    state = genesis.get_rng_state()
    layer = genesis.nn.Embedding(3, 2, _weight=table, _freeze=True)
    frozen = genesis.nn.Embedding.from_pretrained(table)
    assert (genesis.get_rng_state() == state).all()  # PyTorch draws nothing either
    for each in (layer, frozen):
        assert not each.weight.requires_grad
        assert each.weight.data_ptr() == table.data_ptr()
    assert genesis.nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad
    assert not genesis.nn.Embedding(3, 2, _freeze=True).weight.requires_grad
    with pytest.raises(ValueError, match=r"Embedding: argument '_weight': expected shape \(2, 2\), got \(3, 2\)"):
        genesis.nn.Embedding(2, 2, _weight=table)


def test_attention_is_reset_by_its_private_name() -> None:
    attention = genesis.nn.MultiheadAttention(4, 2)
    genesis.nn.init.ones_(attention.in_proj_bias)
    attention._reset_parameters()
    assert not attention.in_proj_bias.any()


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0), (2, 0, 1, 3)], ids=str)
def test_dropout_of_transposed_tensors_drops_what_pytorch_drops(dims: tuple[int, ...], p: float) -> None:
    x = torch.ones(2, 3, 4, 5).permute(dims)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(x, p)
    genesis.manual_seed(3)
    assert torch.equal(genesis.nn.functional.dropout(genesis.from_torch(x), p).to_torch(), expected)
