"""In-place forms of ops and assignments by masks, exported; and what translations take of their Functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import genesis
import genesis.nn.functional as F
from genesis import Tensor, nn
from genesis.autograd import Function
from genesis.export import registry


class Call(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def by_masks(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] = 0.25
    y[:, genesis.tensor([True, False, True, False, True])] = y[0, 0]
    y[1:][y[1:] < -1] = 3
    return y


def activations(x: Tensor) -> Tensor:
    return F.elu(F.leaky_relu(x * 2, 0.1, inplace=True) + 1, 0.5, inplace=True)


@pytest.mark.parametrize("function", [by_masks, activations])
@pytest.mark.parametrize("dynamic", [None, {0: "rows"}])
def test_changes_in_place(function: Callable[[Tensor], Tensor], dynamic: object, tmp_path: Path) -> None:
    done = genesis.export.onnx(Call(function), genesis.randn(4, 5), tmp_path / "m.onnx", dynamic, check=True)
    assert done.difference is not None
    assert done.difference <= 1e-6


def functions(of: type) -> Iterator[type]:
    for each in of.__subclasses__():
        yield each
        yield from functions(each)


def test_translations_take_what_their_functions_take() -> None:
    checked = 0
    for function in functions(Function):
        if function.__module__.startswith("genesis.functional.second_order"):
            continue  # these record their parts
        translation = registry._TABLE.get(function.__name__)
        if translation is None or not function.__module__.startswith("genesis.functional."):
            continue
        taken = inspect.signature(translation).parameters.values()
        names = {each.name for each in taken}
        wanted = [p for p in inspect.signature(function.forward).parameters.values() if p.kind is p.KEYWORD_ONLY]
        if not any(each.kind is each.VAR_KEYWORD for each in taken):
            assert {each.name for each in wanted} <= names, f"{function.__name__}: {translation.__name__}"
        checked += 1
    assert checked > 50
