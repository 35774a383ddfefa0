"""How many runs of a candidate are timed."""

from __future__ import annotations

import math

import pytest

from genesis.backends.cuda.engine import bench


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
