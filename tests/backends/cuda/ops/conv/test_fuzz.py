"""The fuzzer of convolutions, some problems of it: `python -m tests.backends.cuda.ops.conv.fuzz` is the whole."""

from __future__ import annotations

import pytest

from genesis.backends.backend import Backend
from tests.backends.cuda.ops.conv.fuzz import check, ways

PARTS, PER_PART = 15, 8


@pytest.mark.parametrize("seed", range(12))
def test_random_problems_simulated(simulated: Backend, seed: int) -> None:
    put, get = ways(simulated)
    check(simulated, put, get, seed, largest=4)


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_random_problems(gpu: Backend, part: int) -> None:
    put, get = ways(gpu)
    for seed in range(part * PER_PART, (part + 1) * PER_PART):
        check(gpu, put, get, seed, largest=16)
