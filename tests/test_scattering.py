"""Scattering, strided views, divisors and running sums of exponentials: what PyTorch's samples leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import DTypeError, GraphError, ShapeError
from genesis.settings import override


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scatter_reduce_of_integers_that_meet(reduce: str, include_self: bool, device: str) -> None:
    draw = np.random.default_rng(0)
    x, source = draw.integers(-9, 9, (4, 5)), draw.integers(-9, 9, (7, 5))
    index = draw.integers(0, 3, (7, 4))
    expected = torch.tensor(x).scatter_reduce(
        0, torch.tensor(index), torch.tensor(source), reduce, include_self=include_self
    )
    with override(cuda="simulated"):
        ours = [genesis.tensor(each, device=device) for each in (x, index, source)]
        found = ours[0].scatter_reduce_(0, ours[1], ours[2], reduce, include_self=include_self)
        assert found is ours[0]
        np.testing.assert_array_equal(found.cpu().numpy(), expected.numpy())


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_divisors(name: str) -> None:
    x, y = np.arange(-6, 7).reshape(-1, 1), np.arange(-6, 7)
    for dtype in ("int8", "int64"):
        ours = getattr(genesis, name)(genesis.tensor(x.astype(dtype)), genesis.tensor(y.astype(dtype)))
        theirs = getattr(torch, name)(torch.tensor(x.astype(dtype)), torch.tensor(y.astype(dtype)))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        assert ours.numpy().dtype == theirs.numpy().dtype


def test_running_sums_of_large_exponentials() -> None:
    x = 1e4 + np.random.default_rng(0).standard_normal((3, 40))
    grads = []
    for lib, dtype in ((genesis, "float32"), (torch, "float32"), (torch, "float64")):
        each = lib.tensor(x.astype("float32"), requires_grad=True)
        y = lib.logcumsumexp(each.double() if dtype == "float64" else each, 1)
        y.sum().backward()
        assert each.grad is not None
        grads.append(each.grad.numpy())
    ours, theirs, exact = grads
    assert abs(ours - exact).max() <= abs(theirs - exact).max()


def test_windows_by_strides() -> None:
    results = []
    for lib in (genesis, torch):
        x = lib.arange(8.0).requires_grad_()
        windows = (x * 1)[1:].as_strided((3, 3), (2, 1))
        (windows**2).sum().backward()
        results.append((windows.tolist(), windows.stride(), x.grad.tolist()))
    assert results[0] == results[1]


def test_a_strided_view_shares_memory() -> None:
    x = genesis.zeros(4)
    x.as_strided((2,), (2,), 1).fill_(7)
    assert x.tolist() == [0, 7, 0, 7]
    y = genesis.zeros(4, requires_grad=True)
    with pytest.raises(GraphError, match="custom Function"):
        (y * 1).as_strided((2, 2), (1, 1)).add_(1)


def test_places_of_a_condition_alone() -> None:
    x = genesis.tensor([[0, 2], [3, 0]])
    assert [each.tolist() for each in genesis.where(x)] == [[0, 1], [1, 0]]
    assert [each.tolist() for each in genesis.where(x > 2)] == [[1], [0]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, i: x.scatter_reduce(0, i, x, "max"), ValueError, "scatter_reduce: argument 'reduce': expected "),
        (lambda x, i: x.scatter(0, i, x, reduce="sum"), ValueError, "scatter: argument 'reduce': expected 'add' or"),
        (lambda x, i: x.scatter_reduce(0, i, x.double(), "sum"), DTypeError, "scatter_reduce: argument 'src'"),
        (lambda x, i: x.index_reduce(0, i, x, "sum"), ValueError, "index_reduce: argument 'reduce': expected one of"),
        (lambda x, i: x.index_reduce(0, i[:1], x, "prod"), ShapeError, "index_reduce: argument 'source': expected"),
        (lambda x, i: genesis.gcd(x, x), DTypeError, "gcd: argument 'input': expected integers, got genesis.float32"),
        (lambda x, i: genesis.logcumsumexp(i, 0), DTypeError, "logcumsumexp: argument 'input': expected a floating"),
        (lambda x, i: x.polygamma(-1), NotImplementedError, "polygamma: argument 'n': expected 0 or more, got -1"),
        (lambda x, i: genesis.polygamma(1.0, x), DTypeError, "polygamma: argument 'n': expected an int, got 1.0"),
        (lambda x, i: x.as_strided((3,), (1, 1)), ShapeError, "as_strided: argument 'stride': expected 1 numbers"),
        (lambda x, i: x.as_strided((2,), (-1,)), ShapeError, "as_strided: argument 'stride': expected no negative"),
        (lambda x, i: x.as_strided((3,), (1,)), ShapeError, "as_strided: argument 'size': expected places 0 … 1 of"),
        (lambda x, i: genesis.where(x, 1.0), DTypeError, "where: argument 'other': expected a tensor or a number"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any, Any], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(genesis.ones(2), genesis.tensor([0, 1]))
    assert str(caught.value).startswith(text)
