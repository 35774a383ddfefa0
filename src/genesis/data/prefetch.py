"""prefetch: copies the next batch to the device while the present one is in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

from genesis import cuda
from genesis.data.tree import map_tree
from genesis.ndarray import Device
from genesis.tensor import Tensor

Batch = TypeVar("Batch")


def prefetch(loader: Iterable[Batch], device: str | Device) -> Iterator[Batch]:
    """Iterate over the batches of loader with their tensors on device, each copied while the one before is in use.

    Copies run on their own stream, from pinned memory; batches that are not pinned are first copied into it, and
    DataLoader(pin_memory=True) pins them in a separate thread. On the CPU, batches are returned unchanged.

    Args:
        loader: gives tensors, and nested tuples, lists and dicts of them.
        device: "cpu", "cuda", "cuda:1" or a genesis.device.
    Raises: DeviceError: there is no such device.

    Example:
        >>> from genesis.data import prefetch
        >>> [batch.tolist() for batch in prefetch([genesis.ones(1), genesis.zeros(1)], "cpu")]
        [[1.0], [0.0]]
    """
    target = Device(device)
    return iter(loader) if target.type == "cpu" else _prefetch(loader, target)


def _prefetch(loader: Iterable[Batch], device: Device) -> Iterator[Batch]:
    side = cuda.Stream(device)

    def moved(value: object) -> object:
        if not isinstance(value, Tensor) or value.device is device:
            return value
        pinned = value.pin_memory() if value.device.type == "cpu" else value
        return pinned.to(device=device, non_blocking=True)

    def started(batch: Batch) -> tuple[Batch, cuda.Event]:
        """The batch, whose copy is under way, and the event of its arrival."""
        arrival = cuda.Event()
        with cuda.stream(side):
            on_device = cast(Batch, map_tree(moved, batch))
            side.record_event(arrival)
        return on_device, arrival

    def ready(batch: Batch, copied: cuda.Event) -> Batch:
        """The batch, for use on the stream that is current when it is requested."""
        user = cuda.current_stream(device)
        user.wait_event(copied)

        def used(value: object) -> None:
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
