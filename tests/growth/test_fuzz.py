"""80 random sequences of operations, of all networks: see fuzz.py. In chunks, so that workers share them."""

from __future__ import annotations

import pytest

from tests.growth import fuzz

CHUNK = 8


@pytest.mark.parametrize("first", [*range(0, 48, CHUNK), *range(fuzz.NUM_ORIGINAL, fuzz.NUM_ORIGINAL + 32, CHUNK)])
def test_random_sequences(first: int) -> None:
    for seed in range(first, first + CHUNK):
        fuzz.check(seed)


def test_a_failure_prints_the_line_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(fuzz, "_operate", fail)
    with pytest.raises(
        AssertionError, match=r"python -m tests.growth.fuzz --seed 3\noriginal, AdamW\nRuntimeError: broken"
    ):
        fuzz.check(3)
