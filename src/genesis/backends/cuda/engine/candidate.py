"""An implementation of a problem, a Candidate; and its source, a Family.

How to add one: a module of ops/<op>/candidates/ with a subclass of Candidate per kernel (tile, splits, … are its fields
and stand in its name), and a Family that yields those worth trying for a problem, the best guess first; then list the
family in the op's families.py. A candidate sees operands only as addresses, in the layouts that the problem names;
the op's plan sees to that, allocates the result, and hands over the workspace.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Never, TypeVar

from genesis.backends.cuda.engine.problem import Problem

P = TypeVar("P", bound=Problem)
P_contra = TypeVar("P_contra", bound=Problem, contravariant=True)

# launch(stream, result, …, operand, …, workspace): put the work on the stream. All are addresses, 0 where the problem
# has no such operand: (stream, out, first, second, bias, residual, workspace) of convolutions and matrix products,
# (stream, y, logsumexp, query, key, value, workspace) of attention. Statistics, where the problem wants them, are left
# at the beginning of the workspace.
Launch = Callable[[int, int, int, int, int, int, int], None]

# What happens to float32 operands before they are multiplied. Sums are float32 or better everywhere.
FULL = "full"  # 22 bits and more take part: sums are as accurate as those of float32 multiply-adds
TF32 = "tf32"  # rounded to 11 bits
BF16 = "bf16"  # rounded to 8 bits
ALLOWED = {"highest": (FULL,), "high": (FULL, TF32), "medium": (FULL, TF32, BF16)}

PLAIN = frozenset({"bias", "residual", "activation"})  # what most kernels do with a result before they store it


class Parts(NamedTuple):
    """Statistics of a result's channels, in parts: float32 (3, number, channels): pivot, mean − pivot, Σ (y − mean)².

    Of y as it is stored. Part i is of the blocks i, i + number, … of so many rows (pixels, in their order in memory).
    With fold, blocks have fold times as many, and part i·fold + j is of the rows j, j + fold, … of the blocks i,
    i + number / fold, ….
    """

    number: int
    rows: int
    fold: int = 1

    def num_bytes(self, num_channels: int) -> int:
        """In memory, rounded up to a multiple of 256."""
        return -(-3 * self.number * num_channels * 4 // 256) * 256


class Candidate(abc.ABC, Generic[P_contra]):
    """One kernel, or chain of kernels, with all its parameters fixed."""

    name: str  # stable from version to version: the store keeps it. "family/parameters"
    arithmetic: str = FULL
    deterministic: bool = True  # the same operands give the same bits
    builds_slowly: bool = False  # prepare() takes seconds: until it is done, another computes
    is_ready_made: bool = False  # prepare() compiles nothing, and takes milliseconds

    @property
    def family(self) -> str:
        """Its name without the parameters."""
        return self.name.rpartition("/")[0]

    @abc.abstractmethod
    def supports(self, problem: P_contra) -> bool:
        """Does it compute this problem correctly, but for what it does not fuse? Cheap: nothing is compiled."""

    def fuses(self, problem: P_contra) -> frozenset[str]:
        """The parts of an epilogue that it computes on the way; the planner appends passes for the others."""
        return PLAIN

    def workspace(self, problem: P_contra) -> int:
        """The bytes of scratch memory that launch() is handed, aligned to 256."""
        return 0

    def parts(self, problem: P_contra) -> Parts:
        """Parts of the statistics that the problem wants. Only for candidates that fuse them."""
        raise NotImplementedError(f"{self.name} finds no statistics")

    @abc.abstractmethod
    def prepare(self, problem: P_contra) -> Launch:
        """Compile, load, and pack whatever does not change from call to call. May take seconds.

        What is returned is called from any thread, many times, also while a CUDA graph is captured: it only launches.
        """


# Of whatever problem: what can be asked without one.
AnyCandidate = Candidate[Never]


class Family(abc.ABC, Generic[P_contra]):
    """Candidates of one kind."""

    prefix: str  # of their names, up to the "/"
    per_turn: int = 1  # of them are measured before the next family's turn; the more, the sooner its turn is
    finds_statistics: bool = False  # do some of its candidates fuse them?

    @abc.abstractmethod
    def variants(self, problem: P_contra) -> Iterable[Candidate[P_contra]]:
        """Variants worth trying for this problem, the most promising first; none if none supports it."""

    def trials(self, problem: P_contra) -> Iterable[Candidate[P_contra]]:
        """Variants worth measuring, some of which need their result checked before use."""
        return self.variants(problem)

    def named(self, problem: P_contra, name: str) -> Candidate[P_contra] | None:
        """The variant of that name, which an earlier process found to be the best; None if there is none any more."""
        return next((candidate for candidate in self.variants(problem) if candidate.name == name), None)


def numbers_in(name: str, pattern: str, most: int) -> tuple[int, ...]:
    """The numbers in a name of this form; none where it has another, or one of them is not among 1 … most.

    >>> numbers_in("4x56 w2", r"(\\d+)x(\\d+) w(\\d+)", 64)
    (4, 56, 2)
    """
    found = re.fullmatch(pattern, name)
    numbers = () if found is None else tuple(map(int, found.groups()))
    return numbers if numbers and min(numbers) > 0 and max(numbers) <= most else ()


def admissible(candidate: Candidate[P], problem: P) -> bool:
    """Does it compute all of the problem by itself, in the precision and with the determinism that it asks for?"""
    return (
        candidate.arithmetic in ALLOWED[problem.precision]
        and (candidate.deterministic or not problem.deterministic)
        and problem.epilogue.parts <= candidate.fuses(problem)
        and candidate.supports(problem)
    )
