"""A ratchet on explicit Any, package by package: all together at most 137.

`python -m tests.typing.test_any` prints what there is, as the table that stands here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.typing.checkers import ROOT

MOST = {  # annotations with an Any that is written out
    "autograd": 12, "backends": 21, "checkpoint": 1, "creation": 2, "cuda": 17, "data": 3, "derivatives": 1,
    "distributed": 3, "distributions": 1, "export": 1, "functional": 1, "fusion": 2, "graphs": 5, "growth": 4,
    "interop": 1, "interrupts": 1, "models": 2, "ndarray": 3, "nn": 16, "onnx_import": 1, "optim": 4, "port": 7,
    "recording": 3, "segmentation": 3, "tensor": 4, "tensor_types": 1, "torch": 15, "utils": 2,
}  # fmt: skip
TOGETHER = 137
SLACK = 5  # so many fewer are no reason yet to lower a limit


def count(folder: Path | None = None) -> dict[str, int]:
    """How many annotations of each package, or file beside the packages, contain Any; mypy counts."""
    cache = os.devnull if folder is None else str(folder)
    command = [sys.executable, "-m", "mypy", "--disallow-any-explicit", "--cache-dir", cache]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^src/genesis/(\w+)[/.].*\[explicit-any\]$", done.stdout, re.MULTILINE)
    return dict(sorted(Counter(found).items()))


def test_no_package_says_any_more_often(tmp_path: Path) -> None:
    found = count(tmp_path)
    more = {name: number for name, number in found.items() if number > MOST.get(name, 0)}
    assert not more, f"more explicit Any than { ({name: MOST.get(name, 0) for name in more}) }: {more}"
    assert sum(found.values()) <= TOGETHER, f"{sum(found.values())} explicit Any together, more than {TOGETHER}"
    fewer = {name: found.get(name, 0) for name, most in MOST.items() if most - found.get(name, 0) > SLACK}
    assert not fewer, f"fewer explicit Any: lower the limits in MOST to {fewer}"


if __name__ == "__main__":
    numbers = count()
    print(", ".join(f'"{name}": {number}' for name, number in numbers.items()))
    print("together:", sum(numbers.values()))
