"""The next batch travels to the device while the present one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from genesis import cuda
from genesis.data.tree import map_tree
from genesis.ndarray import Device
from genesis.tensor import Tensor


def prefetch(loader: Iterable[Any], device: str | Device) -> Iterator[Any]:
    """The batches of loader with their tensors on device, each copied while the one before is used.

    The copies run on a stream of their own, from pinned memory. Batches that are not pinned are copied into such memory
    first; DataLoader(pin_memory=True) pins them in a thread of its own. On the CPU the batches pass as they are.

    Example:
        >>> from genesis.data import prefetch
        >>> [batch.tolist() for batch in prefetch([genesis.ones(1), genesis.zeros(1)], "cpu")]
        [[1.0], [0.0]]
    """
    target = Device(device)
    return iter(loader) if target.type == "cpu" else _prefetch(loader, target)


def _prefetch(loader: Iterable[Any], device: Device) -> Iterator[Any]:
    side = cuda.Stream(device)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device is device:
            return value
        pinned = value.pin_memory() if value.device.type == "cpu" else value
        return pinned.to(device=device, non_blocking=True)

    def started(batch: Any) -> tuple[Any, Any]:
        """The batch on its way, and the event that says it has arrived."""
        with cuda.stream(side):
            return map_tree(moved, batch), side.record_event()

    def ready(batch: Any, copied: Any) -> Any:
        """The batch, for use on the stream that is current when it is asked for."""
        user = cuda.current_stream(device)
        user.wait_event(copied)

        def used(value: Any) -> None:
            if isinstance(value, Tensor) and value.device is device:
                value.record_stream(user)

        map_tree(used, batch)
        return batch

    ahead = None
    for batch in loader:
        present, ahead = ahead, started(batch)
        if present is not None:
            yield ready(*present)
    if ahead is not None:
        yield ready(*ahead)
