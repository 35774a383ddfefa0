"""Separate passes for the parts of an epilogue that a candidate does not fuse."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, P, Parts, admissible


class Pass(abc.ABC, Generic[P]):
    """One part of an epilogue, computed by a launch that follows the candidate's."""

    name: str  # in front of the candidate's
    is_last_resort: bool  # not after families that have a candidate at hand which fuses the part
    hides_errors: bool  # the check of a result would not show what is wrong with the candidate's

    @abc.abstractmethod
    def is_wanted(self, problem: P) -> bool: ...

    @abc.abstractmethod
    def without(self, problem: P) -> P:
        """The problem that is left for the candidate."""

    @abc.abstractmethod
    def prepare(self, problem: P, compute: Launch) -> Launch:
        """compute, the candidate's launch, and then the pass."""

    def num_bytes(self, problem: P) -> int:
        """Bytes of scratch memory, a multiple of 256; the candidate's comes after it."""
        return 0

    def parts(self, problem: P) -> Parts:
        """Parts of the statistics, if these are what it computes."""
        raise NotImplementedError(f"{self.name} finds no statistics")


class WithPass(Candidate[P]):
    """A candidate for what is left of a problem, and the pass."""

    def __init__(self, appended: Pass[P], first: Candidate[P]) -> None:
        self._pass, self._first, self.name = appended, first, f"{appended.name}/{first.name}"
        self.arithmetic, self.deterministic = first.arithmetic, first.deterministic
        self.builds_slowly = first.builds_slowly
        self.is_ready_made = first.is_ready_made  # the pass is compiled once for all problems

    def supports(self, problem: P) -> bool:
        return self._pass.is_wanted(problem) and admissible(self._first, self._pass.without(problem))

    def fuses(self, problem: P) -> frozenset[str]:
        return problem.epilogue.parts

    def workspace(self, problem: P) -> int:
        return self._pass.num_bytes(problem) + self._first.workspace(self._pass.without(problem))

    def parts(self, problem: P) -> Parts:
        return self._pass.parts(problem)

    def prepare(self, problem: P) -> Launch:
        return self._pass.prepare(problem, self._first.prepare(self._pass.without(problem)))


class PassFamily(Family[P]):
    """The candidates of a family, each followed by the pass."""

    def __init__(self, appended: Pass[P], first: Family[P]) -> None:
        self._pass, self._first = appended, first
        self.prefix, self.per_turn = f"{appended.name}/{first.prefix}", first.per_turn

    def variants(self, problem: P) -> Iterator[Candidate[P]]:
        return self._followed(problem, self._first.variants)

    def trials(self, problem: P) -> Iterator[Candidate[P]]:
        return self._followed(problem, self._first.variants if self._pass.hides_errors else self._first.trials)

    def _followed(self, problem: P, choice: Callable[[P], Iterable[Candidate[P]]]) -> Iterator[Candidate[P]]:
        if not self._pass.is_wanted(problem) or (self._pass.is_last_resort and self._fuses(problem)):
            return
        alone = self._pass.without(problem)
        for candidate in choice(alone):
            if admissible(candidate, alone):
                yield WithPass(self._pass, candidate)

    def _fuses(self, problem: P) -> bool:
        """Has the family a candidate that does without the pass, and is built soon?"""
        return any(admissible(each, problem) and not each.builds_slowly for each in self._first.variants(problem))

    def named(self, problem: P, name: str) -> Candidate[P] | None:
        if not self._pass.is_wanted(problem):
            return None
        first = self._first.named(self._pass.without(problem), name.removeprefix(f"{self._pass.name}/"))
        return None if first is None else WithPass(self._pass, first)
