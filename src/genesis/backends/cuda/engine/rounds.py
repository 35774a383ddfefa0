"""Order the problems of a network for tuning, so that any time is well spent: see docs/convolution.md.

One loop: keep the compilers busy, and measure what has come. What is done does not depend on how much time there is,
only how far it gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from genesis.backends.cuda.engine import builders as building
from genesis.backends.cuda.engine.builders import Builders
from genesis.backends.cuda.engine.tuner import AnyContest, Deadline

Told = Callable[[AnyContest], None]  # after each step of a contest; what it has found so far is to be kept
Watched = Callable[[Builders], None]  # now and then

_AT_A_TIME = 8  # candidates of a visit: each makes operands anew
_WORTH_A_VISIT = 4  # candidates at hand, while others of the problem are being compiled
_WORTH_PROCESSES = 4  # candidates of a single problem that need a compiler
_LONGEST_WAIT = 0.5  # seconds, before progress is told again
_AHEAD = 2  # times the compilers: candidates that are compiled or being compiled, and not measured


def share_out(contests: Iterable[AnyContest], deadline: Deadline, told: Told, watched: Watched | None = None) -> None:
    """Tune problems until a deadline; nothing is waited for beyond it."""
    active = list(contests)
    builders = Builders(building.compilers() if _is_worth_processes(active) else None)
    try:
        while active and time.monotonic() < deadline():
            if watched is not None:
                watched(builders)
            contest = _next(active)
            if builders.apart or contest is None:
                _feed(active, builders, deadline)
                contest = contest or _next(active)
            if builders.num_busy and (contest is None or not builders.apart):
                builders.advance(min(_LONGEST_WAIT, max(0.0, deadline() - time.monotonic())))
            elif contest is None:
                break  # nothing is left that could be measured
            else:
                try:
                    contest.visit(deadline, _AT_A_TIME, builders)
                finally:
                    told(contest)
                builders.advance(0.0)
            active = [each for each in active if not each.is_over]
    finally:
        builders.drop()
        if watched is not None:
            watched(builders)


def _next(contests: Sequence[AnyContest]) -> AnyContest | None:
    """The contest to visit: the first guess of all, then two candidates of all, then each by its share of the time."""
    ready = [each for each in contests if each.can_be_visited]
    due = [each for each in ready if each.num_compiling == 0 or each.phase < 2 or each.num_at_hand >= _WORTH_A_VISIT]
    return min(due or ready, key=lambda each: (each.phase, -each.claim(each.num_done)), default=None)


def _is_worth_processes(contests: Sequence[AnyContest]) -> bool:
    """They take a second to start."""
    return len(contests) > 1 or any(each.num_to_compile >= _WORTH_PROCESSES for each in contests)


def _feed(contests: Sequence[AnyContest], builders: Builders, deadline: Deadline) -> None:
    """Start compiling what will be measured next."""
    room = _AHEAD * builders.number - sum(each.num_ahead for each in contests)
    waiting = [each for each in contests if each.has_job]
    while room > 0 and waiting and time.monotonic() < deadline():
        contest = min(waiting, key=lambda each: (each.phase_ahead, -each.claim(each.num_done + each.num_ahead)))
        contest.start_next(builders)
        room -= 1
        if not contest.has_job:
            waiting.remove(contest)
