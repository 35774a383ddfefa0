"""The benchmark of guesses: what it draws, and on the simulated device how far the guess is behind."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest


def test_dry_run(run_benchmark: Callable[..., int], tmp_path: Path) -> None:
    assert run_benchmark("bench_guesses", "--dry-run", "--out", str(tmp_path)) == 0
    rows = json.loads((tmp_path / "bench_guesses.json").read_text(encoding="utf-8"))["rows"]
    assert [row["direction"] for row in rows] == ["forward", "input_grad", "weight_grad"] * 2
    for row in rows:
        times = row["candidates"]
        assert row["best"] == [min(times, key=times.__getitem__), min(times.values())]
        assert row["guess"] == [next(iter(times)), next(iter(times.values()))]
    assert "| fp32 | forward | 2 |" in (tmp_path / "bench_guesses.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["dense", "odd", "few", "pointwise", "groups", "depthwise"])
def test_problems(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a convolution that a network could have, of a size that can be measured."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    bench_guesses = importlib.import_module("bench_guesses")
    chance = random.Random(1)
    for _ in range(50):
        found = bench_guesses._drawn(bench_guesses._KINDS[kind], chance)
        (_, inputs, *size), (outputs, per_group, *taps) = found.input, found.weight
        assert per_group * found.groups == inputs
        assert outputs % found.groups == 0
        assert (found.groups > 1) == (kind in ("groups", "depthwise"))
        assert (per_group == 1 and found.groups > 1) == (kind == "depthwise")
        assert all(s + 2 * p >= t for s, p, t in zip(size, found.padding, taps, strict=True))
        assert found.groups == 1 or kind == "depthwise" or 2 <= per_group <= 128
