"""Batches of Genesis tensors, from this process and from workers; reproducible orders; prefetching."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import genesis
from genesis.data import DataLoader, Dataset, TensorDataset, default_collate, prefetch, random_split
from genesis.errors import DTypeError, ShapeError


class Pair(NamedTuple):
    left: Any
    right: Any


class Samples(Dataset):
    """Everything that a sample may hold."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "array": np.full((2, 3), index, np.float32),
            "tensor": genesis.full((2,), float(index), dtype=genesis.bfloat16),
            "torch": torch.tensor(index, dtype=torch.int8),
            "number": index,
            "nested": (0.5, [True, "name"]),
            "pair": Pair(index, genesis.tensor(index)),
        }


class Draws(Dataset):
    """What the random generators of a worker give."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return index, genesis.rand(()), np.random.random(), random.random()


def first_tensors(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"stacked": genesis.stack([sample["tensor"] for sample in samples]), "count": len(samples)}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches(num_workers: int) -> None:
    batches = list(DataLoader(Samples(), batch_size=2, num_workers=num_workers))
    assert len(batches) == 3
    batch = batches[1]
    for name, shape, dtype in [
        ("array", (2, 2, 3), genesis.float32), ("tensor", (2, 2), genesis.bfloat16), ("torch", (2,), genesis.int8),
        ("number", (2,), genesis.int64),
    ]:  # fmt: skip
        assert isinstance(batch[name], genesis.Tensor)
        assert (batch[name].shape, batch[name].dtype) == (shape, dtype)
        assert batch[name].float().reshape(2, -1)[:, 0].tolist() == [2.0, 3.0]
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].right.tolist() == [2, 3]
    assert batch["nested"][0].dtype is genesis.float64
    assert batch["nested"][1][0].dtype is genesis.bool
    assert list(batch["nested"][1][1]) == ["name", "name"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_own_collate_fn(num_workers: int) -> None:
    loader = DataLoader(Samples(), batch_size=5, collate_fn=first_tensors, num_workers=num_workers)
    (batch,) = loader
    assert isinstance(batch["stacked"], genesis.Tensor)
    assert batch["stacked"].float()[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert batch["count"] == 5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_without_batches(num_workers: int) -> None:
    samples = list(DataLoader(Samples(), batch_size=None, num_workers=num_workers))
    assert samples[3]["tensor"].tolist() == [3.0, 3.0]
    assert isinstance(samples[3]["array"], genesis.Tensor)
    assert samples[3]["number"] == 3


def test_the_order_is_pytorchs_and_follows_the_seed() -> None:
    data = TensorDataset(genesis.arange(20))
    theirs = torch.utils.data.DataLoader(torch.arange(20), batch_size=6, shuffle=True, drop_last=True)

    def order() -> list[Any]:
        genesis.manual_seed(3)
        return [batch.tolist() for (batch,) in DataLoader(data, 6, True, drop_last=True)]

    torch.manual_seed(3)
    expected = [batch.tolist() for batch in theirs]
    assert order() == order() == expected


def test_workers_draw_different_and_reproducible_numbers() -> None:
    def draw(seed: int) -> list[Any]:
        genesis.manual_seed(seed)
        batches = list(DataLoader(Draws(), batch_size=3, num_workers=2))
        return [[value.tolist() for value in batch] for batch in batches]

    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)
    for one, other in zip(first[0][1:], first[1][1:], strict=True):  # the batches of two workers
        assert one != other


def test_training_on_batches_leaves_the_data_alone() -> None:
    values = genesis.arange(4.0)
    for (batch,) in DataLoader(TensorDataset(values), batch_size=2):
        batch.zero_()
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_default_collate() -> None:
    assert default_collate([(1, genesis.ones(2)), (2, genesis.zeros(2))])[1].tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_samplers_of_a_loader_are_of_the_public_classes() -> None:
    data = TensorDataset(genesis.arange(4))
    assert isinstance(DataLoader(data, shuffle=True).sampler, genesis.data.RandomSampler)
    assert isinstance(DataLoader(data).sampler, genesis.data.SequentialSampler)
    assert not isinstance(DataLoader(data).sampler, genesis.data.RandomSampler)


def test_random_split() -> None:
    genesis.manual_seed(0)
    left, right = random_split(TensorDataset(genesis.arange(10)), [0.7, 0.3])
    assert (len(left), len(right)) == (7, 3)
    assert sorted(sample.item() for part in (left, right) for (sample,) in part) == list(range(10))


def test_bad_tensors() -> None:
    with pytest.raises(ShapeError, match=r"argument 'tensors\[1\]': expected the first size of .*, got shape \(2,\)"):
        TensorDataset(genesis.ones(3), genesis.ones(2))
    with pytest.raises(ShapeError, match=r"got shape \(\)"):
        TensorDataset(genesis.tensor(1))
    with pytest.raises(DTypeError, match="expected a Tensor, got ndarray"):
        TensorDataset(np.ones(3))
    with pytest.raises(ValueError, match="expected at least one tensor, got none"):
        TensorDataset()


def test_prefetch_on_the_cpu_passes_batches_on() -> None:
    batches = [{"x": genesis.ones(1)}, [genesis.zeros(2)]]
    passed = list(prefetch(batches, "cpu"))
    assert all(one is other for one, other in zip(passed, batches, strict=True))


def test_data_is_imported_on_first_use() -> None:
    assert genesis.data.DataLoader is DataLoader
    with pytest.raises(AttributeError, match=r"^module 'genesis' has no attribute 'nonsense'$"):
        genesis.nonsense  # noqa: B018
