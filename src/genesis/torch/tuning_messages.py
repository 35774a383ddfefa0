"""Messages between the process that compiles and the one that tunes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from genesis.torch.graph_calls import Call

LOG, TUNED, FAILED = "log", "tuned", "failed"
Answer = tuple[str, object]  # one of these; a line, what was found, or an error's text


class Setting(NamedTuple):
    """All that decides on problems and plans beside the calls. logs: somebody reads the logger genesis.tuning."""

    settings: dict[str, object]
    cache_dir: Path
    precision: str
    device: int | None
    logs: bool


class Needed(NamedTuple):
    """A graph has been compiled, and is about to run. seconds: of measuring, if there have not been so many."""

    seconds: float


Told = list[Call] | Needed  # calls of the graph that is being compiled, which are to be tuned


class Tuned(NamedTuple):
    """The outcome of tuning what some calls compute: how many problems, and keys among which all of theirs are."""

    num_tuned: int
    num_left: int
    problems: list[str]
