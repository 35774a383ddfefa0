"""DistributedSampler: each rank's part of a data set."""

from __future__ import annotations

from collections.abc import Sized

import torch.utils.data

from genesis import distributed


class DistributedSampler(torch.utils.data.DistributedSampler):
    """Sample a part of a data set for each rank: disjoint, of equal length, together the whole in a random order.

    Call set_epoch() before each epoch, so that the next order is another one. Where the ranks do not divide the data
    set, some samples come twice; with drop_last, some are left out.

    Args:
        dataset: has a length.
        num_replicas, rank: those of the process group by default, or 1 and 0 where there is none.
        shuffle: in a random order, the same on all ranks; else rank r takes the samples r, r + num_replicas, …
        seed: of the order; the same on all ranks.
        drop_last: leave out the last samples that do not divide.
    Raises: ValueError: there is no such rank.

    Example:
        >>> from genesis.data import DistributedSampler
        >>> list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
        [1, 3, 0]
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        rank = distributed.get_rank() if rank is None else rank
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the order depends on.

        Args:
            epoch: its number, the same on all ranks.

        Example:
            >>> from genesis.data import DistributedSampler
            >>> sampler = DistributedSampler(range(100))
            >>> first = list(sampler)
            >>> sampler.set_epoch(1)
            >>> first == list(sampler)
            False
        """
        super().set_epoch(epoch)
