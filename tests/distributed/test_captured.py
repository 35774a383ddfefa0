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


APART = {  # what the ranks wait in
    "calls": ("rank 0: all_reduce(sum, float32 [2] on cuda)", "rank 1: broadcast(from rank 0, float32 [2] on cuda)"),
    "shapes": ("rank 0: all_reduce(max, float32 [2] on cuda)", "rank 1: all_reduce(max, float32 [3] on cuda)"),
    "dtypes": ("rank 0: all_reduce(max, float32 [2] on cuda)", "rank 1: all_reduce(max, float64 [2] on cuda)"),
    "replay": ("rank 0: all_reduce(sum, float32 [2] on cuda)", "rank 1: all_reduce(max, float32 [2] on cuda)"),
    "host": ("rank 0: barrier()", "rank 1: all_reduce(max, float32 [2] on cuda)"),
}


@pytest.mark.parametrize("kind", APART)
def test_ranks_that_wait_in_different_calls_raise_long_before_the_timeout(two_ranks: Ranks, kind: str) -> None:
    for seconds, said in two_ranks.run("captured.apart", kind=kind):
        assert all(each in said for each in APART[kind]), said
        assert seconds < 8


@pytest.mark.parametrize("kind", ["late", "capture"])
def test_a_rank_that_is_late_is_waited_for(two_ranks: Ranks, kind: str) -> None:
    assert [said for _, said in two_ranks.run("captured.apart", kind=kind)] == ["None", "None"]


TRIAL = 1 + 3 * 5  # calls of copy engines in the trial


@pytest.mark.parametrize(
    ("how", "num_steps"),
    [("compiled", 7), ("late", 5), ("eager", 0), ("no memory", 0), ("no windows", 0)],
)
def test_buckets_that_copy_engines_reduce(two_ranks: Ranks, how: str, num_steps: int) -> None:
    """In recorded steps: all buckets but the last, from the second step on, whose gradients' order is known."""
    for copied, buckets, replays in two_ranks.run("windows.training", how=how):
        assert copied == (num_steps and TRIAL) + (buckets - 1) * num_steps
        assert (replays > 0) == (how != "eager")


def test_windows_are_given_back(two_ranks: Ranks) -> None:
    two_ranks.run("windows.memory")
    for numbers in two_ranks.run("windows.growing"):
        assert numbers[1] == numbers[2] == numbers[3], numbers


def test_a_device_that_waits_for_ever_ends_its_process(two_ranks: Ranks) -> None:
    for said, ended in two_ranks.run("windows.stuck"):
        assert said == "DistributedError: rank 7 no longer runs; the device waits for it: this process ends\n"
        assert ended == [1]
