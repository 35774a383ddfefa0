"""Fixtures: benchmarks run by their names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A benchmark's name and arguments → its exit code. In this process: another one would import PyTorch for 5 s."""

    def run(name: str, *arguments: str) -> int:
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        return importlib.import_module(name).main()

    return run
