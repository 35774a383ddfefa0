"""How many runs of a candidate are timed, and when the device is woken for them."""

from __future__ import annotations

import math
import time

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import bench
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, ConvProblem


@pytest.mark.parametrize(
    ("times", "best", "is_enough"),
    [
        ([], math.inf, False),
        ([35.0], math.inf, False),  # something else delayed it
        ([35.0, 0.03], 0.03, False),
        ([35.0, 0.03, 0.03], 0.03, True),
        ([0.09], 0.03, False),
        ([0.09, 0.08], 0.03, True),
        ([0.05, 0.05, 0.05], 0.03, False),
        ([4.0, 4.0, 4.0], math.inf, True),
    ],
)
def test_a_delayed_run_does_not_count(times: list[float], best: float, is_enough: bool) -> None:
    assert bench._is_enough(times, best) == is_enough


@pytest.mark.parametrize(("idle", "is_woken"), [(None, True), (0.0, False), (1.0, True)])
def test_a_device_is_woken_after_a_rest(
    idle: float | None, is_woken: bool, simulated: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever problem it worked on before."""
    now = time.monotonic()
    monkeypatch.setattr(bench, "_worked", {} if idle is None else {0: now - idle})
    monkeypatch.setattr(bench, "_WAKING", 0.001)
    ours = CONV.bench(ConvProblem(FORWARD, (1, 4, 4, 4), (4, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1, dtype=dtypes.float32))
    flushes: list[int] = []
    monkeypatch.setattr(ours, "_flushed", object())
    monkeypatch.setattr(ours, "_flush", flushes.append)
    ours._wake(0)
    assert bool(flushes) == is_woken
