"""Buckets: flat arrays that hold the gradients of several parameters, each a view, and are reduced as one.

Behind the gradients of a bucket stands a flag for each: 1 where this backward pass has made it, 0 where it has not. The
flags are averaged with the gradients, so that each rank knows, without a call more, what some rank has not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from genesis.distributed.group import ProcessGroup
from genesis.distributed.transport import ReduceOp, Work
from genesis.dtypes import DType
from genesis.ndarray import NDArray, ops
from genesis.nn.parameter import Parameter
from genesis.shapes import Shape
from genesis.tensor import Tensor

_ALIGNMENT = 64  # bytes: vectorized kernels read from such addresses
_FIRST = 1 << 20  # bytes of the first bucket: the sooner the first call starts, the more of them is hidden
_LAST = 1 << 17  # bytes of the last one, which backward does not hide


class Place(NamedTuple):
    """A parameter's gradient in a bucket: the parameter's number, and how its memory is laid out on all ranks."""

    parameter: int
    strides: Shape


NewMemory = Callable[[int, NDArray], NDArray]


def plain(num_elements: int, like: NDArray) -> NDArray:
    """Flat zeros of the dtype and on the device of another array."""
    return NDArray.full((num_elements,), 0, like.dtype, like.device)


class Bucket:
    """A flat array of the gradients of some parameters.

    Args:
        new: makes the array, or a longer one, of an array's dtype and device.

    Attributes:
        numbers: of the parameters.
        views: their gradients' arrays.
        num_missing: gradients that have yet to come in this backward pass.
    """

    def __init__(self, places: Sequence[Place], parameters: Sequence[Parameter], new: NewMemory) -> None:
        first = parameters[places[0].parameter].array
        step = max(1, _ALIGNMENT // first.dtype.itemsize)
        starts, end = [], 0
        for place in places:
            starts.append(end)
            end += math.ceil(parameters[place.parameter].array.numel / step) * step
        self.numbers = [place.parameter for place in places]
        self.flat = new(end + len(places), first)
        self._flags = self.flat.narrow(0, end, len(places))
        self.views = [
            self.flat.view(parameters[place.parameter].array.shape, place.strides, start)
            for place, start in zip(places, starts, strict=True)
        ]
        self.num_missing = len(places)
        self._grads: list[Tensor | None] = []  # of this pass, until gather()
        self._is_whole = False
        self._work: Work | None = None
        self._sent: NDArray | None = None

    @property
    def is_sent(self) -> bool:
        return self._work is not None

    def begin(self) -> None:
        """A backward pass begins."""
        self.num_missing, self._work = len(self.numbers), None
        self._grads, self._is_whole = [None] * len(self.numbers), False

    def take(self, position: int, grad: Tensor | None) -> None:
        """A parameter has its gradient, which a hook after DistributedDataParallel's may still replace."""
        self._grads[position] = grad
        self.num_missing -= 1

    def gather(self, parameters: Sequence[Parameter]) -> None:
        """Make the gradients views of the bucket: all that lie elsewhere are copied in one call."""
        if self._is_whole:
            return
        apart: list[tuple[Parameter, Tensor, NDArray]] = []
        for number, grad, view in zip(self.numbers, self._grads, self.views, strict=True):
            parameter = parameters[number]
            found = parameter.grad if grad is None else grad
            if found is None:
                view.copy_into(0)
            elif found.array is not view:
                apart.append((parameter, found, view))
        if apart:
            ops.copy_all_into([view for _, _, view in apart], [grad.array for _, grad, _ in apart])
        for parameter, grad, view in apart:
            if parameter.grad is grad:
                parameter.grad = Tensor(view)
        self._grads, self._is_whole = [None] * len(self.numbers), True

    def pack(self, unused: Sequence[int], dtype: DType | None, failed: bool = False) -> NDArray:
        """Fill the bucket with what is to be sent.

        Args:
            unused: the positions of gradients that this rank did not make.
            dtype: in which they are sent, if it is not their own.
            failed: this rank has no gradients, and no rank may use the means.
        """
        self._flags.copy_into(math.nan if failed else 1)
        for position in unused:
            self._flags.select(0, position).copy_into(0)
        self._sent = self.flat if dtype is None or dtype is self.flat.dtype else self.flat.to(dtype)
        return self._sent

    def start(self, group: ProcessGroup, index: int, sent: NDArray) -> None:
        """Start the reduction of what pack() gave."""
        self._sent = sent
        call = group.call("DistributedDataParallel", f"bucket {index}", checked=False)
        self._work = group.transport(sent.device).all_reduce(call, sent, ReduceOp.AVG)

    def receive(self, group: ProcessGroup) -> None:
        """Wait for the means."""
        assert self._sent is not None
        sent = self._sent
        group.repeated(self._wait, [sent], is_wait=True)
        if sent is not self.flat:
            self.flat.copy_into(sent)
        self.flat.changes.note()

    def _wait(self, sent: Sequence[NDArray]) -> None:
        assert self._work is not None
        self._work.wait()
        self._sent = None

    def shares(self) -> list[float]:
        """For each parameter, the share of ranks that made its gradient; waits for a device."""
        return [float(share) for share in self._flags.tolist()]

    @property
    def arrays(self) -> list[NDArray]:
        """Its memory, in all the ways in which it is used."""
        return [self.flat, self._flags, *self.views]


def plan(parameters: Sequence[Parameter], order: Sequence[int], most_bytes: float) -> list[list[Place]]:
    """Fill buckets with the parameters, in the order in which backward makes their gradients."""
    buckets: list[list[Place]] = []
    open_ones: dict[tuple[object, object], tuple[int, int]] = {}  # by dtype and device: its index, its bytes
    for number in order:
        array = parameters[number].array
        kind, size = (array.dtype, array.device), array.numel * array.dtype.itemsize
        place = Place(number, array.clone().strides)  # dense, whatever the parameter is a view of
        index, filled = open_ones.get(kind, (-1, 0))
        limit = min(_FIRST, most_bytes) if index == 0 else most_bytes
        if index < 0 or filled + size > limit:
            index, filled = len(buckets), 0
            buckets.append([])
        buckets[index].append(place)
        open_ones[kind] = index, filled + size
    for index, filled in list(open_ones.values()):
        last = _end(buckets[index], parameters) if filled > _LAST else []
        if last:
            del buckets[index][-len(last) :]
            buckets.append(last)
    return buckets


def _end(bucket: Sequence[Place], parameters: Sequence[Parameter]) -> list[Place]:
    """The last gradients of a bucket, as many as are short together."""
    num_bytes, first = 0, len(bucket)
    for place in reversed(bucket):
        array = parameters[place.parameter].array
        num_bytes += array.numel * array.dtype.itemsize
        if num_bytes > _LAST:
            break
        first -= 1
    return list(bucket[first:])
