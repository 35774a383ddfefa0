"""What the ranks run where one of them dies, does not come, or does what the others do not."""

from __future__ import annotations

import os
import signal
import sys
import time

import genesis
from genesis import distributed as dist
from genesis.distributed import faults
from genesis.nn.parallel import DistributedDataParallel
from tests.distributed.programs import batch, convolutional, dense


def die(rank: int, size: int, victim: int, call: str) -> tuple[float, str]:
    """One rank is killed; the others find out in their next call. Returns: after how many seconds, and the message."""
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        if call == "backward":
            model = None
            while True:
                model = model or DistributedDataParallel(dense())
                model(genesis.ones(2, 4)).sum().backward()
        while True:
            dist.all_reduce(genesis.ones(1 << 16))
    except dist.DistributedError as error:
        return time.monotonic() - start, str(error)


def late(rank: int, size: int, late_rank: int) -> str:
    """One rank does not come in time."""
    if rank == late_rank:
        time.sleep(8)
    try:
        dist.all_reduce(genesis.ones(3))
    except dist.DistributedError as error:
        return str(error)
    return ""


def apart(rank: int, size: int, kind: str) -> tuple[float, str]:
    """The last rank does what the others do not. Returns: after how many seconds the error came, and its message."""
    faults.LONG = 1.0
    is_last, network = rank == size - 1, convolutional() if kind == "frozen" else dense()
    model = DistributedDataParallel(network)
    given = batch(0, "float32", image=kind == "frozen")[0]
    for _ in range(2):  # the second orders the buckets
        model(given).sum().backward()
    start = time.monotonic()
    try:
        if kind == "frozen":
            network[1].weight.requires_grad = not is_last
            model(given).sum().backward()
        elif kind == "raises" and is_last:
            sys.last_value = ValueError("no picture 7")  # as the interpreter does with what nobody catches
            dist.group._leave()
            return 0.0, ""
        elif kind == "left" and is_last:
            work = dist.all_reduce(genesis.ones(2), async_op=True)
            dist.group.leave()
            assert work is not None
            work.wait()
        elif (kind == "steps" and is_last) or kind in ("raises", "left"):
            model(given).sum().backward()
        dist.all_reduce(genesis.ones(2))
    except dist.DistributedError as error:
        return time.monotonic() - start, str(error)
    raise AssertionError("no error")
