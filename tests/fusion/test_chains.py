"""Chains in lists of steps."""

from __future__ import annotations

import pytest

from genesis.fusion import Chain, Step, find_chains
from genesis.fusion.chains import ACTIVATION, ADD, CONV, NORM, OTHER


def steps(*described: tuple[str, tuple[int, ...]]) -> list[Step]:
    """Step i gives value i + 1; value 0 is the input."""
    return [Step(kind, i + 1, operands, f"{kind}{i}") for i, (kind, operands) in enumerate(described)]


PLAIN = steps((CONV, (0,)), (NORM, (1,)), (ACTIVATION, (2,)))
BLOCK = steps((CONV, (0,)), (NORM, (1,)), (CONV, (0,)), (NORM, (3,)), (ADD, (2, 4)), (ACTIVATION, (5,)))


@pytest.mark.parametrize(
    ("given", "outputs", "chains"),
    [
        (PLAIN, [3], [Chain(0, 1, None, 2, None)]),
        (PLAIN[:2], [2], [Chain(0, 1, None, None, None)]),
        (PLAIN, [3, 2], [Chain(0, 1, None, None, None)]),  # the norm's result is wanted too
        (BLOCK, [6], [Chain(0, 1, 4, 5, 4), Chain(2, 3, None, None, None)]),  # one of two norms takes the sum
        (steps((CONV, (0,)), (NORM, (1,)), (ADD, (2, 2))), [3], [Chain(0, 1, None, None, None)]),
        (steps((CONV, (0,)), (NORM, (1,)), (ADD, (0, 2))), [3], [Chain(0, 1, 2, None, 0)]),
        (steps((CONV, (0,)), (NORM, (1,)), (OTHER, (2,))), [3], [Chain(0, 1, None, None, None)]),
    ],
)
def test_found(given: list[Step], outputs: list[int], chains: list[Chain]) -> None:
    assert find_chains(given, outputs) == (chains, [])


@pytest.mark.parametrize(
    ("given", "outputs", "reason"),
    [
        (PLAIN[:1], [1], "no batch norm follows"),
        (PLAIN, [3, 1], "its result is used in several places"),
        (steps((CONV, (0,)), (ACTIVATION, (1,))), [2], "no batch norm follows"),
        ([PLAIN[0]._replace(obstacle="it has hooks"), *PLAIN[1:]], [3], "it has hooks"),
        ([PLAIN[0], PLAIN[1]._replace(obstacle="it has hooks"), PLAIN[2]], [3], "it has hooks"),
        (
            [PLAIN[0], Step(ACTIVATION, 9, (0,), changed=(0,)), *PLAIN[1:]],
            [3, 9],
            "its input is changed in place before the chain ends",
        ),
    ],
)
def test_left(given: list[Step], outputs: list[int], reason: str) -> None:
    assert find_chains(given, outputs) == ([], [(f"{CONV}0", reason)])


FIRST, SECOND = (CONV, (0,)), (NORM, (1,))
OBSTACLE = Step(CONV, 3, (0,), obstacle="it has hooks")
