"""The benchmark of data parallel training: its parts with one process, without a GPU."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_ddp.py"


def test_images_per_second_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("bench_ddp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    options = "--networks tiny --batches 2 --sides torch eager graph --device cpu --steps 1 --rounds 2"
    monkeypatch.setattr(sys, "argv", ["bench_ddp.py", *options.split(), "--out", str(tmp_path)])
    assert script.main() == 0
    rows = json.loads((tmp_path / "bench_ddp.json").read_text(encoding="utf-8"))["rows"]
    cases = ("tiny, batch 2, 1", "tiny, batch 2 a process, 1")
    assert [(row["case"], row["side"]) for row in rows] == [
        (case, side) for case in cases for side in ("torch", "eager", "graph")
    ]
    for row in rows:
        assert row["images_per_second"] == pytest.approx(2000 / row["median_ms"], rel=1e-2)
    assert "| tiny | 2 | graph |" in (tmp_path / "bench_ddp.md").read_text(encoding="utf-8")
