"""DataLoader: PyTorch's, with all its arguments, giving batches of Genesis tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import torch.utils.data

from genesis import interop
from genesis.data.sampling import RandomSampler, with_torchs_generator
from genesis.data.tree import map_tree
from genesis.tensor import Tensor

Collate = Callable[[Sequence[object]], object]


class DataLoader(torch.utils.data.DataLoader):
    """Iterate over a data set in batches of Genesis tensors, with PyTorch's shuffling, batching and worker processes.

    Args:
        dataset: its samples are numbers, numpy arrays, Genesis or PyTorch tensors, and tuples, lists and dicts of them.
        batch_size: samples per batch; None for no batching.
        args, options: see torch.utils.data.DataLoader: shuffle, num_workers, drop_last, pin_memory, …
    Returns (iteration): batches with the structure of the samples. genesis.manual_seed() makes their order, and the
        seeds of the workers, reproducible.

    Example:
        >>> from genesis.data import DataLoader, TensorDataset
        >>> loader = DataLoader(TensorDataset(genesis.arange(5)), batch_size=2)
        >>> [batch.tolist() for (batch,) in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, dataset: object, batch_size: int | None = 1, *args: object, **options: object) -> None:
        super().__init__(dataset, batch_size, *args, **with_torchs_generator(options))
        if type(self.sampler) is torch.utils.data.RandomSampler:  # made for shuffle=True; programs ask what it is
            self.sampler.__class__ = RandomSampler
        chosen: Collate = self.collate_fn
        # Workers hand PyTorch's tensors over in shared memory; here they become Genesis' on the same memory.
        ours = {torch.utils.data.default_collate: default_collate, torch.utils.data.default_convert: default_convert}
        self.collate_fn: Collate = ours.get(chosen) or _ToTorch(chosen)

    def __iter__(self) -> Generator[Any, None, None]:
        for batch in super().__iter__():
            yield map_tree(_from_torch, batch)


def default_collate(samples: Sequence[object]) -> object:
    """Stack samples of one structure into a batch of PyTorch tensors, as a DataLoader does by default.

    Args:
        samples: numbers, NumPy arrays, tensors, or tuples, lists and dicts of them, all of one structure.
    Returns: that structure, of tensors with a first dimension more.

    Example:
        >>> genesis.data.default_collate([(1.0, 2), (3.0, 4)])
        [tensor([1., 3.], dtype=torch.float64), tensor([2, 4])]
    """
    return torch.utils.data.default_collate([map_tree(_to_torch, sample) for sample in samples])


def default_convert(sample: object) -> object:
    """Convert the NumPy arrays of one sample to PyTorch tensors, as a DataLoader without batches does.

    Args:
        sample: a NumPy array, a tensor, or tuples, lists and dicts of them; other values stay as they are.
    Returns: that structure.

    Example:
        >>> genesis.data.default_convert((genesis.ones(2), "name"))
        [tensor([1., 1.]), 'name']
    """
    return torch.utils.data.default_convert(map_tree(_to_torch, sample))


class _ToTorch:
    """A collate function whose result has PyTorch's tensors in place of Genesis'; can be sent to a process."""

    def __init__(self, collate_fn: Collate) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: Sequence[object]) -> object:
        return map_tree(_to_torch, self.collate_fn(samples))


def _to_torch(value: object) -> object:
    return value.to_torch() if isinstance(value, Tensor) else value


def _from_torch(value: object) -> object:
    return interop.from_torch(value) if isinstance(value, torch.Tensor) else value
