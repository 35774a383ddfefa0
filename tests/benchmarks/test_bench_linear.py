"""The benchmark of linear layers: results of both sides are close to float64, and each case is a row for either."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def test_dry_run(run_benchmark: Callable[..., int], tmp_path: Path) -> None:
    assert run_benchmark("bench_linear", "--dry-run", "--out", str(tmp_path)) == 0
    rows = json.loads((tmp_path / "bench_linear.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["family"], row["side"]) for row in rows] == [
        (kind, side) for kind in ("forward", "step") for side in ("torch", "genesis")
    ]
    assert all(row["error"] < 1e-6 for row in rows)
