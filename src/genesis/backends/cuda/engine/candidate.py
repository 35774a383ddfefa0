"""What a way to compute a convolution looks like: a Candidate; and where candidates come from: a Family.

How to add one: a module of ops/conv/candidates/ with a subclass of Candidate per kernel (tile, splits, … are its
fields and stand in its name), and a Family that yields those worth trying for a problem, the best guess first; then
list the family in families.py. A candidate sees operands only as addresses of dense arrays (activations NHWC,
weights KRSC, bias without gaps); planner.py sees to that, allocates the result, hands over the workspace, and chooses
by measurement.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import NamedTuple

from genesis.backends.cuda.ops.conv.problem import ConvProblem

# launch(stream, out, first, second, bias, residual, workspace): put the work on the stream. All are addresses (0 where
# the problem has no such operand); first and second are the problem's operands in its order. Statistics, where the
# problem wants them, are left at the beginning of the workspace.
Launch = Callable[[int, int, int, int, int, int, int], None]

# What happens to float32 operands before they are multiplied. Sums are float32 or better everywhere.
FULL = "full"  # 22 bits and more take part: sums are as accurate as those of float32 multiply-adds
TF32 = "tf32"  # rounded to 11 bits
BF16 = "bf16"  # rounded to 8 bits
ALLOWED = {"highest": (FULL,), "high": (FULL, TF32), "medium": (FULL, TF32, BF16)}


class Parts(NamedTuple):
    """Statistics of a result's channels, in parts: float32 (3, number, channels): pivot, mean − pivot, Σ (y − mean)².

    Of y as it is stored. Part i is of the blocks i, i + number, … of so many rows (pixels, in their order in memory).
    """

    number: int
    rows: int

    def num_bytes(self, num_channels: int) -> int:
        """In memory, rounded up to a multiple of 256."""
        return -(-3 * self.number * num_channels * 4 // 256) * 256


class Candidate(abc.ABC):
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
    def supports(self, problem: ConvProblem) -> bool:
        """Does it compute this problem correctly? Cheap: nothing is compiled."""

    def workspace(self, problem: ConvProblem) -> int:
        """The bytes of scratch memory that launch() is handed, aligned to 256."""
        return 0

    def parts(self, problem: ConvProblem) -> Parts:
        """Those of the statistics that the problem wants. Only for candidates that support such a problem."""
        raise NotImplementedError(f"{self.name} finds no statistics")

    @abc.abstractmethod
    def prepare(self, problem: ConvProblem) -> Launch:
        """Compile, load, and pack whatever does not change from call to call. May take seconds.

        What is returned is called from any thread, many times, also while a CUDA graph is captured: it only launches.
        """


class Family(abc.ABC):
    """Candidates of one kind."""

    prefix: str  # of their names, up to the "/"
    per_turn: int = 1  # of them are measured before the next family's turn; the more, the sooner its turn is

    @abc.abstractmethod
    def variants(self, problem: ConvProblem) -> Iterable[Candidate]:
        """Those worth trying for this problem, the most promising first; none where it has none that supports it."""

    def trials(self, problem: ConvProblem) -> Iterable[Candidate]:
        """Those worth measuring: also such as nobody should use unless their result has been checked."""
        return self.variants(problem)

    def named(self, problem: ConvProblem, name: str) -> Candidate | None:
        """The variant of that name, which an earlier process found to be the best; None if there is none any more."""
        return next((candidate for candidate in self.variants(problem) if candidate.name == name), None)


def admissible(candidate: Candidate, problem: ConvProblem) -> bool:
    """Does the candidate compute the problem, in the precision and with the determinism that it asks for?"""
    return (
        candidate.arithmetic in ALLOWED[problem.precision]
        and (candidate.deterministic or not problem.deterministic)
        and candidate.supports(problem)
    )
