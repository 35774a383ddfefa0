"""Reducer: averages gradients over the ranks while backward still makes others."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Sequence

from genesis.autograd import HookHandle
from genesis.autograd.graph import RepeatableHook
from genesis.autograd.modes import after_backward, state, unrecordable
from genesis.distributed.group import ProcessGroup
from genesis.dtypes import DType
from genesis.errors import DistributedError, GraphError
from genesis.ndarray import NDArray
from genesis.ndarray.capturing import capture_of, outside
from genesis.nn.parallel.buckets import Bucket, Place, plain, plan
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

_NUM_SHOWN = 10  # names in one message
_LONG = 2 << 20  # bytes of a bucket: of shorter ones, copies would take as long as of this


class Arrival(RepeatableHook):
    """The hook of a parameter."""

    def __init__(self, reducer: Reducer, number: int) -> None:
        self.reducer, self._number = reducer, number

    def __call__(self, leaf: Tensor) -> None:
        self.reducer.arrive(self._number, leaf)

    def place(self) -> NDArray | None:
        return self.view if self.reducer.is_free() else None

    @property
    def view(self) -> NDArray:
        """The part of a bucket that is to hold the gradient."""
        return self.reducer.view_of(self._number)


class Reducer:
    """Averages the gradients of some parameters over the ranks, in each backward pass while `is_on`.

    All ranks send the same buckets in the same order. What a backward pass did not make is sent as zeros at its end; so
    nobody waits for a gradient that will not come.

    Args:
        named: parameters by name, the same on all ranks.
        most_bytes: size of a bucket.
        find_unused: parameters may be without a gradient; else that is an error.
        dtype: in which gradients are sent; None: in their own.
        waits: send nothing before backward has ended.
        order: the parameters' numbers as backward makes their gradients, if that is known already.

    Attributes:
        beside: memory that other calls of the step use in each pass.
    """

    def __init__(
        self, group: ProcessGroup, named: Sequence[tuple[str, Parameter]], most_bytes: float, find_unused: bool,
        dtype: DType | None, waits: bool, order: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._waits = waits
        self.group, self._most_bytes, self._find_unused, self._dtype = group, most_bytes, find_unused, dtype
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self._device = self.parameters[0].array.device
        self.is_on = True
        self.beside: list[NDArray] = []
        self._backward: object = None  # the pass that the buckets are at
        self._next = 0  # the bucket to be sent
        self._arrived: list[int] = []  # in this backward pass, in their order
        self._order: list[int] | None = None  # of the first pass, until the buckets are in that order
        self._is_first = not order
        self._is_recorded = state.watcher is not None  # a step that ran this
        self._has_asked = False  # for the transport's memory
        self._hooks: list[HookHandle] = [
            parameter.register_post_accumulate_grad_hook(Arrival(self, number))
            for number, parameter in enumerate(self.parameters)
        ]
        self._fill(list(order or reversed(range(len(self.parameters)))))

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()

    def reorder(self) -> None:
        """Before a pass: fill the buckets anew, in the order of rank 0's gradients, once the first pass has shown it.

        And once it is known that steps are recorded: see _memory().
        """
        self._is_recorded = self._is_recorded or state.watcher is not None
        is_late = self._is_recorded and not self._has_asked and self.group.transport(self._device).has_memory
        if self._order is not None or (is_late and not self._is_first):
            order, self._order = self.order, None
            unheard = contextlib.nullcontext() if state.watcher is None else state.watcher.paused()
            with outside(self._device), unheard:  # buckets outlive a graph that is being captured, and a recording
                self._fill(order)

    @property
    def order(self) -> list[int]:
        """The parameters' numbers in the order of the buckets from the next pass on; none before the first."""
        if self._is_first:
            return []
        return self._whole(self._order) if self._order is not None else self._filled

    def _whole(self, order: list[int]) -> list[int]:
        """An order with the parameters that it lacks at its end."""
        present = set(order)
        return order + [number for number in range(len(self.parameters)) if number not in present]

    def _fill(self, order: list[int]) -> None:
        self._filled = order
        asks = self._is_recorded and not self._is_first
        shared = self.group.share(json.dumps([asks, plan(self.parameters, order, self._most_bytes)]))
        places: list[list[tuple[int, list[int]]]]
        self._has_asked, places = json.loads(shared)
        buckets = [[Place(number, tuple(strides)) for number, strides in bucket] for bucket in places]
        self.buckets = [
            Bucket(bucket, self.parameters, plain if index == len(buckets) - 1 else self._memory)
            for index, bucket in enumerate(buckets)
        ]
        self._place = {
            number: (index, position)
            for index, bucket in enumerate(self.buckets)
            for position, number in enumerate(bucket.numbers)
        }

    def _memory(self, num_elements: int, like: NDArray) -> NDArray:
        """The array of a bucket whose reduction backward hides.

        In a recorded step a long one lies in memory of the transport's own. An eager step would wait for the host,
        which such calls cost more.
        """
        if self._has_asked and self._dtype is None and num_elements * like.dtype.itemsize >= _LONG:
            array = self.group.transport(like.device).memory(num_elements, like.dtype)
            if array is not None:
                return array
        return plain(num_elements, like)

    # --- for a recording of a step: genesis.compile -------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the next pass makes the calls of the last one: buckets are in their order, and no pass has failed."""
        return self._backward is None and self._order is None and not self._is_first

    @property
    def arrays(self) -> list[NDArray]:
        """The memory that lasts, in all the ways in which it is used."""
        return [*[array for bucket in self.buckets for array in bucket.arrays], *self.beside]

    def view_of(self, number: int) -> NDArray:
        index, position = self._place[number]
        return self.buckets[index].views[position]

    # --- in a backward pass -------------------------------------------------------------------------------------------

    def arrive(self, number: int, parameter: Tensor) -> None:
        """A parameter has its gradient."""
        if not self.is_on:
            return
        if self._backward is not state.after_backward:
            self._begin()
        index, position = self._place[number]
        bucket = self.buckets[index]
        bucket.take(position, parameter.grad)
        self._arrived.append(number)
        if bucket.num_missing:
            return
        bucket.gather(self.parameters)
        while not self._waits and self._next < len(self.buckets) and not self.buckets[self._next].num_missing:
            self._send()

    def is_free(self) -> bool:
        """Whether gradients of this pass may be written to the buckets: not if recover() has yet to send them."""
        return self.is_on and (self._backward is None or self._backward is state.after_backward)

    def recover(self) -> None:
        """If the last backward pass failed on this rank, send what it left out, so that the others do not wait.

        Flags that are NaN tell them; none can use the gradients of this pass.

        Raises: DistributedError: the flags would not be looked at.
        """
        if self._backward is None or self._backward is state.after_backward:
            return
        if not all(map(self._looks_at, self.buckets)):
            raise DistributedError(
                "DistributedDataParallel: a backward pass failed, so that the ranks are no longer at the same call; "
                "restart the training from a checkpoint"
            )
        while self._next < len(self.buckets):
            self._send(failed=True)
        self._close()
        for bucket in self.buckets:
            bucket.receive(self.group)

    def _looks_at(self, bucket: Bucket) -> bool:
        """Whether a bucket's flags are always looked at. NCCL's are not: the host would wait for the device."""
        return self._find_unused or self.group.compares(bucket.flat.device)

    def _begin(self) -> None:
        self.recover()
        if self._find_unused:
            unrecordable("looks for unused parameters in each pass (find_unused_parameters=True)")
        self._repeated(self._open)
        self._backward = state.after_backward
        self._arrived = []
        after_backward(self._finish)

    def _repeated(self, call: Callable[[], None]) -> None:
        """Call it now, and in the replays of a recording; there, all waits for buckets are before it, or after it."""
        self.group.repeated(lambda arrays: call(), [bucket.flat for bucket in self.buckets])

    def _open(self) -> None:
        """A pass begins: until _close(), it may fail, which recover() then sees. A capture sends nothing."""
        self._next = 0
        self._backward = self if capture_of(self._device) is None else None
        for bucket in self.buckets:
            bucket.begin()

    def _close(self) -> None:
        self._next, self._backward = 0, None

    def _send(self, unused: Sequence[int] = (), failed: bool = False) -> None:
        """Send the next bucket; see Bucket.pack."""
        sent = self.buckets[self._next].pack(unused, self._dtype, failed)
        self.group.repeated(functools.partial(self._start, self._next), [sent])

    def _start(self, index: int, sent: Sequence[NDArray]) -> None:
        self.buckets[index].start(self.group, index, sent[0])
        self._next = index + 1

    def _finish(self) -> None:
        """Backward has ended: send what is left, and wait for the means."""
        arrived = set(self._arrived)
        while self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            unused = [position for position, number in enumerate(bucket.numbers) if number not in arrived]
            bucket.gather(self.parameters)
            self._send(unused)
        self._repeated(self._close)
        for bucket in self.buckets:
            bucket.receive(self.group)
        if self._is_first:
            self._is_first, self._order = False, self._arrived
        if len(arrived) < len(self.parameters) or any(map(self._looks_at, self.buckets)):
            self._repeated(functools.partial(self._look, arrived))

    def _look(self, arrived: set[int]) -> None:
        """Look at the flags. Raises: GraphError: some rank has not made a gradient; DistributedError: one has failed.

        Args:
            arrived: the parameters whose gradients this rank has made.
        """
        is_whole = len(arrived) == len(self.parameters)
        incomplete: list[int] = []
        for bucket in self.buckets:
            if self._looks_at(bucket) or not is_whole:
                incomplete += self._take_up(bucket)
        if incomplete and not self._find_unused:
            raise GraphError(self._unused(incomplete, arrived))

    def _take_up(self, bucket: Bucket) -> list[int]:
        """Give parameters their gradients that other ranks made. Returns: those that some rank did not make."""
        incomplete: list[int] = []
        shares = bucket.shares()
        if all(share == 1.0 for share in shares) and all(self.parameters[n].grad is not None for n in bucket.numbers):
            return incomplete
        if any(map(math.isnan, shares)):
            raise DistributedError(
                "DistributedDataParallel: the backward pass failed on another rank; leave this batch out on all ranks"
            )
        for number, view, share in zip(bucket.numbers, bucket.views, shares, strict=True):
            parameter = self.parameters[number]
            if share > 0 and parameter.grad is None:
                parameter.grad = Tensor(view)
            if share < 1 - 0.5 / self.group.size:  # a mean of ones need not be 1, after rounding
                incomplete.append(number)
        return incomplete

    def _unused(self, incomplete: Sequence[int], arrived: set[int]) -> str:
        names = [
            self.names[number] + ("" if number not in arrived else " (on another rank)")
            for number in sorted(incomplete)
        ]
        rest = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
        return (
            f"DistributedDataParallel: on rank {self.group.rank}, backward made no gradient of {len(names)} "
            f"parameters: {', '.join(names[:_NUM_SHOWN])}{rest}; pass find_unused_parameters=True if that is meant"
        )
