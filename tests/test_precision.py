"""The precision of float32: for the process, for a with block in one thread, and through to the gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import genesis
from genesis.backends.cuda.engine import planner
from genesis.precision import set_float32_precision
from genesis.profiler import profile
from genesis.settings import override


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    set_float32_precision("highest")


def test_highest_unless_asked() -> None:
    assert genesis.get_float32_precision() == "highest"


def test_set_holds_for_all_threads_and_a_block_for_one() -> None:
    seen = []
    genesis.set_float32_precision("high")
    with genesis.float32_precision("medium"):
        thread = threading.Thread(target=lambda: seen.append(genesis.get_float32_precision()))
        thread.start()
        thread.join()
        seen.append(genesis.get_float32_precision())
        with genesis.float32_precision(None):
            seen.append(genesis.get_float32_precision())
    assert [*seen, genesis.get_float32_precision()] == ["high", "medium", "medium", "high"]


def test_a_block_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), genesis.float32_precision("high"):
        1 / 0  # noqa: B018
    assert genesis.get_float32_precision() == "highest"


def test_refusals() -> None:
    message = "argument 'precision': expected one of highest, high, medium, got 'tf32'"
    with pytest.raises(ValueError, match=message):
        genesis.set_float32_precision("tf32")
    with pytest.raises(ValueError, match=message), genesis.float32_precision("tf32"):
        pass
    assert genesis.get_float32_precision() == "highest"


def test_products_and_their_gradients_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = planner.plan
    monkeypatch.setattr(planner, "plan", lambda op, problem: seen.append(problem.precision) or original(op, problem))
    with override(cuda="simulated"):
        x = genesis.randn(5, 4, device="cuda", requires_grad=True)
        w = genesis.randn(3, 4, device="cuda", requires_grad=True)
        with genesis.float32_precision("high"):
            y = genesis.nn.functional.linear(x, w)
        z = y @ w
        z.sum().backward()
    assert seen == ["high", "highest", "highest", "highest", "high", "high"]


def test_other_dtypes_have_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = planner.plan
    monkeypatch.setattr(planner, "plan", lambda op, problem: seen.append(problem.precision) or original(op, problem))
    with override(cuda="simulated"):
        x = genesis.ones(3, 3, device="cuda", dtype=genesis.float16)
        with genesis.float32_precision("medium"):
            x @ x
        x @ x
    assert seen == ["highest"]


def test_the_profiler_shows_it() -> None:
    x = genesis.ones(2, 2)
    with profile() as profiled, genesis.float32_precision("high"):
        x @ x
        x + x
        x.to(genesis.float64) @ x.to(genesis.float64)
    shown = [call.arrays.rpartition(")")[2].strip() for call in profiled.calls() if call.name == "matmul"]
    assert shown == ["high", ""]
    assert not any("high" in call.arrays for call in profiled.calls() if call.name == "add")
