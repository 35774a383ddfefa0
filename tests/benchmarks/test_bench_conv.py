"""The benchmark of convolutions: its cases without a GPU, its parts, and how they are put together."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_conv.py"


def test_both_sides_of_every_kind_of_case_agree(
    run_benchmark: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_benchmark("bench_conv", "--dry-run") == 0
    found = capsys.readouterr().out
    assert found.count("error") == 12
    assert "0 differ" in found


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("bench_conv")


@pytest.fixture
def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The script with arguments, in this process: importing PyTorch for another one takes seconds."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench_conv.py", *arguments])
        return script.main()

    return run


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_share_out_the_cases_evenly(script: ModuleType, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    shares = []
    for part in range(1, parts + 1):
        monkeypatch.setattr(sys, "argv", ["bench_conv.py", "--part", f"{part}/{parts}"])
        shares.append(script.cases(script.parse()))
    everything = [case for share in shares for case in share]
    assert len(everything) == len(set(everything)) == 132
    for of in ("direction", "precision"):
        counts = [Counter(getattr(case, of) for case in share) for share in shares]
        for value in counts[0]:
            assert max(count[value] for count in counts) - min(count[value] for count in counts) <= 4
    for share in shares:  # float32 twice in a row: operands and reference are made once
        kinds = [(case.shape, case.direction, script.PRECISIONS[case.precision]) for case in share]
        assert sum(a == b for a, b in itertools.pairwise(kinds)) == len(share) // 4


def test_a_part_that_is_cut_keeps_what_it_has(
    script: ModuleType,
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def measure(comparison: Any, case: Any, arguments: argparse.Namespace, rates: dict[str, float]) -> None:
        if len(comparison.rows) == 4:
            raise KeyboardInterrupt
        for side in ("torch NHWC", "genesis"):
            comparison.rows.append(row(case.name, side, 1.0, candidate="cudnn/eng1", channels=64))

    monkeypatch.setattr(script, "measure", measure)
    monkeypatch.setattr(script, "ceilings", dict)
    monkeypatch.setattr(script.gpu_timing, "shared_stream", contextlib.nullcontext)
    monkeypatch.setattr(script.gc, "freeze", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace())  # its switches may be locked, by other tests
    with pytest.raises(KeyboardInterrupt):
        run("--part", "2/2", "--out", str(tmp_path))
    assert run("--merge", str(tmp_path), "--out", str(tmp_path)) == 0
    assert "2 of 132 cases, from bench_conv.part-2.json, written" in capsys.readouterr().out
    merged = json.loads((tmp_path / "bench_conv.json").read_text())
    assert [each["case"] for each in merged["rows"][::2]] == ["seed input_grad highest", "seed input_grad high"]


def row(case: str, side: str, milliseconds: float, **more: object) -> dict[str, object]:
    return {"case": case, "side": side, "median_ms": milliseconds, "error": 1e-7, "of_ceiling": 0.5, **more}


def test_parts_become_one_table(run: Callable[..., int], tmp_path: Path) -> None:
    for part, case, speed in ((1, "vgg forward bf16", 2.0), (2, "seed forward bf16", 0.5)):
        ours = row(case, "genesis", 1.0, candidate="cudnn/eng1", channels=64)
        rows = [row(case, "torch NHWC", speed), ours]
        (tmp_path / f"bench_conv.part-{part}.json").write_text(json.dumps({"machine": {"gpu": "a"}, "rows": rows}))
    assert run("--merge", str(tmp_path), "--out", str(tmp_path)) == 0
    merged = json.loads((tmp_path / "bench_conv.json").read_text())
    assert [each["case"] for each in merged["rows"][::2]] == ["seed forward bf16", "vgg forward bf16"]
    table = (tmp_path / "bench_conv.md").read_text()
    assert "| vgg forward bf16 | 2000.0 (NHWC) | 1000.0 µs | 2.00× | 50% | 1.0e-07 | 1.0e-07 | cudnn/eng1 |" in table
    assert "| bf16 forward | 1.00× | 0.50× |" in table
    assert run("--merge", str(tmp_path / "empty"), "--out", str(tmp_path)) == 1
