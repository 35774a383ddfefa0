"""Totals per op, as rows and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from genesis.errors import describe
from genesis.profiler.timed import TimedCall


@dataclasses.dataclass
class Row:
    """A line of a profile: all calls of one op on one device. Made by `genesis.profiler.profile`."""

    name: str
    device: str
    calls: int = 0
    total_seconds: float = 0.0
    share: float = 0.0  # of the time of all rows
    num_bytes: int = 0
    num_flops: int = 0

    @property
    def mean_seconds(self) -> float:
        """Seconds of a call, on average. See `genesis.profiler.profile`."""
        return self.total_seconds / self.calls

    @property
    def gigabytes_per_second(self) -> float:
        """10⁹ bytes moved per second. See `genesis.profiler.profile`."""
        return self.num_bytes / 1e9 / self.total_seconds if self.total_seconds else 0.0

    @property
    def gflops_per_second(self) -> float:
        """10⁹ floating-point operations per second; 0 where they are not counted. See `genesis.profiler.profile`."""
        return self.num_flops / 1e9 / self.total_seconds if self.total_seconds else 0.0


_KEYS: dict[str, Callable[[Row], float | tuple[str, str]]] = {
    "total": lambda row: -row.total_seconds,
    "mean": lambda row: -row.mean_seconds,
    "calls": lambda row: -row.calls,
    "bandwidth": lambda row: -row.gigabytes_per_second,
    "flops": lambda row: -row.gflops_per_second,
    "name": lambda row: (row.name, row.device),
}


def rows(calls: Iterable[TimedCall], sort_by: str) -> list[Row]:
    """A row per op and device."""
    if sort_by not in _KEYS:
        raise ValueError(describe("profile", "sort_by", f"one of {', '.join(_KEYS)}", repr(sort_by)))
    found: dict[tuple[str, str], Row] = {}
    for call in calls:
        row = found.setdefault((call.name, call.device), Row(call.name, call.device))
        row.calls += 1
        row.total_seconds += call.seconds
        row.num_bytes += call.num_bytes
        row.num_flops += call.num_flops
    total = sum([row.total_seconds for row in found.values()])
    for row in found.values():
        row.share = row.total_seconds / total if total else 0.0
    return sorted(found.values(), key=_KEYS[sort_by])


def text(rows: list[Row], limit: int | None) -> str:
    """Format the rows with a header and a total."""
    width = max([4, *(len(row.name) for row in rows)])
    head = f"{'op':<{width}}  {'device':<7} {'calls':>7} {'total ms':>10} {'mean µs':>10} {'share':>7}"
    lines = [f"{head} {'GB/s':>9} {'GFLOP/s':>10}"]
    for row in rows[:limit]:
        flops = f"{row.gflops_per_second:10.1f}" if row.num_flops else " " * 10
        lines.append(
            f"{row.name:<{width}}  {row.device:<7} {row.calls:>7} {row.total_seconds * 1e3:>10.3f} "
            f"{row.mean_seconds * 1e6:>10.1f} {row.share:>7.1%} {row.gigabytes_per_second:>9.2f} {flops}".rstrip()
        )
    total = sum([row.total_seconds for row in rows])
    lines.append(f"{'all':<{width}}  {'':<7} {sum([row.calls for row in rows]):>7} {total * 1e3:>10.3f}")
    return "\n".join(lines)
