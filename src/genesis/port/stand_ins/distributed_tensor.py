"""torch.distributed.tensor: placements, which files name in tables; there are no sharded tensors to place."""

from __future__ import annotations

import dataclasses


class Placement:
    """How a tensor lies on several devices."""


@dataclasses.dataclass(frozen=True)
class Shard(Placement):
    """A part of the dimension on each."""

    dim: int


@dataclasses.dataclass(frozen=True)
class Replicate(Placement):
    """The whole on each."""


@dataclasses.dataclass(frozen=True)
class Partial(Placement):
    """A term of the sum, or of another reduction, on each."""

    reduce_op: str = "sum"
