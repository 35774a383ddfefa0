"""DataLoader: PyTorch's, with all its arguments, giving batches of Genesis tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

from genesis import interop
from genesis.data.tree import map_tree
from genesis.tensor import Tensor


class DataLoader(torch.utils.data.DataLoader):
    """Batches of a data set as Genesis tensors; shuffling, batching and worker processes are those of PyTorch's loader.

    The arguments are those of torch.utils.data.DataLoader. Samples may be numbers, numpy arrays, Genesis or PyTorch
    tensors, and tuples, lists and dictionaries of them. genesis.manual_seed() makes the order, and the seeds of the
    workers, reproducible.

    Example:
        >>> from genesis.data import DataLoader, TensorDataset
        >>> loader = DataLoader(TensorDataset(genesis.arange(5)), batch_size=2)
        >>> [batch.tolist() for (batch,) in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, *args: Any, **options: Any) -> None:
        super().__init__(dataset, batch_size, *args, **options)
        chosen: Callable[[Any], Any] = self.collate_fn
        # Workers hand PyTorch's tensors over in shared memory; here they become Genesis' on the same memory.
        by_default = chosen is torch.utils.data.default_collate
        self.collate_fn: Callable[[Any], Any] = default_collate if by_default else _ToTorch(chosen)

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield map_tree(_from_torch, batch)


def default_collate(samples: Sequence[Any]) -> Any:
    """One batch of PyTorch tensors from samples of one structure: what a DataLoader does by default."""
    return torch.utils.data.default_collate([map_tree(_to_torch, sample) for sample in samples])


class _ToTorch:
    """A collate function whose result has PyTorch's tensors in place of Genesis'; can be sent to a process."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: Any) -> Any:
        return map_tree(_to_torch, self.collate_fn(samples))


def _to_torch(value: Any) -> Any:
    return value.to_torch() if isinstance(value, Tensor) else value


def _from_torch(value: Any) -> Any:
    return interop.from_torch(value) if isinstance(value, torch.Tensor) else value
