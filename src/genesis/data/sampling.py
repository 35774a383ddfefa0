"""PyTorch's samplers and random_split, which also take Genesis' generators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.data

from genesis.generator import Generator
from genesis.interop import from_torch
from genesis.tensor import Tensor


def with_torchs_generator(options: dict[str, object]) -> dict[str, object]:
    """The options with PyTorch's generator, in the same state, in the place of Genesis'."""
    generator = options.get("generator")
    if isinstance(generator, Generator):
        return {**options, "generator": torch.Generator().set_state(generator.get_state().to_torch())}
    return options


class RandomSampler(torch.utils.data.RandomSampler):
    """Draw indices in random order, as torch.utils.data.RandomSampler.

    Args:
        data_source: a data set.
        args, options: PyTorch's; a generator's stream continues from where it is now.

    Example:
        >>> sorted(genesis.data.RandomSampler([5, 6, 7]))
        [0, 1, 2]
    """

    def __init__(self, data_source: object, *args: object, **options: object) -> None:
        super().__init__(data_source, *args, **with_torchs_generator(options))


class SubsetRandomSampler(torch.utils.data.SubsetRandomSampler):
    """Draw given indices in random order. See `genesis.data.RandomSampler`."""

    def __init__(self, indices: Sequence[int], *args: object, **options: object) -> None:
        super().__init__(indices, *args, **with_torchs_generator(options))


class WeightedRandomSampler(torch.utils.data.WeightedRandomSampler):
    """Draw indices by their weights, as torch.utils.data.WeightedRandomSampler.

    Args:
        weights: a tensor or a sequence of numbers.
        args, options: PyTorch's num_samples, replacement and generator.

    Example:
        >>> list(genesis.data.WeightedRandomSampler([0.0, 1.0], 2))
        [1, 1]
    """

    def __init__(self, weights: Tensor | Sequence[float], *args: object, **options: object) -> None:
        plain = weights.tolist() if isinstance(weights, Tensor) else weights
        super().__init__(plain, *args, **with_torchs_generator(options))


def random_split(dataset: object, lengths: Sequence[float], generator: Generator | None = None) -> list[Any]:
    """Split a data set at random into subsets.

    Args:
        dataset: has a length.
        lengths: how many samples each gets, or fractions that sum to 1.
        generator: draw from this stream, Genesis' or PyTorch's.
    Returns: torch.utils.data.Subset objects.
    Raises: ValueError: the lengths do not sum to that of the data set.

    Example:
        >>> [len(part) for part in genesis.data.random_split([1, 2, 3], [2, 1])]
        [2, 1]
    """
    options = with_torchs_generator({"generator": generator} if generator is not None else {})
    parts: list[Any] = torch.utils.data.random_split(dataset, lengths, **options)
    if isinstance(generator, Generator):
        theirs = options["generator"]
        assert isinstance(theirs, torch.Generator)
        generator.set_state(from_torch(theirs.get_state()))
    return parts
