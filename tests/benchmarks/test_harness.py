"""The benchmarks' comparisons and their files."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_processes_that_write_into_one_file_keep_each_others_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    harness, turns = importlib.import_module("harness"), importlib.import_module("turns")

    def write(comparison: object, case: str, milliseconds: float) -> dict[str, float]:
        comparison.add(case, {"torch": [1.0], "genesis": [milliseconds]})  # type: ignore[attr-defined]
        with turns.alone(tmp_path):
            comparison.keep_others(tmp_path)  # type: ignore[attr-defined]
            path = comparison.finish(tmp_path)  # type: ignore[attr-defined]
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return {row["case"]: row["median_ms"] for row in rows if row["side"] == "genesis"}

    first, second = harness.Comparison("shared"), harness.Comparison("shared")
    assert write(first, "a", 1.0) == {"a": 1.0}
    assert write(second, "b", 2.0) == {"a": 1.0, "b": 2.0}
    assert write(first, "c", 3.0) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert write(second, "b", 4.0) == {"a": 1.0, "b": 4.0, "c": 3.0}
    assert write(first, "c", 5.0) == {"a": 1.0, "b": 4.0, "c": 5.0}, "not the rows that it had read before"
    assert write(second, "a", 6.0) == {"a": 6.0, "b": 4.0, "c": 5.0}
