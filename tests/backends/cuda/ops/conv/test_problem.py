"""ConvProblem: shapes, counts, and a key that tells apart all that decides."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem

PROBLEM = ConvProblem(FORWARD, (2, 8, 9, 7), (6, 4, 3, 2), (2, 1), (1, 0), (1, 2), 2, dtype=dtypes.float32)


def test_shapes_of_each_direction() -> None:
    shapes = {
        direction: (p.first_shape, p.second_shape, p.result_shape)
        for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
        for p in [dataclasses.replace(PROBLEM, direction=direction)]
    }
    x, w, y = (2, 8, 9, 7), (6, 4, 3, 2), (2, 6, 5, 5)
    assert shapes == {FORWARD: (x, w, y), INPUT_GRAD: (y, w, x), WEIGHT_GRAD: (y, x, w)}


def test_counts() -> None:
    assert PROBLEM.flops == 2 * (2 * 6 * 5 * 5) * (4 * 3 * 2)
    assert PROBLEM.bytes == 4 * (2 * 8 * 9 * 7 + 6 * 4 * 3 * 2 + 2 * 6 * 5 * 5)
    directions = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
    terms = [dataclasses.replace(PROBLEM, direction=direction).num_terms for direction in directions]
    assert terms == [4 * 3 * 2, 3 * 3 * 2, 2 * 5 * 5]


@pytest.mark.parametrize(
    "change",
    [
        {"direction": INPUT_GRAD}, {"input_shape": (3, 8, 9, 7)}, {"input_shape": (2, 8, 9, 8)},
        {"weight_shape": (8, 4, 3, 2)}, {"weight_shape": (6, 4, 3, 3)}, {"stride": (1, 1)}, {"padding": (1, 1)},
        {"dilation": (1, 1)}, {"groups": 1, "weight_shape": (6, 8, 3, 2)}, {"dtype": dtypes.float16}, {"bias": True},
        {"residual": True}, {"activation": "relu"}, {"alignment": 4}, {"precision": "high"}, {"deterministic": True},
    ],
)  # fmt: skip
def test_all_that_decides_is_in_the_key(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(PROBLEM, **change)
    assert changed != PROBLEM
    assert changed.key != PROBLEM.key
    assert json.loads(changed.key)["direction"] == changed.direction


def test_the_problem_of_a_key() -> None:
    assert ConvProblem.from_key(PROBLEM.key) == PROBLEM
    assert ConvProblem.from_key(PROBLEM.key, 1) == dataclasses.replace(PROBLEM, device=1)


@pytest.mark.parametrize(
    "key",
    [
        "", "problem", "[]", "null", "{}", "[" * 3000, PROBLEM.key[:-1], PROBLEM.key.replace("2", "2.5", 1),
        PROBLEM.key.replace("[2,8,9,7]", "[2,8,9]"), PROBLEM.key.replace("[2,8,9,7]", "[2,8,-9,7]"),
        PROBLEM.key.replace("[2,8,9,7]", '[2,8,9,"7"]'), PROBLEM.key.replace("[2,1]", "[0,1]"),
        PROBLEM.key.replace("float32", "complex64"), PROBLEM.key.replace("forward", "sideways"),
        PROBLEM.key.replace("{", '{"device":7,'), PROBLEM.key.replace("false", "0", 1),
    ],
)  # fmt: skip
def test_a_key_that_no_problem_has(key: str) -> None:
    with pytest.raises(ValueError, match="no key of a convolution"):
        ConvProblem.from_key(key)


def test_the_key_is_the_same_on_every_device() -> None:
    assert dataclasses.replace(PROBLEM, device=1).key == PROBLEM.key
