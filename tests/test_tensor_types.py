"""PyTorch's tensor types and old constructors, beside PyTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import properties
from genesis.errors import DTypeError
from genesis.settings import override
from genesis.tensor_types import NAMES

VALUES: list[Any] = [[1, 2], [[1.5], [2.5]], (3,), [], np.ones((2, 2)), [True, False]]


@pytest.mark.parametrize("name", [f"{each}Tensor" for each in NAMES.values()] + ["Tensor"])
def test_constructors(name: str) -> None:
    ours, theirs = getattr(genesis, name), getattr(torch, name)
    for sizes in [(), (3,), (2, 3), (2, 0)]:
        assert tuple(ours(*sizes).shape) == tuple(theirs(*sizes).shape)
        assert str(ours(*sizes).dtype).removeprefix("genesis") == str(theirs(*sizes).dtype).removeprefix("torch")
    assert ours(genesis.ones(2, 3).shape).shape == (2, 3)
    for values in VALUES:
        assert ours(values).tolist() == theirs(values).tolist()
    x = genesis.ones(2)
    assert isinstance(x, ours) == isinstance(torch.ones(2), theirs)
    assert type(ours(1)) is genesis.Tensor


def test_values_that_are_none() -> None:
    for data in (("a",), ([1], 2), ([[1], [2, 3]],)):
        with pytest.raises(DTypeError, match=r"^Tensor: argument 'data': expected sizes, or one sequence of numbers"):
            genesis.Tensor(*data)


def test_types_on_a_gpu() -> None:
    with override(cuda="simulated"):
        x = genesis.cuda.LongTensor([1, 2])
        assert (x.is_cuda, x.type(), x.type("torch.FloatTensor").is_cuda) == (True, "genesis.cuda.LongTensor", False)
        assert isinstance(x, genesis.cuda.LongTensor)
        assert not isinstance(x, genesis.LongTensor)
        assert x.type(genesis.cuda.FloatTensor).dtype is genesis.float32
        assert (x.new(3).dtype, x.new([5]).tolist(), x.new(3).is_cuda) == (genesis.int64, [5], True)
    with pytest.raises(DTypeError, match=r"^type: argument 'dtype': expected a dtype or the name of a tensor type"):
        genesis.ones(1).type("torch.QuaternionTensor")


def test_the_sizes_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "_MOST_SIZES", 3)
    monkeypatch.setattr(properties, "_sizes", {})
    for size in range(10):
        assert genesis.empty(size).shape == (size,)
        assert len(properties._sizes) <= 3


def test_what_an_op_or_backward_makes_does_not_run_the_constructor_of_a_subclass() -> None:
    class Named(genesis.Tensor):
        def __init__(self, name: str, values: list[float]) -> None:
            super().__init__(values, requires_grad=True)
            self.name = name

    x = Named("x", [1.0, 2.0])
    (x * x).sum().backward()
    for made in (x * 2, x.detach(), x.grad, genesis.autograd.grad((x * x).sum(), x)[0]):
        assert type(made) is Named
        assert not hasattr(made, "name")


def test_shapes_count() -> None:
    shape = genesis.ones(2, 3, 4).shape
    assert (shape.numel(), shape[1:].numel(), shape[-1], shape == (2, 3, 4)) == (24, 12, 4, True)
    assert isinstance(shape, genesis.Size)
    assert isinstance(genesis.ones(2).size(), genesis.Size)
    assert not isinstance((2, 3), genesis.Size)
    assert shape is (genesis.ones(2, 3, 4) + 1).shape  # made once for each shape
    assert (str(shape), hash(shape), {shape: 1}[(2, 3, 4)]) == ("(2, 3, 4)", hash((2, 3, 4)), 1)
