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
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda.engine.bench import Bench, Built, build, prepare_reference
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import memory
from genesis.errors import OutOfMemoryError
from genesis.shapes import numel

_CLOSE, _MOST_CLOSE = 1.1, 4  # times the best, and candidates: these are timed again
_FIRST_ROUND = 8  # candidates of each problem: cuDNN's first few, and the best guesses of the other families
_FIRST_READY_MADE = 4  # of a family that needs no compiler
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
Task = Callable[[], None]  # something to compile


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
    """The candidates of one problem, of which each visit measures some more.

    The first ones are the basics: what computes the problem now, what the libraries suggest first, which needs no
    compiler, and the best guess. Once they are measured and the fastest is checked, there is an outcome, and it is no
    slower than what would compute the problem without tuning.
    """

    def __init__(
        self, problem: ConvProblem, workspace_limit: int, known: Candidate | None = None,
        progress: Progress | None = None, count: int = 1,
    ) -> None:  # fmt: skip
        """
        Args:
            workspace_limit: bytes; candidates that want more are left out.
            known: what computes the problem now, perhaps the best of a former session: it is measured first.
            count: how often the network computes the problem.
        """
        self.problem = problem
        self.outcome: Outcome | None = None  # of all visits so far
        self.is_over = False  # there is nothing left to measure, or no memory to do it
        self._limit, self._known, self._progress, self._count = workspace_limit, known, progress, count
        # In float64 the reference is rounded as well.
        self._bound = error_bound(problem) * (math.sqrt(2) if problem.dtype is dtypes.float64 else 1)
        self._num_basics = 0  # that are left of those in front of the others
        self._built: dict[Candidate, Built | None] = {}  # ahead of the visit that measures them
        self._front: list[_Timed] = []  # the fastest few, the first of which is right once there is a reference
        self._has_reference = False
        self._fastest: dict[str, float] = {}  # milliseconds, by family
        self._done = 0

    @property
    def cost(self) -> float:
        """Milliseconds that the network spends on the problem; until they are measured, as a fast device would."""
        return self._count * (_estimate(self.problem) if self.outcome is None else self.outcome.milliseconds)

    @functools.cached_property
    def _waiting(self) -> list[Candidate]:
        """Asked for when its turn comes: libraries take their time to name what they have."""
        others = {each.name: each for each in families.in_turns(self.problem)}
        known = [] if self._known is None else [self._known]
        first: list[Candidate] = []
        for each in others.values():
            if each.is_ready_made and sum(other.family == each.family for other in first) < _FIRST_READY_MADE:
                first.append(each)
        choice = families.candidates(self.problem)
        guess = next((each.name for each in choice if not each.builds_slowly or self.problem.deterministic), "")
        basics = {each.name: each for each in [*known, *first, *filter(None, [others.get(guess)])]}
        self._num_basics = len(basics)
        return list({**basics, **others, **{each.name: each for each in known}}.values())

    def visit(self, deadline: float, most: int | None = None) -> None:
        """Measure the next candidates, at most so many, until a deadline of time.monotonic() at least one."""

        def measure(bench: Bench) -> None:
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
        """Those of the basics that no compiler is needed for. What they are worth, settle() finds out."""

        def measure(bench: Bench) -> None:
            while self._has_basics and not self._needs_compiler(self._waiting[0]) and time.monotonic() < deadline:
                self._measure(bench, checks=False)

        if self._waiting:
            self._with_bench(measure)

    def settle(self) -> None:
        """Measure what is left of the basics, and check: from now on there is an outcome.

        Nothing is compiled for it: without a reference, or what has not been built ahead, there is none.
        """

        def measure(bench: Bench) -> None:
            leader = self._front[:1]
            while self._has_basics:
                self._measure(bench, checks=False)
            self._conclude(bench, leader)

        left = self._waiting[: self._num_basics]
        if self._has_reference and not any(map(self._needs_compiler, left)) and not self.is_over:
            self._with_bench(measure)
            self.is_over = self.is_over or not self._waiting

    def basic_tasks(self, deadline: float) -> list[Task]:
        """What settle() wants to be compiled."""
        return [] if self.is_over else self.tasks(self._num_basics, deadline)

    def tasks(self, most: int, deadline: float) -> list[Task]:
        """What can be compiled, from any thread, for the visit that measures the next so many candidates."""
        ahead: list[Task] = [
            functools.partial(self._build, each, deadline)
            for each in self._waiting[:most]
            if self._needs_compiler(each)
        ]
        return ahead if self._has_reference else [functools.partial(self._prepare_reference, deadline), *ahead]

    @property
    def _has_basics(self) -> bool:
        return bool(self._waiting) and self._num_basics > 0

    def _with_bench(self, measure: Callable[[Bench], None]) -> None:
        try:
            measure(Bench(self.problem))
        except OutOfMemoryError:
            memory.pool(self.problem.device).empty_cache()
            self.is_over = True
        if self._front and self._front[0].error is not None:
            self.outcome = self._told(self._front[0])

    def _conclude(self, bench: Bench, leader: list[_Timed]) -> None:
        """Check the fastest, and if it is another than it was, whether it is the fastest."""
        self._check_first(bench)
        self._postpone_the_hopeless()
        del self._front[_MOST_CLOSE:]
        if self._front[:1] != leader:
            self._decide(bench)

    def _needs_compiler(self, candidate: Candidate) -> bool:
        at_hand = candidate.is_ready_made or candidate is self._known or candidate in self._built
        return not (at_hand or candidate.builds_slowly)

    def _build(self, candidate: Candidate, deadline: float) -> None:
        if time.monotonic() < deadline:
            self._built[candidate] = build(candidate, self.problem, self._limit)

    def _prepare_reference(self, deadline: float) -> None:
        if time.monotonic() < deadline:
            prepare_reference(self.problem)
            self._has_reference = True

    def _measure(self, bench: Bench, checks: bool) -> None:
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


def _estimate(problem: ConvProblem) -> float:
    """Milliseconds on a large GPU: enough to tell what a network spends most of its time on."""
    exact = problem.dtype is dtypes.float32 and problem.precision == "highest"
    per_second = 3e13 if exact or problem.dtype is dtypes.float64 else 4e14
    return max(problem.flops / per_second, problem.bytes / 3e12) * 1e3
