"""A tuned problem and its row in the store; each value is checked before it is believed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

COLUMNS = "problem, candidate, microseconds, error, workspace, complete"
_LONGEST_PROBLEM, _LONGEST_CANDIDATE = 4096, 256  # characters
_CANDIDATE = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_ .,=+*-]+)+")
_MOST_BYTES = 1 << 62
# Families that had other names in stores of earlier versions.
_RENAMED = {
    "few_outputs": "small_k", "few_inputs": "small_c_dgrad", "few_channels": "small_c", "sub_pixel": "sub_pixel_dgrad",
    "patch": "halo_tile", "triton_direct": "implicit_gemm", "apart": "with_statistics_pass",
    "added": "with_residual_pass",
}  # fmt: skip


class Entry(NamedTuple):
    """The winner for one problem."""

    candidate: str
    microseconds: float
    error: float  # relative L2 distance from the float64 reference
    workspace: int  # bytes
    complete: bool = True  # False: the time was up before all candidates had been measured

    def is_better_than(self, other: Entry) -> bool:
        """Compare with another entry of the problem: one tuned to the end is better, then the faster one."""
        return (self.complete, -self.microseconds) > (other.complete, -other.microseconds)


def parsed(row: Sequence[Any]) -> tuple[str, Entry]:
    """The problem and the entry of a row of COLUMNS. Raises: ValueError: it is none that Genesis has written."""
    problem, candidate, microseconds, error, workspace, complete = row
    _require("problem", _is_text(problem, _LONGEST_PROBLEM), problem)
    named = _is_text(candidate, _LONGEST_CANDIDATE) and _CANDIDATE.fullmatch(candidate) is not None
    _require("candidate", named, candidate)
    # The time of a way that the device refuses is infinite.
    _require("microseconds", type(microseconds) is float and microseconds >= 0, microseconds)
    _require("error", type(error) is float and 0 <= error < math.inf, error)
    _require("workspace", type(workspace) is int and 0 <= workspace < _MOST_BYTES, workspace)
    _require("complete", type(complete) is int and complete in (0, 1), complete)
    return problem, Entry(_renamed(candidate), microseconds, error, workspace, bool(complete))


def _renamed(candidate: str) -> str:
    """
    >>> _renamed("apart/few_channels/128x64 stages 5")
    'with_statistics_pass/small_c/128x64 stages 5'
    >>> _renamed("attention/cudnn/eng8"), _renamed("attention/triton")
    ('cudnn/eng8', 'flash/triton')
    """
    if candidate == "attention/triton":
        return "flash/triton"
    *families, parameters = candidate.removeprefix("attention/").split("/")
    return "/".join([*(_RENAMED.get(family, family) for family in families), parameters])


def _is_text(value: object, longest: int) -> TypeGuard[str]:
    return type(value) is str and 0 < len(value) <= longest and value.isascii() and value.isprintable()


def _require(column: str, holds: bool, value: object) -> None:
    if not holds:
        shown = ascii(value)
        raise ValueError(f"{column} {shown if len(shown) < 60 else f'{shown[:56]} …'}")
