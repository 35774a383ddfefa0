"""DistributedDataParallel over gloo: two and four processes train as one does on the whole batch."""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis import nn
from genesis.nn.parallel.buckets import plan
from tests.distributed.ranks import Ranks

TRAININGS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "AdamW": {"optimizer": "AdamW"},
    "float32": {"dtype": "float32"},
    "accumulation": {"accumulate": 3},
    "gradients that stay": {"set_to_none": False},
    "clipping and scaler": {"clip": True, "scaled": True},
    "one bucket": {"cap": 25.0},
    "batch norm": {"network": "convolutional", "optimizer": "AdamW"},
    "batch norm in float32": {"network": "convolutional", "dtype": "float32", "steps": 1},
    "batch norm and accumulation": {"network": "convolutional", "accumulate": 2},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_that_of_one_process(two_ranks: Ranks, name: str) -> None:
    two_ranks.run("train", **TRAININGS[name])


@pytest.mark.parametrize("name", ["AdamW", "batch norm", "accumulation"])
def test_four_ranks(four_ranks: Ranks, name: str) -> None:
    four_ranks.run("train", **TRAININGS[name])


def test_buckets_follow_the_first_backward_pass(two_ranks: Ranks) -> None:
    buckets = two_ranks.run("train", steps=2)[0]
    order = [number for bucket in buckets for number in bucket]
    assert sorted(order) == list(range(6))
    assert set(order[:2]) == {4, 5}  # the last layer's gradients come first
    assert len(buckets) > 1


def test_a_training_goes_on_with_its_buckets(four_ranks: Ranks) -> None:
    orders = four_ranks.run("bucket_order")
    assert orders[0][0].startswith("7.")
    assert all(order == orders[0] for order in orders)


def test_bits_are_equal_after_many_steps(two_ranks: Ranks) -> None:
    two_ranks.run("long_training")


@pytest.mark.parametrize("activation", ["relu", "silu", None])
def test_fused_layers_normalize_over_all_ranks(two_ranks: Ranks, activation: str | None) -> None:
    two_ranks.run("fused_norms", activation=activation)


def test_a_simulated_device(two_ranks: Ranks) -> None:
    two_ranks.run("train_simulated")
    two_ranks.run("fused_norms_simulated")


@pytest.mark.parametrize("different", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_unused_parameters(two_ranks: Ranks, different: bool, norm: bool) -> None:
    two_ranks.run("unused", different=different, norm=norm)


def test_unused_parameters_are_named(two_ranks: Ranks) -> None:
    first, second = two_ranks.run("unused_is_an_error")
    assert "on rank 0, backward made no gradient of 6 parameters" in first
    assert "first.weight (on another rank)" in first
    assert "second.weight, second.bias, never.weight, never.bias" in first
    assert "second.weight (on another rank)" in second
    assert "find_unused_parameters=True" in second


def test_an_overflow_is_common(two_ranks: Ranks) -> None:
    assert two_ranks.run("overflow") == [(4.0, 0.0)] * 2


def test_growth_in_the_midst(two_ranks: Ranks) -> None:
    assert two_ranks.run("grown") == [[8, 8, 12, 12]] * 2


def test_parameters_that_begin_to_require_grad(two_ranks: Ranks) -> None:
    two_ranks.run("frozen_and_thawed")


@pytest.mark.parametrize("compression", ["bfloat16", "float16"])
def test_compression(two_ranks: Ranks, compression: str) -> None:
    two_ranks.run("compressed", compression=compression)


def test_buffers(two_ranks: Ranks) -> None:
    first, second = two_ranks.run("buffers", broadcast=True)
    assert first == pytest.approx(0.19)
    assert second == pytest.approx(0.1 * 0.9 + 0.1 * 2)  # rank 0's before the last forward, and its own batch
    assert two_ranks.run("buffers", broadcast=False) == pytest.approx([0.19, 0.38])


def test_buffers_of_all_kinds(two_ranks: Ranks) -> None:
    two_ranks.run("copies.buffers")


def test_a_step_copies_each_bucket_once_and_all_buffers_together(two_ranks: Ranks) -> None:
    for copies, num_calls, num_buckets in two_ranks.run("copies.calls"):
        assert copies == {"buffers": 1, "gradients": num_buckets}
        assert num_calls == num_buckets + 1


def test_gradients_are_cast_into_their_buckets(two_ranks: Ranks) -> None:
    """Those of convolutions and linear layers; the six of batch norms are in float32 already."""
    for copied in two_ranks.run("copies.under_autocast"):
        assert sum(copied) == 6


def test_the_last_bucket_is_short() -> None:
    """Backward does not hide it. One gradient alone may be longer."""
    sizes = [1000, 300_000, 200_000, 75_000, 20_000, 12_000, 10]
    parameters = [nn.Parameter(genesis.zeros(size)) for size in sizes]
    found = plan(parameters, range(len(sizes)), 4 << 20)
    assert [[place.parameter for place in bucket] for bucket in found] == [[0], [1, 2, 3], [4, 5, 6]]
    found = plan(parameters, [0, 1, 4, 2, 5, 3], 4 << 20)
    assert [[place.parameter for place in bucket] for bucket in found] == [[0], [1, 4, 2, 5, 3]]
    found = plan(parameters, [0, 1, 5, 2, 6], 16 << 20)
    assert [[place.parameter for place in bucket] for bucket in found] == [[0], [1, 5, 2], [6]]


def test_hooks_after_those_of_the_wrapper(two_ranks: Ranks) -> None:
    two_ranks.run("copies.later_hooks")


def test_state_has_the_names_of_the_module(two_ranks: Ranks) -> None:
    assert two_ranks.run("states")[0] == ["weight", "bias"]


def test_modules_that_differ(two_ranks: Ranks) -> None:
    for said in two_ranks.run("different_modules"):
        assert "rank 0: DistributedDataParallel(2 parameters and 3 elements" in said
        assert "rank 1: DistributedDataParallel(2 parameters and 6 elements" in said


def test_gradients_are_views(two_ranks: Ranks) -> None:
    assert two_ranks.run("views") == [True, True]


@pytest.mark.parametrize("position", [0, 2, 3])  # after most of the gradients were sent, some, or none
def test_a_backward_pass_that_failed_everywhere(two_ranks: Ranks, position: int) -> None:
    assert two_ranks.run("after_an_error", failing=[0, 1], position=position, find_unused=False) == ["meant"] * 2


def test_a_pass_of_an_older_graph_after_one_that_failed(two_ranks: Ranks) -> None:
    two_ranks.run("after_an_error_under_autocast")


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("find_unused", [False, True])
def test_a_backward_pass_that_failed_on_a_rank(two_ranks: Ranks, position: int, find_unused: bool) -> None:
    arguments: dict[str, Any] = {"position": position, "find_unused": find_unused}
    first, second = two_ranks.run("after_an_error", failing=[1], **arguments)
    assert "the backward pass failed on another rank; leave this batch out" in first
    assert second == "meant"


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: nn.parallel.DistributedDataParallel(3), TypeError, "'module': expected a Module, got int"),
        (lambda: nn.parallel.DistributedDataParallel(nn.ReLU()), ValueError, "expected a parameter that requires grad"),
        (lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1), bucket_cap_mb=0), ValueError, "a positive"),
        (lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1), compression="int8"), ValueError, "'bfloat16',"),
        (lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1)), RuntimeError, "there is no process group"),
        (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(3), TypeError, "'module': expected a Module, got int"),
        (lambda: nn.SyncBatchNorm(2)(genesis.ones(3)), ValueError, "'input': expected 2 or 3 or 4 or 5 dimensions"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
