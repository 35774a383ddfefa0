"""The next batch travels to the device while the present one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from genesis.data.tree import map_tree
from genesis.ndarray import Device
from genesis.tensor import Tensor


def prefetch(loader: Iterable[Any], device: str | Device) -> Iterator[Any]:
    """The batches of loader with their tensors on device, each copied while the one before is used.

    On the CPU the batches pass as they are. A loader with pin_memory=True lets the copies run beside the computation.

    Example:
        >>> from genesis.data import prefetch
        >>> [batch.tolist() for batch in prefetch([genesis.ones(1), genesis.zeros(1)], "cpu")]
        [[1.0], [0.0]]
    """
    target = Device(device)
    if target.type == "cpu":
        yield from loader
        return

    def moved(value: Any) -> Any:
        return value.to(device=target, non_blocking=True) if isinstance(value, Tensor) else value

    batches = iter(loader)
    for first in batches:
        present = map_tree(moved, first)
        for following in batches:
            ahead = map_tree(moved, following)
            yield present
            present = ahead
        yield present
