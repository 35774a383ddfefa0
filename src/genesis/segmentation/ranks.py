"""A training in several processes, as torchrun starts them: each computes on its part of each batch.

The batches, the losses and the scores are those of one process, so that a training may go on with another number of
ranks. Only rank 0 writes and prints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

import genesis
from genesis import distributed
from genesis.distributed.group import leave as leave
from genesis.distributed.group import require
from genesis.errors import describe
from genesis.segmentation.arrays import Array
from genesis.settings import settings

T = TypeVar("T")


@contextlib.contextmanager
def joined(device: str, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Inside, this process is one of those that torchrun has started, if it has. Gives: the device of this process.

    Args:
        device: "cuda" becomes the one with the number of the process on its host.
        environment: torchrun's variables.
    """
    if int(environment.get("WORLD_SIZE", "1")) == 1 or "RANK" not in environment:
        yield device
        return
    backend = "gloo"
    if device == "cuda" and settings.cuda != "simulated":
        from genesis import cuda

        cuda.set_device(int(environment.get("LOCAL_RANK", "0")))
        device = str(genesis.Device("cuda"))
        backend = "nccl" if distributed.is_nccl_available() else "gloo"
    distributed.init_process_group(backend)
    try:
        yield device
    except BaseException as error:
        leave(error)
        raise
    if distributed.is_initialized():
        distributed.destroy_process_group()


def was_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started the processes again after one has failed."""
    return int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def is_first() -> bool:
    """Whether this process writes and prints."""
    return distributed.get_rank() == 0


def check(batch_size: int) -> None:
    """Raises: ValueError: a batch has no part for each rank."""
    size = distributed.get_world_size()
    if batch_size < size:
        raise ValueError(describe("train", "batch_size", f"at least {size}, the number of ranks", batch_size))


def part(items: Sequence[T]) -> Sequence[T]:
    """This rank's part of a batch."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    return items[rank * len(items) // size : (rank + 1) * len(items) // size]


def numbers(count: int) -> range:
    """This rank's part of so many things that take no order."""
    return range(distributed.get_rank(), count, distributed.get_world_size())


def total(counts: Array) -> Array:
    """The exact sum of whole numbers over the ranks."""
    if distributed.get_world_size() == 1:
        return counts
    summed = genesis.from_numpy(np.ascontiguousarray(counts, dtype=np.int64).copy())
    distributed.all_reduce(summed)
    return np.asarray(summed.numpy())


def mean(value: float) -> float:
    """The mean of a number over the ranks, the same bits on all."""
    if distributed.get_world_size() == 1:
        return value
    summed = genesis.tensor([value], dtype=genesis.float64)
    distributed.all_reduce(summed)
    return float(summed.item()) / distributed.get_world_size()


def settle() -> None:
    """Wait for the device. Raises: DistributedError: a call has failed, and may have left anything in the weights."""
    if distributed.is_initialized():
        require("train").settle()


def by_first(action: Callable[[], None]) -> None:
    """Run on rank 0 while the others wait; where it raises, they raise too."""
    if distributed.get_world_size() == 1:
        action()
        return
    said, raised = None, None
    if is_first():
        try:
            action()
        except Exception as error:
            said, raised = str(error), error
    group = require("train")
    said = group.share(said)
    if raised is not None:
        raise raised
    if said is not None:
        raise ValueError(said)
