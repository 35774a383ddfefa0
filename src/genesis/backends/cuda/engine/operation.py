"""The interface of an op to the engine: its families of candidates, how results are measured, and the order of both."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from genesis.backends.cuda.engine.candidate import Candidate, Family, P, admissible

if TYPE_CHECKING:
    from genesis.backends.cuda.engine.bench import Bench
    from genesis.backends.cuda.engine.planner import Plan

T = TypeVar("T")

_MOST_SLOW = 6  # of a family; cuDNN's heuristics have the best among their first few


class Operation(abc.ABC, Generic[P]):
    """One op whose problems have several implementations."""

    @abc.abstractmethod
    def families(self, problem: P) -> Sequence[Family[P]]:
        """Families that may compute the problem, the most promising first; at least one of them does."""

    @abc.abstractmethod
    def plan(self, problem: P) -> Plan[P]:
        """A plan that has no candidate yet."""

    @abc.abstractmethod
    def problem(self, key: str, device: int) -> P:
        """The problem that has this key in the store. Raises: ValueError: none has, such as that of another op."""

    @abc.abstractmethod
    def bench(self, problem: P) -> Bench[P]:
        """Operands for it on the device. Raises: OutOfMemoryError."""

    @abc.abstractmethod
    def prepare_reference(self, problem: P) -> None:
        """Compile what the first check of a result runs, so that it need not wait for that. From any thread."""

    def rehearsals(self, problem: P) -> Mapping[str, Callable[[], object]]:
        """Steps of bench() and of its checks by name, one for all problems; their kernels are compiled side by side."""
        return {}

    @abc.abstractmethod
    def error_bound(self, problem: P) -> float:
        """The largest error, as the bench tells it, of a result that is believed."""

    def candidates(self, problem: P) -> Iterator[Candidate[P]]:
        """All that compute the problem as it asks, the best guess first; there is always one."""
        for family in self.families(problem):
            yield from _admissible(family.variants(problem), problem)

    def in_turns(self, problem: P) -> Iterator[Candidate[P]]:
        """Order what is worth measuring: the libraries' first suggestions (no compiler needed), then each family's most
        promising, and so on in turns; then the few that take longer to build than all others together."""
        ordered = sorted(self.families(problem), key=lambda family: -family.per_turn)
        choice = [(list(_admissible(family.trials(problem), problem)), family.per_turn) for family in ordered]
        yield from _alternating([(iter([each for each in all_ if not each.builds_slowly]), n) for all_, n in choice])
        for mine, _ in choice:
            yield from [each for each in mine if each.builds_slowly][:_MOST_SLOW]

    def named(self, problem: P, name: str) -> Candidate[P] | None:
        """The candidate of that name, if it still is one for this problem."""
        for family in self.families(problem):
            if name.startswith(f"{family.prefix}/"):
                candidate = family.named(problem, name)
                return candidate if candidate is not None and admissible(candidate, problem) else None
        return None


def _admissible(choice: Iterable[Candidate[P]], problem: P) -> Iterator[Candidate[P]]:
    return (candidate for candidate in choice if admissible(candidate, problem))


def _alternating(waiting: list[tuple[Iterator[T], int]]) -> Iterator[T]:
    """Take turns, so many of each at a time."""
    while waiting:
        for variants in list(waiting):
            turn = list(itertools.islice(*variants))
            if not turn:
                waiting.remove(variants)
            yield from turn
