"""The tuner: builds and times the candidates for a problem, and believes the fastest one whose result is right.

A Contest holds the candidates of one problem. It is visited again and again while there is time, so that many problems
can each have their first few candidates measured before one has its tenth: rounds.py says in which order. First come
those that need no compiler, so that a short time is spent on measuring; compilers then work on several candidates at
once, and on the reference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple

from genesis.backends.cuda.engine.bench import Bench, Built, build
from genesis.backends.cuda.engine.candidate import Candidate, P
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.problem import Problem
from genesis.backends.cuda.runtime import memory
from genesis.errors import OutOfMemoryError

_CLOSE, _MOST_CLOSE = 1.1, 4  # times the best, and candidates: these are timed again
_FIRST_ROUND = 8  # candidates of each problem: cuDNN's first few, and the best guesses of the other families
_FIRST_READY_MADE = 4  # of a family that needs no compiler
_FAR_BEHIND = 3.0  # times the best: a family whose fastest so far takes longer waits for all others
_MOST_BUILDERS = 16  # threads


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[P]):
    """The result of tuning one problem."""

    problem: P
    candidate: Candidate[P]
    milliseconds: float
    error: float  # of the result, as the op's bench tells it: relative L2 distance from float64, for one
    workspace: int
    complete: bool  # False: the time was up before the last candidate
    num_measured: int

    @property
    def flops_per_second(self) -> float:
        return self.problem.flops / self.milliseconds * 1e3


Progress = Callable[[Problem, int, int], None]  # candidates done, candidates in all
Task = Callable[[], None]  # something to compile


class _Timed(NamedTuple, Generic[P]):
    """A candidate, how long it took, and its error where that is known."""

    built: Built[P]
    milliseconds: float
    error: float | None


class Contest(Generic[P]):
    """The candidates of one problem, of which each visit measures some more.

    The first ones are the basics: what computes the problem now, what the libraries suggest first, which needs no
    compiler, and the best guess. Once they are measured and the fastest is checked, there is an outcome, and it is no
    slower than what would compute the problem without tuning.
    """

    def __init__(
        self, operation: Operation[P], problem: P, workspace_limit: int, known: Candidate[P] | None = None,
        progress: Progress | None = None, count: int = 1,
    ) -> None:  # fmt: skip
        """
        Args:
            workspace_limit: bytes; candidates that want more are left out.
            known: what computes the problem now, perhaps the best of a former session: it is measured first.
            count: how often the network computes the problem.
        """
        self.operation, self.problem = operation, problem
        self.outcome: Outcome[P] | None = None  # of all visits so far
        self.is_over = False  # there is nothing left to measure, or no memory to do it
        self._limit, self._known, self._progress, self._count = workspace_limit, known, progress, count
        self._bound = operation.error_bound(problem)
        self._num_basics = 0  # that are left of those in front of the others
        self._built: dict[Candidate[P], Built[P] | None] = {}  # ahead of the visit that measures them
        self._front: list[_Timed[P]] = []  # the fastest few, the first of which is right once there is a reference
        self._has_reference = False
        self._fastest: dict[str, float] = {}  # milliseconds, by family
        self._done = 0

    @property
    def cost(self) -> float:
        """Milliseconds that the network spends on the problem; until they are measured, as a fast device would."""
        return self._count * (_estimate(self.problem) if self.outcome is None else self.outcome.milliseconds)

    @functools.cached_property
    def _waiting(self) -> list[Candidate[P]]:
        """Asked for when its turn comes: libraries take their time to name what they have."""
        others = {each.name: each for each in self.operation.in_turns(self.problem)}
        known = [] if self._known is None else [self._known]
        first: list[Candidate[P]] = []
        for each in others.values():
            if each.is_ready_made and sum(other.family == each.family for other in first) < _FIRST_READY_MADE:
                first.append(each)
        choice = self.operation.candidates(self.problem)
        guess = next((each.name for each in choice if not each.builds_slowly or self.problem.deterministic), "")
        basics = {each.name: each for each in [*known, *first, *filter(None, [others.get(guess)])]}
        self._num_basics = len(basics)
        return list({**basics, **others, **{each.name: each for each in known}}.values())

    def visit(self, deadline: float, most: int | None = None) -> None:
        """Measure the next candidates, at most so many, until a deadline of time.monotonic() at least one."""

        def measure(bench: Bench[P]) -> None:
            leader = self._front[:1]
            end = self._done + (len(self._waiting) if most is None else most)
            while self._waiting and self._done < end and (time.monotonic() < deadline or self._done == 0):
                if self._needs_compiler(self._waiting[0]):
                    build_ahead([self], min(end - self._done, _FIRST_ROUND), deadline)
                self._measure(bench, self._has_reference or len(self._front) >= _MOST_CLOSE)
            self._conclude(bench, leader)

        self._with_bench(measure)
        self.is_over = self.is_over or not self._waiting

    def measure_ready_made(self, deadline: float) -> None:
        """Measure the basic candidates that need no compiler; settle() judges them."""

        def measure(bench: Bench[P]) -> None:
            while self._has_basics and not self._needs_compiler(self._waiting[0]) and time.monotonic() < deadline:
                self._measure(bench, checks=False)

        if self._waiting:
            self._with_bench(measure)

    def settle(self) -> None:
        """Measure what is left of the basics, and check: from now on there is an outcome.

        Nothing is compiled for it: without a reference, or what has not been built ahead, there is none.
        """

        def measure(bench: Bench[P]) -> None:
            leader = self._front[:1]
            while self._has_basics:
                self._measure(bench, checks=False)
            self._conclude(bench, leader)

        left = self._waiting[: self._num_basics]
        if self._has_reference and not any(map(self._needs_compiler, left)) and not self.is_over:
            self._with_bench(measure)
            self.is_over = self.is_over or not self._waiting

    def basic_tasks(self, deadline: float) -> list[Task]:
        """Compilations that settle() needs."""
        return [] if self.is_over else self.tasks(self._num_basics, deadline)

    def tasks(self, most: int, deadline: float) -> list[Task]:
        """Compilations, for any thread, that the visit of the next so many candidates needs."""
        ahead: list[Task] = [
            functools.partial(self._build, each, deadline)
            for each in self._waiting[:most]
            if self._needs_compiler(each)
        ]
        return ahead if self._has_reference else [functools.partial(self._prepare_reference, deadline), *ahead]

    @property
    def _has_basics(self) -> bool:
        return bool(self._waiting) and self._num_basics > 0

    def _with_bench(self, measure: Callable[[Bench[P]], None]) -> None:
        try:
            measure(self.operation.bench(self.problem))
        except OutOfMemoryError:
            memory.pool(self.problem.device).empty_cache()
            self.is_over = True
        if self._front and self._front[0].error is not None:
            self.outcome = self._told(self._front[0])

    def _conclude(self, bench: Bench[P], leader: list[_Timed[P]]) -> None:
        """Check the fastest, and if it is another than it was, whether it is the fastest."""
        self._check_first(bench)
        self._postpone_the_hopeless()
        del self._front[_MOST_CLOSE:]
        if self._front[:1] != leader:
            self._decide(bench)

    def _needs_compiler(self, candidate: Candidate[P]) -> bool:
        at_hand = candidate.is_ready_made or candidate is self._known or candidate in self._built
        return not (at_hand or candidate.builds_slowly)

    def _build(self, candidate: Candidate[P], deadline: float) -> None:
        if time.monotonic() < deadline:
            self._built[candidate] = build(candidate, self.problem, self._limit)

    def _prepare_reference(self, deadline: float) -> None:
        if time.monotonic() < deadline:
            self.operation.prepare_reference(self.problem)
            self._has_reference = True

    def _measure(self, bench: Bench[P], checks: bool) -> None:
        """The next one. checks: the fastest so far is to be right, so that families can be told to be far behind it."""
        candidate = self._waiting.pop(0)
        self._num_basics -= self._num_basics > 0
        known = candidate in self._built
        built = self._built.pop(candidate) if known else build(candidate, self.problem, self._limit)
        best = self._front[0].milliseconds if self._front else math.inf
        milliseconds = None if built is None else bench.milliseconds(built, best)
        if built is not None and milliseconds is not None:
            family = candidate.family
            self._fastest[family] = min(milliseconds, self._fastest.get(family, math.inf))
            front = [*self._front, _Timed(built, milliseconds, None)]
            self._front = sorted(front, key=lambda each: each.milliseconds)
            if checks:
                self._check_first(bench)
                self._postpone_the_hopeless()
                del self._front[_MOST_CLOSE:]
        self._done += 1
        if self._progress is not None:
            self._progress(self.problem, self._done, self._done + len(self._waiting))

    def _check_first(self, bench: Bench[P]) -> None:
        """Drop those ahead of the fastest that is right."""
        while self._front and self._front[0].error is None:
            error = bench.error(self._front[0].built)
            if error <= self._bound:
                self._front[0] = self._front[0]._replace(error=error)
            else:
                del self._front[0]

    def _postpone_the_hopeless(self) -> None:
        """Families that are far behind come last, with the slow ones."""
        if self._front:
            limit = _FAR_BEHIND * self._front[0].milliseconds
            hopeless = {family for family, milliseconds in self._fastest.items() if milliseconds > limit}
            self._waiting.sort(key=lambda each: each.builds_slowly or each.family in hopeless)

    def _decide(self, bench: Bench[P]) -> None:
        """Time those again, turn by turn, that are too close to tell apart."""
        close = [each for each in self._front if each.milliseconds <= _CLOSE * self._front[0].milliseconds]
        if len(close) < 2:
            return
        rounds = [[bench.milliseconds(each.built, math.inf) for each in close] for _ in range(2)]
        again = [
            each._replace(milliseconds=statistics.median([each.milliseconds, *filter(None, more)]))
            for each, *more in zip(close, *rounds, strict=True)
        ]
        self._front = sorted(again + self._front[len(close) :], key=lambda each: each.milliseconds)
        self._check_first(bench)  # one that was behind it may now be ahead of the one that is right

    def _told(self, winner: _Timed[P]) -> Outcome[P]:
        built, milliseconds, error = winner
        assert error is not None
        return Outcome(
            self.problem, built.candidate, milliseconds, error, built.workspace, not self._waiting, self._done
        )


AnyContest = Contest[Any]  # of whatever problem
AnyOutcome = Outcome[Any]


def build_ahead(contests: Sequence[AnyContest], most: int, deadline: float) -> None:
    """Build the next candidates of each contest, so many or as many as keep all processors busy; and what results are
    checked against."""
    ahead = max(most, 2 * num_builders() // len(contests))  # half of them, or more, need no compiler
    at_once([task for contest in contests for task in contest.tasks(ahead, deadline)])


def num_builders() -> int:
    """How many compilers work side by side."""
    return min(os.cpu_count() or 1, _MOST_BUILDERS)


def at_once(tasks: Sequence[Task]) -> None:
    """Triton and NVRTC compile while other Python threads run. cuDNN's frontend keeps the interpreter to itself while
    it builds: its plans are left to the visit that measures them. Nothing is timed meanwhile."""
    num_threads = min(len(tasks), num_builders())
    if num_threads < 2:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="genesis build") as pool:
        running = [pool.submit(task) for task in tasks]
    for each in running:
        each.result()  # raises what is no KernelError


def _estimate(problem: Problem) -> float:
    """Milliseconds on a large GPU."""
    return max(problem.flops / problem.flops_per_second, problem.bytes / 3e12) * 1e3
