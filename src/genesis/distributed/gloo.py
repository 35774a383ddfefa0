"""Gloo, PyTorch's transport between CPUs, on the memory of arrays; other devices go by copies on the host.

One thread makes the calls in their order. So an asynchronous call is one that nobody has waited for yet, and ranks that
disagree can be found before anything is sent: each call first gathers what the ranks are about to do.

Unchecked calls gather nothing. A rank that has waited in a call for some seconds leaves a note of it in the store, and
looks for those of others; so ranks in different calls fail long before the time is up (faults.py).
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

from genesis.distributed import faults
from genesis.distributed.faults import NUM_KEPT, Peers, described
from genesis.distributed.transport import Call, ReduceOp
from genesis.errors import DistributedError
from genesis.ndarray import CPU, NDArray

if TYPE_CHECKING:
    import torch
    import torch.distributed

_TEXT = 224  # bytes of a call's text that the ranks exchange, after a digest of the whole
_DIGEST = 32
_LEAVING = 1.0  # seconds for a call that is under way when the process ends
_SLICE = datetime.timedelta(seconds=0.5)  # of waiting, after which the thread looks whether it is to end


class HostWork:
    """A call on its way through the thread; finish: brings the result to where the caller wants it."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._done, self._finish = threading.Event(), finish
        self._error: BaseException | None = None
        self._is_finished = False

    def end(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> bool:
        self._done.wait()
        if self._error is not None:
            raise self._error
        if not self._is_finished:
            self._is_finished = True
            self._finish()
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()


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

    def __init__(self, store: torch.distributed.Store, peers: Peers, timeout: float) -> None:
        from torch import distributed

        self.peers, self.timeout = peers, timeout
        span = datetime.timedelta(seconds=timeout)
        self._group: torch.distributed.ProcessGroupGloo | None = distributed.ProcessGroupGloo(
            store, peers.rank, peers.size, span
        )
        self._failed: DistributedError | None = None
        self._calls: collections.deque[tuple[int, Call]] = collections.deque(maxlen=NUM_KEPT)  # the last ones
        self._pending: torch.distributed.Work | None = None
        self._is_leaving = False
        self._waiting: queue.SimpleQueue[tuple[Call, Callable[[], None], HostWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="genesis.distributed", daemon=True)
        self._thread.start()

    # --- the calls ----------------------------------------------------------------------------------------------------

    def all_reduce(self, call: Call, array: NDArray, op: ReduceOp) -> HostWork:
        host = _Host(array)
        return self._start(call, lambda: self._reduce(host.tensor, op), host.write_back)

    def all_gather(self, call: Call, outputs: Sequence[NDArray], array: NDArray) -> HostWork:
        given, hosts = _Host(array), [_Host(output, is_read=False) for output in outputs]

        def run() -> None:
            self._wait(
                self._connected.allgather([[_as_bytes(host.tensor) for host in hosts]], [_as_bytes(given.tensor)])
            )

        return self._start(call, run, lambda: _write_back(hosts))

    def reduce_scatter(self, call: Call, output: NDArray, inputs: Sequence[NDArray], op: ReduceOp) -> HostWork:
        given, host = [_Host(array) for array in inputs], _Host(output, is_read=False)

        def run() -> None:
            import torch

            joined = torch.cat([each.tensor for each in given])  # gloo reduces the whole, on every rank
            self._reduce(joined, op)
            host.tensor.copy_(joined.chunk(len(given))[self.peers.rank])

        return self._start(call, run, host.write_back)

    def broadcast(self, call: Call, array: NDArray, source: int) -> HostWork:
        from torch import distributed

        host = _Host(array)
        options = distributed.BroadcastOptions()
        options.rootRank = source
        return self._start(
            call, lambda: self._wait(self._connected.broadcast([_as_bytes(host.tensor)], options)), host.write_back
        )

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
        self._thread.join(self.timeout if patience is None else patience)
        self._is_leaving = True
        self._thread.join(2 * _LEAVING)
        self._abort()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _start(self, call: Call, run: Callable[[], None], finish: Callable[[], None]) -> HostWork:
        work = HostWork(finish)
        self._waiting.put((call, run, work))
        return work

    def _serve(self) -> None:
        for call, run, work in iter(self._waiting.get, None):
            work.end(self._attempt(call, run))

    def _attempt(self, call: Call, run: Callable[[], None]) -> BaseException | None:
        """Make a call. Returns: why it could not be made."""
        if self._failed is not None:
            return DistributedError(f"{call.name}: not possible any more, as an earlier call failed: {self._failed}")
        self._calls.append((call.number, call))
        try:
            different = self._compare(call) if call.checked else None
            if different is not None:
                self._calls.pop()  # the ranks know that they were apart
                return different
            run()
        except Exception as error:
            if self._is_leaving:
                self.peers.give_up(self._last_calls())
                self._failed = DistributedError(f"{call.name}: the process group ended during the call ({call})")
            else:
                self._failed = self.peers.failure(call, error, self.timeout, self._last_calls())
            self._abort()  # so that nobody waits for this rank
            return self._failed
        return None

    @property
    def _connected(self) -> torch.distributed.ProcessGroupGloo:
        assert self._group is not None, "the connections are closed"
        return self._group

    def _wait(self, work: torch.distributed.Work) -> None:
        """Wait for a call. Raises: RuntimeError: it has failed, or cannot end."""
        self._pending = work
        begin, has_posted = time.monotonic(), False
        while not _has_ended(work):
            if self._is_leaving:
                raise RuntimeError("the process group ended during the call")
            if time.monotonic() - begin > faults.LONG:
                if not has_posted:
                    self.peers.post(self._last_calls())
                    has_posted = True
                self._look()
        self._pending = None
        if has_posted:
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

    def _abort(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        group.abort()
        if self._pending is not None and not self._pending.is_completed():
            # Its end would wait for the call, until the time is up. The process' own end closes the connections.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        # else its end, here, closes the connections

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
        import torch
        from torch import distributed

        options = distributed.AllreduceOptions()
        options.reduceOp = getattr(distributed.ReduceOp, "SUM" if op is ReduceOp.AVG else op.name)
        if op is ReduceOp.AVG:
            tensor.div_(self.peers.size)  # before the sum, which float16 could not hold
        sent = tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor  # which gloo does not have
        sent = sent.view(torch.uint8) if sent.dtype is torch.bool else sent
        self._wait(self._connected.allreduce([sent], options))
        if tensor.dtype is torch.int16:
            tensor.copy_(sent)


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
