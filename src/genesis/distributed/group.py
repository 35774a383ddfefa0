"""The group of all ranks: how it begins, what it knows, how it ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from genesis import dtypes
from genesis.autograd import modes
from genesis.autograd.modes import unrecordable
from genesis.distributed.faults import Peers
from genesis.distributed.gloo import Gloo
from genesis.distributed.meeting import meet
from genesis.distributed.transport import Call, Transport, Work
from genesis.errors import DistributedError, DTypeError, describe
from genesis.ndarray import CPU, Device, NDArray

if TYPE_CHECKING:
    import torch.distributed

    from genesis.distributed.nccl import Nccl

P = ParamSpec("P")
T = TypeVar("T")
Plain = TypeVar("Plain", int, str, str | None)  # what comes out of JSON as it went in
DEFAULT_TIMEOUT = timedelta(minutes=30)
BACKENDS = ("gloo", "nccl")
_PATIENCE = 1.0  # seconds for the calls that are on their way when the process ends
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessGroup:
    """All ranks, and the transports between them. Made by `genesis.distributed.init_process_group`.

    Attributes:
        rank, size: this process, of so many.
        backend: "gloo" or "nccl".
        check: whether public calls compare shapes and dtypes of the ranks first.
    """

    def __init__(
        self, store: torch.distributed.Store, rank: int, size: int, backend: str, timeout: float, check: bool
    ) -> None:
        self.rank, self.size, self.backend, self.check = rank, size, backend, check
        self._num_calls, self._lock = 0, threading.Lock()
        self._store = store
        peers = Peers(store, rank, size)
        self._gloo = Gloo(store, peers, timeout)
        self._nccl: Nccl | None = None
        if backend == "nccl":
            from genesis.distributed.nccl import Nccl

            self._nccl = Nccl(self, peers, timeout)

    def transport(self, device: Device) -> Transport:
        """The transport of arrays of this device."""
        return self._gloo if device is CPU or self._nccl is None else self._nccl

    def call(self, name: str, details: str, checked: bool = True) -> Call:
        """The next call; unchecked ones are those whose operands the ranks have agreed upon before."""
        return Call(name, details, self.count(1), checked and self.check)

    def count(self, num_calls: int) -> int:
        """Number so many calls, as all ranks do in their order: replays make theirs, a capture of calls makes none.

        Args:
            num_calls: −1 takes the last number back.
        Returns: the number of the first one.
        """
        with self._lock:
            first, self._num_calls = self._num_calls + 1, self._num_calls + num_calls
        return first

    def agree(self, call: Call) -> None:
        """Wait until all ranks are here. Raises: DistributedError: they are about to do different things."""
        self._gloo.agree(call).wait()

    def refuse(self, name: str, error: Exception) -> None:
        """Tell the others, in their next call, that this rank could not make its own; waits for nobody."""
        if self.check and self.size > 1:
            self._gloo.agree(self.call(name, f"refused: {error}"))

    def start_barrier(self) -> Work:
        """A call that ends when all ranks have made it."""
        return self._gloo.agree(Call("barrier", "", self.count(1)))

    def repeated(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray],
        written: Sequence[NDArray] | None = None, is_wait: bool = False,
    ) -> None:  # fmt: skip
        """Make collective calls on arrays of one device; a recording of this run repeats them.

        Args:
            written: those of the arrays that it changes; None: all.
            is_wait: it waits for calls that were started; a replay does so when something needs the arrays.
        """
        device = arrays[0].device
        if device is not CPU and self.compares(device):
            unrecordable("communicates by gloo, on the host; in a CUDA graph, only calls of the backend 'nccl' can be")
        modes.repeated(call, arrays, arrays if written is None else written, is_wait)

    def compares(self, device: Device) -> bool:
        """Whether the transport of this device compares the ranks' calls by itself."""
        return self.transport(device) is self._gloo

    def share(self, value: Plain, source: int = 0) -> Plain:
        """The value of the source rank: on all ranks."""
        text = json.dumps(value).encode() if self.rank == source else b""
        shared: Plain = json.loads(self.share_bytes(self.call("share", "a value", checked=False), text, source))
        return shared

    def share_bytes(self, call: Call, data: bytes, source: int) -> bytes:
        """The bytes of the source rank, on all ranks: two broadcasts, of their number and of themselves."""
        size = NDArray.full((1,), len(data), dtypes.int64, CPU)
        self._gloo.broadcast(call, size, source).wait()
        array = NDArray.from_numpy(np.frombuffer(data.ljust(int(size.item())), np.uint8).copy(), dtypes.uint8)
        self._gloo.broadcast(call._replace(checked=False), array, source).wait()
        return array.numpy().tobytes()

    def gather_bytes(self, call: Call, data: bytes) -> list[bytes]:
        """The bytes of each rank, on all ranks."""
        own = NDArray.full((1,), len(data), dtypes.int64, CPU)
        sizes = [own.clone() for _ in range(self.size)]
        self._gloo.all_gather(call, sizes, own).wait()
        counts = [int(size.item()) for size in sizes]
        padded = np.frombuffer(data.ljust(max(counts)), np.uint8).copy()
        array = NDArray.from_numpy(padded, dtypes.uint8)
        arrays = [NDArray.empty(array.shape, dtypes.uint8, CPU) for _ in counts]
        self._gloo.all_gather(call._replace(checked=False), arrays, array).wait()
        return [each.numpy().tobytes()[:count] for each, count in zip(arrays, counts, strict=True)]

    def settle(self) -> None:
        """Wait until this rank's device has made all calls. Raises: DistributedError: one has failed."""
        if self._nccl is not None:
            self._nccl.settle()

    def abandon(self, error: BaseException) -> None:
        """Tell the others by what this rank ends."""
        self._gloo.abandon(error)

    def close(self, patience: float | None = None) -> None:
        """End the transports, after the calls that are on their way; patience: seconds for them."""
        if self._nccl is not None:
            self._nccl.close(patience)
        self._gloo.close(patience)


_present: ProcessGroup | None = None


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: timedelta | float | None = None,
    world_size: int = -1, rank: int = -1, store: torch.distributed.Store | None = None, check: bool = True,
) -> None:  # fmt: skip
    """Join the group of all ranks: one process for each, started by torchrun.

    Args:
        backend: "gloo", for the CPU, and by copies on the host for CUDA; "nccl" for CUDA, beside gloo for the CPU. None
            takes gloo.
        init_method: where the ranks meet: "env://" (the default) reads torchrun's RANK, WORLD_SIZE, MASTER_ADDR and
            MASTER_PORT; "tcp://host:port" and "file:///path" need world_size and rank.
        timeout: the most time that a call may take, and that ranks wait for each other to begin: a timedelta, or
            seconds; 30 minutes by default.
        world_size, rank: unless the environment has them.
        store: a torch.distributed.Store in place of init_method.
        check: compare the call, its shapes and dtypes between the ranks before each collective, so that a mismatch is
            an error on every rank; DistributedDataParallel's buckets are compared once.
    Raises: ValueError: an unknown backend, no place to meet; DistributedError: there is a group already, or the ranks
        did not meet in time; ImportError: nccl without the package nccl4py.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
        (0, 1, 'gloo')
        >>> distributed.destroy_process_group()
    """
    global _present
    op = "init_process_group"
    if _present is not None:
        raise DistributedError(f"{op}: there is a group already; destroy_process_group() ends it")
    backend = "gloo" if backend is None else backend
    if backend not in BACKENDS:
        raise ValueError(describe(op, "backend", "'gloo' or 'nccl'", repr(backend)))
    if backend == "nccl":
        from genesis.distributed import nccl

        nccl.require_package()
    seconds = _seconds(op, timeout)
    if store is None:
        store, rank, world_size = _meet(op, init_method or "env://", seconds, rank, world_size)
    elif not 0 <= rank < world_size:
        raise ValueError(describe(op, "rank", f"0 ≤ rank < world_size ({world_size}), beside a store", rank))
    from torch import distributed

    try:
        store.set_timeout(timedelta(seconds=seconds))
        place = distributed.PrefixStore("genesis", store)
        own = distributed.PrefixStore(meet(place, rank, world_size, seconds), place)
        _present = ProcessGroup(own, rank, world_size, backend, seconds, check)
    except RuntimeError as error:  # torch's, of a store or of gloo
        raise _not_met(op, rank, world_size, seconds, error) from error


def _seconds(op: str, timeout: timedelta | float | None) -> float:
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise DTypeError(describe(op, "timeout", "a timedelta, or seconds", type(timeout).__name__))
    if not seconds > 0:
        raise ValueError(describe(op, "timeout", "a positive time", timeout))
    return float(seconds)


def _meet(op: str, method: str, seconds: float, rank: int, world_size: int) -> tuple[torch.distributed.Store, int, int]:
    """The store of all ranks, this rank, and how many there are."""
    from torch import distributed

    if method == "env://":
        missing = [name for name in _ENVIRONMENT if name not in os.environ]
        missing = [name for name in missing if (name, rank < 0) != ("RANK", False)]
        missing = [name for name in missing if (name, world_size < 0) != ("WORLD_SIZE", False)]
        if missing:
            expected = "the variables that torchrun sets (start the program by torchrun)"
            raise ValueError(describe(op, "init_method", expected, f"no {', '.join(missing)}"))
    elif rank < 0 or world_size < 0:
        raise ValueError(describe(op, "rank", f"rank and world_size, beside {method}", (rank, world_size)))
    try:
        return next(distributed.rendezvous(method, rank, world_size, timeout=timedelta(seconds=seconds)))
    except (ValueError, RuntimeError) as error:
        if isinstance(error, ValueError) or "No rendezvous handler" in str(error):
            raise ValueError(describe(op, "init_method", "a place to meet", f"{method!r}: {error}")) from error
        raise _not_met(op, rank, world_size, seconds, error) from error


def _not_met(op: str, rank: int, world_size: int, seconds: float, error: RuntimeError) -> DistributedError:
    said = str(error).strip().partition("\n")[0]
    return DistributedError(
        f"{op}: rank {rank} did not meet the others of {world_size} ranks within {seconds:g} s: {said}"
    )


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """End the group, after the calls that are on their way. See `genesis.distributed.init_process_group`."""
    global _present
    present, _present = require("destroy_process_group", group), None
    with contextlib.suppress(RuntimeError):  # the connections of a group that has failed
        present.close()


def leave(error: BaseException | None = None) -> None:
    """End the group, if there is one, without waiting for the others.

    Args:
        error: why, which the others show.
    """
    global _present
    present, _present = _present, None
    if present is not None:
        with contextlib.suppress(RuntimeError):
            if error is not None:
                present.abandon(error)
            present.close(_PATIENCE)


@atexit.register
def _leave() -> None:
    """At the end of the process: threads of gloo's must not outlive it."""
    leave(getattr(sys, "last_value", None))  # what nobody has caught


def is_initialized() -> bool:
    """Whether this process has joined a group.

    Example:
        >>> genesis.distributed.is_initialized()
        False
    """
    return _present is not None


def is_available() -> bool:
    """Whether PyTorch, which has gloo, was built with it.

    Example:
        >>> genesis.distributed.is_available()
        True
    """
    from torch import distributed

    return distributed.is_available()


def is_nccl_available() -> bool:
    """Whether the package nccl4py, NVIDIA's binding of NCCL, is installed.

    Example:
        >>> isinstance(genesis.distributed.is_nccl_available(), bool)
        True
    """
    import importlib.util

    return importlib.util.find_spec("nccl") is not None


def require(op: str, group: ProcessGroup | None = None) -> ProcessGroup:
    """The group of all ranks. Raises: DistributedError: there is none."""
    if _present is None or group not in (None, _present):
        raise DistributedError(f"{op}: there is no process group; call init_process_group() first")
    return _present


def told(function: Callable[P, T]) -> Callable[P, T]:
    """A collective whose refusal of its arguments on one rank is an error on all: nobody waits for that rank."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if _present is not None:
                _present.refuse(function.__name__, error)
            raise

    return call


def get_rank(group: ProcessGroup | None = None) -> int:
    """The number of this process, from 0 on; 0 where there is no group.

    Args:
        group: all ranks.

    Example:
        >>> genesis.distributed.get_rank()
        0
    """
    return 0 if _present is None else require("get_rank", group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """How many processes there are; 1 where there is no group.

    Args:
        group: all ranks.

    Example:
        >>> genesis.distributed.get_world_size()
        1
    """
    return 1 if _present is None else require("get_world_size", group).size


def get_backend(group: ProcessGroup | None = None) -> str:
    """The name of the backend. See `genesis.distributed.init_process_group`."""
    return require("get_backend", group).backend
