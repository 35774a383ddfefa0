"""embedding_bag and the functions beside it: refusals, both devices; OpInfo compares their values with PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis

INDEX = torch.tensor([1, 3, 3, 0, 5, 2, 1])
OFFSETS = [[0, 2, 2, 5], [0, 7, 7], [0], [0, 0, 3]]  # some bags are empty


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
@pytest.mark.parametrize("padding_idx", [None, 3, -1])
def test_bags(offsets: list[int], mode: str, padding_idx: int | None) -> None:
    starts = torch.tensor(offsets)
    for include_last_offset in (False, True):
        if include_last_offset and offsets[-1] != len(INDEX):
            starts = torch.tensor([*offsets, len(INDEX)])

        def of(bag: Any, last: bool = include_last_offset) -> Any:
            return lambda w, i, o: bag(i, w, o, mode=mode, padding_idx=padding_idx, include_last_offset=last)

        assert_agreement(of(F.embedding_bag), of(TF.embedding_bag), normal(6, 3), INDEX, starts)


def test_gradients_by_frequency() -> None:
    """As those of F.embedding; PyTorch's embedding_bag divides by the counts of other rows (2.13, CPU)."""
    found, expected = (genesis.ones(6, 3, requires_grad=True) for _ in range(2))
    index = to_genesis(INDEX)
    F.embedding_bag(index, found, genesis.tensor([0, 2]), mode="sum", scale_grad_by_freq=True).sum().backward()
    F.embedding(index, expected, scale_grad_by_freq=True).sum().backward()
    assert found.grad is not None
    assert expected.grad is not None
    assert found.grad.tolist() == expected.grad.tolist()


def test_bags_on_a_cuda_device(cuda: str) -> None:
    layer = nn.EmbeddingBag(6, 3, mode="mean", padding_idx=3)
    twin = nn.EmbeddingBag.from_pretrained(layer.weight.detach().clone(), freeze=False, padding_idx=3).to("cuda")
    index, offsets = to_genesis(INDEX), genesis.tensor([0, 2, 2, 5])
    expected, found = layer(index, offsets), twin(index.to("cuda"), offsets.to("cuda"))
    expected.sum().backward()
    found.sum().backward()
    assert_close(found.cpu(), expected.detach().to_torch(), 1e-6)
    assert layer.weight.grad is not None
    assert twin.weight.grad is not None
    assert_close(twin.weight.grad.cpu(), layer.weight.grad.to_torch(), 1e-6)


def test_layers_print_and_limit_norms_as_pytorchs() -> None:
    for name, kwargs in (
        ("EmbeddingBag", {"max_norm": 1.0, "mode": "sum", "padding_idx": 2}),
        ("Embedding", {"max_norm": 0.5, "norm_type": 1.0, "padding_idx": -1, "scale_grad_by_freq": True}),
    ):
        theirs, ours = getattr(torch.nn, name)(6, 3, **kwargs), getattr(nn, name)(6, 3, **kwargs)
        assert repr(ours) == repr(theirs)
        ours.load_state_dict(theirs.state_dict())
        index = torch.tensor([[1, 0], [5, 4]])
        assert_close(ours(to_genesis(index)), theirs(index), 1e-5)
        assert_close(ours.weight, theirs.weight, 1e-5)


def test_fractional_pooling_on_a_cuda_device(cuda: str) -> None:
    x, draws = normal(2, 3, 9, 8, dtype=torch.float32), torch.rand(2, 3, 2)
    expected = TF.fractional_max_pool2d(x, (2, 3), (4, 5), return_indices=True, _random_samples=draws)
    call: Any = ((2, 3), (4, 5), None, True, to_genesis(draws).to("cuda"))
    found = F.fractional_max_pool2d(to_genesis(x).to("cuda"), *call)
    for mine, other in zip(found, expected, strict=True):
        assert_close(mine.cpu(), other, 0.0)


def test_old_names_warn() -> None:
    x = genesis.ones(1, 1, 2, 2)
    for name in ("upsample", "upsample_nearest", "upsample_bilinear"):
        with pytest.warns(UserWarning, match=f"F.{name} is the old name of F.interpolate"):
            assert getattr(F, name)(x, 4).shape == (1, 1, 4, 4)
    with pytest.warns(FutureWarning, match="nn.NLLLoss2d is the old name of nn.NLLLoss"):
        nn.NLLLoss2d()


@pytest.mark.parametrize("name", ["max_pool1d", "max_pool2d"])
def test_with_indices(name: str) -> None:
    x = normal(2, 3, *[8] * int(name[-2]))
    for mine, other in zip(
        getattr(F, f"{name}_with_indices")(to_genesis(x), 2), getattr(TF, f"{name}_with_indices")(x, 2), strict=True
    ):
        assert_close(mine, other)
    for mine, other in zip(
        getattr(F, f"adaptive_{name}_with_indices")(to_genesis(x), 3),
        getattr(TF, f"adaptive_{name}_with_indices")(x, 3), strict=True,
    ):  # fmt: skip
        assert_close(mine, other)


W, I, O = genesis.ones(6, 3), genesis.tensor([1, 2, 3]), genesis.tensor([0, 2])  # noqa: E741
REFUSALS: list[tuple[Any, type[Exception], str]] = [
    (lambda: F.embedding_bag(I, W), ValueError, "'offsets': expected a tensor, as input has 1 dimension, got None"),
    (lambda: F.embedding_bag(I.reshape(1, 3), W, O), ValueError, "'offsets': expected None, as input has 2 dimensions"),
    (
        lambda: F.embedding_bag(I, W, O, mode="min"),
        ValueError,
        '\'mode\': expected "mean", "sum" or "max", got \'min\'',
    ),
    (lambda: F.embedding_bag(I, W, O + 1), ValueError, "'offsets': expected 0 as the first entry, got 1"),
    (lambda: F.embedding_bag(I, W, O * 2), ValueError, "'offsets': expected numbers that rise to at most 3"),
    (lambda: F.embedding_bag(I, W, O.float()), DTypeError, "'offsets': expected int64 or int32"),
    (
        lambda: F.embedding_bag(I, W, O, per_sample_weights=W[0]),
        ValueError,
        "'per_sample_weights': expe",
    ),
    (lambda: F.embedding_bag(I, W, O, mode="sum", per_sample_weights=W[0, :2]), ShapeError, "the shape of input"),
    (
        lambda: F.embedding_bag(I, W, O, mode="max", scale_grad_by_freq=True),
        ValueError,
        "'scale_grad_by_freq': exp",
    ),
    (lambda: F.embedding_bag(I, W, O, padding_idx=6), ValueError, "'padding_idx': expected a row in"),
    (lambda: nn.EmbeddingBag(3, 2, sparse=True), ValueError, "'sparse': expected False"),
    (lambda: nn.Embedding(3, 2, sparse=True), ValueError, "'sparse': expected False"),
    (lambda: F.pdist(W[0]), ShapeError, "'input': expected 2 dimensions"),
    (lambda: F.pdist(W, -1.0), ValueError, "'p': expected a number >= 0"),
    (lambda: F.fractional_max_pool2d(genesis.ones(1, 4, 4), 2), ValueError, "'output_size': expected a size, or"),
    (
        lambda: F.fractional_max_pool2d(genesis.ones(1, 4, 4), 2, 4),
        ShapeError,
        "expected at least 5 elements",
    ),
    (
        lambda: F.fractional_max_pool2d(genesis.ones(1, 4, 4), 2, output_ratio=1.5),
        ValueError,
        "'output_ratio': exp",
    ),
    (lambda: nn.FractionalMaxPool2d(2), ValueError, "'output_size': expected either it or output_ratio"),
    (lambda: F.linear_cross_entropy(W, W[:, :2], I), ShapeError, r"'linear_weight': expected \(C, …, 3\)"),
    (lambda: nn.LinearCrossEntropyLoss(3, 4, label_smoothing=2), ValueError, "'label_smoothing': expected a number in"),
    (lambda: nn.CrossMapLRN2d(3)(W), ShapeError, "'input': expected 4 dimensions"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[each[2][:40] for each in REFUSALS])
def test_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
