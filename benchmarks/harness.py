"""Measures two or more sides of a comparison in one run: interleaved, so that a busy moment hits them all.

    comparison = Comparison("bench_relu")
    comparison.measure("relu 1 MB", {"torch": lambda: torch.relu(x), "genesis": lambda: F.relu(y)})
    comparison.finish()

The first side is the reference: a ratio below 1 is less time. finish() writes <name>.json and a table, <name>.md, into
benchmarks/results.
"""

from __future__ import annotations

import datetime
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from genesis.cli.info import num_cores, processor, versions
from genesis.files import replaced

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


class Work(NamedTuple):
    """What a call must do at least, and what the machine can do in a second, as far as it was measured."""

    num_bytes: float = 0  # read and written
    num_operations: float = 0
    bytes_per_second: float = 0
    operations_per_second: float = 0

    def figures(self, milliseconds: float) -> dict[str, Any]:
        """The achieved rate, and its share of the machine's; of the kind of work that takes the machine longer."""
        num_bytes, num_operations, bytes_rate, operations_rate = self
        by_bytes = num_bytes / bytes_rate if bytes_rate else 0
        by_operations = num_operations / operations_rate if operations_rate else 0
        if by_operations > by_bytes or not num_bytes:
            amount, unit, floor = num_operations / 1e12, "TFLOP/s", by_operations
        else:
            amount, unit, floor = num_bytes / 1e9, "GB/s", by_bytes
        if not amount:
            return {}
        seconds = milliseconds / 1e3
        return {"rate": round(amount / seconds, 1), "unit": unit, "of_ceiling": round(floor / seconds, 3)}


class Comparison:
    """The rows of one benchmark script, printed as they come and written to files at the end."""

    def __init__(self, name: str, **machine: Any) -> None:
        """machine: what to keep about it beside its processor."""
        self.name = name
        self.machine = {"processor": processor(), "cores": num_cores(), **machine}
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []  # Markdown below the table
        self._measured: set[str] = set()  # the cases of this run
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in self.machine.items())}")

    def measure(self, case: str, sides: Mapping[str, Side], rounds: int = 15, warmup: int = 3) -> None:
        """Time the sides against each other; the first is the reference."""
        self.add(case, interleaved(sides, rounds, warmup))

    def add(self, case: str, times: Mapping[str, list[float]], family: str = "", work: Work | None = None) -> None:
        """A row per side from times measured elsewhere, in milliseconds; in the place of the case's earlier ones."""
        self.rows = [row for row in self.rows if row["case"] != case]
        self._measured.add(case)
        reference = statistics.median(next(iter(times.values())))
        for side, values in times.items():
            median = statistics.median(values)
            row = {
                "family": family,
                "case": case,
                "side": side,
                "median_ms": round(median, 6),
                "fastest_ms": round(min(values), 6),
                "ratio": round(median / reference, 3),
                "rounds": len(values),
                "date": datetime.date.today().isoformat(),
                **({} if work is None else work.figures(median)),
            }
            self.rows.append(row)
            print(f"  {case:<44} {side:<22} {_time(median):>10}   ×{row['ratio']:.2f}{_rate(row)}", flush=True)

    def speeds(self, side: str) -> dict[str, list[float]]:
        """By family, how many times faster a side was than the reference, case by case."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row["side"] == side:
                found.setdefault(row["family"], []).append(1 / max(row["ratio"], 1e-3))
        return found

    def markdown(self) -> str:
        """A table: a line per case; the last side's rate, its share of the machine's, and its speed."""
        sides = list(dict.fromkeys(row["side"] for row in self.rows))
        today = datetime.date.today().isoformat()
        lines = [
            f"| case | {' | '.join(sides)} | rate | of the machine's | speed |",
            f"|---|{'---|' * len(sides)}---|---|---|",
        ]
        for case, rows in self._by_case():
            times = [_time(by_side["median_ms"]) if by_side else "" for by_side in map(rows.get, sides)]
            last = list(rows.values())[-1]
            if last.get("date", today) != today:
                case += f" ({last['date']})"
            rate = f"{last['rate']:,.0f} {last['unit']}" if "rate" in last else ""
            share = f"{last['of_ceiling']:.0%}" if last.get("of_ceiling") else ""
            lines.append(f"| {case} | {' | '.join(times)} | {rate} | {share} | {1 / max(last['ratio'], 1e-3):.2f}× |")
        return self.heading() + "\n".join([*lines, *self.notes]) + "\n"

    def heading(self) -> str:
        """The name, the machine and the versions."""
        about = [f"{key}: {value}" for key, value in {**self.machine, **versions()}.items()]
        return f"# {self.name}\n\n{'; '.join(about)}; {datetime.date.today().isoformat()}\n\n"

    def _by_case(self) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
        for case, rows in itertools.groupby(self.rows, key=lambda row: row["case"]):
            yield case, {row["side"]: row for row in rows}

    def keep_others(self, folder: Path = RESULTS) -> None:
        """Take over the cases that were not measured in this run, if machine and versions were the same."""
        path = folder / f"{self.name}.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if report.get("machine") == self.machine and report.get("versions") == versions():
            kept = [{"date": report["date"], **row} for row in report["rows"] if row["case"] not in self._measured]
            self.rows = kept + [row for row in self.rows if row["case"] in self._measured]

    def finish(self, folder: Path = RESULTS) -> Path:
        """Write what was measured, with the machine and the versions, and say where."""
        path = self.write(folder)
        print(f"  written to {path} and {path.stem}.md")
        return path

    def write(self, folder: Path = RESULTS) -> Path:
        """finish() without a word, for after each of many cases."""
        report = {
            "benchmark": self.name,
            "date": datetime.date.today().isoformat(),
            "machine": self.machine,
            "versions": versions(),
            "rows": self.rows,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        for file, text in ((path, json.dumps(report, indent=1) + "\n"), (path.with_suffix(".md"), self.markdown())):
            with replaced(file) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return path


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.2f} ms" if milliseconds >= 1 else f"{milliseconds * 1e3:.1f} µs"


def _rate(row: Mapping[str, Any]) -> str:
    return f"   {row['rate']:,.0f} {row['unit']}, {row['of_ceiling']:.0%}" if "rate" in row else ""
