"""Names of candidates: what is tuned in one process is found by its name in the next."""

from __future__ import annotations

import itertools

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.engine.entry import Entry, parsed

SHAPES = [  # input, weight, stride, groups
    ((64, 64, 56, 56), (64, 64, 3, 3), 1, 1), ((64, 104, 28, 28), (104, 104, 3, 3), 2, 1),
    ((64, 256, 14, 14), (512, 256, 1, 1), 1, 1), ((64, 3, 224, 224), (64, 3, 7, 7), 2, 1),
    ((64, 64, 224, 224), (8, 64, 3, 3), 1, 1), ((64, 96, 56, 56), (96, 1, 7, 7), 1, 96),
    ((64, 128, 28, 28), (128, 4, 3, 3), 1, 32),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_name_is_kept(
    shape: tuple[tuple[int, ...], tuple[int, ...], int, int], cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (hopper, programs):
        monkeypatch.setattr(module, "is_available", lambda device: True)
    input, weight, stride, groups = shape
    padding = (weight[2] // 2,) * 2
    found = set()
    for direction, dtype in itertools.product((FORWARD, INPUT_GRAD, WEIGHT_GRAD), (dtypes.float32, dtypes.bfloat16)):
        problem = ConvProblem(direction, input, weight, (stride,) * 2, padding, (1, 1), groups=groups, dtype=dtype)
        for family in CONV.families(problem):
            for candidate in (*family.variants(problem), *family.trials(problem)):
                entry = Entry(candidate.name, 1.0, 0.0, 0)
                assert parsed(("a problem", *entry[:4], int(entry.complete))) == ("a problem", entry)
                named = family.named(problem, candidate.name)
                assert named is not None
                assert named.name == candidate.name
                found.add(candidate.name)
    assert len(found) > 10
