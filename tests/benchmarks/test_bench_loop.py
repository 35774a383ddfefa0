"""The benchmark of training loops: its parts without a GPU."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_loop.py"


def test_loops_are_timed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("bench_loop")
    options = "--networks tiny --sides eager fused --device cpu --steps 1 --rounds 2 --warmup 2 --keep-caches"
    monkeypatch.setattr(sys, "argv", ["bench_loop.py", *options.split(), "--out", str(tmp_path)])
    assert script.main() == 0
    report = json.loads((tmp_path / "bench_loop.json").read_text(encoding="utf-8"))
    assert [(row["case"], row["side"]) for row in report["rows"]] == [
        ("tiny, batch 4, 16²", "eager"),
        ("tiny, batch 4, 16²", "fused"),
    ]
    assert "tiny fused: ready after" in (tmp_path / "bench_loop.md").read_text(encoding="utf-8")
