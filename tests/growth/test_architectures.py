"""A share of what fuzz_architectures.py does: a run for a quarter of the architectures."""

from __future__ import annotations

import pytest

from tests.growth import fuzz_architectures
from tests.growth.architectures import NUM_DISTINCT, build

CHUNK = 10


@pytest.mark.parametrize("first", range(0, 30, CHUNK))
def test_random_architectures(first: int) -> None:
    for seed in range(first, first + CHUNK):
        fuzz_architectures.check(seed)


def test_they_are_different() -> None:
    assert len({repr(build(number)) for number in range(NUM_DISTINCT)}) >= 100
