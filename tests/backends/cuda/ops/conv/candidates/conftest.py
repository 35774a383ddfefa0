"""Kernels in CUDA C++ without a GPU: run on the host, or only chosen and compiled; and those of Hopper on one."""

from __future__ import annotations

import pytest

from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from tests.backends.cuda.ops.conv.candidates import host_programs


@pytest.fixture
def on_host(on_a_large_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not host_programs.is_available():
        pytest.skip("no g++")
    monkeypatch.setattr(programs, "prepare", host_programs.prepare)


@pytest.fixture
def on_a_large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "is_available", lambda device: True)


@pytest.fixture
def hopper_there(monkeypatch: pytest.MonkeyPatch, simulated: Backend) -> None:
    """As far as the choice of candidates goes: a Hopper GPU of four multiprocessors."""
    monkeypatch.setattr(hopper, "is_available", lambda device: True)


@pytest.fixture
def on_hopper(cuda: Backend) -> Backend:
    if driver.get().properties(0).compute_capability != 90:
        pytest.skip("no Hopper GPU")
    return cuda
