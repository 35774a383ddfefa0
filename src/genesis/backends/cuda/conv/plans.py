"""Plans: which candidate computes a problem. Chosen once, remembered on disk, found by a dictionary look-up.

On a miss: what the store knows, else what tuning finds (if there is time for it), else the best guess. A guess that
takes long to build is built in the background, and the next best computes meanwhile. All of it under one lock; the way
to a plan that exists takes none.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver, streams
from genesis.backends.cuda.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.conv import families, platform, rounds, tuner
from genesis.backends.cuda.conv.candidate import Candidate, Launch
from genesis.backends.cuda.conv.cublaslt import CublasltFamily
from genesis.backends.cuda.conv.cudnn import CudnnFamily
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.conv.store import Entry, Store
from genesis.backends.cuda.conv.tuner import Outcome
from genesis.backends.cuda.driver import KernelError, cublaslt, cudnn
from genesis.backends.cuda.memory import allocate
from genesis.errors import OutOfMemoryError
from genesis.settings import on_change, settings
from genesis.shapes import channels_last_strides


class Moments(NamedTuple):
    """The statistics of a convolution's result per channel, in parts: see candidate.Parts."""

    partial: DeviceArray
    rows: int


STORED, TUNED, GUESSED = "stored", "tuned", "guessed"


class Ready(NamedTuple):
    """A candidate built for a problem."""

    candidate: Candidate
    launch: Launch
    workspace: int  # bytes of scratch memory
    moments: tuple[Layout, int] | None  # where it leaves the statistics, and of how many rows each part is


# What plans have used, for good: a CUDA graph that captured a launch does not keep the kernel's code on the device, and
# with a plan of cuDNN that it compiled, its code would go. Also, a plan that is made anew is ready at once.
_used: dict[tuple[ConvProblem, str], Ready] = {}
driver.forget_on_switch(_used.clear)


class Plan:
    """One problem and the candidate that computes it, ready to launch."""

    __slots__ = ("_layout", "candidate", "origin", "problem", "ready")

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem
        self.origin = GUESSED
        self.candidate: Candidate | None = None
        self.ready: Ready | None = None
        shape = problem.result_shape
        self._layout = layout_of(shape, problem.dtype, problem.device, channels_last_strides(shape))

    def use(self, candidate: Candidate, origin: str) -> None:
        """Compute with this candidate from now on. Raises: KernelError: it cannot be built."""
        key = self.problem, candidate.name
        ready = _used.get(key)
        if ready is None:
            ready = _used[key] = _build(self.problem, candidate)
        self.ready = ready  # one assignment: other threads see all or nothing
        self.candidate, self.origin = candidate, origin
        if settings.debug >= 1:
            print(f"genesis: {self.problem}: {candidate.name} ({origin})", file=sys.stderr)

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        assert self.ready is not None
        return self.ready.workspace

    def __call__(
        self, first: DeviceArray, second: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None
    ) -> Any:
        """The result for these operands, in the problem's layout; on the current stream.

        With its statistics, where the problem asks for them: (result, Moments).
        """
        layout = self._layout
        stream = streams.current_handle(layout.device_index)
        out = layout.new(stream)
        _, launch, num_bytes, moments = self.ready  # type: ignore[misc]
        workspace: Any = None
        if num_bytes:
            try:
                workspace = allocate(num_bytes, layout.device_index, stream)
            except OutOfMemoryError:
                _use_smaller(self, num_bytes)
                return self(first, second, bias, residual)
        # After the launch the workspace goes back to its stream's shelf: what takes it next comes later on the stream.
        launch(
            stream, out.data_pointer, first.data_pointer, second.data_pointer,
            0 if bias is None else bias.data_pointer, 0 if residual is None else residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip
        if moments is None:
            return out
        partial, rows = moments
        return out, Moments(partial.on(workspace), rows)


def _build(problem: ConvProblem, candidate: Candidate) -> Ready:
    moments = None
    if problem.statistics:
        parts = candidate.parts(problem)
        partial = layout_of((3, parts.number, problem.result_shape[1]), dtypes.float32, problem.device)
        moments = partial, parts.rows
    return Ready(candidate, candidate.prepare(problem), candidate.workspace(problem), moments)


_plans: dict[ConvProblem, Plan] = {}
_lock = threading.RLock()


def plan(problem: ConvProblem) -> Plan:
    """The plan for a problem, made on first use. Raises: KernelError: no candidate can be built."""
    found = _plans.get(problem)
    if found is not None and (found.origin != GUESSED or not (_sessions or _has_time())):
        return found
    with _lock:
        found = _plans.get(problem) or Plan(problem)
        if found.candidate is None and _from_store(found):
            _plans[problem] = found
        if found.origin == GUESSED:
            if not _tuned(found) and found.candidate is None:
                _guess(found)
            _plans[problem] = found
    return found


def forget() -> None:
    """Drop all plans; the store keeps what was tuned."""
    with _lock:
        _plans.clear()
        forget_calls()


driver.forget_on_switch(forget)


def all_plans() -> list[Plan]:
    """Those in use."""
    return list(_plans.values())


# --- from the store ---------------------------------------------------------------------------------------------------
def _from_store(plan: Plan) -> bool:
    entry = platform.store(plan.problem.device).get(plan.problem.key)
    if entry is None or entry.workspace > workspace_limit():
        return False
    try:
        candidate = families.named(plan.problem, entry.candidate)
        if candidate is None or candidate.workspace(plan.problem) > workspace_limit():
            return False
        plan.use(candidate, STORED if entry.complete else GUESSED)
    except KernelError:  # no longer to be had: with the same versions, only on a device in another state
        return False
    return True


def fits(key: str, entry: Entry, device: int) -> bool:
    """Is there a candidate as an entry from elsewhere says, for the problem of this key?"""
    try:
        problem = ConvProblem.from_key(key, device)
        candidate = families.named(problem, entry.candidate)
        return candidate is not None and candidate.workspace(problem) >= 0  # for which cuDNN must have the plan
    except (KernelError, ValueError):
        return False


def warm_up(device: int = 0) -> None:
    """Load the libraries that the store will ask for in the background, before the first convolution waits for them.

    cuDNN's take about 100 ms to load: time that a process spends on other things before it convolves.
    """
    if driver.get().name == "simulated":
        return
    known = platform.store(device)
    if known.path.is_file():
        threading.Thread(target=_load_libraries, args=(known, device), name="genesis warm-up").start()


def _load_libraries(known: Store, device: int) -> None:
    entries = known.all().items()
    for prefix, warm_up in ((CublasltFamily.prefix, cublaslt.warm_up), (CudnnFamily.prefix, cudnn.warm_up)):
        asks = ((key, entry.candidate) for key, entry in entries if f"{prefix}/" in entry.candidate)  # or apart/cudnn/…
        key, name = next(asks, (None, ""))
        if key is None:
            continue
        with contextlib.suppress(KernelError, ValueError):  # then the first convolution will say so
            warm_up(device)
            problem = ConvProblem.from_key(key, device)
            candidate = families.named(problem, name)
            if candidate is not None:
                candidate.prepare(problem)


# --- by measurement ---------------------------------------------------------------------------------------------------
class Session:
    """A time in which problems that are met are tuned; what was found, in order.

    One that gathers only notes them, and how often they are computed; its time begins with share_out().
    """

    def __init__(self, seconds: float, progress: tuner.Progress | None = None, gathers: bool = False) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.progress = progress
        self.gathers = gathers
        self.met: dict[ConvProblem, Plan] = {}  # while gathering
        self.counts: collections.Counter[ConvProblem] = collections.Counter()
        self.outcomes: list[Outcome] = []


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


def share_out(session: Session) -> None:
    """Tune what a session has gathered; those that get no time are guessed at their next call, as if never met."""
    with _lock:
        session.gathers = False
        session.deadline = time.monotonic() + session.seconds
        contests = {problem: _contest(plan, session) for problem, plan in session.met.items()}
        rounds.share_out(
            contests.values(), session.deadline, lambda contest: _take(session.met[contest.problem], contest)
        )
        for problem, contest in contests.items():
            if contest.outcome is None:
                _plans.pop(problem, None)
            else:
                session.outcomes.append(contest.outcome)
        forget_calls()


def is_gathering() -> bool:
    """Does a session count the calls of plan()?"""
    return bool(_sessions) and _sessions[-1].gathers


def when_choosing_anew(forget_calls: Callable[[], None]) -> None:
    """forget_calls drops what leads to plans without asking plan()."""
    _on_forget.append(forget_calls)


def forget_calls() -> None:
    """Ask plan() again at the next call of each kind."""
    for forget in _on_forget:
        forget()


def _has_time() -> bool:
    return _spent < settings.tune


def _tuned(plan: Plan) -> bool:
    global _spent
    if not _sessions and not _has_time():
        return False
    session = _sessions[-1] if _sessions else Session(settings.tune - _spent)
    if session.gathers:
        session.met.setdefault(plan.problem, plan)
        session.counts[plan.problem] += 1
        return False
    began, done = time.monotonic(), False
    if began < session.deadline:
        contest = _contest(plan, session)
        contest.visit(session.deadline)
        if contest.outcome is not None:
            _take(plan, contest)
            session.outcomes.append(contest.outcome)
            done = True
    if not _sessions:
        _spent += time.monotonic() - began
    return done


def _contest(plan: Plan, session: Session) -> tuner.Contest:
    count = max(1, session.counts[plan.problem])
    return tuner.Contest(plan.problem, workspace_limit(), plan.candidate, session.progress, count)


def _take(plan: Plan, contest: tuner.Contest) -> None:
    """Compute with what a contest has found, and store it."""
    outcome = contest.outcome
    if outcome is None:
        return
    origin = TUNED if outcome.complete else GUESSED
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
def _guess(plan: Plan, below: int | None = None) -> None:
    """The first candidate that builds, with less scratch memory than below; a slow one is built meanwhile.

    Where problems are only gathered, it is the first that needs no compiler: measurements are to come soon.
    """
    slow: Candidate | None = None
    choice: Iterable[Candidate] = families.candidates(plan.problem)
    if is_gathering():
        ready_made = (candidate for candidate in families.candidates(plan.problem) if candidate.is_ready_made)
        choice = itertools.chain(itertools.islice(ready_made, 1), choice)
    for candidate in choice:
        if candidate.builds_slowly and not settings.deterministic:
            slow = candidate if slow is None and below is None else slow
            continue
        if _try(plan, candidate, below):
            break
    else:
        raise KernelError(f"{plan.problem}: no kernel can be built for it")
    if slow is not None and not is_gathering():
        # No daemon: the process must not end while a library is at work in it.
        threading.Thread(target=_improve, args=(plan, slow), name="genesis plan").start()


def _improve(plan: Plan, slow: Candidate) -> None:
    """Build the better guess, and use it unless something better than a guess has come meanwhile."""
    guessed = plan.candidate
    with contextlib.suppress(KernelError):
        slow.prepare(plan.problem)
        with _lock:
            if plan.candidate is guessed:
                _try(plan, slow, None)


def _try(plan: Plan, candidate: Candidate, below: int | None) -> bool:
    try:
        num_bytes = candidate.workspace(plan.problem)
        if num_bytes > workspace_limit() or (below is not None and num_bytes >= below):
            return False
        plan.use(candidate, GUESSED)
    except KernelError:
        return False
    return True


def _use_smaller(plan: Plan, num_bytes: int) -> None:
    """There is no room for num_bytes of scratch memory: the best guess that wants less."""
    with _lock:
        if plan.workspace >= num_bytes:
            _guess(plan, below=num_bytes)


def workspace_limit() -> int:
    """Bytes of scratch memory that one convolution may use."""
    return settings.workspace << 20


_followed: Any = None


def _follow_settings() -> None:
    """Other limits choose other plans."""
    global _followed
    now = (settings.workspace, settings.deterministic, settings.cache_dir, settings.tune)
    if _followed not in (None, now):
        forget()
    _followed = now


on_change(_follow_settings)
