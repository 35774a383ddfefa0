"""Choose the source of each element of an axis when units come and go, and how copies share their originals."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType, HostArray
from genesis.growth.channel_map import Part
from genesis.ndarray import Device, NDArray

_Cut = tuple[HostArray, HostArray]
NEW = -1  # in Choice.sources: a unit without an original


class Choice(NamedTuple):
    """The units of a group after a change: the original of each, and its share of the original's output."""

    sources: Sequence[int]
    shares: Sequence[float]


class Elements:
    """A Choice applied to an axis, element by element. Every device gets the arrays once, for all tensors.

    Attributes:
        copies: (new size,) bool: not the first with its source.
        has_new: whether some have no original.
    """

    def __init__(self, parts: Sequence[Part], group: int, choice: Choice) -> None:
        units = np.asarray(choice.sources, np.int64)
        again = np.ones(len(units), bool)
        again[np.unique(units, return_index=True)[1]] = False
        rows = []  # of sources, shares and copies
        start = 0
        for part in parts:
            kept = np.arange(start, start + part.size)
            if part.group == group:
                blocks = kept.reshape(-1, part.width)[units]
                blocks[units == NEW] = NEW
                shares = np.repeat(np.asarray(choice.shares, np.float64), part.width)
                rows.append((blocks.reshape(-1), shares, np.repeat(again & (units != NEW), part.width)))
            else:
                rows.append((kept, np.ones(part.size), np.zeros(part.size, bool)))
            start += part.size
        self._sources, self._shares, self.copies = map(np.concatenate, zip(*rows, strict=True))
        self._is_new = self._sources == NEW
        self._index = np.where(self._is_new, 0, self._sources)
        self.has_new, self._is_shared = bool(self._is_new.any()), bool((self._shares[~self._is_new] != 1).any())
        self._powers = (np.ones(len(self)), self._shares, self._shares**2)
        self._cuts: list[_Cut] | None = None
        self._sent: dict[tuple[Hashable, DType, Device], NDArray] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def index(self, device: Device) -> NDArray:
        """The index of each element's original; 0 where it has none."""
        return self._on(device, "index", dtypes.int64, self._index)

    def is_new(self, device: Device) -> NDArray:
        return self._on(device, "is_new", dtypes.bool_, self._is_new)

    def factors(self, power: int, dtype: DType, device: Device) -> NDArray | None:
        """The shares to this power (0, 1 or 2); None if all are 1."""
        return self._on(device, power, dtype, self._powers[power]) if power and self._is_shared else None

    def cuts(self, dtype: DType, device: Device) -> Iterator[tuple[NDArray, NDArray]]:
        """How copies divide what they came from, round by round: which fraction of what is left is cut off (0 where
        nothing is), and which elements take that piece; the others go on with the rest."""
        if self._cuts is None:
            self._cuts = list(_cuts(self._sources, self._shares)) if self._is_shared else []
        for number, (fractions, takes) in enumerate(self._cuts):
            yield (
                self._on(device, ("fractions", number), dtype, fractions),
                self._on(device, ("takes", number), dtypes.bool_, takes),
            )

    def _on(self, device: Device, key: Hashable, dtype: DType, values: HostArray) -> NDArray:
        if (key, dtype, device) not in self._sent:
            self._sent[key, dtype, device] = on_device(values, dtype, device)
        return self._sent[key, dtype, device]


def _cuts(sources: HostArray, shares: HostArray) -> Iterator[_Cut]:
    """In round k the k-th copy of each source takes its share, of those that have a later copy to leave the rest to."""
    _, origins, counts = np.unique(sources, return_inverse=True, return_counts=True)
    ranks = np.empty_like(origins)
    ranks[np.argsort(origins, kind="stable")] = np.arange(len(origins)) - np.repeat(np.cumsum(counts) - counts, counts)
    left = np.ones(len(counts))
    for rank in range(counts.max() - 1):
        takes = (ranks == rank) & (counts[origins] > rank + 1)
        pieces = np.zeros(len(counts))
        pieces[origins[takes]] = shares[takes]
        yield np.where(ranks >= rank, (pieces / left)[origins], 0.0), takes
        left -= pieces


def on_device(values: HostArray, dtype: DType, device: Device) -> NDArray:
    """numpy's values in a dtype on a device; 16-bit floats by way of float32."""
    kind = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    sent = NDArray.from_numpy(np.ascontiguousarray(values, kind.name), kind)
    return sent.to_device(device).to(dtype)
