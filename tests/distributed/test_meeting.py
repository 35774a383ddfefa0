"""Ranks that meet in a store find those of their own start, whatever an earlier one has left in it."""

from __future__ import annotations

import random
import threading
import time

import pytest
from torch.distributed import HashStore

from genesis.distributed.meeting import meet


def start(store: HashStore, size: int, draw: random.Random, absent: int | None = None) -> dict[int, str]:
    """What ranks that come at random times agree upon."""
    found: dict[int, str] = {}

    def run(rank: int, delay: float) -> None:
        time.sleep(delay)
        try:
            found[rank] = meet(store, rank, size, 0.5 if absent is not None else 20.0)
        except RuntimeError as error:
            found[rank] = str(error)

    threads = [
        threading.Thread(target=run, args=(rank, draw.random() * 0.05)) for rank in range(size) if rank != absent
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_start_has_its_own_word(size: int) -> None:
    store, draw, words = HashStore(), random.Random(size), set()
    for _ in range(4):
        found = start(store, size, draw)
        assert sorted(found) == list(range(size))
        assert len(set(found.values())) == 1
        words |= set(found.values())
    assert len(words) == 4


def test_a_rank_that_does_not_come() -> None:
    assert set(start(HashStore(), 3, random.Random(0), absent=1).values()) == {"timed out waiting for rank 1"}


def test_an_earlier_start_does_not_stand_in_for_a_rank() -> None:
    store = HashStore()
    start(store, 2, random.Random(0))
    assert list(start(store, 2, random.Random(1), absent=1).values()) == ["timed out waiting for rank 1"]
