"""The benchmark of few pixels on the simulated device: results are right, and its table has a line for each case."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_dry_run(run_benchmark: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark("bench_few_pixels", "--dry-run") == 0
    found = capsys.readouterr().out
    assert "WRONG" not in found
    for direction in ("forward", "input_grad", "weight_grad"):
        assert found.count(f"| tiny {direction} fp32 |") == found.count(f"| tiny-4 {direction} fp32 |") == 1
