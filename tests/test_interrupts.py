"""Interrupts: changes in one instruction, signals that wait, blocks that are undone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from genesis.interrupts import Whole, at_once, each, finish, held, replacing


class InterruptError(BaseException):
    pass


@pytest.fixture
def handler() -> Iterator[Any]:
    """Of SIGINT, for the time of the test."""

    def interrupt(signum: int, frame: Any) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGINT, interrupt)
    yield interrupt
    assert signal.getsignal(signal.SIGINT) is interrupt
    signal.signal(signal.SIGINT, before)


def test_calls_at_once() -> None:
    table, names, kinds = {"a": 1}, [1, 2], {1}
    at_once([*replacing(table, {"b": 2}), *replacing(names, [3]), *replacing(kinds, {4}), each(names.append, [5, 6])])
    assert (table, names, kinds) == ({"b": 2}, [3, 5, 6], {4})


def test_what_is_interrupted_is_finished_first() -> None:
    done: list[int] = []

    def change() -> None:
        done.append(1)
        if len(done) == 1:
            raise InterruptError

    with pytest.raises(InterruptError):
        finish(change)
    assert done == [1, 1]


def test_signals_wait_for_the_end_of_the_outermost_block(handler: Any) -> None:
    done = []

    def work() -> None:
        with held():
            with held():
                signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(InterruptError):
        work()
    assert done == ["all"]


def test_handlers_in_c_and_other_threads_are_left_alone(handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with held():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    seen: list[Any] = []

    def elsewhere() -> None:
        with held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [handler]


class Block(Whole[str]):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin(self) -> str:
        self.log.append("begin")
        return "block"

    def commit(self) -> None:
        self.log.append("commit")

    def undo(self, error: BaseException) -> None:
        signal.raise_signal(signal.SIGINT)  # another one, while the first is dealt with
        self.log.append(f"undo {type(error).__name__}")


def test_a_block_is_committed_or_undone(handler: Any) -> None:
    log: list[str] = []
    with Block(log) as name:
        log.append(name)
    assert log == ["begin", "block", "commit"]
    log.clear()

    def interrupted() -> None:
        with Block(log):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptError) as info:
        interrupted()
    assert log == ["begin", "undo InterruptError"]
    assert isinstance(info.value.__context__, InterruptError)  # the second came when all was undone


@pytest.mark.parametrize("name", ["begin", "commit"])
def test_a_block_that_cannot_begin_or_end_is_undone(name: str, handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def fail(self: Block) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Block, name, fail)
    monkeypatch.setattr(Block, "undo", lambda self, error: log.append(type(error).__name__))
    with pytest.raises(ArithmeticError), Block(log):
        pass
    assert log[-1] == "ArithmeticError"
    assert log.count("ArithmeticError") == 1


def test_a_handler_that_was_set_inside_stays(handler: Any) -> None:
    def mine(signum: int, frame: Any) -> None: ...

    with Block([]):
        signal.signal(signal.SIGINT, mine)
    assert signal.getsignal(signal.SIGINT) is mine
    signal.signal(signal.SIGINT, handler)
