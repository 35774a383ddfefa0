"""Profiler: iterations, the description of what is timed, and misuse."""

from __future__ import annotations

import pytest

import genesis
from genesis.errors import GraphError


def test_it_times_iterations(device: str) -> None:
    x, w = genesis.ones(2, 4, 6, 6, device=device), genesis.ones(3, 4, 3, 3, device=device)
    profiler = genesis.Profiler(4, device)
    profiler.describe_operation("conv", x.shape, w.shape, (2, 3, 4, 4), x.dtype)
    profiler.start()
    for _ in range(profiler.iterations):
        genesis.conv(x, w)
    profiler.stop()
    assert profiler.flops == 2 * (2 * 3 * 4 * 4) * (4 * 3 * 3)
    assert profiler.milliseconds > 0
    assert profiler.gflops_per_second == pytest.approx(profiler.flops / profiler.milliseconds / 1e6)
    assert str(profiler).startswith("conv 2x4x6x6 * 3x4x3x3, float32 highest: 4 iterations, ")
    assert str(profiler).endswith(" GFLOP/s")


def test_without_a_description() -> None:
    profiler = genesis.Profiler()
    profiler.start()
    profiler.stop()
    assert profiler.gflops_per_second == 0


def test_misuse() -> None:
    with pytest.raises(ValueError, match="Profiler: argument 'iterations': expected at least 1, got 0"):
        genesis.Profiler(0)
    profiler = genesis.Profiler()
    with pytest.raises(GraphError, match=r"stop: called without start\(\)"):
        profiler.stop()
    profiler.start()
    with pytest.raises(GraphError, match=r"asked for before stop\(\)"):
        _ = profiler.milliseconds
    with pytest.raises(ValueError, match="'weight_shape': expected 4 dimensions"):
        profiler.describe_operation("conv", (1, 2, 3), (1, 2, 3), (1, 2, 3), genesis.float32)
