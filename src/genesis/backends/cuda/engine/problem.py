"""A problem, of whichever op: a frozen record of all that decides how it is computed."""

from __future__ import annotations

from typing import NamedTuple, Protocol

PRECISIONS = ("highest", "high", "medium")  # of float32


class Epilogue(NamedTuple):
    """Steps after each result of a problem before it is stored, in this order; and beside it, its statistics."""

    bias: bool = False  # added, one number per column or channel
    residual: bool = False  # added, in the result's shape
    activation: str | None = None  # "relu"
    statistics: bool = False  # of the result's channels: candidate.Parts

    @property
    def parts(self) -> frozenset[str]:
        """The names of what is wanted."""
        return frozenset(name for name, wanted in zip(self._fields, self, strict=True) if wanted)


class Problem(Protocol):
    """Equal records are one problem; everything in it is known before operands are looked at."""

    def __hash__(self) -> int: ...

    @property
    def device(self) -> int: ...

    @property
    def precision(self) -> str:
        """Precision of float32, one of PRECISIONS; "highest" for all else."""

    @property
    def deterministic(self) -> bool:
        """Must the same operands give the same bits?"""

    @property
    def epilogue(self) -> Epilogue: ...

    @property
    def key(self) -> str:
        """This problem in the store: JSON, the same in every process; the device has a store of its own."""

    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Minimum memory traffic."""

    @property
    def flops_per_second(self) -> float:
        """Peak of a large GPU in this arithmetic: enough to tell where a network spends most of its time."""
