"""Fingerprints: by what they are defined, and that every change shows."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from genesis.backends.cpu.x86 import fingerprint as module
from genesis.backends.cpu.x86.fingerprint import fingerprint

pytestmark = pytest.mark.skipif(not module.is_available(), reason="needs x86-64 with AVX2")

PART = 1 << 16  # bytes
SIZES = [0, 4, 60, 64, 68, 4096, 4 * 12345]


def _expected(data: bytes) -> bytes:
    """Of one part, and what is left."""
    whole, mask = len(data) // 64 * 64, 2**64 - 1
    sums, keys, steps = [0] * 8, module.KEYS.tolist(), module.KEY_STEP.tolist() * 2
    for place in range(0, whole, 64):
        words = struct.unpack_from("<8Q", data, place)
        for lane, word in enumerate(words):
            mixed = word ^ keys[lane]
            sums[lane] = sums[lane] + (mixed & 0xFFFFFFFF) * (mixed >> 32) + words[lane ^ 1] & mask
            keys[lane] = keys[lane] + steps[lane] & mask
    return (struct.pack("<8Q", *sums) if whole else b"") + data[whole:]


def _of(values: np.ndarray) -> bytes:
    return fingerprint(values.ctypes.data, values.nbytes)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 3 * PART + 1000, dtype=np.uint8)  # four parts


@pytest.mark.parametrize("size", SIZES)
def test_as_defined(size: int, values: np.ndarray) -> None:
    assert _of(values[:size]) == _expected(values[:size].tobytes())


def test_parts_follow_one_another(values: np.ndarray) -> None:
    assert _of(values) == b"".join(_of(values[start : start + PART]) for start in range(0, len(values), PART))


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_whatever_the_number_of_threads(threads: int, values: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _of(values)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert _of(values) == expected


def test_every_bit_shows(values: np.ndarray) -> None:
    before = _of(values)
    for place in (0, 1, 7, 8, 63, 64, PART - 1, PART, len(values) - 60, len(values) - 1):
        for bit in range(8):
            values[place] ^= 1 << bit
            assert _of(values) != before
            values[place] ^= 1 << bit
    assert _of(values) == before


@pytest.mark.parametrize("size", [8, 16, 64, 4096])
def test_exchanges_show(size: int, values: np.ndarray) -> None:
    """Which the sums do not see."""
    other = values.copy()
    other[:size], other[2 * size : 3 * size] = values[2 * size : 3 * size], values[:size]
    assert _of(other) != _of(values)
