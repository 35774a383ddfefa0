"""Transports, which move the bytes: a Transport starts collectives on arrays, a Work is one of them on its way."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from genesis.dtypes import DType
from genesis.ndarray import NDArray


class ReduceOp(enum.Enum):
    """How the values of the ranks become one: SUM, AVG (floating dtypes), PRODUCT, MIN or MAX.

    Example:
        >>> genesis.distributed.ReduceOp.SUM.value
        'sum'
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


class Call(NamedTuple):
    """One collective call of a rank.

    Attributes:
        name: of the function.
        details: what the ranks must agree upon: shape, dtype, reduction.
        number: the same on all ranks, which make the same calls in the same order.
        checked: the ranks compare their details before anything is sent.
    """

    name: str
    details: str
    number: int = 0
    checked: bool = True

    def __str__(self) -> str:
        return f"{self.text}, call {self.number}"

    @property
    def text(self) -> str:
        return f"{self.name}({self.details})"


class Work(Protocol):
    """A collective call that has been started. Made by `genesis.distributed.all_reduce`.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> work = distributed.all_reduce(genesis.ones(2), async_op=True)
        >>> work.wait(), work.is_completed()
        (True, True)
        >>> distributed.destroy_process_group()
    """

    def wait(self) -> bool:
        """Let what follows see the result: the host's work on the CPU, the current stream's on CUDA.

        Returns: True.
        Raises: DistributedError: the call has failed.
        """

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not."""


class Transport(Protocol):
    """Starts collectives, in the order of the calls. Arrays are row-major, and have elements."""

    @property
    def has_memory(self) -> bool:
        """Whether memory() may give some."""

    def memory(self, num_elements: int, dtype: DType) -> NDArray | None:
        """A flat array of zeros, of so many elements or some more, whose means take nothing from kernels beside them.

        For arrays that are averaged often, such as buckets of gradients. All ranks ask alike; None: there is none.
        """

    def all_reduce(self, call: Call, array: NDArray, op: ReduceOp) -> Work:
        """In place."""

    def all_gather(self, call: Call, outputs: Sequence[NDArray], array: NDArray) -> Work:
        """An output for each rank."""

    def reduce_scatter(self, call: Call, output: NDArray, inputs: Sequence[NDArray], op: ReduceOp) -> Work:
        """An input for each rank."""

    def broadcast(self, call: Call, array: NDArray, source: int) -> Work:
        """In place."""

    def close(self, patience: float | None = None) -> None:
        """End it after its calls; all ranks do. patience: seconds for them, and then no wait for the other ranks."""
