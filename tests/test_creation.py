"""Functions that make tensors, the generators' states, and what they refuse; values as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import backends
from genesis.backends import registry
from genesis.errors import DTypeError, ShapeError


@pytest.mark.parametrize(
    "call",
    [
        lambda lib: lib.tensor([[1, 2], [3, 4]]),
        lambda lib: lib.tensor(2.5),
        lambda lib: lib.tensor([True, False]),
        lambda lib: lib.tensor([]),
        lambda lib: lib.tensor([1, 2.5]),
        lambda lib: lib.tensor(np.array([1, 2], dtype=np.int16)),
        lambda lib: lib.tensor([1.7, -1.7], dtype=lib.int32),
        lambda lib: lib.tensor([lib.tensor(1), lib.tensor(2)]),
        lambda lib: lib.tensor((1.0, 2.0), dtype=lib.bfloat16),
        lambda lib: lib.as_tensor([1, 2]),
        lambda lib: lib.as_tensor(np.ones(2), dtype=lib.float32),
        lambda lib: lib.from_numpy(np.arange(3)),
        lambda lib: lib.from_numpy(np.arange(3.0)[::2]),
        lambda lib: lib.zeros(2, 3),
        lambda lib: lib.zeros((2, 3), dtype=lib.uint8),
        lambda lib: lib.ones([]),
        lambda lib: lib.ones(0, 2),
        lambda lib: lib.full((2,), 3),
        lambda lib: lib.full((2,), 3.5),
        lambda lib: lib.full((2,), True),
        lambda lib: lib.eye(2),
        lambda lib: lib.eye(2, 3, dtype=lib.int64),
        lambda lib: lib.arange(4),
        lambda lib: lib.arange(1, 2, 0.25),
        lambda lib: lib.arange(5, 0, -2),
        lambda lib: lib.arange(3, dtype=lib.float64),
        lambda lib: lib.linspace(0, 1, 5),
        lambda lib: lib.linspace(3, -3, 1),
        lambda lib: lib.linspace(0, 10, 4, dtype=lib.float64),
        lambda lib: lib.zeros_like(lib.ones(2, 3, dtype=lib.float16)),
        lambda lib: lib.ones_like(lib.ones(2), dtype=lib.int64),
        lambda lib: lib.full_like(lib.ones(2), 7),
        lambda lib: lib.empty(2, 0, dtype=lib.int8),
        lambda lib: lib.empty_like(lib.ones(3, 0)),
    ],
)
def test_values_and_dtypes_are_those_of_torch(call: Any) -> None:
    mine, theirs = call(genesis), call(torch)
    assert mine.shape == tuple(theirs.shape)
    assert str(mine.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
    assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "draw",
    [
        lambda lib: lib.rand(3, 2),
        lambda lib: lib.randn((3,), dtype=lib.float64),
        lambda lib: lib.randint(10, (4,)),
        lambda lib: lib.randint(10, size=(4,)),
        lambda lib: lib.randint(-3, 3, (4,), dtype=lib.int32),
        lambda lib: lib.randperm(7),
        lambda lib: lib.rand_like(lib.ones(2)),
        lambda lib: lib.randn_like(lib.ones(2), dtype=lib.float64),
        lambda lib: lib.randint_like(lib.ones(3, dtype=lib.int64), 5),
        lambda lib: lib.empty(3).normal_(),
        lambda lib: lib.empty(3).uniform_(),
    ],
)
def test_a_seed_gives_the_draws_of_torch(draw: Any) -> None:
    genesis.manual_seed(7)
    mine = draw(genesis)
    torch.manual_seed(7)
    theirs = draw(torch)
    assert mine.tolist() == theirs.tolist()
    assert str(mine.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]


def test_generator_states() -> None:
    state = genesis.get_rng_state()
    first = genesis.rand(5)
    second = genesis.rand(5)
    genesis.set_rng_state(state)
    assert genesis.rand(5).tolist() == first.tolist()
    assert genesis.rand(5).tolist() == second.tolist()
    with pytest.raises(DTypeError, match=r"argument 'new_state': expected a tensor of uint8, got genesis\.float32"):
        genesis.set_rng_state(first)


def test_a_seed_reaches_backends_that_are_loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_plain", {})
    monkeypatch.setattr(registry, "active", {})
    genesis.manual_seed(3)
    first = backends.get("cpu").rand((2,)).tolist()
    genesis.manual_seed(3)
    assert genesis.rand(2).tolist() == first


def test_memory_is_shared_or_copied_as_the_name_says() -> None:
    array = np.zeros(2, dtype=np.float32)
    shared, also_shared, copied = genesis.from_numpy(array), genesis.as_tensor(array), genesis.tensor(array)
    array[0] = 1
    assert [x.tolist() for x in (shared, also_shared, copied)] == [[1, 0], [1, 0], [0, 0]]
    assert genesis.as_tensor(shared) is shared
    assert genesis.tensor(shared).data_ptr() != shared.data_ptr()
    frozen = np.broadcast_to(array, (3, 2))
    genesis.from_numpy(frozen).zero_()  # read-only memory is copied
    assert frozen[0, 0] == 1


def test_default_dtype() -> None:
    genesis.set_default_dtype(genesis.float64)
    try:
        assert genesis.get_default_dtype() is genesis.float64
        assert genesis.tensor(1.0).dtype is genesis.zeros(1).dtype is genesis.float64
    finally:
        genesis.set_default_dtype(genesis.float32)
    with pytest.raises(DTypeError, match="expected a floating dtype"):
        genesis.set_default_dtype(genesis.int64)


def test_leaves_that_require_grad() -> None:
    assert genesis.ones(2, requires_grad=True).is_leaf
    assert genesis.is_tensor(genesis.ones(1))
    assert not genesis.is_tensor([1])
    assert genesis.promote_types(genesis.float16, genesis.bfloat16) is genesis.float32


def test_channels_last() -> None:
    assert genesis.empty(2, 3, 4, 5, memory_format=genesis.channels_last).stride() == (60, 1, 15, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: genesis.tensor("a"), DTypeError, "tensor: argument 'data': expected numbers, or sequences of them"),
        (lambda: genesis.tensor([[1], [1, 2]]), ShapeError, "tensor: argument 'data': expected sequences of equal"),
        (lambda: genesis.tensor(2**63), OverflowError, "expected integers that fit int64, got 9223372036854775808"),
        (lambda: genesis.tensor([1], requires_grad=True), DTypeError, r"or complex dtype, got genesis\.int64"),
        (lambda: genesis.from_numpy([1]), DTypeError, r"expected a numpy\.ndarray, got list"),
        (lambda: genesis.from_numpy(np.zeros(1, np.uint16)), DTypeError, "got uint16"),
        (lambda: genesis.empty(2, 3, memory_format="channels_last"), ShapeError, r"empty: .* 4 dimensions .* \(2, 3\)"),
        (lambda: genesis.zeros(2, -1), ShapeError, r"zeros: .* expected sizes of at least 0, got \(2, -1\)"),
        (lambda: genesis.zeros(1.5), DTypeError, "zeros: argument 'size': expected ints"),
        (lambda: genesis.zeros(1, device="cuda:x"), ValueError, "expected 'cpu', 'cuda' or 'cuda:N', got 'cuda:x'"),
        (lambda: genesis.arange(0, 3, -1), ValueError, "arange: argument 'step': expected a step from 0 towards 3"),
        (lambda: genesis.arange(0, 3, 0), ValueError, "argument 'step'"),
        (lambda: genesis.arange(float("inf")), ValueError, "expected finite numbers"),
        (lambda: genesis.linspace(0, 1, -1), ValueError, "linspace: argument 'steps': expected at least 0, got -1"),
        (lambda: genesis.linspace(0, 1, 2.5), DTypeError, "linspace: argument 'steps': expected an int, got float"),
        (lambda: genesis.linspace(genesis.ones(2), 1, 2), ShapeError, r"argument 'start': .* got shape \(2,\)"),
        (lambda: genesis.rand(2, dtype=genesis.int64), DTypeError, "rand: argument 'dtype': expected a floating or"),
        (lambda: genesis.randint(3, 3, (1,)), ValueError, r"randint: .* expected more than low \(3\), got 3"),
        (lambda: genesis.randint(0, 3, 5), ShapeError, "randint: argument 'size': expected a sequence of sizes, got 5"),
        (lambda: genesis.randperm(-1), ValueError, "randperm: argument 'n': expected at least 0, got -1"),
        (lambda: genesis.manual_seed(1.5), DTypeError, r"manual_seed: argument 'seed': expected an int, got 1\.5"),
    ],
)  # fmt: skip
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("value", [8.6, 1e30, -1 / 3, 2.0**53 + 2])
def test_python_floats_keep_the_bits_that_the_dtype_has(value: float) -> None:
    assert genesis.tensor(value, dtype=genesis.float64).item() == value
    for dtype in (torch.float32, torch.bfloat16):
        ours = genesis.tensor([value], dtype=getattr(genesis, str(dtype).removeprefix("torch.")))
        assert ours.tolist() == torch.tensor([value], dtype=dtype).tolist()
