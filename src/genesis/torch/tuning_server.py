"""The process that tunes beside the one that compiles: see tuning.py, its parent.

It is told the settings, then calls of ops: it compiles the kernels that they launch, on all cores, and measures what
computes them fastest until the graph has been compiled. It ends with its parent, whatever ends that: its end of the
socket closes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

import genesis
import genesis.torch.dynamo  # these register the ops
import genesis.torch.graph_casts
import genesis.torch.graph_folds
from genesis.backends.cuda.driver.compile_server import end_with_parent
from genesis.backends.cuda.engine import builders, planner, platform, stored
from genesis.backends.cuda.engine.problem import Problem
from genesis.settings import override
from genesis.torch.backend import backend_of
from genesis.torch.graph_calls import Call
from genesis.torch.tuning_messages import FAILED, LOG, TUNED, Answer, Needed, Setting, Told, Tuned


class _Graph:
    """A graph that the parent compiles: its calls, which come in lists, and when it is needed."""

    def __init__(self, connection: Connection[Answer, Setting | Told]) -> None:
        self.fresh: list[Call] = []  # that came last
        self.is_needed = False
        self._connection, self._since, self._seconds = connection, 0.0, 0.0

    def take(self) -> None:
        """Wait for a message."""
        told = self._connection.recv()
        if isinstance(told, Needed):
            self.is_needed, self._since, self._seconds = True, time.monotonic(), told.seconds
        else:
            assert isinstance(told, list)
            self.fresh += told

    def end(self, began: float) -> float:
        """Return when measuring that began then is to end. With other calls it begins anew."""
        while not self.is_needed and self._connection.poll():
            self.take()
        if self.fresh:
            return began
        return max(self._since, began + self._seconds) if self.is_needed else math.inf


class _Session(planner.Session):
    def __init__(self, graph: _Graph) -> None:
        super().__init__(math.inf, gathers=True, resumes=False)
        self._graph = graph

    def deadline(self) -> float:
        return self._graph.end(self.began)


def tuned(graph: _Graph) -> Tuned:
    """Tune what a graph's calls compute until it is needed. Raises: what one of the calls raises."""
    calls: list[Call] = []
    met: set[Problem] = set()  # that the store did not know
    num_tuned = 0
    while True:
        while not (graph.fresh or graph.is_needed):
            graph.take()
        if not graph.fresh:
            num_left = sum(not _is_stored(problem) for problem in met)
            return Tuned(num_tuned, num_left, sorted(_tuned_problems()))
        fresh, graph.fresh = graph.fresh, []
        calls += fresh
        met |= _compile_for(fresh)
        session = _Session(graph)
        _measure(calls, session)
        num_tuned += len(session.outcomes)
        if session.outcomes:
            _compile_for(calls)  # what is launched after that which was found


def _compile_for(calls: Sequence[Call]) -> set[Problem]:
    """Have compiled, on all cores, what these calls launch, also where there will be no time to measure.

    Returns: the problems that the store does not know.
    """
    if not genesis.cuda.is_available():
        return set()
    jobs = builders.Builders(builders.compilers())
    session = planner.Session(math.inf, gathers=True, resumes=False, rehearses=True)
    planner.begin(session)
    try:
        jobs.rehearse({repr(call): call.make for call in calls})
        while True:
            guessed = [plan for plan in planner.all_plans() if plan.origin == planner.HEURISTIC]
            jobs.rehearse({plan.problem.key: functools.partial(planner.build_guess, plan) for plan in guessed})
            if not jobs.num_busy:
                return set(session.met)
            jobs.advance(0.2)
    finally:
        jobs.drop()
        planner.end(session)
        planner.forget_guesses()  # some of which compute nothing


def _measure(calls: Sequence[Call], session: _Session) -> None:
    """Tune what these calls compute, if there is time: libraries take theirs to name what they have."""
    planner.begin(session)
    try:
        for call in calls:
            if time.monotonic() >= session.deadline():
                return
            call.make()
        if genesis.cuda.is_available():
            planner.share_out(session)
    finally:
        planner.end(session)


def _tuned_problems() -> set[str]:
    """Keys of all problems that this process has met and the store knows: others that it met have no say in whether
    some calls were tuned."""
    return {plan.problem.key for plan in planner.all_plans() if _is_stored(plan.problem)}


def _is_stored(problem: Problem) -> bool:
    return platform.store(problem.device).get(problem.key) is not None


# --- the process ------------------------------------------------------------------------------------------------------
def main(descriptor: int, *compilers: int) -> None:
    """Serve a parent, and have these compilers work; none: start some."""
    threading.Thread(target=end_with_parent, args=(descriptor,), daemon=True).start()
    connection: Connection[Answer, Setting | Told] = Connection(descriptor)
    setting = connection.recv()
    assert isinstance(setting, Setting)
    if setting.logs:
        _relay_to(connection)
    genesis.set_float32_precision(setting.precision)
    with override(cache_dir=setting.cache_dir, **setting.settings), contextlib.suppress(EOFError):
        obstacle = _prepare(setting.device, compilers)
        while True:
            _serve(connection, obstacle)


def _prepare(device: int | None, compilers: Sequence[int]) -> str:
    """Make ready the device, its ops and the compilers. Returns: why that is not possible."""
    try:
        if compilers:
            builders.adopt(compilers)
        if device is not None:
            torch.cuda.set_device(device)
            torch.zeros(1, device="cuda")
        if genesis.cuda.is_available():
            builders.compilers().start()
            threading.Thread(target=stored.load_libraries, args=(device or 0,), daemon=True).start()
            backend_of("cuda")
            # Until this process ends, problems are only noted outside tuned(), and the compilers stay.
            planner.begin(planner.Session(math.inf, gathers=True, resumes=False))
    except Exception as error:  # a device that is another process' alone, or full
        return f"{type(error).__name__}: {error}"
    return ""


def _serve(connection: Connection[Answer, Setting | Told], obstacle: str) -> None:
    """Tune a graph; where that fails, the parent tries it itself, and gets the error that there is."""
    graph = _Graph(connection)
    answer: Answer = FAILED, obstacle
    if not obstacle:
        try:
            answer = TUNED, tuned(graph)
        except EOFError:
            raise
        except Exception as error:
            answer = FAILED, f"{type(error).__name__}: {error}"
    while not graph.is_needed:
        graph.take()
    connection.send(answer)


def _relay_to(connection: Connection[Answer, Setting | Told]) -> None:
    class Relay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            connection.send((LOG, record.getMessage()))

    logger = logging.getLogger("genesis.tuning")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Relay())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
