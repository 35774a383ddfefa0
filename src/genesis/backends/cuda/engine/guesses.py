"""Remember the guesses of libraries: cuDNN's heuristics take milliseconds for each problem, in each process anew.

They lie in a store of their own, as nothing has measured them. A guess counts for the sources that made it: a later
Genesis may know better. Where plans cannot be kept, as their store says, nothing is remembered.
"""

from __future__ import annotations

import atexit
import math
import threading

from genesis.backends.cuda.engine import platform
from genesis.backends.cuda.engine.candidate import AnyCandidate
from genesis.backends.cuda.engine.problem import Problem
from genesis.backends.engine.store import Entry, Store

_AT_ONCE = 64  # entries: a write to the disk takes as long for many as for one

_known: dict[Store, dict[str, str]] = {}  # names of candidates by problem: of the file, and since then
_pending: dict[Store, dict[str, Entry]] = {}
_lock = threading.RLock()


def of(problem: Problem) -> str | None:
    """The name of the candidate that was guessed for a problem, by this process or an earlier one."""
    if not platform.store(problem.device).is_kept():
        return None
    store = platform.guesses(problem.device)
    with _lock:
        known = _known.get(store)
        if known is None:
            known = _known[store] = {key: entry.candidate for key, entry in store.all().items()}
        return known.get(problem.key)


def keep(problem: Problem, candidate: AnyCandidate) -> None:
    """Remember a guess, for this process at once, for others when it ends at the latest."""
    if of(problem) == candidate.name or not platform.store(problem.device).is_kept():
        return
    store = platform.guesses(problem.device)
    with _lock:
        _known[store][problem.key] = candidate.name
        pending = _pending.setdefault(store, {})
        pending[problem.key] = Entry(candidate.name, math.inf, 0.0, 0, complete=False)
        if len(pending) >= _AT_ONCE:
            write()


def read_again() -> None:
    """Another process may have guessed meanwhile."""
    with _lock:
        write()
        _known.clear()


def write() -> None:
    """Write down what waits for it; nothing where a cache folder has gone since."""
    with _lock:
        for store, entries in _pending.items():
            if store.path.is_file():
                store.put_all(entries)
        _pending.clear()


atexit.register(write)
