"""Freed memory is used again instead of being faulted in anew."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, genesis
x = genesis.ones(4 << 20)  # 16 MiB: 4096 pages
rounds = []
for _ in range(5):  # the first ones fill the heap
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        y = x + 1
        z = y + 1
        del y, z
    rounds.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 8)
print(min(rounds))
"""


def page_faults_per_result(**environment: str) -> int:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**variables, **environment}
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these knobs")
def test_an_array_takes_the_memory_of_one_that_was_freed() -> None:
    assert page_faults_per_result() < 256
    assert page_faults_per_result(MALLOC_TRIM_THRESHOLD_="131072") > 2048, "the user's own tuning is left alone"
