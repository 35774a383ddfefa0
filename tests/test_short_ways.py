"""Where nothing is recorded, watched or cast, some functions take a shorter way: it gives what the long way gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional as F
from genesis.autograd import ArrayFunction, BinaryFunction, modes
from genesis.errors import DTypeError, ShapeError
from genesis.functional import elementwise

BINARY = [
    value for value in vars(elementwise).values() if isinstance(value, type) and BinaryFunction in value.__bases__
]


def long_way(call: Callable[[], Any]) -> Any:
    """What call() gives where somebody watches."""
    seen: list[Any] = []
    with genesis.no_grad(), modes.observe(lambda *args: seen.append(args)):
        result = call()
    assert seen
    return result


def same(call: Callable[[], Any]) -> Any:
    with genesis.no_grad():
        result = call()
    expected = long_way(call)
    assert type(result) is type(expected)
    assert (result.shape, result.dtype, result.device) == (expected.shape, expected.dtype, expected.device)
    np.testing.assert_array_equal(result.numpy(), expected.numpy())
    assert not result.requires_grad
    assert result.is_leaf
    return result


def test_there_are_binary_functions() -> None:
    assert {function.__name__ for function in BINARY} >= {"Add", "Sub", "Mul", "Div", "Pow", "Maximum"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("function", BINARY)
def test_two_operands(function: type[BinaryFunction], dtype: str) -> None:
    x = genesis.tensor([[1, 2, 5], [7, 3, 4]], dtype=getattr(genesis, dtype))
    y = genesis.nn.Parameter(genesis.tensor([2.0, 1.0, 3.0]))
    for operands in ((x, x), (x, y), (y, x), (x, 2), (x, 2.0), (2.0, y), (x[:, 1:], x[:, :2])):
        with genesis.no_grad():
            changes = [each.array.changes for each in operands if isinstance(each, genesis.Tensor)]
        result = same(lambda operands=operands: function.apply(*operands))
        assert type(result) is genesis.Tensor
        assert result._viewed_at is None
        assert all(result.array.changes is not each for each in changes)


@pytest.mark.parametrize("function", BINARY)
def test_without_a_tensor(function: type[BinaryFunction]) -> None:
    other = "2" if function.takes_numbers else 2.0
    kinds = rf"\(int, {type(other).__name__}"
    with genesis.no_grad(), pytest.raises(DTypeError, match=f"expected a Tensor among the arguments, got {kinds}"):
        function.apply(1, other)


def test_modes_that_take_the_long_way() -> None:
    class Counted(BinaryFunction):
        contexts: list[Any] = []

        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            Counted.contexts.append(type(ctx))
            ctx.save(x, y)
            return y.add(x)

    x = genesis.ones(2)
    with genesis.no_grad():
        Counted.apply(x, x)
        Counted.apply(1.0, x)
        with genesis.amp.autocast("cpu"):
            Counted.apply(x, x)
        with modes.observe(lambda *args: None):
            Counted.apply(x, x)
        with genesis.enable_grad():
            Counted.apply(x, x)
    kinds = [kind.__name__ for kind in Counted.contexts]
    assert kinds == ["Unrecorded", "Context", "Context", "Context", "Context"]


def test_nothing_is_kept_by_what_serves_all_calls() -> None:
    class Keeps(BinaryFunction):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.kept = x
            return x.add(y)

    with genesis.no_grad(), pytest.raises(AttributeError, match="kept"):
        Keeps.apply(genesis.ones(2), 1.0)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (4, 5, 6)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"padding": 1, "stride": 2}, {"padding": "same"}, {"groups": 2}], ids=str)
def test_convolution(shape: tuple[int, ...], bias: bool, options: dict[str, Any]) -> None:
    genesis.manual_seed(0)
    x = genesis.randn(*shape)
    weight = genesis.nn.Parameter(genesis.randn(6, 4 // options.get("groups", 1), 2, 2))
    offset = genesis.randn(6) if bias else None
    for input in (x, x.contiguous("channels_last") if x.ndim == 4 else x.transpose(0, 1).contiguous().transpose(0, 1)):
        assert same(lambda input=input: F.conv2d(input, weight, offset, **options))._viewed_at is None


def test_convolution_says_what_is_wrong() -> None:
    x, weight = genesis.ones(1, 2, 3, 3), genesis.ones(1, 2, 1, 1)
    with genesis.no_grad():
        with pytest.raises(DTypeError, match="the dtype of input"):
            F.conv2d(x, weight.double())
        with pytest.raises(ShapeError, match="bias"):
            F.conv2d(x, weight, genesis.ones(2))
        with pytest.raises(DTypeError, match="expected a Tensor"):
            F.conv2d(x, weight.array)


# --- changes, which are counted only once somebody asks ---------------------------------------------------------------
def test_a_view_is_known_whoever_asked_first() -> None:
    x = genesis.ones(4)
    y = x + 1
    assert not y.array.is_view_of(x.array)
    view = x[1:]
    assert view.array.is_view_of(x.array)
    assert view.array.changes is x.array.changes
    assert x.array.is_view_of(x.array)


def test_what_a_function_hands_back_as_it_came_is_a_view() -> None:
    class Same(ArrayFunction):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

    base = genesis.ones(3)
    other: Any = Same.apply(base)
    weight: Any = genesis.ones(3, requires_grad=True)
    base.mul_(weight)
    (other * genesis.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert weight.grad.tolist() == [1, 2, 3]
