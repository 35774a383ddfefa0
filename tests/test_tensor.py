"""What users hold: properties, views, changes in place, Python's and numpy's protocols, and messages."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import Tensor
from genesis.errors import DTypeError, GraphError, ShapeError


def count(*shape: int, dtype: Any = genesis.float32) -> Tensor:
    return genesis.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


# --- properties and views ---------------------------------------------------------------------------------------------


def test_properties() -> None:
    x = genesis.zeros(2, 3, dtype=genesis.float16)
    assert (x.shape, x.ndim, x.dim(), x.numel(), len(x)) == ((2, 3), 2, 2, 6, 2)
    assert (x.size(), x.size(-1), x.stride(), x.stride(0)) == ((2, 3), 3, (3, 1), 3)
    assert (x.itemsize, x.element_size(), x.dtype, str(x.device), x.is_cuda) == (2, 2, genesis.float16, "cpu", False)
    assert x.is_floating_point()
    assert x.is_leaf
    assert x.grad_fn is None
    assert x[1:].storage_offset() == 3
    assert x[1:].data_ptr() == x.data_ptr() + 6


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(4, 6),
        lambda x: x.view(-1),
        lambda x: x.reshape([3, 8]),
        lambda x: x.permute(2, 0, 1),
        lambda x: x.permute((2, 0, 1)),
        lambda x: x.transpose(0, -1),
        lambda x: x.swapaxes(0, 1),
        lambda x: x.movedim(0, 2),
        lambda x: x.mT,
        lambda x: x[0].T,
        lambda x: x[0].t(),
        lambda x: x.unsqueeze(1),
        lambda x: x[:1].squeeze(0),
        lambda x: x.flatten(1),
        lambda x: x.unflatten(2, (2, 2)),
        lambda x: x.narrow(1, 1, 2),
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.split([1, 2], dim=1)[1],
        lambda x: x.split(split_size=2, dim=1)[1],
        lambda x: x.chunk(2)[1],
        lambda x: x.unbind(1)[2],
        lambda x: x.diagonal(),
        lambda x: x.detach(),
        lambda x: x.data,
    ],
)
def test_views_share_memory_and_agree_with_torch(view: Any) -> None:
    mine = count(2, 3, 4)
    theirs = mine.to_torch().clone()
    result, expected = view(mine), view(theirs)
    assert result.shape == tuple(expected.shape)
    assert result.tolist() == expected.tolist()
    before = mine.sum().item()
    result.zero_()
    assert mine.sum().item() < before


def test_view_raises_where_only_a_copy_can_do() -> None:
    turned = count(2, 3).T
    with pytest.raises(ShapeError, match=r"view: shape \(3, 2\) with strides \(1, 3\) cannot be seen as \(6,\)"):
        turned.view(6)
    assert turned.reshape(6).tolist() == [0, 3, 1, 4, 2, 5]


def test_an_expanded_tensor_is_read_only() -> None:
    wide = count(3, 1).expand(3, 4)
    assert wide.stride() == (1, 0)
    with pytest.raises(ShapeError, match=r"elements of this expanded tensor of shape \(3, 4\) share memory"):
        wide.zero_()


@pytest.mark.parametrize("arguments", [(3, 2), ((3, 2),), ([3, 2],), (genesis.tensor(3), 2)])
def test_sizes_come_one_by_one_or_as_a_sequence(arguments: Any) -> None:
    assert count(6).reshape(*arguments).shape == (3, 2)
    assert genesis.ones(1, 1).expand(*arguments).shape == (3, 2)
    assert genesis.ones(1).repeat(*arguments).shape == (3, 2)


# --- conversions ------------------------------------------------------------------------------------------------------


def test_conversions_keep_the_graph() -> None:
    x = genesis.ones(2, requires_grad=True)
    x.half().double().sum().backward()
    assert x.grad.dtype is genesis.float32
    assert x.float() is x
    assert x.to("cpu", genesis.float64).dtype is genesis.float64
    assert x.to(genesis.zeros(1, dtype=genesis.int32)).dtype is genesis.int32
    assert x.to(genesis.float32, copy=True) is not x
    assert x.type_as(genesis.zeros(1, dtype=genesis.bool)).dtype is genesis.bool


def test_channels_last() -> None:
    x = count(2, 3, 4, 5)
    y = x.contiguous(memory_format=genesis.channels_last)
    assert y.stride() == (60, 1, 15, 3)
    assert y.is_contiguous(genesis.channels_last)
    assert not y.is_contiguous()
    assert y.tolist() == x.tolist()
    assert x.to(memory_format=genesis.channels_last).stride() == y.stride()
    with pytest.raises(ShapeError, match="expected 4 dimensions for channels_last, got 1"):
        genesis.ones(3).contiguous(genesis.channels_last)


def test_numpy_shares_memory() -> None:
    x = count(3)
    x.numpy()[0] = 7
    assert x.tolist() == [7, 1, 2]
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, dtype=np.int8).tolist() == [7, 1, 2]
    np.array(x)[0] = 9  # a copy
    assert x.tolist() == [7, 1, 2]


def test_numpy_scalars_and_arrays_beside_tensors() -> None:
    x = count(3)
    for result in (x * np.float32(2), np.float32(2) * x, x * np.float64(2), x * np.int64(2)):
        assert isinstance(result, Tensor)
        assert (result.tolist(), result.dtype) == ([0, 2, 4], genesis.float32)
    with pytest.raises(DTypeError, match="expected a tensor or a number, got ndarray"):
        x + np.ones(3)
    with pytest.raises(DTypeError, match="expected a tensor or a number, got ndarray"):
        np.ones(3) + x


@pytest.mark.parametrize("dtype", [genesis.float32, genesis.bfloat16, genesis.int64, genesis.bool])
def test_torch_shares_memory_both_ways(dtype: Any) -> None:
    mine = genesis.zeros(2, 3, dtype=dtype).T
    theirs = mine.to_torch()
    assert theirs.stride() == (1, 3)
    theirs[0, 0] = 1
    assert mine[0, 0].item() == 1
    back = genesis.from_torch(theirs)
    assert back.data_ptr() == mine.data_ptr()
    assert back.dtype is dtype


def test_dlpack() -> None:
    array = np.zeros(3)
    x = genesis.from_dlpack(array)
    x[0] = 5
    assert array.tolist() == [5, 0, 0]
    assert np.from_dlpack(count(2)).tolist() == [0, 1]
    with pytest.raises(BufferError, match=r"requires grad; export .detach\(\)"):
        torch.from_dlpack(genesis.ones(1, requires_grad=True))
    with pytest.raises(DTypeError, match="expected an object with __dlpack__, got list"):
        genesis.from_dlpack([1])
    with pytest.raises(DTypeError, match=r"expected one of float64, .*, got torch.uint16"):
        genesis.from_torch(torch.zeros(1, dtype=torch.uint16))


# --- Python's protocols -----------------------------------------------------------------------------------------------


def test_numbers() -> None:
    x = genesis.tensor(3)
    assert (int(x), float(x), bool(x), operator.index(x)) == (3, 3.0, True, 3)
    assert [10, 11, 12, 13][x] == 13
    assert f"{genesis.tensor(2.5):.2f}" == "2.50"
    assert f"{x}" == "3"  # as in PyTorch: that of the number
    with pytest.raises(DTypeError, match=r"index: argument 'self': expected one integer, got genesis\.float32"):
        operator.index(genesis.tensor(1.0))
    with pytest.raises(ValueError, match=r"item: argument 'self': expected one element, got 2 \(shape \(2,\)\)"):
        count(2).item()
    with pytest.raises(ValueError, match=r"expected one element, got shape \(2,\); use .any\(\) or .all\(\)"):
        bool(count(2))


def test_iteration() -> None:
    assert [row.tolist() for row in count(2, 2)] == [[0, 1], [2, 3]]
    first, second = count(2)
    assert (first.item(), second.item()) == (0, 1)
    with pytest.raises(TypeError, match="0-d tensor"):
        iter(genesis.tensor(1)).__next__()


def test_equality_and_hash() -> None:
    x = count(2)
    assert (x == x).tolist() == [True, True]
    assert (x != 1).tolist() == [True, False]
    assert (x == "a") is False
    assert x != None  # noqa: E711
    assert {x: "kept"}[x] == "kept"


def test_operators_agree_with_torch() -> None:
    cases = [
        lambda x: 1 + x, lambda x: 1 - x, lambda x: 2 * x, lambda x: 2 / x, lambda x: 7 // x, lambda x: 7 % x,
        lambda x: 2**x, lambda x: x**2, lambda x: -x, lambda x: abs(x - 2), lambda x: x @ x, lambda x: x > 2,
        lambda x: x <= 2, lambda x: x // 2, lambda x: x % 2, lambda x: ~(x > 2), lambda x: (x > 1) & (x < 3),
        lambda x: (x > 2) | (x < 2), lambda x: (x > 1) ^ (x > 2),
    ]  # fmt: skip
    for case in cases:
        mine, theirs = case(genesis.tensor([1.0, 2.0, 3.0])), case(torch.tensor([1.0, 2.0, 3.0]))
        assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (genesis.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
        (genesis.tensor([[1], [2]]), "tensor([[1],\n        [2]])"),
        (genesis.tensor(True), "tensor(True)"),
        (genesis.tensor([1.0], dtype=genesis.bfloat16), "tensor([1.], dtype=genesis.bfloat16)"),
        (genesis.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (genesis.tensor([1.0], requires_grad=True) * 2, "tensor([2.], grad_fn=<MulBackward>)"),
        (genesis.zeros(0, 3), "tensor([], size=(0, 3))"),
    ],
)
def test_repr(tensor: Tensor, text: str) -> None:
    assert repr(tensor) == text


def test_copies_and_pickles() -> None:
    x = genesis.tensor([1.0, 2.0], dtype=genesis.bfloat16, requires_grad=True)
    x.grad = genesis.ones(2, dtype=genesis.bfloat16)
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert (again.tolist(), again.dtype, again.requires_grad) == ([1, 2], genesis.bfloat16, True)
        assert again.data_ptr() != x.data_ptr()
    assert copy.deepcopy(x).grad.tolist() == [1, 1]
    pair = [x, x]
    first, second = copy.deepcopy(pair)
    assert first is second
    with pytest.raises(GraphError, match="deepcopy: only leaves can be copied"):
        copy.deepcopy(x * 2)
    with pytest.raises(GraphError, match="pickle: only leaves can be pickled"):
        pickle.dumps(x * 2)


# --- in place ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(2, alpha=3),
        lambda x: x.sub_(x),
        lambda x: x.mul_(2),
        lambda x: x.div_(2, rounding_mode="floor"),
        lambda x: x.neg_(),
        lambda x: x.pow_(2),
        lambda x: x.sqrt_(),
        lambda x: x.exp_(),
        lambda x: x.relu_(),
        lambda x: x.sigmoid_(),
        lambda x: x.tanh_(),
        lambda x: x.clamp_(1, 2),
        lambda x: x.fill_(4),
        lambda x: x.zero_(),
        lambda x: x.copy_(x.flip(0)),
        lambda x: x.masked_fill_(x > 1, 9.0),
        lambda x: x.__iadd__(1),
        lambda x: x.__isub__(1),
        lambda x: x.__imul__(3),
        lambda x: x.__itruediv__(4),
    ],
)
def test_in_place_forms_change_a_leaf_under_no_grad(change: Any) -> None:
    mine = genesis.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
    theirs = torch.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
    where = mine.data_ptr()
    with genesis.no_grad(), torch.no_grad():
        assert change(mine) is mine
        change(theirs)
    assert mine.data_ptr() == where
    assert mine.is_leaf
    np.testing.assert_allclose(mine.tolist(), theirs.tolist(), rtol=1e-6)
    with pytest.raises(GraphError, match=r"only be changed in place under no_grad\(\)"):
        change(mine)


def test_in_place_selection() -> None:
    x = genesis.zeros(3)
    index = genesis.tensor([0, 2])
    assert x.index_add_(0, index, genesis.ones(2)).tolist() == [1, 0, 1]
    assert x.scatter_(0, index, genesis.tensor([5.0, 6.0])).tolist() == [5, 0, 6]
    assert x.scatter_(0, index, value=2.0).tolist() == [2, 0, 2]
    assert x.scatter_add_(0, index, genesis.ones(2)).tolist() == [3, 0, 3]


def test_random_fills() -> None:
    genesis.manual_seed(0)
    torch.manual_seed(0)
    x = genesis.empty(1000).uniform_(-2, 3)
    assert -2 <= x.min().item() < -1.9
    assert 2.9 < x.max().item() < 3
    y = genesis.empty(1000).normal_(5, 0.1)
    assert y.mean().item() == pytest.approx(5, abs=0.02)
    assert y.std().item() == pytest.approx(0.1, rel=0.1)
    with pytest.raises(ValueError, match=r"uniform_: argument 'high': expected at least low \(1\), got 0"):
        x.uniform_(1, 0)
    with pytest.raises(ValueError, match="normal_: argument 'std': expected at least 0, got -1"):
        x.normal_(0, -1)
    with pytest.raises(DTypeError, match=r"expected a floating dtype, got genesis\.int64"):
        count(2, dtype=genesis.int64).normal_()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: count(2).to(3), DTypeError, "to: argument 'args': expected a dtype, a device or a tensor, got int"),
        (lambda: genesis.ones(1, requires_grad=True).numpy(), DTypeError, r"use .detach\(\).numpy\(\)"),
        (lambda: genesis.ones(1, dtype=genesis.bfloat16).numpy(), TypeError, r"got bfloat16; convert with .float\(\)"),
        (lambda: count(2, 2, 2).T, ShapeError, "T: argument 'self': expected 2 dimensions; use .mT"),
        (lambda: count(2).mT, ShapeError, "mT: argument 'self': expected at least 2 dimensions, got 1"),
        (lambda: genesis.device("tpu"), ValueError, "expected 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


METHODS = [
    lambda x: x.sum_to_size(1, 3), lambda x: x.sum_to_size((3,)), lambda x: x.sum_to_size(2, 3),
    lambda x: x.prelu(x[0].abs()), lambda x: x.hardshrink(0.7), lambda x: x.bernoulli(0.4),
    lambda x: x.sigmoid().bernoulli(), lambda x: x.ge(9).any().is_nonzero(), lambda x: x.is_same_size(x[0]),
    lambda x: (x.abs() > 0.5).double().multinomial(1).shape[1], lambda x: x.sum_to_size(2, 1).retains_grad,
    lambda x: (x * 0 + x.new_tensor([0.0, 1.0, 0.0])).multinomial(5, replacement=True),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_methods_beside_functions(method: Any) -> None:
    drawn = torch.randn(2, 3, generator=torch.Generator().manual_seed(3))
    results = []
    for library in (genesis, torch):
        library.manual_seed(5)
        found = method(library.tensor(drawn.tolist()))
        results.append(found.tolist() if hasattr(found, "tolist") else found)
    assert results[0] == results[1]


def test_retains_grad() -> None:
    for library in (genesis, torch):
        x = library.ones(2, requires_grad=True)
        y = x * 2
        assert (x.retains_grad, y.retains_grad) == (False, False)
        y.retain_grad()
        assert y.retains_grad
    with pytest.raises(ShapeError, match=r"sum_to_size: .* expected a shape that broadcasts to \(2, 3\), got \(2,\)"):
        genesis.ones(2, 3).sum_to_size(2)
