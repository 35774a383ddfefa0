"""NCCL, by NVIDIA's binding nccl4py (its public module nccl.core), on Genesis' memory and streams.

Calls run on a stream of their own, after what the caller's stream has been given. wait() lets the caller's stream go on
after them; the host goes on at once. A kernel of NCCL waits for its peers without end, so a thread looks after the
calls that have not ended: if a rank is gone or the time is up, it aborts the communicator, which ends the kernels. It
does so too if a call has not ended after some seconds, and the ranks' calls differ: only then are they written down.

In the capture of a CUDA graph, calls become part of it; the thread looks after its replays. A communicator cannot end
before the graphs that hold its calls, so the end of the group resets them.
"""

from __future__ import annotations

import base64
import collections
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.backends.cuda.runtime import streams
from genesis.distributed import copy_engines, faults
from genesis.distributed.copy_engines import CopyEngines
from genesis.distributed.faults import Peers
from genesis.distributed.transport import Call, ReduceOp
from genesis.distribution import install_command
from genesis.dtypes import DType
from genesis.errors import DeviceError, DistributedError, DTypeError, describe
from genesis.ndarray import Device, NDArray
from genesis.ndarray.capturing import GraphCapture, capture_of
from genesis.ndarray.device import current_index
from genesis.settings import settings

if TYPE_CHECKING:
    from nccl.core import Communicator

    from genesis.distributed.group import ProcessGroup

_EVERY = 0.5  # seconds between two looks at the calls on their way
_SOON = 0.001  # seconds between two looks at what is about to end
_PATIENCE = 3.0  # seconds in which a program may see the error before its process ends, as the device does not
_WITHOUT = (dtypes.int16, dtypes.bool_)  # what NCCL does not have
_OPS = {"sum": "SUM", "avg": "AVG", "product": "PROD", "min": "MIN", "max": "MAX"}
_FINE = (0, 7)  # ncclSuccess, ncclInProgress


class StreamWork:
    """A call on the communicator's stream, or the replay of a graph that holds several.

    Attributes:
        calls: one call, or those of the graph, which are numbered from the first's on.
    """

    def __init__(self, transport: Nccl, call: Call, event: streams.Event, calls: Sequence[Call] = ()) -> None:
        self._transport, self.call, self.event = transport, call, event
        self.calls = calls or (call,)
        self.started = time.monotonic()

    def wait(self) -> bool:
        self._transport.require()
        self.event.wait()
        return True

    def is_completed(self) -> bool:
        return self._transport.failed is not None or self.event.query()


class Nccl:
    """A Transport between GPUs: a communicator on the device that is current when the group begins.

    Args:
        group: shares the communicator's id, by its transport between hosts.
        timeout: seconds that a call may take.
    """

    def __init__(self, group: ProcessGroup, peers: Peers, timeout: float) -> None:
        core = require_package()
        self._core, self._group, self._peers, self._timeout = core, group, peers.beside("nccl"), timeout
        self.device = Device("cuda", current_index())
        NDArray.full((1,), 0, dtypes.uint8, self.device)  # makes the device's context current, which NCCL takes
        own = base64.b64encode(core.get_unique_id().as_bytes).decode() if peers.rank == 0 else ""
        shared = core.UniqueId.from_bytes(base64.b64decode(group.share(own)))
        config = copy_engines.config(core, [peer.host for peer in peers.all])
        self._communicator: Communicator = core.Communicator.init(peers.size, peers.rank, shared, config)
        self._copies: CopyEngines | None = None
        if config is not None:
            self._copies = CopyEngines(core, self._communicator, self.device, peers.rank, peers.size, self._alike)
        self._stream = streams.Stream(self.device.index, priority=-1)
        self.failed: DistributedError | None = None
        self._on_their_way: collections.deque[StreamWork] = collections.deque()
        self._ended_last: collections.deque[StreamWork] = collections.deque(maxlen=faults.NUM_KEPT)
        self._posted: dict[int, str] = {}
        self._captures: weakref.WeakKeyDictionary[GraphCapture, list[Call]] = weakref.WeakKeyDictionary()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look_after, name="genesis.distributed.nccl", daemon=True)
        self._watch.start()
        self._connect()

    @property
    def has_memory(self) -> bool:
        return self._copies is not None

    def memory(self, num_elements: int, dtype: DType) -> NDArray | None:
        return None if self._copies is None else self._copies.empty(num_elements, dtype, self._stream)

    def all_reduce(self, call: Call, array: NDArray, op: ReduceOp) -> StreamWork:
        copies = self._copies if op is ReduceOp.AVG else None

        def launch(stream: int) -> None:
            if copies is not None and copies.has(array):
                copies.mean(array, stream)
            else:
                self._communicator.allreduce(array.handle, array.handle, self._op(op), stream=stream)

        return self._start(call, [array], launch)

    def _alike(self, values: Sequence[bool]) -> list[bool]:
        """Whether all ranks say so."""
        call = self._group.call("DistributedDataParallel", "memory", checked=False)
        every = self._group.gather_bytes(call, bytes(values))
        return [all(each) for each in zip(*every, strict=True)]

    def all_gather(self, call: Call, outputs: Sequence[NDArray], array: NDArray) -> StreamWork:
        joined = NDArray.empty((len(outputs), *array.shape), array.dtype, array.device)

        def launch(stream: int) -> None:
            self._communicator.allgather(array.handle, joined.handle, stream=stream)
            for rank, output in enumerate(outputs):
                output.copy_into(joined.select(0, rank))

        return self._start(call, [array, joined, *outputs], launch)

    def reduce_scatter(self, call: Call, output: NDArray, inputs: Sequence[NDArray], op: ReduceOp) -> StreamWork:
        joined = NDArray.empty((len(inputs), *output.shape), output.dtype, output.device)
        for rank, given in enumerate(inputs):
            joined.select(0, rank).copy_into(given)

        def launch(stream: int) -> None:
            self._communicator.reduce_scatter(joined.handle, output.handle, self._op(op), stream=stream)

        return self._start(call, [joined, output], launch)

    def broadcast(self, call: Call, array: NDArray, source: int) -> StreamWork:
        def launch(stream: int) -> None:
            self._communicator.broadcast(array.handle, array.handle, source, stream=stream)

        return self._start(call, [array], launch)

    def require(self) -> None:
        """Raises: DistributedError: a call has failed."""
        if self.failed is not None:
            raise self.failed

    def close(self, patience: float | None = None) -> None:
        """End the communicator after its calls; patience: seconds for them, and no wait for the other ranks."""
        is_done = self._drain(self._timeout if patience is None else patience)
        self._ended.set()
        self._watch.join(2 * _EVERY)
        for capture in list(self._captures.keys()):
            capture.forget()
        if self.failed is None and is_done:
            if self._copies is not None:
                self._copies.close()
            if patience is None:
                self._communicator.destroy()
            else:
                self._communicator.abort()
        elif self.failed is None:
            self._start_abort().join(_PATIENCE)

    def settle(self) -> None:
        """Wait until the device has made all calls. Raises: DistributedError: one has failed."""
        self._drain(self._timeout)
        self.require()

    def _drain(self, patience: float) -> bool:
        """Wait until the device has made all calls, or one has failed. Returns: whether it has."""
        end = time.monotonic() + patience
        events = [
            self._stream.record_event(),
            *[work.event for work in list(self._on_their_way)],
        ]  # graphs have their own
        while self.failed is None and not all(event.query() for event in events):
            if time.monotonic() > end:
                return False
            time.sleep(_SOON)
        return self.failed is None

    # --- the way to a call --------------------------------------------------------------------------------------------

    def _op(self, op: ReduceOp) -> object:
        return getattr(self._core, _OPS[op.value])

    def _start(self, call: Call, arrays: Sequence[NDArray], launch: Callable[[int], None]) -> StreamWork:
        """Launch on the communicator's stream, after what is on the current one."""
        self.require()
        for array in arrays:
            if array.device is not self.device:
                expected = f"a tensor on {self.device}, as the process group began on it"
                raise DeviceError(describe(call.name, "tensor", expected, f"one on {array.device}"))
            if array.dtype in _WITHOUT:
                raise DTypeError(describe(call.name, "tensor", "a dtype that NCCL has", array.dtype))
        self._stream.wait_stream(streams.current(self.device.index))
        try:
            with streams.use(self._stream):
                launch(self._stream.handle)
        except Exception as error:
            raise DistributedError(f"{call.name}: failed on rank {self._peers.rank} ({call}): {error}") from error
        event = self._stream.record_event()
        for array in arrays:
            array.record_stream(self._stream.handle)
        work, capture = StreamWork(self, call, event), capture_of(self.device)
        if capture is None:
            self._on_their_way.append(work)
            return work
        if not call.checked:  # else the ranks have just compared it
            self._group.count(-1)  # the replays make it
        calls = self._captures.get(capture)
        if calls is None:
            calls = self._captures[capture] = []
            capture.before_replay.insert(0, lambda stream: self.require())
            capture.after_replay.append(functools.partial(self._replayed, calls))
        calls.append(call)
        return work

    def _replayed(self, calls: Sequence[Call], stream: int) -> None:
        """A graph with these calls has been launched on a stream."""
        event = streams.Stream(self.device.index, handle=stream).record_event()
        first = calls[0]._replace(name=f"replay of {calls[0].name}", number=self._group.count(len(calls)))
        self._on_their_way.append(StreamWork(self, first, event, calls))

    def _connect(self) -> None:
        """Make a first call: connections that cannot be made are an error here, not in a training step."""
        one = NDArray.full((1,), 1, dtypes.float32, self.device)
        work = self.all_reduce(Call("init_process_group", "nccl"), one, ReduceOp.SUM)
        while not work.is_completed():
            time.sleep(_SOON)
        self.require()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while not self._ended.wait(_EVERY):
            while self._on_their_way and self._on_their_way[0].event.query():
                self._ended_last.append(self._on_their_way.popleft())
            if self._posted and not self._is_late():
                self._post({})
            if not self._on_their_way:
                continue
            oldest = self._on_their_way[0]
            problem = self._problem(oldest)
            if problem is not None:
                self.failed = self._peers.failure(oldest.call, problem, self._timeout, self._last_calls())
                self._abort(oldest)
                return

    def _abort(self, oldest: StreamWork) -> None:
        """End the calls on their way; if the device does not come to rest by that, this process.

        Copy engines wait for the copies of a rank that is gone, and nothing stops them: all that waits for the device,
        such as a synchronization, would do so for ever.
        """
        if self._copies is None or not self._copies.are_used:
            self._communicator.abort()
            return
        self._start_abort()
        end = time.monotonic() + _PATIENCE
        while not oldest.event.query():
            if time.monotonic() > end:
                print(f"DistributedError: {self.failed}; the device waits for it: this process ends", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)
            time.sleep(_SOON)

    def _start_abort(self) -> threading.Thread:
        """Abort the communicator in a thread, which waits for the device."""
        thread = threading.Thread(target=self._communicator.abort, name="genesis.distributed.abort", daemon=True)
        thread.start()
        return thread

    def _problem(self, oldest: StreamWork) -> Exception | None:
        state = int(self._communicator.get_async_error())
        if state not in _FINE:
            return RuntimeError(self._core.get_error_string(state))
        if self._peers.gone():
            return RuntimeError("a rank is gone")
        if time.monotonic() - oldest.started > self._timeout:
            return TimeoutError("timed out")
        return self._apart() if self._is_late() else None

    def _is_late(self) -> bool:
        return bool(self._on_their_way) and time.monotonic() - self._on_their_way[0].started > faults.LONG

    def _apart(self) -> Exception | None:
        """Show the other ranks this one's calls. Returns: an error if theirs differ, or they make no more."""
        calls = self._last_calls()
        if calls != self._posted:
            self._post(calls)
        if self._peers.apart(calls):
            return RuntimeError("the ranks wait in different calls")
        failed = self._peers.failed()
        return RuntimeError(f"an earlier call failed on rank {', '.join(map(str, failed))}") if failed else None

    def _post(self, calls: dict[int, str]) -> None:
        self._posted = calls
        self._peers.post(calls)

    def _last_calls(self) -> dict[int, str]:
        """The last calls that have ended, and the first that have not."""
        on_their_way = list(itertools.islice(self._on_their_way.copy(), faults.NUM_KEPT))
        made, open_ones = (
            [(work.call.number + place, call.text) for work in works for place, call in enumerate(work.calls)]
            for works in (self._ended_last, on_their_way)
        )
        return dict([*made[-faults.NUM_KEPT :], *open_ones[: faults.NUM_KEPT]])


def require_package() -> ModuleType:
    """nccl4py's public module. Raises: ValueError: the CUDA device is simulated; ImportError: it is not installed."""
    if settings.cuda == "simulated":
        expected = "'gloo' for the simulated CUDA device"
        raise ValueError(describe("init_process_group", "backend", expected, "'nccl'"))
    try:
        from nccl import core
    except ImportError as error:
        raise ImportError(
            f"init_process_group: argument 'backend': 'nccl' needs the package nccl4py: {install_command('nccl')}",
            name="nccl",
        ) from error
    return core
