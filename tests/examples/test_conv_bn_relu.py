"""examples/conv_bn_relu.py prints each result with its errors, which are those of float32."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "conv_bn_relu.py"


def test_the_comparison_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["result", "norm", "standard", "layers", "fused"]
    names = [" ".join(line.split()[:-3]) for line in lines]
    assert names[:3] == ["output", "running mean", "running variance"]
    assert names[3:] == ["grad " + name for name in ("input", "residual", "weight", "bias", "gamma", "beta")]
    for line in lines:
        norm, _, fused = map(float, line.split()[-3:])
        assert fused <= 1e-5 * max(norm, 100)
