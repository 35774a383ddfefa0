"""The environment variables, parsed and validated once; a with block can override each.

GENESIS_DEBUG      0 to 4: 1 chosen device and plans, 2 a line per op, 3 launch arguments, 4 kernel source
GENESIS_CHECK      nan: name the op that produced the first NaN; cpu: compare every op with the CPU
GENESIS_CACHE_DIR  a folder for compiled kernels and tuned plans (default ~/.cache/genesis)
GENESIS_CUDA       auto: use the GPU if there is one; off: never; simulated: one on host memory
GENESIS_TUNE       seconds that a process may spend on tuning its convolutions (default 0)
GENESIS_COMPILERS  processes that compile while kernels are tuned (default: one per core, at most 16); 0: threads
GENESIS_WORKSPACE  the most MiB of scratch memory that one convolution may use (default 1024)
GENESIS_DETERMINISTIC  1: only kernels that return the same bits every time (default 0)
GENESIS_OVERLAP    0: kernels on a GPU start when the one before has ended, from the time they are loaded (default 1)
GENESIS_SHORT_STEPS  0: genesis.torch.compile replays with PyTorch's runtime around it, step by step (default 1)
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@dataclasses.dataclass
class Settings:
    """The current settings. Read `genesis.settings.settings`; change it with override()."""

    debug: int = 0
    check: str = ""
    cache_dir: Path = Path("~/.cache/genesis")
    cuda: str = "auto"
    tune: float = 0.0
    workspace: int = 1024
    deterministic: bool = False
    compilers: int | None = None
    short_steps: bool = True
    overlap: bool = True

    def __post_init__(self) -> None:
        debug, tune, workspace = _number(self.debug, int), _number(self.tune, float), _number(self.workspace, int)
        cache_dir, deterministic = _folder(self.cache_dir), _bool(self.deterministic)
        short_steps, overlap = _bool(self.short_steps), _bool(self.overlap)
        _require("GENESIS_DEBUG", debug in range(5), "a number from 0 to 4", self.debug)
        _require("GENESIS_CHECK", self.check in ("", "nan", "cpu"), "nan or cpu", self.check)
        _require("GENESIS_CACHE_DIR", cache_dir is not None, "a folder", self.cache_dir)
        _require("GENESIS_CUDA", self.cuda in ("auto", "off", "simulated"), "auto, off or simulated", self.cuda)
        _require("GENESIS_TUNE", tune >= 0, "a number of seconds, at least 0", self.tune)
        _require("GENESIS_WORKSPACE", workspace >= 0, "a whole number of MiB, at least 0", self.workspace)
        _require("GENESIS_DETERMINISTIC", deterministic is not None, "0 or 1", self.deterministic)
        _require("GENESIS_SHORT_STEPS", short_steps is not None, "0 or 1", self.short_steps)
        _require("GENESIS_OVERLAP", overlap is not None, "0 or 1", self.overlap)
        asked: int | str | None = self.compilers  # of the environment: a string
        compilers = None if asked is None or asked == "auto" else _number(asked, int)
        is_number = compilers is None or compilers >= 0
        _require("GENESIS_COMPILERS", is_number, "auto or a whole number, at least 0", self.compilers)
        assert cache_dir is not None
        assert deterministic is not None
        assert short_steps is not None
        assert overlap is not None
        self.debug, self.tune, self.workspace = int(debug), float(tune), int(workspace)
        self.cache_dir, self.deterministic = cache_dir, deterministic
        self.short_steps, self.overlap = short_steps, overlap
        self.compilers = None if compilers is None else int(compilers)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read GENESIS_… variables; warn of unknown ones, which may be another program's."""
        names = {f"GENESIS_{field.name.upper()}": field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in environment.items() if name.startswith("GENESIS_") and value != ""}
        for name in sorted(given.keys() - names):
            import difflib  # here, because it is slow to import

            known = [each.removeprefix("GENESIS_") for each in names]
            nearest = difflib.get_close_matches(name.removeprefix("GENESIS_"), known, n=1)
            meant = f"did you mean GENESIS_{nearest[0]}?" if nearest else f"known are {', '.join(names)}"
            warnings.warn(f"{name} is not a Genesis variable, and has no effect: {meant}", stacklevel=3)
        return cls(**{names[name]: value for name, value in given.items() if name in names})  # type: ignore[arg-type]


def _number(value: float | str, kind: type[int] | type[float]) -> float:
    """value as a number; -1 if it is none."""
    if isinstance(value, float) and kind is int and not value.is_integer():
        return -1
    try:
        return kind(value)
    except (OverflowError, TypeError, ValueError):
        return -1


def _bool(value: bool | str) -> bool | None:
    """value as a truth value; None if it is none."""
    return value if isinstance(value, bool) else {"0": False, "1": True}.get(value)


def _folder(value: str | Path) -> Path | None:
    """value as a path; None if it cannot be one."""
    try:
        return None if "\0" in str(value) else Path(value).expanduser()
    except (RuntimeError, TypeError):  # the home of a user whom nobody knows
        return None


def _require(name: str, holds: bool, expected: str, actual: object) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {actual!r}")


def _read() -> Settings:
    """Read the environment. If it is invalid, the command `genesis` exits with one sentence."""
    try:
        return Settings.from_environment(os.environ)
    except ValueError as error:
        arguments = sys.orig_argv[1:3]
        if arguments != ["-m", "genesis"] and Path(sys.argv[0]).name not in ("genesis", "genesis.exe"):
            raise
        print(f"genesis: {error}", file=sys.stderr)
        raise SystemExit(2) from error


settings = _read()
_listeners: list[Callable[[], None]] = []
_lock = threading.RLock()
_outside: dict[str, object] = {}  # what holds without any override
_overrides: list[dict[str, object]] = []  # those in force, in the order in which they began


def on_change(listener: Callable[[], None]) -> None:
    """Call listener now and after every change of the settings."""
    _listeners.append(listener)
    listener()


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Change settings inside the with block, in all threads.

    Blocks of several threads may overlap in any way. In force are the settings from before the first of them, with the
    changes of all that have not ended, in the order in which they began.

    Example:
        >>> from genesis.settings import override, settings
        >>> with override(debug=1):
        ...     settings.debug
        1
    """
    checked = dataclasses.replace(settings, **changes)  # type: ignore[arg-type]  # before anything changes
    mine = {name: getattr(checked, name) for name in changes}
    try:
        with _lock:
            if not _overrides:
                _outside.update({field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)})
            _overrides.append(mine)
            _apply()
        yield settings
    finally:
        with _lock:
            _overrides[:] = [each for each in _overrides if each is not mine]
            _apply()


def _apply() -> None:
    """Apply the overrides in force, and call the listeners."""
    values = dict(_outside)
    for each in _overrides:
        values.update(each)
    for name, value in values.items():
        setattr(settings, name, value)
    for listener in tuple(_listeners):
        listener()
