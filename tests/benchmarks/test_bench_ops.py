"""Each case of the GPU benchmark, tiny, without a GPU: both sides compute the same. And how its results are written."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def harness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("harness", ROOT / "benchmarks" / "harness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_sides_of_every_case_agree(run_benchmark: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark("bench_ops", "--dry-run") == 0
    assert ", 0 differ" in capsys.readouterr().out


def test_an_unknown_family_is_refused(run_benchmark: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_benchmark("bench_ops", "--only", "matmull")
    assert "--only: expected some of host, element-wise" in capsys.readouterr().err


def test_rates_are_of_the_kind_that_takes_longer(harness: ModuleType) -> None:
    memory_bound = harness.Work(3e9, 1e9, 3e12, 1e15)  # 1 ms of copying, 1 µs of arithmetic
    assert memory_bound.figures(2.0) == {"rate": 1500.0, "unit": "GB/s", "of_ceiling": 0.5}
    arithmetic_bound = harness.Work(3e6, 1e12, 3e12, 1e15)  # 1 µs of copying, 1 ms of arithmetic
    assert arithmetic_bound.figures(1.25) == {"rate": 800.0, "unit": "TFLOP/s", "of_ceiling": 0.8}
    assert harness.Work().figures(1.0) == {}


def test_results_are_written_with_the_machine_and_both_sides(harness: ModuleType, tmp_path: Path) -> None:
    comparison = harness.Comparison("bench_example", gpu="a GPU")
    work = harness.Work(num_bytes=4e9, bytes_per_second=4e12)
    comparison.add("copy", {"torch": [4.0, 2.0, 3.0], "genesis": [2.0, 1.0, 9.0]}, "copies", work)
    report = json.loads(comparison.finish(tmp_path).read_text())
    assert report["machine"]["gpu"] == "a GPU"
    assert [(row["side"], row["median_ms"], row["ratio"]) for row in report["rows"]] == [
        ("torch", 3.0, 1.0),
        ("genesis", 2.0, 0.667),
    ]
    table = (tmp_path / "bench_example.md").read_text()
    assert "| copy | 3.00 ms | 2.00 ms | 2,000 GB/s | 50% | 1.50× |" in table
    assert comparison.speeds("genesis")["copies"] == pytest.approx([1.5], rel=1e-3)
