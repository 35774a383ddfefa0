"""Plan problems: chosen once, remembered on disk, found by a dictionary look-up.

On a miss: what the store knows, else what tuning finds (if there is time for it), else the best guess. A guess that
takes long to build is built in the background, and the next best computes meanwhile. All of it under one lock; the way
to a plan that exists takes none.

While a CUDA graph is captured nothing is timed, and nothing is built that takes long: a library may do there what a
capture does not allow. The heuristic's choice then serves that graph, and the next call outside decides.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.deferred import NotCompiledYet
from genesis.backends.cuda.engine import builders, guesses, platform, progress, rounds, tuner
from genesis.backends.cuda.engine.candidate import AnyCandidate, Candidate, P
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.plan import HEURISTIC as HEURISTIC
from genesis.backends.cuda.engine.plan import STORED as STORED
from genesis.backends.cuda.engine.plan import TUNED as TUNED
from genesis.backends.cuda.engine.plan import Plan as Plan
from genesis.backends.cuda.engine.problem import Problem
from genesis.backends.cuda.engine.tuner import AnyOutcome
from genesis.backends.cuda.runtime import streams
from genesis.backends.engine.store import Entry
from genesis.settings import on_change, settings

AnyPlan = Plan[Any]  # of whatever problem
_plans: dict[Problem, AnyPlan] = {}
_lock = threading.RLock()


def plan(operation: Operation[P], problem: P) -> Plan[P]:
    """The plan for a problem, made on first use. Raises: KernelError: no candidate can be built."""
    found = _plans.get(problem)
    if found is not None and (found.origin != HEURISTIC or not _may_tune()):
        return found
    with _lock, driver.get().unrestricted():  # a library may allocate when it is asked for the first time
        found = _plans.get(problem) or operation.plan(problem)
        capturing = _is_capturing(problem.device)
        if found.candidate is None and _from_store(found, capturing):
            _plans[problem] = found
        if found.origin == HEURISTIC:
            if (capturing or not _tuned(found)) and found.candidate is None:
                _guess(found, capturing)
            if not capturing:
                _plans[problem] = found
    return found


def may_keep(plan: AnyPlan) -> bool:
    """May a launcher use the plan for all calls of a kind from now on, until forget_calls(), without asking again?"""
    if is_gathering() or _plans.get(plan.problem) is not plan:
        return False
    return plan.origin != HEURISTIC or not (_may_tune() and _is_capturing(plan.problem.device))


def forget() -> None:
    """Drop all plans; the store keeps what was tuned."""
    with _lock:
        _plans.clear()
        forget_calls()


driver.forget_on_switch(forget)


def forget_guesses() -> None:
    """Choose anew, at the next call, for what was guessed: another process may have tuned it."""
    with _lock:
        for problem in [problem for problem, each in _plans.items() if each.origin == HEURISTIC]:
            del _plans[problem]
        guesses.read_again()
        forget_calls()


def all_plans(operation: Operation[P] | None = None) -> list[AnyPlan]:
    """Plans in use, of all ops or of one."""
    return [plan for plan in _plans.values() if operation is None or plan.operation is operation]


def _is_capturing(device: int) -> bool:
    return driver.get().is_capturing(device, streams.current_handle(device))


# --- from the store ---------------------------------------------------------------------------------------------------
def _from_store(plan: AnyPlan, capturing: bool) -> bool:
    entry = platform.store(plan.problem.device).get(plan.problem.key)
    if entry is None or entry.workspace > workspace_limit():
        return False
    try:
        candidate = plan.operation.named(plan.problem, entry.candidate)
        if candidate is None or (capturing and candidate.builds_slowly):
            return False
        if candidate.workspace(plan.problem) > workspace_limit():
            return False
        plan.use(candidate, STORED if entry.complete else HEURISTIC)
    except KernelError:  # no longer to be had: with the same versions, only on a device in another state
        return False
    return True


# --- by measurement ---------------------------------------------------------------------------------------------------
class Session:
    """A time in which problems that are met are tuned; what was found, in order.

    One that gathers only notes them, and how often they are computed; its time begins with share_out(). One that does
    not resume leaves out what the store knows, also where the time was up before the last candidate.

    One that gathers and rehearses wants no results, only that all kernels are asked for at once: what would be guessed
    computes nothing as long as its kernel is not compiled, so that whatever is launched after it need not wait for it.
    """

    def __init__(
        self, seconds: float, progress: tuner.Progress | None = None, gathers: bool = False, resumes: bool = True,
        rehearses: bool = False,
    ) -> None:  # fmt: skip
        self.seconds, self.began = seconds, time.monotonic()
        self.progress = progress
        self.gathers, self.resumes, self.rehearses = gathers, resumes, rehearses
        self.met: dict[Problem, AnyPlan] = {}  # while gathering
        self.counts: collections.Counter[Problem] = collections.Counter()
        self.outcomes: list[AnyOutcome] = []
        self.num_compiled, self.compile_seconds = 0, 0.0  # by the compilers that work beside

    def deadline(self) -> float:
        """Return when the time is up, by time.monotonic(). It is asked again and again."""
        return self.began + self.seconds


_sessions: list[Session] = []
_spent = 0.0  # seconds of settings.tune
_on_forget: list[Callable[[], None]] = []


def begin(session: Session) -> None:
    with _lock:
        _sessions.append(session)
        forget_calls()


def end(session: Session) -> None:
    with _lock:
        _sessions.remove(session)
        if not _sessions:
            builders.close()


def share_out(session: Session) -> None:
    """Tune what a session has gathered; the heuristic chooses for the rest at their next call, as if never met."""
    with _lock:
        session.gathers = False
        session.began = time.monotonic()
        contests = {problem: _contest(plan, session) for problem, plan in session.met.items()}
        try:
            _run(list(contests.values()), session, lambda contest: _take(session.met[contest.problem], contest))
        finally:  # what was found until an interruption counts
            for problem, contest in contests.items():
                if contest.outcome is None:
                    _plans.pop(problem, None)
                else:
                    session.outcomes.append(contest.outcome)
            forget_calls()


def is_gathering() -> bool:
    """Does a session count the calls of plan()?"""
    return bool(_sessions) and _sessions[-1].gathers


def _is_rehearsing() -> bool:
    return is_gathering() and _sessions[-1].rehearses


def when_choosing_anew(forget_calls: Callable[[], None]) -> None:
    """forget_calls drops what leads to plans without asking plan()."""
    _on_forget.append(forget_calls)


def forget_calls() -> None:
    """Ask plan() again at the next call of each kind."""
    for forget in _on_forget:
        forget()


def _may_tune() -> bool:
    return bool(_sessions) or _spent < settings.tune


def _tuned(plan: AnyPlan) -> bool:
    global _spent
    if not _may_tune():
        return False
    session = _sessions[-1] if _sessions else Session(settings.tune - _spent)
    if session.gathers:
        _meet(plan, session)
        return False
    began, done = time.monotonic(), False
    if began < session.deadline():
        contest = _contest(plan, session)
        try:
            _run([contest], session, lambda contest: _take(plan, contest))
        finally:
            if contest.outcome is not None:
                session.outcomes.append(contest.outcome)
                done = True
            if not _sessions:
                _spent += time.monotonic() - began
    return done


def _meet(plan: AnyPlan, session: Session) -> None:
    session.counts[plan.problem] += 1
    if plan.problem in session.met:
        return
    if session.resumes or platform.store(plan.problem.device).get(plan.problem.key) is None:
        session.met[plan.problem] = plan
        if driver.get().name == "cuda":
            builders.compilers().start()  # which takes a second, in which the function runs


def _run(contests: Sequence[tuner.AnyContest], session: Session, told: rounds.Told) -> None:
    """Tune for what is left of the session's time."""
    file = progress.terminal() if session.progress is None else None
    shown = progress.Progress(contests, session.deadline, file)
    try:
        rounds.share_out(contests, session.deadline, told, shown)
    finally:
        shown.end()
        session.num_compiled += shown.num_compiled
        session.compile_seconds += shown.compile_seconds


def _contest(plan: Plan[P], session: Session) -> tuner.Contest[P]:
    count = max(1, session.counts[plan.problem])
    known, progress = plan.candidate, session.progress
    return tuner.Contest(plan.operation, plan.problem, workspace_limit(), known, progress, count)


def _take(plan: Plan[P], contest: tuner.Contest[P]) -> None:
    """Compute with what a contest has found, and store it."""
    outcome = contest.outcome
    if outcome is None:
        return
    origin = TUNED if outcome.complete else HEURISTIC
    if (plan.candidate, plan.origin) != (outcome.candidate, origin):
        plan.use(outcome.candidate, origin)
    entry = Entry(
        outcome.candidate.name, outcome.milliseconds * 1e3, outcome.error, outcome.workspace, outcome.complete
    )
    store, key = platform.store(plan.problem.device), plan.problem.key
    known = store.get(key)
    if known is None or (known != entry and entry.complete >= known.complete):  # of another process, to the end
        store.put(key, entry)


# --- by guess ---------------------------------------------------------------------------------------------------------
def _guess(plan: Plan[P], capturing: bool = False, below: int | None = None, without: str = "") -> None:
    """The first candidate that builds; slower ones are built meanwhile, unless a CUDA graph is being captured.

    Where problems are only gathered, it is the first that needs no compiler: measurements are to come soon. In a
    rehearsal the first may be yet to be compiled.

    Args:
        below: only with less scratch memory than so many bytes.
        without: not of this name.
    """
    is_first = below is None and not without and not is_gathering()
    if is_first and _guess_again(plan):
        return
    slow: list[Candidate[P]] = []
    choice: Iterable[Candidate[P]] = plan.operation.candidates(plan.problem)
    if is_gathering() and not _is_rehearsing():
        ready_made = (each for each in plan.operation.candidates(plan.problem) if each.is_ready_made)
        choice = itertools.chain(itertools.islice(ready_made, 1), choice)
    for candidate in choice:
        if candidate.builds_slowly and (capturing or not settings.deterministic):
            slow.append(candidate)
        elif candidate.name != without and _try(plan, candidate, below, _is_rehearsing()):
            break
    else:
        raise KernelError(f"{plan.problem}: no kernel can be built for it")
    if is_first and not slow and candidate.is_ready_made:
        guesses.keep(plan.problem, candidate)
    if slow and is_first and not capturing:
        # No daemon: the process must not end while a library is at work in it.
        thread = threading.Thread(target=_improve, args=(plan, slow), name="genesis plan")
        _improving[:] = [*(each for each in _improving if each.is_alive()), thread]
        thread.start()


def _guess_again(plan: Plan[P]) -> bool:
    """Use what was guessed before, if it is still to be had."""
    name = guesses.of(plan.problem)
    candidate = None if name is None else plan.operation.named(plan.problem, name)
    return candidate is not None and _try(plan, candidate, None)


def build_guess(plan: Plan[P]) -> None:
    """Build what would compute a problem if nothing measured it, and compute it so from now on. Other processes find
    the kernel compiled, or the guess remembered."""
    is_best = True
    for candidate in plan.operation.candidates(plan.problem):
        if candidate.builds_slowly:
            is_best = False
        elif _try(plan, candidate, None):
            if is_best and candidate.is_ready_made:
                guesses.keep(plan.problem, candidate)
            return


_improving: list[threading.Thread] = []


def settle() -> None:
    """Wait for the candidates that are being built in the background: a capture keeps for good what it records."""
    for thread in _improving.copy():
        thread.join()


def _improve(plan: Plan[P], slow: Sequence[Candidate[P]]) -> None:
    """Build the first of the better candidates that can be built; use it unless something else has come meanwhile."""
    chosen = plan.candidate
    for candidate in slow:
        with contextlib.suppress(KernelError):
            candidate.prepare(plan.problem)
            with _lock:
                if plan.candidate is not chosen or _try(plan, candidate, None):
                    return


def _try(plan: Plan[P], candidate: Candidate[P], below: int | None, or_nothing: bool = False) -> bool:
    """Use a candidate. or_nothing: where its kernel is to be compiled elsewhere, compute nothing instead."""
    try:
        num_bytes = candidate.workspace(plan.problem)
        if num_bytes > workspace_limit() or (below is not None and num_bytes >= below):
            return False
        plan.use(candidate, HEURISTIC)
    except KernelError:
        return False
    except NotCompiledYet:
        if not or_nothing:
            raise
        plan.use_nothing(candidate)
    return True


def use_smaller(plan: AnyPlan, num_bytes: int) -> None:
    """There is no room for num_bytes of scratch memory: the best guess that wants less."""
    with _lock:
        if plan.workspace >= num_bytes:
            _guess(plan, below=num_bytes)


def use_another(plan: AnyPlan, refused: AnyCandidate) -> None:
    """The device refuses a candidate that it has run before: the best guess among the others."""
    with _lock:
        if plan.candidate is refused:
            _guess(plan, without=refused.name)


def workspace_limit() -> int:
    """Bytes of scratch memory that one op may use."""
    return settings.workspace << 20


_followed: tuple[object, ...] | None = None


def _follow_settings() -> None:
    """Other limits choose other plans."""
    global _followed
    now = (settings.workspace, settings.deterministic, settings.cache_dir, settings.tune)
    if _followed not in (None, now):
        forget()
    _followed = now


on_change(_follow_settings)
