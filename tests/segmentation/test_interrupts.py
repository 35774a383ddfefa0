"""Ctrl-C in a block that holds it: raised at the end, once; a second one at once."""

from __future__ import annotations

import signal
import threading

import pytest

from genesis.segmentation import interrupts


def test_it_comes_at_the_end() -> None:
    done = []

    def work() -> None:
        with interrupts.first_held():
            signal.raise_signal(signal.SIGINT)
            done.append("in the block")
        done.append("behind it")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["in the block"]
    assert signal.getsignal(signal.SIGINT) is before
    with interrupts.first_held():
        pass


def test_the_second_comes_at_once() -> None:
    done = []

    def work() -> None:
        with interrupts.first_held():
            signal.raise_signal(signal.SIGINT)
            done.append("one")
            signal.raise_signal(signal.SIGINT)
            done.append("two")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["one"]


def test_an_error_of_the_block_does_not_hide_it() -> None:
    def work() -> None:
        with interrupts.first_held():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("of the block")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_other_threads_are_not_interrupted() -> None:
    done = []

    def work() -> None:
        with interrupts.first_held():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
