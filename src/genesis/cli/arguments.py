"""What arguments of several commands have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from genesis.errors import describe


def positive(kind: type[int] | type[float]) -> type[int] | type[float]:
    """A type for argparse: a number of this kind above 0."""

    def parse(text: str) -> int | float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
        return value

    parse.__name__ = kind.__name__  # what argparse calls it in its own messages
    return parse  # type: ignore[return-value]


def read_names(command: str, path: Path) -> tuple[str, ...]:
    """The names of classes in a text file: its lines that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(describe(command, "classes", "a text file in UTF-8", path)) from None
    return tuple(line.strip() for line in lines if line.strip())
