"""The tuner: builds and times the candidates for a problem, and believes the fastest one whose result is right.

A Contest holds the candidates of one problem. It is visited again and again while there is time, so that many problems
can each have their first few candidates measured before one has its tenth. First come those that need no compiler, so
that a short time is spent on measuring; compilers then work on several candidates at once, and on the reference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import memory
from genesis.backends.cuda.conv import families
from genesis.backends.cuda.conv.bench import Bench, Built, build, prepare_reference
from genesis.backends.cuda.conv.candidate import Candidate
from genesis.backends.cuda.conv.problem import INPUT_GRAD, ConvProblem
from genesis.errors import OutOfMemoryError
from genesis.shapes import numel

_CLOSE, _MOST_CLOSE = 1.1, 4  # times the best, and candidates: these are timed again
_FIRST_ROUND = 8  # candidates of each problem: cuDNN's first few, and the best guesses of the other families
_FAR_BEHIND = 3.0  # times the best: a family whose fastest so far takes longer waits for all others
_MOST_BUILDERS = 16  # threads
_UNIT_ROUNDOFF = {
    dtypes.float64: 2.0**-53,
    dtypes.float32: 2.0**-24,
    dtypes.float16: 2.0**-11,
    dtypes.bfloat16: 2.0**-8,
}
_CHAIN = 0.302  # · unit roundoff · √terms: the error of a chain of multiply-adds of independent normal numbers
_LEAST_CHAIN = 31  # terms; of fewer, the rounding of the result and of the epilogue counts as well
_LOWERED = {"high": 2.0**-10, "medium": 2.0**-8}  # both operands cut off, as some tensor cores do


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What tuning one problem found."""

    problem: ConvProblem
    candidate: Candidate
    milliseconds: float
    error: float  # relative L2 distance from float64
    workspace: int
    complete: bool  # False: the time was up before the last candidate
    num_measured: int

    @property
    def flops_per_second(self) -> float:
        return self.problem.flops / self.milliseconds * 1e3


Progress = Callable[[ConvProblem, int, int], None]  # candidates done, candidates in all


def error_bound(problem: ConvProblem) -> float:
    """The largest relative L2 distance from the exact result that a result may have on random operands.

    In float32 that is what a chain of float32 multiply-adds has, but not above 3e-7; in float64 a chain of float64's,
    with its spread; elsewhere the rounding of the result, or of the operands where that is coarser. What is added to
    an input's gradient may be added after that is rounded, as a pass does: of two parts as large as each other, one is
    then rounded twice.
    """
    if problem.dtype is dtypes.float32 and problem.precision == "highest":
        return min(3e-7, chain_error(problem))
    if problem.dtype is dtypes.float64:
        return chain_bound(problem)
    if problem.dtype is dtypes.float32:
        return _LOWERED[problem.precision]
    roundings = 1.5 if problem.residual and problem.direction == INPUT_GRAD else 1  # of the sum; they add in squares
    return math.sqrt(roundings) * _UNIT_ROUNDOFF[problem.dtype] / 2


def chain_error(problem: ConvProblem) -> float:
    """The relative L2 error that one chain of multiply-adds per result has on average, in the problem's dtype.

    The sum so far is rounded at each step, and grows with the root of the steps: 0.30 · unit roundoff · √terms.
    Measured with normal numbers against extended precision: 0.299 to 0.303 in float64, from 30 to 3400 terms;
    PyTorch's float32 on an H200: 0.30, from 64 to 4608 terms.
    """
    return _CHAIN * _UNIT_ROUNDOFF[problem.dtype] * math.sqrt(max(_LEAST_CHAIN, problem.num_terms))


def chain_bound(problem: ConvProblem) -> float:
    """The largest error that chains of multiply-adds have, whatever the operands: that of a random walk.

    The squared error of one chain deviates from its mean by 2.4 times that mean, since all its sums are large or small
    together; so the L2 error of r results by 1.2 / √r. Six deviations and more: the largest of 3,333 measured sets of 6
    results was 4.2 times the average, of 400 sets of 50 1.9 times, of 100 sets of 200 1.3 times. Many results that
    share their operands come to the average within a few percent, and no closer.
    """
    return chain_error(problem) * (1.05 + 8 / math.sqrt(numel(problem.result_shape)))


class _Timed(NamedTuple):
    """A candidate, how long it took, and its error where that is known."""

    built: Built
    milliseconds: float
    error: float | None


class Contest:
    """The candidates of one problem, of which each visit measures some more."""

    def __init__(
        self, problem: ConvProblem, workspace_limit: int, known: Candidate | None = None,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            workspace_limit: bytes; candidates that want more are left out.
            known: what computes the problem now, perhaps the best of a former session: it is measured first.
        """
        self.problem = problem
        self.outcome: Outcome | None = None  # of all visits so far
        self.is_over = False  # there is nothing left to measure, or no memory to do it
        self._limit, self._progress = workspace_limit, progress
        # In float64 the reference is rounded as well.
        self._bound = error_bound(problem) * (math.sqrt(2) if problem.dtype is dtypes.float64 else 1)
        others = [each for each in families.in_turns(problem) if known is None or each.name != known.name]
        self._waiting = others if known is None else [known, *others]
        self._known = known
        self._built: dict[Candidate, Built | None] = {}  # ahead of the visit that measures them
        self._front: list[_Timed] = []  # the fastest few, the first of which is right once there is a reference
        self._has_reference = False
        self._fastest: dict[str, float] = {}  # milliseconds, by family
        self._done = 0

    def visit(self, deadline: float, most: int | None = None) -> None:
        """Measure the next candidates, at most so many, until a deadline of time.monotonic() at least one."""
        try:
            bench, leader = Bench(self.problem), self._front[:1]
            end = self._done + (len(self._waiting) if most is None else most)
            while self._waiting and self._done < end and (time.monotonic() < deadline or self._done == 0):
                candidate = self._waiting[0]
                if self._needs_compiler(candidate) and candidate is not self._known:
                    build_ahead([self], min(end - self._done, _FIRST_ROUND), deadline)
                self._measure(bench, self._waiting.pop(0))
            self._check_first(bench)
            if self._front[:1] != leader:
                self._decide(bench)
        except OutOfMemoryError:
            memory.pool(self.problem.device).empty_cache()
            self.is_over = True
        self.is_over = self.is_over or not self._waiting
        if self._front and self._front[0].error is not None:
            self.outcome = self._told(self._front[0])

    def tasks(self, most: int, deadline: float) -> list[Callable[[], None]]:
        """What can be compiled, from any thread, for the visit that measures the next so many candidates."""
        ahead: list[Callable[[], None]] = [
            functools.partial(self._build, each, deadline)
            for each in self._waiting[:most]
            if self._needs_compiler(each)
        ]
        if self._has_reference:
            return ahead
        self._has_reference = True
        return [functools.partial(prepare_reference, self.problem), *ahead]

    def _needs_compiler(self, candidate: Candidate) -> bool:
        return not (candidate.is_ready_made or candidate.builds_slowly or candidate in self._built)

    def _build(self, candidate: Candidate, deadline: float) -> None:
        if time.monotonic() < deadline:
            self._built[candidate] = build(candidate, self.problem, self._limit)

    def _measure(self, bench: Bench, candidate: Candidate) -> None:
        known = candidate in self._built
        built = self._built.pop(candidate) if known else build(candidate, self.problem, self._limit)
        best = self._front[0].milliseconds if self._front else math.inf
        milliseconds = None if built is None else bench.milliseconds(built, best)
        if built is not None and milliseconds is not None:
            family = candidate.family
            self._fastest[family] = min(milliseconds, self._fastest.get(family, math.inf))
            front = [*self._front, _Timed(built, milliseconds, None)]
            self._front = sorted(front, key=lambda each: each.milliseconds)
            if self._has_reference or len(front) > _MOST_CLOSE:
                self._check_first(bench)
                self._postpone_the_hopeless()
                del self._front[_MOST_CLOSE:]
        self._done += 1
        if self._progress is not None:
            self._progress(self.problem, self._done, self._done + len(self._waiting))

    def _check_first(self, bench: Bench) -> None:
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

    def _decide(self, bench: Bench) -> None:
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

    def _told(self, winner: _Timed) -> Outcome:
        built, milliseconds, error = winner
        assert error is not None
        return Outcome(
            self.problem, built.candidate, milliseconds, error, built.workspace, not self._waiting, self._done
        )


def build_ahead(contests: Sequence[Contest], most: int, deadline: float) -> None:
    """Build the next candidates of each contest, so many or as many as keep all processors busy, all at once; and what
    results are checked against.

    Triton and NVRTC compile while other Python threads run. cuDNN's frontend keeps the interpreter to itself while it
    builds: its plans are left to the visit that measures them. Nothing is timed meanwhile.
    """
    most_threads = min(os.cpu_count() or 1, _MOST_BUILDERS)
    ahead = max(most, 2 * most_threads // len(contests))  # half of them, or more, need no compiler
    tasks = [task for contest in contests for task in contest.tasks(ahead, deadline)]
    num_threads = min(len(tasks), most_threads)
    if num_threads < 2:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="genesis build") as pool:
        running = [pool.submit(task) for task in tasks]
    for each in running:
        each.result()  # raises what is no KernelError


def share_out(contests: Iterable[Contest], deadline: float, told: Callable[[Contest], None]) -> None:
    """Visit the contests in rounds, each of which measures twice as many candidates of each as the one before.

    In a round each contest gets an equal part of the time that its predecessors have left; from the second on those
    come first that take longest, where there is most to gain. told() is called after each visit.
    """
    waiting, most = list(contests), _FIRST_ROUND
    while waiting and time.monotonic() < deadline:
        build_ahead(waiting, most, deadline)
        for index, contest in enumerate(waiting):
            now = time.monotonic()
            if now >= deadline:
                return
            contest.visit(now + (deadline - now) / (len(waiting) - index), most)
            told(contest)
        waiting = [contest for contest in waiting if not contest.is_over]
        waiting.sort(key=lambda contest: -contest.outcome.milliseconds if contest.outcome is not None else 0.0)
        most *= 2
