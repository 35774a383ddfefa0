"""Each kind of case of the norms' benchmark on the CPU: both sides compute the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_both_sides_of_every_case_agree() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_norms.py"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("of the copy") >= 8
