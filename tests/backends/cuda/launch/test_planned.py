"""@planned: one plan per combination of layouts and other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.cuda.launch import planned
from genesis.backends.cuda.launch.planned import Varying
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import Layout
from genesis.settings import override


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with override(cuda="simulated"):
        yield


made: list[Any] = []


@planned.planned
def scaled(x: Layout, weight: Layout | None, mode: str, factor: Varying, axis: int = 0) -> Callable[..., Any]:
    """A docstring."""
    made.append((x, weight, mode, axis))
    return lambda x, weight, factor: (x, weight, mode, factor, axis)


def test_equal_layouts_and_arguments_share_a_plan() -> None:
    made.clear()
    x, y = (array.empty((2, 3), dtypes.float32) for _ in range(2))
    assert scaled(x, None, "a", 1.0) == (x, None, "a", 1.0, 0)
    assert scaled(y, None, "a", 2.0, axis=0) == (y, None, "a", 2.0, 0)  # a number that varies is no part of the key
    assert made == [(x.layout, None, "a", 0)]
    turned = x.view((3, 2), (1, 3), 0)
    for arguments in [(turned, None, "a", 1.0), (x, y, "a", 1.0), (x, None, "b", 1.0), (x, None, "a", 1.0, 1)]:
        scaled(*arguments)
    assert made[1:] == [
        (turned.layout, None, "a", 0), (x.layout, y.layout, "a", 0), (x.layout, None, "b", 0), (x.layout, None, "a", 1),
    ]  # fmt: skip


def test_it_says_what_the_plan_says() -> None:
    assert list(inspect.signature(scaled).parameters) == ["x", "weight", "mode", "factor", "axis"]
    assert (scaled.__doc__, scaled.__name__, scaled.__module__) == ("A docstring.", "scaled", __name__)


def test_a_plan_that_fails_is_asked_for_again() -> None:
    @planned.planned
    def picky(x: Layout) -> Callable[..., Any]:
        made.append(x)
        raise NotImplementedError("no")

    made.clear()
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="no"):
            picky(array.empty((2,), dtypes.float32))
    assert len(made) == 2


def test_plans_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "_MOST_PLANS", 2)
    made.clear()
    x = array.empty((7,), dtypes.float32)
    for axis in (0, 1, 2, 0):
        scaled(x, None, "many", 1.0, axis)
    assert [axis for *_, axis in made] == [0, 1, 2, 0]


def test_plans_belong_to_a_driver() -> None:
    made.clear()
    for _ in range(2):
        with override(cuda="simulated"):
            scaled(array.empty((9,), dtypes.float32), None, "driver", 1.0)
        with override(cuda="off"):
            pass
    assert len(made) == 2
