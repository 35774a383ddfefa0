"""The dense layer, embedding, one_hot and dropout: what OpInfo's samples don't cover, and every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis


@pytest.mark.parametrize("shape", [(3,), (5, 3), (0, 3), (2, 4, 3)])
@pytest.mark.parametrize("bias", [None, normal(4)])
def test_linear(shape: tuple[int, ...], bias: Any) -> None:
    assert_agreement(F.linear, TF.linear, normal(*shape), normal(4, 3), bias)


def test_linear_with_a_vector_as_weight() -> None:
    assert_agreement(F.linear, TF.linear, normal(5, 3), normal(3))
    bias = torch.tensor(0.5, dtype=torch.float64)
    assert_agreement(F.linear, lambda x, w, b: x @ w + b, normal(5, 3), normal(3), bias)


def test_linear_on_transposed_operands() -> None:
    assert_agreement(F.linear, TF.linear, normal(3, 5).T, normal(3, 4).T, normal(4))


INDEX = torch.tensor([[1, 3, 1], [0, 1, 4]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"padding_idx": -1}, {"scale_grad_by_freq": True}])
def test_embedding(dtype: torch.dtype, options: dict[str, Any]) -> None:
    index = INDEX.to(dtype)
    mine = to_genesis(index)
    assert_agreement(
        lambda w: F.embedding(mine, w, **options), lambda w: TF.embedding(index, w, **options), normal(5, 3)
    )


@pytest.mark.parametrize("norm_type", [2.0, 1.0])
def test_embedding_with_a_limited_norm(norm_type: float) -> None:
    ours, theirs = to_genesis(normal(5, 3) * 2), normal(5, 3) * 2
    before = theirs.clone()
    y = F.embedding(to_genesis(INDEX), ours, max_norm=1.0, norm_type=norm_type)
    assert_close(y, TF.embedding(INDEX, theirs, max_norm=1.0, norm_type=norm_type), 1e-6)
    assert_close(ours, theirs, 1e-6)
    assert not torch.equal(theirs, before)


def test_one_hot() -> None:
    assert F.one_hot(to_genesis(INDEX), 6).tolist() == TF.one_hot(INDEX, 6).tolist()
    assert F.one_hot(genesis.zeros(0, 2).long(), 3).shape == (0, 2, 3)


@pytest.mark.parametrize("p", [0.2, 1.0])
def test_dropout_draws_the_numbers_of_pytorch(p: float) -> None:
    x = normal(40, 30, dtype=torch.float32)
    mine, theirs = to_genesis(x, True), x.clone().requires_grad_()
    genesis.manual_seed(7)
    y = F.dropout(mine, p)
    torch.manual_seed(7)
    expected = TF.dropout(theirs, p)
    assert_close(y, expected, 1e-6)
    y.sum().backward()
    expected.sum().backward()
    assert_close(mine.grad, theirs.grad, 1e-6)


def test_dropout_that_drops_nothing_is_the_input_itself() -> None:
    x = genesis.ones(3)
    assert F.dropout(x, 0.0) is x
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout2d(genesis.ones(1, 1, 2, 2), 0.5, training=False).sum().item() == 4


def test_dropout_in_place() -> None:
    x = genesis.ones(100)
    y = F.dropout(x, 0.5, inplace=True)
    assert y is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_dropout2d_drops_whole_channels() -> None:
    y = F.dropout2d(genesis.ones(8, 8, 3, 3), 0.5)
    assert set(y.sum((2, 3)).flatten().tolist()) == {0.0, 18.0}


def test_dropout2d_takes_a_matrix_for_channels_without_pixels() -> None:
    with pytest.warns(UserWarning, match=r"dropout2d: input of 2 dimensions is taken for \(N, C, …\)"):
        y = F.dropout2d(genesis.ones(8, 8), 0.5)
    assert set(y.flatten().tolist()) == {0.0, 2.0}


def test_dropout_drops_the_same_elements_in_every_memory_format() -> None:
    x = torch.randn(2, 3, 5, 5)
    torch.manual_seed(4)
    expected = torch.dropout(x, 0.3, True).numpy()
    for layout in (genesis.contiguous_format, genesis.channels_last):
        genesis.manual_seed(4)
        y = F.dropout(genesis.from_torch(x).contiguous(memory_format=layout), 0.3)
        np.testing.assert_array_equal(y.numpy(), expected)


X, W = genesis.zeros(2, 3), genesis.zeros(4, 3)
REFUSALS = [
    (lambda: F.linear(X, W[:, :2]), ShapeError, r"'input': expected a last dimension of 2, as weight \(4, 2\) takes"),
    (lambda: F.linear(X, W, W[0]), ShapeError, r"'bias': expected shape \(4,\), got \(3,\)"),
    (lambda: F.linear(X, W.reshape(1, 4, 3)), ShapeError, "'weight': expected 1 or 2 dimensions"),
    (lambda: F.linear(X, W.half()), DTypeError, r"'weight': expected the dtype of input, genesis\.float32"),
    (lambda: F.linear(X, 2.0), DTypeError, "'weight': expected a Tensor, got float"),
    (lambda: F.embedding(X, W), DTypeError, r"'input': expected int64 or int32 indices, got genesis\.float32"),
    (lambda: F.embedding(X.long(), W[0]), ShapeError, "'weight': expected 2 dimensions"),
    (lambda: F.embedding(X.long(), W, padding_idx=4), IndexError, r"'padding_idx': expected a row in \[-4, 3\], got 4"),
    (lambda: F.embedding(X.long(), W, sparse=True), ValueError, "'sparse': expected False"),
    (lambda: F.embedding(X.long() + 4, W), IndexError, "out of range"),
    (lambda: F.one_hot(X), DTypeError, "'tensor': expected int64 class indices"),
    (lambda: F.one_hot(X.long() + 3, 3), ValueError, r"'tensor': expected class indices in \[0, 3\), got 3 to 3"),
    (lambda: F.one_hot(X.long() - 1), ValueError, r"'tensor': expected class indices in \[0, 0\), got -1 to -1"),
    (lambda: F.one_hot(X[:0].long()), ValueError, "'num_classes': expected a positive number, or -1 and a tensor"),
    (lambda: F.dropout(X, 1.5), ValueError, r"'p': expected a probability in \[0, 1\], got 1\.5"),
    (lambda: F.dropout(X.long()), DTypeError, "'input': expected a floating dtype"),
    (lambda: F.dropout2d(X[0]), ShapeError, "'input': expected at least 2 dimensions"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
