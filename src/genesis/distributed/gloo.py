"""Gloo, PyTorch's transport between CPUs, on the memory of arrays; other devices go by copies on the host.

One thread makes the calls in their order. So an asynchronous call is one that nobody has waited for yet, and ranks that
disagree can be found before anything is sent: each call first gathers what the ranks are about to do.

Unchecked calls gather nothing. Small ones that find the thread idle are started by their caller: the way over the
thread takes longer than they do. Gloo tells calls apart by their order on each rank, which is the same either way.

A rank that has waited in a call for some seconds leaves a note of it in the store, and looks for those of others; so
ranks in different calls fail long before the time is up (faults.py).
"""

from __future__ import annotations

import collections
import ctypes
import datetime
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.distributed import faults
from genesis.distributed.faults import NUM_KEPT, Peers, described
from genesis.distributed.transport import Call, ReduceOp
from genesis.dtypes import DType
from genesis.errors import DistributedError
from genesis.ndarray import CPU, NDArray

if TYPE_CHECKING:
    import torch
    import torch.distributed

_TEXT = 224  # bytes of a call's text that the ranks exchange, after a digest of the whole
_DIGEST = 32
_LEAVING = 1.0  # seconds for a call that is under way when the process ends
_SOON = 0.001  # seconds between two looks at what is about to end
_SMALL = (
    1 << 20
)  # bytes of a call that its caller starts: in larger ones, dividing them takes longer than the thread's way
_SLICE = datetime.timedelta(seconds=0.5)  # of waiting, after which the thread looks whether it is to end


class _HostWork:
    """A call whose result is on the host first; finish: brings it to where the caller wants it, once."""

    _error: BaseException | None = None
    _is_finished = False

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> bool:
        self.learn()
        if self._error is not None:
            raise self._error
        if not self._is_finished:
            self._is_finished = True
            self._finish()
        return True

    def learn(self) -> None:
        """Wait until it has ended, and keep how."""
        raise NotImplementedError


class HostWork(_HostWork):
    """A call on its way through the thread."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__(finish)
        self._done = threading.Event()

    def end(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def learn(self) -> None:
        self._done.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()


class DirectWork(_HostWork):
    """A call that its caller has started, without the thread.

    Gloo's own object is the transport's: connections stay open while anybody holds it.
    """

    def __init__(self, gloo: Gloo, call: Call, finish: Callable[[], None]) -> None:
        super().__init__(finish)
        self._gloo, self._call, self._has_ended = gloo, call, False

    def learn(self) -> None:
        if not self._has_ended:
            self._error = self._gloo.ended(self, self._call)
            self._has_ended = True

    def is_completed(self) -> bool:
        return self._has_ended or self._gloo.is_completed(self)


class _Host:
    """An array's elements as a row in the host's memory: its own on the CPU, else a copy that write_back() returns."""

    def __init__(self, array: NDArray, is_read: bool = True) -> None:
        self._array = array
        self._on_host = array if array.device is CPU else None
        if self._on_host is None:
            on_host = array.to_device(CPU) if is_read else NDArray.empty(array.shape, array.dtype, CPU)
            self._on_host = on_host.contiguous()
        handle = self._on_host.handle
        self.tensor: torch.Tensor = handle.as_strided((handle.numel(),), (1,))  # view() would keep a stride of 0

    def write_back(self) -> None:
        if self._on_host is not None and self._on_host is not self._array:
            self._array.copy_into(self._on_host.to_device(self._array.device))


class Gloo:
    """A Transport for all devices, and what carries the agreement of the ranks for the others.

    Args:
        store: a store of torch's.
        timeout: seconds that a call may take.
    """

    has_memory = False

    def __init__(self, store: torch.distributed.Store, peers: Peers, timeout: float) -> None:
        from torch import distributed

        self.peers, self.timeout = peers, timeout
        span = datetime.timedelta(seconds=timeout)
        self._group: torch.distributed.ProcessGroupGloo | None = distributed.ProcessGroupGloo(
            store, peers.rank, peers.size, span
        )
        self._reductions, self._broadcasts = _options(peers.size)
        self._failing = threading.Lock()
        self._failed: DistributedError | None = None
        self._calls: collections.deque[tuple[int, Call]] = collections.deque(maxlen=NUM_KEPT)  # the last ones
        self._pending: dict[object, torch.distributed.Work] = {}  # by who waits
        self._has_posted = False
        self._is_leaving = False
        self._last = HostWork(lambda: None)  # of the thread
        self._last.end(None)
        self._waiting: queue.SimpleQueue[tuple[Call, Callable[[], None], HostWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="genesis.distributed", daemon=True)
        self._thread.start()

    # --- the calls ----------------------------------------------------------------------------------------------------

    def memory(self, num_elements: int, dtype: DType) -> None:
        return None

    def all_reduce(self, call: Call, array: NDArray, op: ReduceOp) -> HostWork | DirectWork:
        host = _Host(array)
        if self._may_start(call, host) and array.dtype is not dtypes.int16:
            return self._direct(call, lambda: self._reduction(host.tensor, op)[0], host.write_back)
        return self._start(call, lambda: self._reduce(host.tensor, op), host.write_back)

    def all_gather(self, call: Call, outputs: Sequence[NDArray], array: NDArray) -> HostWork | DirectWork:
        given, hosts = _Host(array), [_Host(output, is_read=False) for output in outputs]
        bytes_of = [[_as_bytes(host.tensor) for host in hosts]], [_as_bytes(given.tensor)]

        def begin() -> torch.distributed.Work:
            return self._connected.allgather(*bytes_of)

        return self._begin(call, given, begin, lambda: _write_back(hosts))

    def reduce_scatter(self, call: Call, output: NDArray, inputs: Sequence[NDArray], op: ReduceOp) -> HostWork:
        given, host = [_Host(array) for array in inputs], _Host(output, is_read=False)

        def run() -> None:
            import torch

            joined = torch.cat([each.tensor for each in given])  # gloo reduces the whole, on every rank
            self._reduce(joined, op)
            host.tensor.copy_(joined.chunk(len(given))[self.peers.rank])

        return self._start(call, run, host.write_back)

    def broadcast(self, call: Call, array: NDArray, source: int) -> HostWork | DirectWork:
        host = _Host(array)
        options = self._broadcasts[source]

        def begin() -> torch.distributed.Work:
            return self._connected.broadcast([_as_bytes(host.tensor)], options)

        return self._begin(call, host, begin, host.write_back)

    def agree(self, call: Call) -> HostWork:
        """Wait until all ranks are here, and compare what they are about to do."""
        return self._start(call, lambda: None, lambda: None)

    def abandon(self, error: BaseException) -> None:
        """Tell the others by what this rank ends, unless it is by a call that has failed: the cause is elsewhere."""
        if self._failed is None:
            self.peers.end(error)

    def close(self, patience: float | None = None) -> None:
        """End the thread after the calls that wait, for so many seconds at most; drop the connections."""
        self._waiting.put(None)
        end = time.monotonic() + (self.timeout if patience is None else patience)
        self._thread.join(end - time.monotonic())
        while self._failed is None and time.monotonic() < end and not self._are_completed():
            time.sleep(_SOON)
        for started in list(self._pending):
            if isinstance(started, DirectWork) and started.is_completed():
                started.learn()
        self._is_leaving = True
        self._thread.join(2 * _LEAVING)
        self._abort()

    # --- calls that their caller starts -------------------------------------------------------------------------------

    def _begin(
        self, call: Call, host: _Host, begin: Callable[[], torch.distributed.Work], finish: Callable[[], None]
    ) -> HostWork | DirectWork:  # fmt: skip
        if self._may_start(call, host):
            return self._direct(call, begin, finish)
        return self._start(call, lambda: self._wait(begin()), finish)

    def _may_start(self, call: Call, host: _Host) -> bool:
        """Whether the caller may start a call by itself: those before it have been started."""
        is_small = host.tensor.numel() * host.tensor.element_size() <= _SMALL
        return is_small and not call.checked and self._failed is None and self._last.is_completed()

    def _direct(
        self, call: Call, begin: Callable[[], torch.distributed.Work], finish: Callable[[], None]
    ) -> HostWork | DirectWork:  # fmt: skip
        self._calls.append((call.number, call))
        try:
            work = begin()
        except Exception as error:  # of connections that are closed
            failed = HostWork(finish)
            failed.end(self._failure(call, error))
            return failed
        started = DirectWork(self, call, finish)
        self._pending[started] = work
        return started

    def ended(self, started: DirectWork, call: Call) -> BaseException | None:
        """Wait for a call that its caller has started. Returns: why it could not be made."""
        work = self._pending.get(started)
        if work is None:  # the connections are closed
            return self._after_failure(call)
        try:
            self._wait(work, started)
        except Exception as error:
            return self._failure(call, error)
        return None

    def is_completed(self, started: DirectWork) -> bool:
        work = self._pending.get(started)
        return work is None or work.is_completed()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _start(self, call: Call, run: Callable[[], None], finish: Callable[[], None]) -> HostWork:
        work = self._last = HostWork(finish)
        self._waiting.put((call, run, work))
        return work

    def _serve(self) -> None:
        for call, run, work in iter(self._waiting.get, None):
            work.end(self._attempt(call, run))

    def _attempt(self, call: Call, run: Callable[[], None]) -> BaseException | None:
        """Make a call. Returns: why it could not be made."""
        if self._failed is not None:
            return self._after_failure(call)
        self._calls.append((call.number, call))
        try:
            different = self._compare(call) if call.checked else None
            if different is not None:
                self._calls.pop()  # the ranks know that they were apart
                return different
            run()
        except Exception as error:
            return self._failure(call, error)
        return None

    def _failure(self, call: Call, error: Exception) -> DistributedError:
        """The error that a call has failed by; it is the last one."""
        with self._failing:
            if self._failed is not None:
                return self._after_failure(call)
            if self._is_leaving:
                self.peers.give_up(self._last_calls())
                self._failed = DistributedError(f"{call.name}: the process group ended during the call ({call})")
            else:
                self._failed = self.peers.failure(call, error, self.timeout, self._last_calls())
            self._abort()  # so that nobody waits for this rank
            return self._failed

    def _after_failure(self, call: Call) -> DistributedError:
        return DistributedError(f"{call.name}: not possible any more, as an earlier call failed: {self._failed}")

    @property
    def _connected(self) -> torch.distributed.ProcessGroupGloo:
        assert self._group is not None, "the connections are closed"
        return self._group

    def _wait(self, work: torch.distributed.Work, waiter: object = None) -> None:
        """Wait for a call; waiter: None is the thread. Raises: RuntimeError: it has failed, or cannot end."""
        self._pending[waiter] = work
        begin = time.monotonic()
        while not _has_ended(work):
            if self._is_leaving:
                raise RuntimeError("the process group ended during the call")
            if self._failed is not None:
                raise RuntimeError("an earlier call failed")
            if time.monotonic() - begin > faults.LONG:
                if not self._has_posted:
                    self._has_posted = True
                    self.peers.post(self._last_calls())
                self._look()
        del self._pending[waiter]
        if self._has_posted:  # a call that another thread still waits in posts again
            self._has_posted = False
            self.peers.post({})

    def _look(self) -> None:
        """Raises: RuntimeError: other ranks wait in another call, or make no more calls."""
        if self.peers.apart(self._last_calls()):
            raise RuntimeError("the ranks wait in different calls")
        failed = self.peers.failed()
        if failed:
            raise RuntimeError(f"an earlier call failed on rank {', '.join(map(str, failed))}")

    def _last_calls(self) -> dict[int, str]:
        return {number: call.text for number, call in self._calls}

    def _are_completed(self) -> bool:
        return all(work.is_completed() for work in list(self._pending.values()))

    def _abort(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        group.abort()
        if self._are_completed():
            self._pending.clear()  # so that the group's end, here, closes the connections
        else:
            # Its end would wait for the call, until the time is up. The process' own end closes the connections.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def _compare(self, call: Call) -> DistributedError | None:
        """The error that all ranks raise if they are about to do different things."""
        import torch

        text = f"{call.name}({call.details})".encode()
        own = (hashlib.sha256(text).digest() + text[:_TEXT]).ljust(_DIGEST + _TEXT, b"\0")
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        all_texts = [torch.empty_like(mine) for _ in range(self.peers.size)]
        self._wait(self._connected.allgather([all_texts], [mine]))
        if all(torch.equal(each, mine) for each in all_texts):
            return None
        texts = [bytes(each.tolist())[_DIGEST:].rstrip(b"\0").decode(errors="replace") for each in all_texts]
        said = described(dict(enumerate(texts)))
        return DistributedError(f"{call.name}: the ranks make different calls: {said}")

    def _reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        work, sent = self._reduction(tensor, op)
        self._wait(work)
        if sent.element_size() != tensor.element_size():
            tensor.copy_(sent)

    def _reduction(self, tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.distributed.Work, torch.Tensor]:
        """Start it. Returns: gloo's call, and the tensor that takes the result: for int16, another one."""
        import torch

        if op is ReduceOp.AVG:
            tensor.div_(self.peers.size)  # before the sum, which float16 could not hold
        sent = tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor  # which gloo does not have
        sent = sent.view(torch.uint8) if sent.dtype is torch.bool else sent
        return self._connected.allreduce([sent], self._reductions[op]), sent


def _options(
    size: int,
) -> tuple[dict[ReduceOp, torch.distributed.AllreduceOptions], list[torch.distributed.BroadcastOptions]]:
    """Gloo's, by reduction and by source."""
    from torch import distributed

    reductions, broadcasts = {}, [distributed.BroadcastOptions() for _ in range(size)]
    for op in ReduceOp:
        reductions[op] = distributed.AllreduceOptions()
        reductions[op].reduceOp = getattr(distributed.ReduceOp, "SUM" if op is ReduceOp.AVG else op.name)
    for source, options in enumerate(broadcasts):
        options.rootRank = source
    return reductions, broadcasts


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view(torch.uint8)


def _has_ended(work: torch.distributed.Work) -> bool:
    """Wait for a slice of time. Returns: whether the call has ended. Raises: RuntimeError: it has failed."""
    try:
        work.wait(_SLICE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # what it says may be of the slice
    return True


def _write_back(hosts: Sequence[_Host]) -> None:
    for host in hosts:
        host.write_back()
