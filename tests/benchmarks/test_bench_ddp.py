"""The benchmark of data parallel training: a rank's part with one process, and the launcher over ranks that fail."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_ddp.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("bench_ddp")


def arguments(script: Any, monkeypatch: pytest.MonkeyPatch, options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["bench_ddp.py", "--device", "cpu", *options.split()])
    return script.parse()


def test_images_per_second_are_written(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    options = f"--processes 1 --cases tiny:2 --sides torch eager graph --steps 1 --rounds 2 --out {tmp_path}"
    given = arguments(script, monkeypatch, f"{options} --record {tmp_path / 'record'}")
    assert script.work(given) == 0
    script.Report(given).add(("tiny", 2), [script.Record(tmp_path / "record")])
    rows = json.loads((tmp_path / "bench_ddp.json").read_text(encoding="utf-8"))["rows"]
    cases = ("tiny, batch 2 a process, 1", "tiny, batch 2 a process, all 1")
    assert [(row["case"], row["side"]) for row in rows] == [
        (case, side) for case in cases for side in ("torch", "eager", "graph")
    ]
    for row in rows:
        assert row["images_per_second"] == pytest.approx(2000 / row["median_ms"], rel=1e-2)
    assert "| tiny | 2 | graph |" in (tmp_path / "bench_ddp.md").read_text(encoding="utf-8")


def test_sides_that_fail_do_not_take_the_others_with_them(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[list[str]] = []
    times = [
        {"side": side, "alone": alone, "milliseconds": 2.0} for alone in (False, True) for side in ("torch", "graph")
    ]
    ends: list[tuple[int, list[dict[str, Any]]]] = [
        (1, [{"side": "eager", "begins": True}, {"side": "eager", "failed": "no | memory"}]),
        (-9, [{"side": "torch", "begins": True}, times[0], {"side": "torch", "ends": True},
              {"side": "compiled", "begins": True}]),
        (0, times),
    ]  # fmt: skip

    def launched(case: object, sides: list[str], given: object, record: Path, until: float) -> int:
        status, events = ends[len(tries)]
        tries.append(sides)
        record.write_text("".join(json.dumps({"rank": 0, **event}) + "\n" for event in events), encoding="utf-8")
        return status

    monkeypatch.setattr(script, "launched", launched)
    given = arguments(script, monkeypatch, f"--sides torch eager compiled graph --out {tmp_path}")
    records = list(script.tried(("tiny", 4), given, time.time() + 60))
    assert tries == [["torch", "eager", "compiled", "graph"], ["torch", "compiled", "graph"], ["torch", "graph"]]
    script.Report(given).add(("tiny", 4), records)
    written = (tmp_path / "bench_ddp.md").read_text(encoding="utf-8")
    assert "| tiny | 4 | torch | 2,000 | 4,000 | 2.00 |" in written
    assert "| tiny | 4 | eager (left out: rank 0: no / memory) |  |  |  |" in written
    assert "| tiny | 4 | compiled (left out: its processes ended, or took too long (-9)) |" in written
