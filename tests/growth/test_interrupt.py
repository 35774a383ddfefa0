"""A share of what interrupt.py does: each action at a few random lines, and by a few signals."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import nn
from genesis.growth import passes
from genesis.growth.transaction import Transaction
from tests.growth import interrupt

NUM_SEEDS = 12


@pytest.mark.parametrize("with_signals", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of finalizers that a signal met
def test_interrupts(with_signals: bool) -> None:
    result = interrupt.Result()
    for seed in range(NUM_SEEDS):
        interrupt.check(seed, with_signals, result)
    assert sum(result.counts.values()) > NUM_SEEDS // 3  # signals may come too late; lines fill caches, and run once


@pytest.mark.parametrize(
    ("name", "count"),
    [("rollback", 25), ("transaction", 6), ("growth.load", 4), ("Optimizer.step", 25), ("LRScheduler.step", 20)],
)
def test_each_line_of_the_last_stretch(name: str, count: int) -> None:
    """Where things are put in their places: an exception at every line of it."""
    interrupt.check_last_lines(name, count)


def test_a_failure_prints_the_line_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_way(world: interrupt.World) -> interrupt.Act:
        def act() -> None:
            world.model.head.bias.array = world.model.head.bias.array.add(1)
            world.model.head.weight.array = world.model.head.weight.array.add(1)

        return act

    monkeypatch.setattr(interrupt, "ACTIONS", {"half way": half_way})

    def several() -> None:
        for seed in range(20):
            interrupt.check(seed, False, interrupt.Result())

    with pytest.raises(AssertionError, match=r"python -m tests.growth.interrupt --seed \d+\nhalf way .*\n.* half way"):
        several()


@pytest.mark.parametrize("look", [passes.without_traces, lambda model: passes.in_mode(model, training=False)])
def test_a_look_that_an_interrupt_left_undoes_nothing_later(look: Callable[[nn.Module], Any]) -> None:
    """Its end would put back what the network was in between, after the growth has been undone."""
    model = nn.Sequential(nn.Linear(2, 3))
    block = look(model)
    block.__enter__()
    model.add_module("1", nn.ReLU())
    model.train(False)
    before = repr(model), [module.training for module in model.modules()]
    block._waiting.release()
    del block
    gc.collect()
    assert before == (repr(model), [module.training for module in model.modules()])


def test_random_numbers_of_a_transaction_come_back_after_an_interrupt() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    genesis.manual_seed(5)
    expected = genesis.rand(3).tolist()
    genesis.manual_seed(5)
    opened = Transaction(model, [], genesis.zeros(2, 2), [], seed=1)

    def interrupted() -> None:
        with opened.random():
            genesis.rand(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert genesis.rand(3).tolist() == expected
