"""Coalesced: arrays of any dtypes that are broadcast together, in one call."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from genesis import dtypes
from genesis.distributed.group import ProcessGroup
from genesis.distributed.transport import Work
from genesis.ndarray import NDArray, ops
from genesis.shapes import contiguous_strides

_ALIGNMENT = 64  # bytes: vectorized kernels read from such addresses, and views of any dtype begin there


class Coalesced:
    """Arrays of one device, and a flat one of bytes that takes their values, all in one copy.

    Attributes:
        arrays: the flat one's memory, in all the ways in which it is used.
    """

    def __init__(self, sources: Sequence[NDArray]) -> None:
        self._sources = list(sources)
        starts, end = [], 0
        for array in sources:
            array.require_writable()
            starts.append(end)
            end += math.ceil(array.numel * array.dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        self._flat = NDArray.empty((end,), dtypes.uint8, sources[0].device)  # gaps are sent as they are
        self._views = [_view(self._flat, array, start) for array, start in zip(sources, starts, strict=True)]
        self.arrays = [self._flat, *self._views]
        self._work: Work | None = None

    def broadcast(self, group: ProcessGroup) -> None:
        """Take over rank 0's values."""
        is_source = group.rank == 0
        if is_source:
            ops.copy_all_into(self._views, self._sources)
        group.repeated(functools.partial(self._start, group), [self._flat])
        taken = [] if is_source else [*self._sources, *self._views]
        group.repeated(self._receive, [self._flat, *taken], [self._flat, *taken[: len(self._sources)]], is_wait=True)

    def _start(self, group: ProcessGroup, arrays: Sequence[NDArray]) -> None:
        (flat,) = arrays
        call = group.call("DistributedDataParallel", "parameters and buffers", checked=False)
        self._work = group.transport(flat.device).broadcast(call, flat, 0)

    def _receive(self, arrays: Sequence[NDArray]) -> None:
        """Wait, and take the values: from the second half of the arrays behind the flat one to the first half."""
        assert self._work is not None
        self._work.wait()
        taken = arrays[1:]
        if taken:
            ops.copy_all_into(taken[: len(taken) // 2], taken[len(taken) // 2 :])


def _view(flat: NDArray, like: NDArray, start: int) -> NDArray:
    """A part of flat from some byte on: row-major, since ranks may keep an array in different orders."""
    return flat.view_dtype(like.dtype, like.shape, contiguous_strides(like.shape), start // like.dtype.itemsize)


def coalesced(arrays: Sequence[NDArray]) -> list[Coalesced]:
    """One for each device; arrays without elements are left out."""
    by_device: dict[object, list[NDArray]] = {}
    for array in arrays:
        if array.numel:
            by_device.setdefault(array.device, []).append(array)
    return [Coalesced(group) for group in by_device.values()]
