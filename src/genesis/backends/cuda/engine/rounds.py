"""Order the problems of a network for tuning, so that any time is well spent: see docs/convolution.md.

What is done does not depend on how much time there is, only how far it gets: more time never ends worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from genesis.backends.cuda.engine import tuner
from genesis.backends.cuda.engine.tuner import AnyContest

Told = Callable[[AnyContest], None]  # after each step of a contest; what it has found so far is to be kept


def share_out(contests: Iterable[AnyContest], deadline: float, told: Told) -> None:
    """Tune problems until a deadline of time.monotonic(); what is being compiled then is finished.

    First the basics of all, then rounds, each of which measures twice as many candidates of each problem as the one
    before. What the network spends most of its time on comes first.
    """
    waiting = _most_expensive_first(contests)
    for batch in _growing(waiting, 2 * tuner.num_builders()):
        if time.monotonic() >= deadline:
            return
        _basics(batch, deadline, told)
    most = tuner._FIRST_ROUND
    while waiting and time.monotonic() < deadline:
        waiting = _most_expensive_first(contest for contest in waiting if not contest.is_over)
        for batch in _parts(waiting, max(1, 2 * tuner.num_builders() // most)):
            tuner.build_ahead(batch, most, deadline)
            for contest in batch:
                if time.monotonic() >= deadline:
                    return
                contest.visit(deadline, most)
                told(contest)
        most *= 2


def _basics(batch: Sequence[AnyContest], deadline: float, told: Told) -> None:
    for contest in batch:
        contest.measure_ready_made(deadline)
    tuner.at_once([task for contest in batch for task in contest.basic_tasks(deadline)])
    for contest in batch:
        contest.settle()
        told(contest)


def _most_expensive_first(contests: Iterable[AnyContest]) -> list[AnyContest]:
    return sorted(contests, key=lambda contest: -contest.cost)


def _growing(contests: Sequence[AnyContest], largest: int) -> Iterator[Sequence[AnyContest]]:
    """One, two, four, …: the shortest time has its result for the first, and compilers soon have enough to do."""
    start, size = 0, 1
    while start < len(contests):
        yield contests[start : start + size]
        start, size = start + size, min(2 * size, max(largest, 1))


def _parts(contests: Sequence[AnyContest], size: int) -> Iterator[Sequence[AnyContest]]:
    for start in range(0, len(contests), size):
        yield contests[start : start + size]
