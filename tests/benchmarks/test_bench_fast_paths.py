"""The benchmark of the fast paths runs, and its page lists what it measures."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="the stubbed driver wants NVIDIA's bindings")
def test_each_fast_path_is_there_and_listed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_fast_paths.py"), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = [re.split(r"  +", line)[:2] for line in done.stdout.splitlines()[1:]]
    page = (ROOT / "docs" / "fast-paths.md").read_text(encoding="utf-8").partition("## Measured, and taken out")[0]
    listed = re.findall(r"^\| (`.*?) \| (.*?) \| [\d.]+ \| [\d.]+ \| (\d+) % \|$", page, re.MULTILINE)
    assert [[name.replace("`", ""), case] for name, case, _ in listed] == measured
    assert all(int(gain) >= 3 for *_, gain in listed)
