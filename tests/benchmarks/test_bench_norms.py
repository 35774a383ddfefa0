"""Each kind of case of the norms' benchmark on the CPU: both sides compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_both_sides_of_every_case_agree(run_benchmark: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark("bench_norms", "--dry-run") == 0
    assert capsys.readouterr().out.count("of the copy") >= 8
