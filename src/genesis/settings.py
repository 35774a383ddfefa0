"""Every environment switch, parsed and validated once; each can also be changed for a with block.

GENESIS_DEBUG      0 to 4: 1 device and plan decisions, 2 a line per op, 3 launch arguments, 4 kernel source
GENESIS_CHECK      nan: name the op that first made a NaN; cpu: compare every op with the CPU
GENESIS_CACHE_DIR  a folder for compiled kernels and tuned plans (default ~/.cache/genesis)
GENESIS_CUDA       auto: use the GPU if there is one; off: never; simulated: one on host memory
GENESIS_TUNE       seconds that may be spent on measuring which kernel computes a convolution fastest (default 0)
GENESIS_WORKSPACE  the most MiB of scratch memory that one convolution may use (default 1024)
GENESIS_DETERMINISTIC  1: only kernels that give the same bits each time (default 0)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Settings:
    """The switches in force. Read `genesis.settings.settings`; change it with override()."""

    debug: int = 0
    check: str = ""
    cache_dir: Path = Path("~/.cache/genesis")
    cuda: str = "auto"
    tune: float = 0.0
    workspace: int = 1024
    deterministic: bool = False

    def __post_init__(self) -> None:
        self.cache_dir = Path(self.cache_dir).expanduser()
        try:
            self.debug = int(self.debug)
        except ValueError:
            self.debug = -1
        self.tune = _number(self.tune, float)
        self.workspace = int(_number(self.workspace, int))
        self.deterministic = {"0": False, "1": True}.get(str(self.deterministic), self.deterministic)
        _require("GENESIS_DEBUG", self.debug in range(5), "a number from 0 to 4", self.debug)
        _require("GENESIS_CHECK", self.check in ("", "nan", "cpu"), "nan or cpu", self.check)
        _require("GENESIS_CUDA", self.cuda in ("auto", "off", "simulated"), "auto, off or simulated", self.cuda)
        _require("GENESIS_TUNE", self.tune >= 0, "a number of seconds, at least 0", self.tune)
        _require("GENESIS_WORKSPACE", self.workspace >= 0, "a whole number of MiB, at least 0", self.workspace)
        _require("GENESIS_DETERMINISTIC", self.deterministic in (False, True), "0 or 1", self.deterministic)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Settings from GENESIS_… variables; unknown ones are an error, so that a typing slip is seen."""
        names = {f"GENESIS_{field.name.upper()}": field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in environment.items() if name.startswith("GENESIS_") and value != ""}
        for name in given:
            _require(name, name in names, f"one of {', '.join(names)}", name)
        return cls(**{names[name]: value for name, value in given.items()})  # type: ignore[arg-type]


def _number(value: Any, kind: type[int] | type[float]) -> float:
    """value as a number; -1 where it is none."""
    try:
        return kind(value)
    except ValueError:
        return -1


def _require(name: str, holds: bool, expected: str, actual: object) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {actual!r}")


settings = Settings.from_environment(os.environ)
_listeners: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """Call listener now and after every change of the settings."""
    _listeners.append(listener)
    listener()


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Other settings inside the with block.

    Example:
        >>> from genesis.settings import override, settings
        >>> with override(debug=1):
        ...     settings.debug
        1
    """
    before = dataclasses.asdict(settings)
    changed = dataclasses.replace(settings, **changes)  # type: ignore[arg-type]  # validates before anything changes
    _assign(dataclasses.asdict(changed))
    try:
        yield settings
    finally:
        _assign(before)


def _assign(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    for listener in _listeners:
        listener()
