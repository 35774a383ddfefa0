"""Kernels in CUDA C++ without a GPU: run on the host, or only chosen and compiled."""

from __future__ import annotations

import pytest

from genesis.backends.cuda.ops.conv.candidates import programs
from tests.backends.cuda.ops.conv.candidates import host_programs


@pytest.fixture
def on_host(on_a_large_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not host_programs.is_available():
        pytest.skip("no g++")
    monkeypatch.setattr(programs, "prepare", host_programs.prepare)


@pytest.fixture
def on_a_large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "is_available", lambda device: True)
