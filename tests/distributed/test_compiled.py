"""genesis.compile with DistributedDataParallel: over gloo on the CPU, over a stand-in for NCCL as CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.compiled import REFUSED
from tests.distributed.ranks import Ranks

STEPS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "AdamW": {"optimizer": "AdamW"},
    "clipping": {"how": "clip"},
    "accumulation": {"how": "accumulate"},
    "gradients that stay": {"how": "keep accumulate"},
    "compression": {"compression": "bfloat16"},
    "buffers": {"network": "convolutional"},
    "autocast": {"network": "convolutional", "how": "autocast"},
    "SyncBatchNorm": {"network": "convolutional", "norm": "synchronized"},
}
ON_CUDA: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "AdamW"},
    "buffers": {"network": "convolutional"},
    "accumulation": {"how": "accumulate", "steps": 5},
    "scaler": {"how": "scaler", "steps": 6},
    "autocast and accumulation": {"how": "autocast accumulate", "steps": 5},
    "AdamW, scaler and clipping": {"optimizer": "AdamW", "how": "scaler clip", "steps": 6},
    "SyncBatchNorm": {"network": "convolutional", "norm": "synchronized", "steps": 5},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_the_eager_one(two_ranks: Ranks, name: str) -> None:
    assert min(two_ranks.run("compiled.train", **STEPS[name])) >= 4


@pytest.mark.parametrize("name", ON_CUDA)
def test_a_captured_step_is_the_eager_one(two_ranks: Ranks, name: str) -> None:
    found = two_ranks.run("compiled.train_captured", **ON_CUDA[name])
    assert found[0] == found[1]
    assert found[0][0] >= 2


def test_a_model_that_is_wrapped_after_captured_steps(two_ranks: Ranks) -> None:
    assert min(two_ranks.run("compiled.wrapped")) >= 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_sync_around_a_compiled_function(two_ranks: Ranks, device: str) -> None:
    assert min(two_ranks.run("compiled.accumulated", device=device)) >= 4


def test_gloo_is_none_of_a_cuda_graph(two_ranks: Ranks) -> None:
    for said in two_ranks.run("compiled.eagerly", device="cuda"):
        assert len(said) == 1
        assert "runs eagerly: it communicates by gloo, on the host" in said[0]


def test_unused_parameters_are_looked_for_eagerly(two_ranks: Ranks) -> None:
    for said in two_ranks.run("compiled.eagerly", device="cpu", find_unused_parameters=True):
        assert len(said) == 1
        assert "it looks for unused parameters in each pass (find_unused_parameters=True)" in said[0]


def test_collectives_of_the_step_itself(two_ranks: Ranks) -> None:
    assert min(two_ranks.run("compiled.collective")) >= 3


def test_collectives_that_no_replay_can_repeat(two_ranks: Ranks) -> None:
    for said in two_ranks.run("compiled.refused"):
        assert len(said) == len(REFUSED)
        assert all(name in each for name, each in zip(REFUSED, said, strict=True))


def test_growth_between_replays(two_ranks: Ranks) -> None:
    assert min(two_ranks.run("compiled.grown")) >= 4


def test_a_replay_that_fails_on_a_rank(two_ranks: Ranks) -> None:
    first, second = two_ranks.run("compiled.failed")
    assert len(first) == len(second) == 2
    assert "5: DistributedDataParallel: the backward pass failed on another rank" in first[0]
    assert second[0] == "5: no bucket"


def test_inference(two_ranks: Ranks) -> None:
    assert two_ranks.run("compiled.inference") == [2, 2]
