"""Training examples: pictures with the class of each of their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from genesis.segmentation.arrays import Array


class Example(NamedTuple):
    """A picture and the class of each of its pixels."""

    values: Array  # (3, H, W) float32 from 0 to 1
    labels: Array  # (H, W) uint8, numbers of classes, or 255: doesn't count


class Source(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


@dataclass(frozen=True)
class LabelledSet:
    """Examples to learn from, others to be judged by, and the names of the classes."""

    name: str
    classes: tuple[str, ...]
    training: Source
    held_out: Source
