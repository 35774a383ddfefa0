"""genesis.torch.fuse and compile inside PyTorch's own DistributedDataParallel and fully_shard, over gloo."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(
    ("wrapper", "faster", "num_fused"),
    [
        ("ddp", "fuse", 2),
        ("fully_shard", "fuse", 2),
        ("ddp", "compile", 4),  # 2 in training, 2 in inference
        ("fully_shard", "compile", 2),  # the part that is sharded by itself runs eagerly
    ],
)
def test_a_wrapped_model_learns_as_the_plain_one(
    two_ranks: Ranks, wrapper: str, faster: str, num_fused: int
) -> None:  # fmt: skip
    assert two_ranks.run("torch_programs.wrapped", wrapper=wrapper, faster=faster) == [num_fused] * 2


@pytest.mark.parametrize(
    ("wrapper", "faster", "num_fused"), [("ddp", "fuse", 2), ("fully_shard", "fuse", 2), ("ddp", "compile", 4)]
)
def test_a_model_that_is_wrapped_first(two_ranks: Ranks, wrapper: str, faster: str, num_fused: int) -> None:
    found = two_ranks.run("torch_programs.wrapped", wrapper=wrapper, faster=faster, wraps_first=True)
    assert found == [num_fused] * 2


def test_the_options_of_both_wrappers(two_ranks: Ranks) -> None:
    assert two_ranks.run("torch_options.options") == [[], []]


def test_norms_that_are_synchronized(two_ranks: Ranks) -> None:
    for said in two_ranks.run("torch_options.synchronized"):
        assert len(said) == 4
        assert all("SyncBatchNorm expected input tensor to be on GPU" in each for each in said)
