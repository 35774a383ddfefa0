"""The benchmark of few pixels on the simulated device: results are right, and its table has a line for each case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_dry_run() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_few_pixels.py"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    for direction in ("forward", "input_grad", "weight_grad"):
        assert done.stdout.count(f"| tiny {direction} fp32 |") == done.stdout.count(f"| tiny-4 {direction} fp32 |") == 1
