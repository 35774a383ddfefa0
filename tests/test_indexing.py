"""Indexing and assignment, held against PyTorch: values, gradients, what is a view, which mistakes are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import DTypeError, GraphError, ShapeError
from genesis.functional import indexing

MASK = [[True, False, True, False], [False, False, True, True], [True, True, False, False]]

# (shape, index); tensors in an index are written as torch's and translated
VIEWS: list[tuple[tuple[int, ...], Any]] = [
    ((3, 4), 1),
    ((3, 4), -1),
    ((3, 4), (2, -4)),
    ((3, 4), slice(None)),
    ((3, 4), (slice(None), slice(1, None, 2))),
    ((3, 4), slice(-2, None)),
    ((3, 4), slice(2, 1)),
    ((3, 4), slice(5, 9)),
    ((3, 4), ...),
    ((2, 3, 4), (..., 0)),
    ((2, 3, 4), (1, ..., slice(0, 2))),
    ((3, 4), None),
    ((3, 4), (slice(None), None, 2)),
    ((3, 4), (None, ..., None)),
    ((3, 4), ()),
    ((), ()),
    ((), None),
    ((3, 4), torch.tensor(1)),
    ((3, 4), np.int64(2)),
    ((0, 4), (slice(None), 1)),
]
COPIES: list[tuple[tuple[int, ...], Any]] = [
    ((3, 4), torch.tensor([2, 0, 0])),
    ((3, 4), [2, -1]),
    ((3, 4), np.array([1, 1])),
    ((3, 4), torch.tensor([[0, 1], [2, 0]])),
    ((3, 4), (torch.tensor([0, 1, 2]), torch.tensor([3, 2, 1]))),
    ((3, 4), (torch.tensor([[0], [2]]), torch.tensor([1, 3]))),
    ((3, 4), (slice(None, 2), torch.tensor([3, 0]))),
    ((2, 3, 4), (0, slice(None), torch.tensor([3, 0]))),
    ((2, 3, 4), (torch.tensor([1, 0]), slice(None), torch.tensor([3, 0]))),
    ((2, 3, 4), (slice(None), torch.tensor([2, 0]), torch.tensor([3, 0]))),
    ((2, 3, 4), (None, slice(None), torch.tensor([2, 0]))),
    ((2, 3, 4), (..., torch.tensor([2, 0]))),
    ((3, 4), torch.tensor(MASK)),
    ((3, 4), torch.tensor([True, False, True])),
    ((3, 4), (slice(None), torch.tensor([True, False, True, False]))),
    ((2, 3, 4), (slice(None), torch.tensor(MASK))),
    ((3, 4), (torch.tensor([True, False, True]), 1)),
    ((3, 4), (torch.tensor([True, False, True]), torch.tensor([1, 2]))),
    ((3, 4), True),
    ((3, 4), False),
    ((3, 4), torch.tensor(True)),
    ((3, 4), [True, False, True]),
    ((3, 4), torch.tensor([], dtype=torch.int64)),
    ((3, 4), []),
    ((3, 4), torch.zeros(3, 4, dtype=torch.bool)),
    ((), torch.tensor(True)),
    ((3, 4), torch.tensor([1, 2], dtype=torch.int32)),
]


def ours(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(ours, index))
    return genesis.from_torch(index) if isinstance(index, torch.Tensor) else index


def pair(shape: tuple[int, ...], order: str = "plain") -> tuple[Any, torch.Tensor]:
    """The same numbers in Genesis and in PyTorch; order "strided" puts them into memory with gaps and transposed."""
    values = torch.arange(1.0, 1 + int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    if order == "strided" and shape:
        wide = torch.zeros([2 * size for size in reversed(shape)], dtype=torch.float64)
        window = wide[tuple(slice(0, 2 * size, 2) for size in reversed(shape))]
        values = window.permute(*reversed(range(len(shape)))).copy_(values)
    return genesis.from_torch(values.clone() if order == "plain" else values), values


@pytest.mark.parametrize("order", ["plain", "strided"])
@pytest.mark.parametrize(("shape", "index"), VIEWS + COPIES, ids=str)
def test_reading_and_its_gradient(shape: tuple[int, ...], index: Any, order: str) -> None:
    mine, theirs = pair(shape, order)
    mine.requires_grad_()
    theirs = theirs.detach().clone().requires_grad_()
    result, expected = mine[ours(index)], theirs[index]
    assert result.shape == tuple(expected.shape)
    assert result.tolist() == expected.tolist()
    seed = torch.arange(expected.numel(), dtype=torch.float64).reshape(expected.shape)
    result.backward(genesis.from_torch(seed))
    expected.backward(seed)
    assert mine.grad.tolist() == theirs.grad.tolist()


@pytest.mark.parametrize(("shape", "index"), VIEWS, ids=str)
def test_basic_indexing_shares_memory(shape: tuple[int, ...], index: Any) -> None:
    mine, _ = pair(shape)
    before = mine.array.changes
    view = mine[ours(index)]
    assert view.array.changes is before
    view.fill_(-7.0)
    assert (mine == -7.0).sum().item() == view.numel()


@pytest.mark.parametrize(("shape", "index"), COPIES, ids=str)
def test_indexing_by_tensors_copies(shape: tuple[int, ...], index: Any) -> None:
    mine, theirs = pair(shape)
    mine[ours(index)].fill_(-7.0)
    assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("order", ["plain", "strided"])
@pytest.mark.parametrize(("shape", "index"), VIEWS + COPIES, ids=str)
def test_assigning_numbers_and_tensors(shape: tuple[int, ...], index: Any, order: str) -> None:
    mine, theirs = pair(shape, order)
    theirs = theirs.clone()
    mine[ours(index)] = 0.5
    theirs[index] = 0.5
    assert mine.tolist() == theirs.tolist()
    if not has_repeats(index):
        values = torch.arange(100.0, 100 + theirs[index].numel()).reshape(theirs[index].shape)  # another dtype: cast
        mine[ours(index)] = genesis.from_torch(values)
        theirs[index] = values.double()
        assert mine.tolist() == theirs.tolist()


def has_repeats(index: Any) -> bool:
    return any(
        isinstance(item, torch.Tensor | np.ndarray) and len(np.unique(np.asarray(item))) < np.asarray(item).size
        for item in (index if isinstance(index, tuple) else (index,))
        if not (isinstance(item, torch.Tensor) and item.dtype is torch.bool)
    )


def test_indices_that_are_equal_but_not_the_same_are_told_apart() -> None:
    x, theirs = genesis.arange(12).reshape(3, 4), torch.arange(12).reshape(3, 4)
    step = genesis.tensor(1)
    for index in (1, True, np.int64(1), 1, slice(True), slice(1), slice(np.int64(2)), slice(2), None, (1, None), (1,)):
        assert x[index].tolist() == theirs[index].tolist(), index
    for value in (1, 2, 1):
        step.fill_(value)
        assert x[step].tolist() == theirs[value].tolist()
        assert x[:step].tolist() == theirs[:value].tolist()
    assert [genesis.zeros(*shape)[:, 1:].shape for shape in [(3, 4), (2, 5), (3, 4)]] == [(3, 3), (2, 4), (3, 3)]


def test_only_so_many_indices_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_MOST_PARSED", 4)
    monkeypatch.setattr(indexing, "_parsed", {})
    x = genesis.arange(9)
    assert [x[i].item() for i in range(9)] == list(range(9))
    assert len(indexing._parsed) <= 4


@pytest.mark.parametrize("index", [1, (slice(None), 2), torch.tensor([2, 0]), torch.tensor(MASK)], ids=str)
@pytest.mark.parametrize("needs", ["both", "target", "value"])
def test_assignment_through_the_graph(index: Any, needs: str) -> None:
    gradients = []
    for library, place in ((genesis, ours(index)), (torch, index)):
        x = library.ones(3, 4, dtype=library.float64, requires_grad=needs != "value")
        target = x * 2
        value = library.full(tuple(target[place].shape), 5.0, dtype=library.float64, requires_grad=needs != "target")
        target[place] = value * 3
        assert target.requires_grad
        (target * target).sum().backward()
        gradients.append([None if t.grad is None else t.grad.tolist() for t in (x, value)])
    assert gradients[0] == gradients[1]


ALL = slice(None)
MASKS = [
    ((2, 3, 4), lambda mask: mask), ((2, 3), lambda mask: mask), ((2,), lambda mask: mask),
    ((2,), lambda mask: (mask, ...)), ((3,), lambda mask: (ALL, mask)), ((3, 4), lambda mask: (ALL, mask)),
    ((4,), lambda mask: (..., mask)), ((3,), lambda mask: (..., mask, ALL)), ((3,), lambda mask: (ALL, mask, ..., ALL)),
    ((2,), lambda mask: (mask, 0)), ((3,), lambda mask: (ALL, mask, slice(2))), ((2,), lambda mask: (mask, None)),
]  # fmt: skip


@pytest.mark.parametrize("value", [0, -1.5, torch.tensor(2.0), torch.tensor([[3]])], ids=str)
@pytest.mark.parametrize(("shape", "index"), MASKS)
def test_one_value_where_a_mask_is_true(shape: tuple[int, ...], index: Any, value: Any) -> None:
    mask = torch.arange(math.prod(shape)).reshape(shape) % 3 != 1
    found = []
    for library, convert in ((genesis, genesis.from_torch), (torch, lambda x: x)):
        x = library.ones(2, 3, 4, dtype=library.float64, requires_grad=True)
        each = value
        if isinstance(value, torch.Tensor):
            each = convert(value.clone()).requires_grad_(value.is_floating_point())
        y = x * 2
        y[index(convert(mask))] = each
        (y * y).sum().backward()
        found.append((y.tolist(), x.grad.tolist(), getattr(getattr(each, "grad", None), "tolist", list)()))
    assert found[0] == found[1]


def test_a_mask_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the host need not wait, and a CUDA graph or an ONNX file can hold the assignment."""
    monkeypatch.setattr(indexing.ops, "nonzero", lambda mask: pytest.fail("nonzero"))
    x = genesis.tensor([1.0, 5.0, 2.0])
    x[x > 1.5] = 0
    assert x.index_put_((x == 1,), genesis.tensor(3.0)).tolist() == [3.0, 0.0, 0.0]


def test_assigned_value_is_broadcast_and_its_gradient_summed() -> None:
    target = genesis.zeros(2, 3)
    value = genesis.tensor([[[1.0, 2.0, 3.0]]], requires_grad=True)
    target[:] = value
    assert target.tolist() == [[1, 2, 3], [1, 2, 3]]
    target.sum().backward()
    assert value.grad.tolist() == [[[2, 2, 2]]]


def test_assigning_an_overlapping_part_of_oneself() -> None:
    x = genesis.arange(5)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
    x[1] += 7
    assert x.tolist() == [0, 7, 1, 2, 3]


def test_a_leaf_is_assigned_only_under_no_grad() -> None:
    x = genesis.zeros(3, requires_grad=True)
    with pytest.raises(GraphError, match="a leaf that requires grad can only be changed in place under no_grad"):
        x[0] = 1
    with genesis.no_grad():
        x[0] = 1
    assert x.tolist() == [1, 0, 0]
    assert x.is_leaf


def test_views_and_changes_in_the_graph() -> None:
    weight: Any = genesis.ones((), requires_grad=True)
    base = genesis.zeros(3, requires_grad=True) * 1
    view = base[:2]
    view.add_(1)
    base[0] = weight
    (view * 2).sum().backward()
    assert base.tolist() == [1, 1, 0]
    assert weight.grad.item() == 2


def test_index_put_accumulates() -> None:
    x = genesis.zeros(3)
    index = (genesis.tensor([0, 0, 2]),)
    assert x.index_put(index, genesis.ones(3), accumulate=True).tolist() == [2, 0, 1]
    assert x.tolist() == [0, 0, 0]
    assert x.index_put_(index, genesis.ones(3), accumulate=True) is x
    assert x.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (1.5, DTypeError, "getitem: argument 'index': expected integers, slices, .* got float 1.5"),
        ("a", DTypeError, "got str 'a'"),
        (np.array([0.5]), DTypeError, "got an array of float64"),
        (torch.tensor([0.5]), DTypeError, "got a tensor of genesis.float32"),
        (torch.tensor([1], dtype=torch.uint8), DTypeError, "got a tensor of genesis.uint8"),
        (3, IndexError, "getitem: index 3 is out of bounds for dimension 0 of size 3"),
        ((0, -5), IndexError, "getitem: index -5 is out of bounds for dimension 1 of size 4"),
        ((0, 0, 0), IndexError, "expected at most 2 indices, one for each dimension, got 3"),
        ((..., 0, ...), IndexError, "expected at most one '...', got 2"),
        (slice(None, None, -1), ValueError, "expected a slice with a step of at least 1; use .flip()"),
        (slice(0.5, None), DTypeError, "expected a slice of integers"),
        (slice(None, None, 0), DTypeError, "expected a slice of integers with a step that is not 0"),
        (
            torch.tensor([True, False]),
            IndexError,
            r"a mask of shape \(2,\) does not fit the dimensions \(3,\)",
        ),
        (
            (torch.tensor([0, 1]), torch.tensor([0, 1, 2])),
            ShapeError,
            "expected a shape that broadcasts with",
        ),
        (torch.tensor([3]), IndexError, "out of bounds"),
    ],
    ids=str,
)
def test_a_wrong_index_is_named(index: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        genesis.zeros(3, 4)[ours(index)]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            genesis.zeros(3),
            ShapeError,
            r"setitem: argument 'value': expected a shape that broadcasts to \(4,\), got \(3,\)",
        ),
        ([1.0], DTypeError, "setitem: argument 'value': expected a tensor or a number, got list"),
        ("x", DTypeError, "expected a tensor or a number, got str"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        genesis.zeros(3, 4)[0] = value
