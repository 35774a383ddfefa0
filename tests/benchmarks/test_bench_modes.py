"""The benchmark of PyTorch models in inference and float32: its parts without a GPU."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import genesis
import genesis.torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_modes.py"


def test_sides_are_timed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("bench_modes")

    def fails(model: object) -> None:
        raise RuntimeError("no such side")

    monkeypatch.setattr(
        script, "WAYS", {"eager": lambda model: model, "freezing": fails, "genesis": genesis.torch.fuse}
    )
    modes = ["inference/autocast", "training/tf32/contiguous", "inference/float32"]
    options = ["--dry-run", "--rounds", "2", "--calls", "1", "--sides", "eager", "freezing", "genesis", "--modes"]
    monkeypatch.setattr(sys, "argv", ["bench_modes.py", *options, *modes, "--out", str(tmp_path)])
    with genesis.float32_precision("highest"):
        assert script.main() == 0
    rows = json.loads((tmp_path / "bench_modes.json").read_text(encoding="utf-8"))["rows"]
    timed = [row for row in rows if "error" not in row]
    assert [(row["mode"], row["side"]) for row in timed] == [
        (mode, side) for mode in modes for side in ("eager", "genesis")
    ]
    assert all(row["distance"] < (1e-2 if "autocast" in row["mode"] else 1e-6) for row in timed)
    assert [row["side"] for row in rows if "error" in row] == ["freezing"] * 2  # training has none
    table = (tmp_path / "bench_modes.md").read_text(encoding="utf-8")
    assert "- training/tf32/contiguous: 1 networks, geometric mean" in table
    assert "inference/float32, freezing: RuntimeError: no such side" in table


def test_networks_and_modes_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("bench_modes")
    assert script.named("resnet50:1")[:4] == ("resnet50", "ResNet", "torchvision", 1)
    assert script.named("timm:dpn68:8:192")[2:] == ("timm", 8, 192)
    for text in ("unet", "unet:4", "unet:4:64", "resnet50:1", "timm:dpn68", "torchvision:alexnet:2"):
        assert script.named(script.spelled(script.named(text))) == script.named(text)
    for wrong in ("unet:4:64:1", "hub:unet", "timm", "resnet50:one"):
        with pytest.raises(ValueError, match=wrong.rpartition(":")[2]):
            script.named(wrong)
    assert str(script.mode("inference/half")) == "inference/half"
    assert str(script.mode("training/tf32/contiguous")) == "training/tf32/contiguous"
    for wrong in ("inferring/half", "inference/double", "inference/half/upside_down"):
        with pytest.raises(ValueError, match=wrong):
            script.mode(wrong)
