"""The tuner: builds and times the candidates for a problem, and believes the fastest one whose result is right.

A Contest holds the candidates of one problem. It is visited again and again while there is time, and measures what is
at hand: what needs no compiler, and what has been compiled meanwhile (builders.py). rounds.py says whose turn it is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.deferred import NotCompiledYet, Ticket
from genesis.backends.cuda.engine import replays
from genesis.backends.cuda.engine.bench import Bench, Built, build
from genesis.backends.cuda.engine.builders import Builders
from genesis.backends.cuda.engine.candidate import Candidate, P
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.problem import Problem
from genesis.backends.cuda.runtime import memory
from genesis.errors import OutOfMemoryError

_SHORT = 0.03  # milliseconds: a lone run of a kernel that takes less is timed less exactly
_CLOSE_IF_SHORT, _CLOSE = 1.25, 1.1  # times the best: these are compared
_MOST_CLOSE = 8  # candidates
_SLOW = 2.0  # seconds that a candidate which builds slowly may take: it is not begun when there is less time
_WINDOW = 16  # candidates of a problem among which the next one is chosen
_FIRST_READY_MADE = 4  # of a family that needs no compiler
_FAR_BEHIND = 3.0  # times the best: a family whose fastest so far takes longer waits for all others


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[P]):
    """The result of tuning one problem."""

    problem: P
    candidate: Candidate[P]
    milliseconds: float  # of a lone run, as it is timed for all problems: see Contest._figure
    error: float  # of the result, as the op's bench tells it: relative L2 distance from float64, for one
    workspace: int
    complete: bool  # False: the time was up before the last candidate
    num_measured: int

    @property
    def flops_per_second(self) -> float:
        return self.problem.flops / self.milliseconds * 1e3


Progress = Callable[[Problem, int, int], None]  # candidates done, candidates in all
Deadline = Callable[[], float]  # of time.monotonic(); asked again and again, as it may change


class _Timed(NamedTuple, Generic[P]):
    """A candidate, how long it took, and what is known of it besides."""

    built: Built[P]
    milliseconds: float  # of a lone run
    error: float | None = None
    compared: float | None = None  # its time as a multiple of the first one's that was ever compared


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
        self._compiling: set[Candidate[P]] = set()
        self._built: dict[Candidate[P], Built[P] | None] = {}  # ahead of the visit that measures them
        self._lacking: set[Candidate[P]] = set()  # those that needed a compiler after all
        self._blocked: Ticket | None = None  # what a visit lacked
        self._front: list[_Timed[P]] = []  # the fastest few, the first of which is right once there is a reference
        self._asked_reference = self._has_reference = False
        self._fastest: dict[str, float] = {}  # milliseconds, by family
        self._done = 0

    @property
    def cost(self) -> float:
        """Milliseconds that the network spends on the problem; until they are measured, as a fast device would."""
        return self._count * (_estimate(self.problem) if self.outcome is None else self.outcome.milliseconds)

    def claim(self, num_candidates: int) -> float:
        """How much the problem deserves the next measurement if it has had so many."""
        return self.cost / (1 + num_candidates)

    @property
    def phase(self) -> int:
        """0: there is no outcome yet; 1: it is that of a single candidate; 2: others may be better."""
        return 0 if self._has_basics or self._is_unchecked else 1 if self.num_done < 2 else 2

    @property
    def phase_ahead(self) -> int:
        """The phase if all that is compiled ahead had been measured."""
        ahead = self.num_ahead
        is_basic = not self._asked_reference or any(self._is_job(each) for each in self._waiting[: self._num_basics])
        return 0 if is_basic else 1 if self.num_done + ahead < 2 else 2

    @property
    def num_done(self) -> int:
        """Candidates that were measured, or cannot be."""
        return self._done

    @property
    def num_compiling(self) -> int:
        return len(self._compiling)

    @property
    def num_ahead(self) -> int:
        """Candidates that are compiled or being compiled, and not measured."""
        return len(self._compiling) + len(self._built)

    @property
    def num_at_hand(self) -> int:
        return len(self._at_hand())

    @property
    def can_be_visited(self) -> bool:
        """Is there something to measure, or to check?"""
        if self._blocked is not None and not self._blocked.done:
            return False
        return not self._is_open or bool(self._at_hand()) or (self._is_unchecked and self._may_check)

    @property
    def num_to_compile(self) -> int:
        """Candidates that need a compiler."""
        return sum(map(self._needs_compiler, self._waiting))

    @property
    def has_job(self) -> bool:
        """Is there something to compile?"""
        return not self._asked_reference or self._next_job() is not None

    def start_next(self, builders: Builders) -> None:
        """Compile what the next measurements need: first what results are checked against, then candidates."""
        if not self._asked_reference:
            self._asked_reference = True
            builders.start(self._prepare_reference)
            builders.rehearse(self.operation.rehearsals(self.problem))
            return
        candidate = self._next_job()
        assert candidate is not None
        self._compiling.add(candidate)
        builders.start(functools.partial(self._build, candidate))

    def visit(self, deadline: Deadline, most: int, builders: Builders) -> None:
        """Measure what is at hand, at most so many, until a deadline; then check the fastest."""
        if not (self._at_hand() or self.can_be_visited):
            return
        try:
            self._blocked = builders.attempt(lambda: self._visit(deadline, most, builders))
        except OutOfMemoryError:
            memory.pool(self.problem.device).empty_cache()
            self.is_over = True
        finally:
            if not self._has_basics and self._front and self._front[0].error is not None:
                self.outcome = self._told(self._front[0])
        self.is_over = self.is_over or not (self._waiting or self._is_unchecked)

    def _visit(self, deadline: Deadline, most: int, builders: Builders) -> None:
        bench = self.operation.bench(self.problem)
        try:
            for _ in range(most):
                choice = self._at_hand()
                left = deadline() - time.monotonic()
                if not choice or left <= 0:
                    break
                if choice[0].builds_slowly and left < _SLOW:
                    self.is_over = True
                    break
                self._measure(bench, choice[0])
                builders.poll()
        except KeyboardInterrupt:  # what was measured is not lost
            self._conclude(bench)
            raise
        self._conclude(bench)

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

    @property
    def _is_open(self) -> bool:
        """Are its candidates known?"""
        return "_waiting" in self.__dict__

    @property
    def _has_basics(self) -> bool:
        return not self._is_open or (bool(self._waiting) and self._num_basics > 0)

    @property
    def _is_unchecked(self) -> bool:
        return bool(self._front) and self._front[0].error is None

    @property
    def _may_check(self) -> bool:
        return self._has_reference and not self._has_basics

    def _at_hand(self) -> list[Candidate[P]]:
        """Return what can be measured without a compiler. What builds slowly waits for all that is in front of it."""
        found: list[Candidate[P]] = []
        for place, candidate in enumerate(self._waiting[:_WINDOW]):
            if candidate.builds_slowly:
                return found if place else [candidate]
            if not self._needs_compiler(candidate):
                found.append(candidate)
        return found

    def _next_job(self) -> Candidate[P] | None:
        return next(filter(self._is_job, self._waiting[:_WINDOW]), None)

    def _is_job(self, candidate: Candidate[P]) -> bool:
        return self._needs_compiler(candidate) and candidate not in self._compiling

    def _needs_compiler(self, candidate: Candidate[P]) -> bool:
        if candidate in self._built or candidate.builds_slowly:
            return False
        return candidate in self._lacking or not (candidate.is_ready_made or candidate is self._known)

    def _build(self, candidate: Candidate[P]) -> None:
        built = build(candidate, self.problem, self._limit)
        self._compiling.discard(candidate)
        self._built[candidate] = built

    def _prepare_reference(self) -> None:
        try:
            self.operation.prepare_reference(self.problem)
        except KernelError:  # nothing can be believed
            self.is_over = True
        else:
            self._has_reference = True

    def _conclude(self, bench: Bench[P]) -> None:
        """Check the fastest, and decide whether it is the fastest."""
        if not self._may_check:
            return
        self._check_first(bench)
        self._postpone_the_hopeless()
        if self._front:
            self._decide(bench)
        del self._front[_MOST_CLOSE:]

    def _measure(self, bench: Bench[P], candidate: Candidate[P]) -> None:
        if candidate not in self._built:
            try:
                self._built[candidate] = build(candidate, self.problem, self._limit)
            except NotCompiledYet:  # a pass that follows it
                self._lacking.add(candidate)
                return
        built = self._built[candidate]
        best = self._figure(self._front[0]) if self._front else math.inf
        milliseconds = None if built is None else bench.milliseconds(built, best)
        index = self._waiting.index(candidate)
        self._num_basics -= index < self._num_basics
        del self._waiting[index], self._built[candidate]
        if built is not None and milliseconds is not None:
            family = candidate.family
            self._fastest[family] = min(milliseconds, self._fastest.get(family, math.inf))
            self._front = [*self._front, _Timed(built, milliseconds)]
            self._sort()
        self._done += 1
        if self._progress is not None:
            self._progress(self.problem, self._done, self._done + len(self._waiting))
        if self._may_check:
            self._check_first(bench)
            self._postpone_the_hopeless()

    def _check_first(self, bench: Bench[P]) -> None:
        """Drop those ahead of the fastest that is right."""
        while self._front and self._front[0].error is None:
            error = bench.error(self._front[0].built)
            if error <= self._bound:
                self._front[0] = self._front[0]._replace(error=error)
            else:
                del self._front[0]
                self._sort()

    def _postpone_the_hopeless(self) -> None:
        """Families that are far behind come last, with the slow ones."""
        if self._front:
            limit = _FAR_BEHIND * self._figure(self._front[0])
            hopeless = {family for family, milliseconds in self._fastest.items() if milliseconds > limit}
            self._waiting.sort(key=lambda each: each.builds_slowly or each.family in hopeless)

    def _decide(self, bench: Bench[P]) -> None:
        """Compare with the best what lone runs cannot tell from it, and has not been compared yet."""
        best = min(each.milliseconds for each in self._front if each.error is not None)
        limit = best * (_CLOSE_IF_SHORT if best < _SHORT else _CLOSE)
        reigning = min((each for each in self._front if each.compared is not None), key=_compared, default=None)
        if reigning is not None and reigning.milliseconds > _CLOSE_IF_SHORT * limit:  # it needs no comparison to lose
            self._front, reigning = [each._replace(compared=None) for each in self._front], None
        if reigning is self._front[0] and replays.num_launches(best) < 2:
            return  # of long kernels, lone runs tell the fastest well enough, and more of them take their time
        fresh = [each for each in self._front if each.compared is None and each.milliseconds <= limit]
        rivals = [*([] if reigning is None else [reigning]), *fresh[:_MOST_CLOSE]]
        if fresh and len(rivals) > 1:
            others = [each for each in self._front if each not in (*rivals, *fresh)]
            self._front = [*self._told_apart(bench, rivals), *others]
            self._sort()
            self._check_first(bench)  # one that was behind it may now be ahead of the one that is right

    def _told_apart(self, bench: Bench[P], rivals: Sequence[_Timed[P]]) -> list[_Timed[P]]:
        """Compare rivals: by replays, and where that is not possible, by more lone runs, turn by turn.

        Only ratios to the first are kept: figures of another visit, when the device may be slower, are no measure.
        """
        slowest = max(each.milliseconds for each in rivals)
        replayed = bench.replayed([each.built for each in rivals], slowest)
        if replayed is None or replayed[0] is None:
            replayed = [None] * len(rivals)
        alone = [i for i, milliseconds in enumerate(replayed) if milliseconds is None]
        if alone and alone[0] != 0:
            alone.insert(0, 0)
        rounds = [{i: bench.milliseconds(rivals[i].built, math.inf) for i in alone} for _ in range(2)]
        told = list(rivals)
        for i in alone:
            again = [rivals[i].milliseconds, *filter(None, (each[i] for each in rounds))]
            told[i] = rivals[i]._replace(milliseconds=statistics.median(again))
        unit = 1.0 if rivals[0].compared is None else rivals[0].compared
        for i, milliseconds in enumerate(replayed):
            first = replayed[0]
            if milliseconds is not None and first is not None:
                ratio = milliseconds / first
            else:
                ratio = told[i].milliseconds / max(told[0].milliseconds, 1e-9)
            told[i] = told[i]._replace(compared=unit * ratio)
        return told

    def _sort(self) -> None:
        self._front = sorted(self._front, key=self._figure)

    def _figure(self, timed: _Timed[P]) -> float:
        """Milliseconds of a lone run, by which candidates are ordered, and which outcomes tell.

        Of those that were compared, it is that of the one whose lone run was the fastest, times the ratio of the two.
        So replays decide, and all figures are of one kind: of a network's problems, of candidates that were compared
        and that were not, and those in stores, where an import keeps the faster entry.
        """
        if timed.compared is None:
            return timed.milliseconds
        known = [each for each in self._front if each.compared is not None] or [timed]
        fastest = min(known, key=lambda each: each.milliseconds)
        return fastest.milliseconds * (timed.compared / _compared(fastest))

    def _told(self, winner: _Timed[P]) -> Outcome[P]:
        assert winner.error is not None
        built = winner.built
        return Outcome(
            self.problem, built.candidate, self._figure(winner), winner.error, built.workspace, not self._waiting,
            self._done,
        )  # fmt: skip


def _compared(timed: _Timed[P]) -> float:
    assert timed.compared is not None
    return timed.compared


AnyContest = Contest[Any]  # of whatever problem
AnyOutcome = Outcome[Any]


def _estimate(problem: Problem) -> float:
    """Milliseconds on a large GPU."""
    return max(problem.flops / problem.flops_per_second, problem.bytes / 3e12) * 1e3
