"""NCCL's transport, with a stand-in for NCCL on the simulated device: streams, CUDA graphs, failures, the end."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks


def test_calls_on_a_stream(two_ranks: Ranks) -> None:
    two_ranks.run("captured.eager")


@pytest.mark.parametrize(("norm", "num_eager", "optimizer"), [(False, 2, "SGD"), (False, 1, "AdamW"), (True, 2, "SGD")])
def test_a_captured_training_step(two_ranks: Ranks, norm: bool, num_eager: int, optimizer: str) -> None:
    numbers = two_ranks.run("captured.training", norm=norm, num_eager=num_eager, optimizer=optimizer)
    assert numbers[0] == numbers[1]
    # buckets; with batch norm, buffers of two dtypes, and statistics forward and backward
    assert numbers[0] >= (6 if norm else 2)


def test_a_group_ends_before_its_graphs(two_ranks: Ranks) -> None:
    for said in two_ranks.run("captured.end"):
        assert "replay: expected a graph that has been captured" in said


def test_a_failure_during_a_replay(two_ranks: Ranks) -> None:
    for said in two_ranks.run("captured.failure"):
        assert len(said) == 3
        assert all("replay of all_reduce: failed on rank" in each for each in said)
