"""A stand-in for nccl4py on the simulated device: its calls are work of a stream, and can be captured and replayed.

The reductions are made by gloo, on the memory that the device shares with the host.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.backends.cuda.runtime import memory
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.distributed import copy_engines, faults, group, nccl
from genesis.distributed.transport import Call
from genesis.settings import override

_TYPES = {getattr(dtypes, name): getattr(torch, name) for name in ("float64", "float32", "int64", "uint8")}


class RedOp(enum.IntEnum):
    SUM, PROD, MAX, MIN, AVG = range(5)


class UniqueId:
    as_bytes = bytes(range(128))

    @staticmethod
    def from_bytes(given: bytes) -> UniqueId:
        assert given == UniqueId.as_bytes
        return UniqueId()


class WindowFlag(enum.IntEnum):
    COLL_SYMMETRIC = 1


class Window:
    """A stretch of memory that the ranks have registered; a test may let them have none."""

    is_valid = True

    def __init__(self, communicator: Communicator, pointer: int, num_bytes: int) -> None:
        self._communicator, self.pointer, self.num_bytes = communicator, pointer, num_bytes

    def close(self) -> None:
        self._communicator.windows.remove(self)


class Buffer:
    """Memory of NCCL's own allocator; a test may let an allocation fail."""

    num_present, fails = 0, False

    def __init__(self, num_bytes: int, device: int) -> None:
        if Buffer.fails:
            raise RuntimeError("ncclUnhandledCudaError")
        self._storage = memory.allocate_own(num_bytes, device, 0)
        self.handle = self._storage.pointer
        Buffer.num_present += 1

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            Buffer.num_present -= 1


class Communicator:
    """Counts what it has made; ends as NCCL does, not before the graphs that hold its calls."""

    latest: Communicator

    def __init__(self, gloo: Any, size: int, rank: int) -> None:
        self._gloo, self.size, self.rank = gloo, size, rank
        self.num_made, self.error, self.ended = 0, 0, ""
        self.windows: list[Window] = []
        self.num_copied = 0  # calls that copy engines make

    @classmethod
    def init(cls, size: int, rank: int, shared: UniqueId, config: object = None) -> Communicator:
        import torch.distributed as theirs

        from genesis.distributed.group import require

        del shared
        present = require("fake")
        store = theirs.PrefixStore(f"fake {present.call('fake', '').number}", present._store)
        cls.latest = cls(theirs.ProcessGroupGloo(store, rank, size), size, rank)
        return cls.latest

    def allreduce(self, sent: DeviceArray, received: DeviceArray, op: RedOp, *, stream: int) -> None:
        def run() -> None:
            values = _shown(sent).clone()
            options = torch.distributed.AllreduceOptions()
            options.reduceOp = getattr(torch.distributed.ReduceOp, "SUM" if op is RedOp.AVG else op.name)
            self._gloo.allreduce([values], options).wait()
            _shown(received).copy_(values / self.size if op is RedOp.AVG else values)
            self.num_made += 1

        self._submit(stream, run)

    def allgather(self, sent: DeviceArray, received: DeviceArray, *, stream: int) -> None:
        def run() -> None:
            self._gloo.allgather([list(_shown(received).chunk(self.size))], [_shown(sent)]).wait()
            self.num_made += 1

        self._submit(stream, run)

    def alltoall(self, sent: DeviceArray, received: DeviceArray, *, stream: int) -> None:
        def run() -> None:
            self._gloo.alltoall_base(_shown(received), _shown(sent), [], []).wait()
            self.num_copied += 1

        assert self._is_registered(sent)
        assert self._is_registered(received)
        self._submit(stream, run)

    def register_window(self, array: DeviceArray, flags: int) -> Window:
        assert flags == WindowFlag.COLL_SYMMETRIC
        self.windows.append(Window(self, array.data_pointer, array.size))
        return self.windows[-1]

    def _is_registered(self, array: DeviceArray) -> bool:
        first, num_bytes = array.data_pointer, array.size * array.dtype.itemsize
        return any(0 <= first - each.pointer <= each.num_bytes - num_bytes for each in self.windows)

    def broadcast(self, sent: DeviceArray, received: DeviceArray, root: int, *, stream: int) -> None:
        def run() -> None:
            options = torch.distributed.BroadcastOptions()
            options.rootRank = root
            self._gloo.broadcast([_shown(received)], options).wait()
            self.num_made += 1

        assert sent is received
        self._submit(stream, run)

    def get_async_error(self) -> int:
        return self.error

    def destroy(self) -> None:
        self.ended = "destroyed"

    def abort(self) -> None:
        self.ended = "aborted"

    @staticmethod
    def _submit(stream: int, run: Any) -> None:
        here = driver.get()
        assert isinstance(here, SimulatedDriver)
        here.captures.submit(stream, run)


def _shown(array: DeviceArray) -> torch.Tensor:
    import ctypes

    count = math.prod(array.shape)
    memory = (ctypes.c_char * (count * array.dtype.itemsize)).from_address(array.data_pointer)
    return torch.frombuffer(memory, dtype=_TYPES[array.dtype])


@contextmanager
def installed() -> Iterator[group.ProcessGroup]:
    """Inside, the group has the transport of NCCL for the simulated device."""
    version = types.SimpleNamespace(libnccl=types.SimpleNamespace(version=types.SimpleNamespace(release=(2, 28, 9))))
    core = types.SimpleNamespace(
        Communicator=Communicator, UniqueId=UniqueId, get_unique_id=UniqueId, get_error_string=str, mem_alloc=Buffer,
        mem_free=lambda buffer: None, WindowFlag=WindowFlag, CTAPolicy=types.SimpleNamespace(ZERO=2),
        NCCLConfig=lambda cta_policy: cta_policy, get_version=lambda: version, **RedOp.__members__,
    )  # fmt: skip
    before, nccl.require_package = nccl.require_package, lambda: core
    copy_engines._SLOWEST, copy_engines._TRIAL = math.inf, 64  # the simulated device's times say nothing
    present = group.require("fake")
    with override(cuda="simulated"):
        try:
            place = torch.distributed.PrefixStore(f"fake {present.call('fake', '').number}", present._store)
            peers = faults.Peers(place, present.rank, present.size)  # notes of a failure are none of the group's
            present._nccl = nccl.Nccl(present, peers, present._gloo.timeout)
            yield present
        finally:
            if present._nccl is not None:
                present._nccl.close(patience=5.0)
            present._nccl, nccl.require_package = None, before


class Unfinished:
    """A call that the device never ends."""

    call, started = Call("replay of all_reduce", "sum, float32 [2]"), math.inf
    calls = (call,)

    @property
    def event(self) -> Unfinished:
        return self

    def query(self) -> bool:
        return False
