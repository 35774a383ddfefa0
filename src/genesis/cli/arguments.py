"""What arguments of several commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genesis.errors import describe


def positive(kind: type[int] | type[float]) -> Any:
    """A type for argparse: a number of this kind above 0."""
    return _number(kind, "a number above 0", lambda value: value > 0)


def from_zero(kind: type[int] | type[float]) -> Any:
    """A type for argparse: a number of this kind from 0 on."""
    return _number(kind, "a number from 0 on", lambda value: value >= 0)


def share() -> Any:
    """A type for argparse: a part of a whole."""
    return _number(float, "a number between 0 and 1", lambda value: 0 < value < 1)


def _number(kind: type[int] | type[float], expected: str, is_right: Callable[[float], bool]) -> Any:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        return value

    parse.__name__ = kind.__name__  # what argparse calls it in its own messages
    return parse


def read_names(command: str, path: Path) -> tuple[str, ...]:
    """The names of classes in a text file: its lines that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(describe(command, "classes", "a text file in UTF-8", path)) from None
    return tuple(line.strip() for line in lines if line.strip())
