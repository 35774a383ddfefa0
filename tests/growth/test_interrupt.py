"""A share of what interrupt.py does: each action at a few random lines, and by a few signals."""

from __future__ import annotations

import pytest

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
