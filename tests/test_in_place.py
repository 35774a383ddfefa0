"""Changes in place: every alias and view sees them, and dtypes, shapes, errors and gradients are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.errors import DTypeError, GraphError, ShapeError
from tests.conformance.surface import words

Change = Callable[[Any, Any], Any]


def augmented(statement: str) -> Change:
    """What a statement like `x **= y` leaves in x."""
    code = compile(statement, "<statement>", "exec")

    def change(x: Any, y: Any) -> Any:
        names = {"x": x, "y": y}
        exec(code, names)
        return names["x"]

    return change


STATEMENTS = [f"x {operator}= y" for operator in ("+", "-", "*", "/", "//", "%", "**", "|", "&", "^")]
METHODS: dict[str, tuple[Any, ...]] = {  # and their arguments
    **dict.fromkeys(words("abs exp expm1 log log1p sqrt rsqrt square reciprocal sign sin cos tanh sigmoid erf"), ()),
    **dict.fromkeys(words("floor ceil round relu neg logical_not bitwise_not zero tril triu"), ()),
    **dict.fromkeys(words("add sub mul div floor_divide remainder pow eq ne lt le gt ge"), (2,)),
    **dict.fromkeys(words("bitwise_and bitwise_or bitwise_xor fill"), (3,)),
    **dict.fromkeys(words("clamp clip"), (1, 2)),
    "cumsum": (0,),
}
REFUSALS = (TypeError, ValueError, ZeroDivisionError, NotImplementedError)
VALUES = [[1, 2, 3], [4, 5, 6]]
DTYPES = ("float32", "int64", "uint8", "bool")


def pair(dtype: str, device: str, values: Any = VALUES) -> tuple[Any, torch.Tensor]:
    theirs = torch.tensor(values).to(getattr(torch, dtype))
    return genesis.from_torch(theirs.clone()).to(device), theirs


def compare(change: Change, mine: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    """The same change: seen through an alias and a view, or refused with nothing changed."""
    (x, y), (x_theirs, y_theirs) = mine, theirs
    alias, row, before = x, x[1:], x.tolist()
    try:
        expected = change(x_theirs, y_theirs)
    except (RuntimeError, TypeError, NotImplementedError):
        with pytest.raises(REFUSALS, match=r"^\w+: argument|in place|has no \w+ implementation for"):
            change(x, y)
        assert x.tolist() == before
        return
    result = change(x, y)
    assert result is alias
    assert expected is x_theirs
    assert str(alias.dtype).split(".")[1] == str(expected.dtype).split(".")[1]
    np.testing.assert_allclose(alias.tolist(), expected.tolist(), rtol=1e-6)
    np.testing.assert_allclose(row.tolist(), expected[1:].tolist(), rtol=1e-6)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_augmented_assignment_changes_the_tensor(statement: str, device: str) -> None:
    for dtype in DTYPES:
        for operand in ("float32", "int64", "uint8", "bool", "number", "fraction", "row", "wide"):
            mine, theirs = pair(dtype, device)
            if operand in ("number", "fraction"):
                compare(
                    augmented(statement),
                    (mine, 2 if operand == "number" else 0.5),
                    (theirs, 2 if operand == "number" else 0.5),
                )
                continue
            other = {"row": [1, 1, 2], "wide": [[[1, 1, 1]]] * 2}.get(operand, [[1, 1, 1], [1, 1, 1]])
            y, y_theirs = pair(dtype if operand in ("row", "wide") else operand, device, other)
            compare(augmented(statement), (mine, y), (theirs, y_theirs))


@pytest.mark.parametrize("name", METHODS)
def test_methods_change_the_tensor(name: str, device: str) -> None:
    for dtype in DTYPES:
        mine, theirs = pair(dtype, device)
        compare(lambda x, y: getattr(x, f"{name}_")(*y), (mine, METHODS[name]), (theirs, METHODS[name]))


def test_every_method_in_place_that_has_a_plain_form_is_there() -> None:
    theirs = {name[:-1] for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")}
    assert [name for name in theirs if hasattr(genesis.Tensor, name) and not hasattr(genesis.Tensor, f"{name}_")] == []


@pytest.mark.parametrize("statement", STATEMENTS[:7])
def test_the_graph_follows(statement: str) -> None:
    change = augmented(statement)
    values = torch.tensor([1.5, 2.5, 3.5])
    x, y = (genesis.from_torch(values.clone()).requires_grad_() for _ in range(2))
    x_theirs, y_theirs = (values.clone().requires_grad_() for _ in range(2))
    with pytest.raises(GraphError, match=r"\w+: a leaf that requires grad can only be changed in place under no_grad"):
        change(x, y)
    if statement == "x //= y":  # has no gradient in PyTorch, here it is zero
        return
    (change(x * 2, y) * y).sum().backward()
    (change(x_theirs * 2, y_theirs) * y_theirs).sum().backward()
    np.testing.assert_allclose(x.grad.tolist(), x_theirs.grad.tolist(), rtol=1e-5)
    np.testing.assert_allclose(y.grad.tolist(), y_theirs.grad.tolist(), rtol=1e-5)
    with genesis.no_grad():
        assert change(x, y.detach()) is x
    assert x.requires_grad


def test_what_pytorch_rebinds_is_rebound() -> None:
    x = y = genesis.ones(2, 2)
    y @= y
    assert y is not x
    with pytest.raises(TypeError):
        y <<= 1


def test_a_wider_operand_is_refused() -> None:
    x = genesis.ones(3)
    with pytest.raises(ShapeError, match=r"pow: in place, the result's shape \(2, 3\) must be the tensor's \(3,\)"):
        x **= genesis.ones(2, 3)
    with pytest.raises(DTypeError, match=r"in place, a result of genesis\.float32 cannot be cast to the tensor's"):
        genesis.ones(2, dtype=genesis.int64).pow_(0.5)


def test_shapes_change_in_place() -> None:
    x = genesis.arange(6).reshape(1, 2, 3)
    alias, base = x, x.detach()
    assert x.squeeze_(0).shape == (2, 3)
    assert x.t_().shape == (3, 2)
    assert x.unsqueeze_(0).transpose_(0, 1).swapaxes_(1, 2) is alias
    assert alias.shape == (3, 2, 1)
    alias[0, 0, 0] = 9
    assert base[0, 0, 0].item() == 9
    leaf = genesis.ones(2, 3, requires_grad=True)
    with pytest.raises(GraphError, match="t_: a leaf that requires grad can only be changed in place under no_grad"):
        leaf.t_()
    y = leaf * 2
    y.t_()
    (y * genesis.arange(6.0).reshape(3, 2)).sum().backward()
    assert leaf.grad.tolist() == [[0, 4, 8], [2, 6, 10]]
    with genesis.no_grad():
        assert leaf.t_().shape == (3, 2)
    assert leaf.requires_grad
    assert leaf.is_leaf


def test_detach_in_place() -> None:
    x = genesis.ones(2, requires_grad=True)
    y = x * 2
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad
    with pytest.raises(GraphError, match="detach_: a view cannot leave the graph"):
        (x * 2)[0].detach_()
