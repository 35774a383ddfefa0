"""Choose among implementations on the processor: by measuring when asked, else from the store, else by a guess.

The engine of the CUDA backend builds kernels in other processes and times them on a stream. Here nothing is compiled
beside, and a problem has few candidates, so it is measured in one go. What was found is kept in the same kind of store,
one per processor; nothing is timed unless somebody asked for it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from genesis.backends.engine.store import Entry, Store
from genesis.settings import on_change, settings

_ROUNDS = 7  # of runs of the candidates that may be the fastest
_CLOSE = 1.25  # times the best: these run again
_BETTER = 0.97  # of the guess's time: what is closer may be chance
GUESS, STORED, TUNED = "heuristic", "stored", "tuned"


class Problem(Hashable, Protocol):
    """A problem of the processor: equal records are one problem."""

    @property
    def platform(self) -> str:
        """The processor and the versions that the choice hangs on."""

    @property
    def key(self) -> str:
        """This problem in the store."""

    @property
    def flops(self) -> int: ...

    @property
    def candidates(self) -> Sequence[str]:
        """Names of all that may compute it, the guess first."""

    @property
    def error_bound(self) -> float:
        """The largest error, as the bench tells it, of a result that is believed."""


class Bench(Protocol):
    """Random operands for one problem."""

    def milliseconds(self, name: str) -> float:
        """The time of one run of a candidate."""

    def error(self, name: str) -> float:
        """The relative L2 distance of its result from float64."""


class Named(NamedTuple):
    """A candidate, as a report names it."""

    name: str


@dataclass(frozen=True)
class Outcome:
    """The result of tuning one problem."""

    problem: Problem
    candidate: Named
    milliseconds: float
    error: float
    complete: bool  # False: the time was up before the last candidate
    num_measured: int

    @property
    def flops_per_second(self) -> float:
        return self.problem.flops / self.milliseconds * 1e3


Progress = Callable[[Problem, int, int], None]  # candidates done, candidates in all
MakeBench = Callable[[], Bench]


class Session:
    """A time in which problems that are met are measured; one that gathers counts them first, until share_out()."""

    def __init__(self, seconds: float, progress: Progress | None, gathers: bool, resumes: bool) -> None:
        self.seconds, self.progress, self.gathers, self.resumes = seconds, progress, gathers, resumes
        self.deadline = time.monotonic() + seconds
        self.met: dict[Problem, MakeBench] = {}  # while gathering
        self.counts: collections.Counter[Problem] = collections.Counter()
        self.outcomes: list[Outcome] = []


_lock = threading.RLock()
_chosen: dict[Problem, tuple[str, str]] = {}  # name and origin
_sessions: list[Session] = []
_stores: dict[tuple[Path, str], Store] = {}
_spent = 0.0  # seconds of settings.tune
_epoch = 0


def epoch() -> int:
    """A number that changes with the choices: part of the keys of whatever was made by them."""
    return _epoch


def chosen(problem: Problem, make_bench: MakeBench) -> str:
    """The name of the candidate to compute a problem with."""
    with _lock:
        session = _sessions[-1] if _sessions else None
        name, origin = _chosen.get(problem) or _known(problem)
        if session is not None and session.gathers:
            session.counts[problem] += 1
            if _is_wanted(problem, session.resumes):
                session.met[problem] = make_bench
        elif _is_wanted(problem, True) and (session is not None or _spent < settings.tune):
            name, origin = _measured_now(problem, make_bench, session) or (name, origin)
        _chosen[problem] = name, origin
        return name


def describe() -> list[str]:
    """A line per problem that this process has met."""
    return [f"{problem.key}: {name} ({origin})" for problem, (name, origin) in _chosen.items()]


@contextlib.contextmanager
def session(seconds: float, progress: Progress | None, gathers: bool, resumes: bool) -> Iterator[Session]:
    """A session for the time of a block; what it gathered is measured at its end."""
    made = Session(seconds, progress, gathers, resumes)
    with _lock:
        _sessions.append(made)
        _choose_anew()
    try:
        yield made
        if gathers:
            _share_out(made)
    finally:
        with _lock:
            _sessions.remove(made)
            _choose_anew()


def store(platform: str) -> Store:
    """The store of a processor."""
    key = settings.cache_dir, platform
    found = _stores.get(key)
    if found is None:
        found = _stores.setdefault(key, Store(settings.cache_dir / "plans", platform))
    return found


def forget() -> None:
    """Drop all choices; the store keeps what was measured."""
    with _lock:
        _chosen.clear()
        _choose_anew()


def _choose_anew() -> None:
    global _epoch
    _epoch += 1


def _entry(problem: Problem) -> Entry | None:
    known = store(problem.platform)
    return known.get(problem.key) if known.path.is_file() else None  # nobody tuned: no file is made


def _known(problem: Problem) -> tuple[str, str]:
    entry = _entry(problem)
    if entry is not None and entry.candidate in problem.candidates:
        return entry.candidate, STORED
    return problem.candidates[0], GUESS


def _is_wanted(problem: Problem, resumes: bool) -> bool:
    """Is there something to measure?"""
    if len(problem.candidates) < 2 or _chosen.get(problem, ("", ""))[1] == TUNED:
        return False
    entry = _entry(problem)
    return entry is None or (resumes and not entry.complete)


def _measured_now(problem: Problem, make_bench: MakeBench, session: Session | None) -> tuple[str, str] | None:
    global _spent
    began = time.monotonic()
    deadline = began + settings.tune - _spent if session is None else session.deadline
    if began >= deadline:
        return None
    outcome = _measured(problem, make_bench(), deadline, None if session is None else session.progress)
    if session is None:
        _spent += time.monotonic() - began
    else:
        session.outcomes.append(outcome)
    return _told(outcome)


def _told(outcome: Outcome) -> tuple[str, str]:
    return outcome.candidate.name, TUNED if outcome.complete else GUESS


def _share_out(session: Session) -> None:
    """Measure what a session has gathered, those first on which most time is spent."""
    session.deadline = time.monotonic() + session.seconds
    for problem in sorted(session.met, key=lambda each: -each.flops * session.counts[each]):
        if time.monotonic() >= session.deadline:
            break
        outcome = _measured(problem, session.met[problem](), session.deadline, session.progress)
        with _lock:
            session.outcomes.append(outcome)
            _chosen[problem] = _told(outcome)


def _measured(problem: Problem, bench: Bench, deadline: float, progress: Progress | None) -> Outcome:
    """Run all candidates in turns, and believe the fastest whose result is right; it is stored."""
    names = list(problem.candidates)
    times: dict[str, list[float]] = {}
    for name in names:
        if times and time.monotonic() >= deadline:
            break
        bench.milliseconds(name)  # packs what is packed once, and warms up
        times[name] = [bench.milliseconds(name)]
        if progress is not None:
            progress(problem, len(times), len(names))
    for _ in range(_ROUNDS - 1):
        best = min(map(min, times.values()))
        for name, its in times.items():
            if min(its) <= best * _CLOSE and time.monotonic() < deadline:
                its.append(bench.milliseconds(name))
    fastest = {name: min(its) for name, its in times.items()}
    guess = names[0]
    better = [name for name in fastest if fastest[name] < fastest[guess] * _BETTER]
    name, error = guess, bench.error(guess)
    for other in sorted(better, key=fastest.__getitem__):
        its_error = bench.error(other)
        if its_error <= problem.error_bound:
            name, error = other, its_error
            break
    outcome = Outcome(problem, Named(name), fastest[name], error, len(times) == len(names), len(times))
    store(problem.platform).put(problem.key, Entry(name, fastest[name] * 1e3, error, 0, outcome.complete))
    return outcome


_followed: object = None


def _follow_settings() -> None:
    """Another cache has other choices."""
    global _followed
    now = settings.cache_dir, settings.tune
    if _followed not in (None, now):
        forget()
    _followed = now


on_change(_follow_settings)
