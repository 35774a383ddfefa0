"""DistributedSampler: the ranks' parts, beside PyTorch's."""

from __future__ import annotations

import pytest
import torch.utils.data

from genesis.data import DataLoader, DistributedSampler


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_parts_are_those_of_torch(size: int, drop_last: bool, shuffle: bool) -> None:
    parts = []
    for rank in range(size):
        options = {"shuffle": shuffle, "seed": 3, "drop_last": drop_last}
        ours = DistributedSampler(range(20), size, rank, **options)
        theirs = torch.utils.data.DistributedSampler(range(20), size, rank, **options)
        for sampler in (ours, theirs):
            sampler.set_epoch(5)
        assert list(ours) == list(theirs)
        parts.append(list(ours))
    assert len({len(part) for part in parts}) == 1
    assert len({index for part in parts for index in part}) == (20 // size * size if drop_last else 20)


def test_one_process_has_all() -> None:
    batches = DataLoader(list(range(5)), batch_size=2, sampler=DistributedSampler(range(5), shuffle=False))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="Invalid rank 2"):
        DistributedSampler(range(5), 2, 2)
