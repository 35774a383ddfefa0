"""Room for frames: however deep the caller is, calls of a loop find room in one of CPython's chunks."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import genesis
import genesis.nn.functional as F
from genesis import frames, nn

DEPTHS = range(0, 220, 4)  # over a chunk, and into the next one


def _left() -> int:
    return frames._thread.limit.value - frames._thread.top.value


def _deep(depth: int, function: Callable[[], Any]) -> Any:
    return _deep(depth - 1, function) if depth else function()


def _of_all_depths(function: Callable[[], Any]) -> list[Any]:
    return [_deep(depth, function) for depth in DEPTHS]


def test_the_place_is_known() -> None:
    assert frames._place is not None
    deeper = _deep(3, _left)
    assert 0 < deeper < _left() or deeper > _left() + 4096  # in the next chunk


def test_there_is_room_at_any_depth() -> None:
    assert min(_of_all_depths(_left)) < frames._ENOUGH
    assert min(_of_all_depths(lambda: frames.in_room(_left))) > frames._ENOUGH - 1024  # but for frames in between
    assert min(_of_all_depths(lambda: frames.in_room_beside(600, _left))) > frames._ENOUGH + 600 * 8 - 1024


def test_arguments_results_and_errors() -> None:
    for found in _of_all_depths(lambda: frames.in_room(sorted, [1, 3, 2], reverse=True)):
        assert found == [3, 2, 1]

    def fails() -> None:
        frames.in_room(int, "no number")

    def attempt() -> None:
        with pytest.raises(ValueError, match="no number"):
            fails()

    _of_all_depths(attempt)


def test_each_thread_has_its_own() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(_of_all_depths(lambda: frames.in_room(_left))))
    thread.start()
    thread.join()
    assert len(found) == len(DEPTHS)
    assert min(found) > frames._ENOUGH - 1024


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the place is not known, functions are called as they are."""
    monkeypatch.setattr(frames, "_place", None)
    thread = frames._Thread()
    assert thread.limit.value - thread.top.value > 1 << 30
    monkeypatch.setattr(frames, "_thread", thread)
    assert frames.in_room(sorted, [2, 1]) == [1, 2]
    words = (ctypes.c_size_t * frames._NUM_WORDS)()
    monkeypatch.setattr(frames, "_state_getter", lambda: lambda: ctypes.addressof(words))
    assert frames._found() is None
    monkeypatch.setattr(frames, "_IS_KNOWN", False)
    assert frames._found() is None


def test_a_network_takes_less_than_enough() -> None:
    model, inputs = genesis.models.create("resnet18"), genesis.ones(2, 3, 32, 32)
    model(inputs)
    most = 0

    def look(frame: object, event: str, arg: object) -> None:
        nonlocal most
        assert frames._thread.limit.value == limit
        most = max(most, frames._thread.top.value - begin)

    def profiled() -> None:
        nonlocal begin, limit
        begin, limit = frames._thread.top.value, frames._thread.limit.value
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            model(inputs)
        finally:
            sys.setprofile(before)

    begin = limit = 0
    frames._by_large_frame(profiled)
    assert 1024 < most < frames._ENOUGH


def _training() -> Callable[[], None]:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
    optimizer = genesis.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, labels = genesis.ones(2, 4), genesis.zeros(2, dtype=genesis.int64)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    return step


def _inference() -> Callable[[], None]:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
    compiled, inputs = genesis.compile(model.eval()), genesis.ones(2, 4)

    def call() -> None:
        with genesis.no_grad():
            compiled(inputs)

    return call


@pytest.mark.parametrize("program", [_training, _inference])
def test_no_loop_runs_at_the_end_of_a_chunk(program: Callable[[], Callable[[], None]]) -> None:
    """Of 20 layers, each with several calls: those that map a chunk are fewer than the layers at any depth."""
    call = program()
    for _ in range(4):
        call()

    def num_mapped() -> int:
        limits: list[int] = []
        mapped = 0

        def look(frame: object, event: str, arg: object) -> None:
            nonlocal mapped
            if event == "call":
                limits.append(frames._thread.limit.value)
                mapped += len(limits) > 1 and limits[-1] != limits[-2]
            elif event == "return" and limits:
                limits.pop()

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            call()
        finally:
            sys.setprofile(before)
        return mapped

    assert max(_of_all_depths(num_mapped)) < 20
