"""The benchmark of convolutions: its cases without a GPU, its parts, and how they are put together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_conv.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_both_sides_of_every_kind_of_case_agree() -> None:
    done = run("--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("error") == 12
    assert "0 differ" in done.stdout


def row(case: str, side: str, milliseconds: float, **more: object) -> dict[str, object]:
    return {"case": case, "side": side, "median_ms": milliseconds, "error": 1e-7, "of_ceiling": 0.5, **more}


def test_parts_become_one_table(tmp_path: Path) -> None:
    for part, case, speed in ((1, "vgg forward bf16", 2.0), (2, "seed forward bf16", 0.5)):
        ours = row(case, "genesis", 1.0, candidate="cudnn/eng1", channels=64)
        rows = [row(case, "torch NHWC", speed), ours]
        (tmp_path / f"bench_conv.part-{part}.json").write_text(json.dumps({"machine": {"gpu": "a"}, "rows": rows}))
    done = run("--merge", str(tmp_path), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    merged = json.loads((tmp_path / "bench_conv.json").read_text())
    assert [each["case"] for each in merged["rows"][::2]] == ["seed forward bf16", "vgg forward bf16"]
    table = (tmp_path / "bench_conv.md").read_text()
    assert "| vgg forward bf16 | 2000.0 (NHWC) | 1000.0 µs | 2.00× | 50% | 1.0e-07 | 1.0e-07 | cudnn/eng1 |" in table
    assert "| bf16 forward | 1.00× | 0.50× |" in table
    assert run("--merge", str(tmp_path / "empty"), "--out", str(tmp_path)).returncode == 1
