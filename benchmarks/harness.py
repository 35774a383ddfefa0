"""Measures two or more sides of a comparison in one run: interleaved, so that a busy moment hits them all.

    comparison = Comparison("bench_relu")
    comparison.measure("relu 1 MB", {"torch": lambda: torch.relu(x), "genesis": lambda: F.relu(y)})
    comparison.finish()

The first side is the reference: a ratio below 1 is less time. finish() writes benchmarks/results/<name>.json.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from genesis.cli.info import num_cores, processor, versions

RESULTS = Path(__file__).parent / "results"
Side = Callable[[], object]


def interleaved(sides: Mapping[str, Side], rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Milliseconds of each call of each side. Every round runs all sides once, beginning with another one each time."""
    for side in sides.values():
        for _ in range(warmup):
            side()
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            sides[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


class Comparison:
    """The rows of one benchmark script, printed as they come and written to a file at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []
        print(f"{name}: {processor()}, {num_cores()} cores")

    def measure(self, case: str, sides: Mapping[str, Side], rounds: int = 15, warmup: int = 3) -> None:
        """Time the sides against each other; the first is the reference."""
        self.add(case, interleaved(sides, rounds, warmup))

    def add(self, case: str, times: Mapping[str, list[float]]) -> None:
        """A row from times measured elsewhere, in milliseconds."""
        reference = statistics.median(next(iter(times.values())))
        for side, values in times.items():
            median = statistics.median(values)
            row = {
                "case": case,
                "side": side,
                "median_ms": round(median, 4),
                "fastest_ms": round(min(values), 4),
                "ratio": round(median / reference, 3),
                "rounds": len(values),
            }
            self.rows.append(row)
            print(f"  {case:<32} {side:<24} {median:10.2f} ms   ×{row['ratio']:.2f}", flush=True)

    def finish(self) -> Path:
        """Write what was measured, with the machine and the versions."""
        report = {
            "benchmark": self.name,
            "date": datetime.date.today().isoformat(),
            "machine": {"processor": processor(), "cores": num_cores()},
            "versions": versions(),
            "rows": self.rows,
        }
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"  written to {path}")
        return path
