"""What the ranks run with a stand-in for NCCL: buckets in windows, which copy engines reduce."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest

import genesis
from genesis import distributed as dist
from genesis import nn
from genesis.distributed import nccl
from genesis.nn.parallel import DistributedDataParallel, reducer
from tests.distributed import captured, fake_nccl, programs
from tests.distributed.fake_nccl import Buffer, Communicator, Window

Step = Callable[[genesis.Tensor, genesis.Tensor], genesis.Tensor]


def training(rank: int, size: int, how: str) -> tuple[int, int, int]:
    """As with NCCL's kernels, bit for bit on two ranks. Returns: calls of copy engines, buckets, and replays.

    Args:
        how: "compiled"; "late", after eager steps; "eager"; "no memory"; "no windows".
    """
    with fake_nccl.installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducer, "_LONG", 0)
        patch.setattr(Buffer, "fails", how == "no memory" and rank == 1)
        patch.setattr(Window, "is_valid", how != "no windows" or rank == 1)
        (ours, step), (theirs, other_step) = _training(), _training()
        compiled = genesis.compile(step)
        for number in range(8):
            given = [programs.mine(rank, size, each).to("cuda") for each in programs.batch(number, "float64")]
            is_eager = how == "eager" or (how == "late" and number < 3)
            found = step(*given) if is_eager else compiled(*given)
            assert found.item() == other_step(*given).item(), number
        for one, other in zip(ours.module.parameters(), theirs.module.parameters(), strict=True):
            assert one.tolist() == other.tolist()
            assert one.grad.tolist() == other.grad.tolist()
        programs.assert_equal_bits(ours)
        return Communicator.latest.num_copied, len(ours._reducer.buckets), compiled.num_replays


def _training() -> tuple[DistributedDataParallel, Step]:
    genesis.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double().to("cuda")
    model = DistributedDataParallel(module, bucket_cap_mb=1e-4)
    return model, captured.step_of(model, programs.OPTIMIZERS["SGD"](module.parameters()))


def memory(rank: int, size: int) -> None:
    """Windows are given back when no rank has an array in them; a group that ends leaves arrays their memory."""
    gc.collect()
    number = Buffer.num_present
    with fake_nccl.installed() as present:
        transport = present._nccl
        arrays = [transport.memory(100, genesis.float32) for _ in range(2)]
        first = arrays[0]
        assert (first.shape, first.tolist()) == ((104,), [0.0] * 104)  # a part of 16 bytes for each rank
        assert transport._copies.has(first)
        assert not transport._copies.has(first.narrow(0, 0, 8))
        kept = first.narrow(0, 4, 4)
        kept.copy_into(3.0 + rank)
        work = transport.all_reduce(present.call("mean", ""), first, dist.ReduceOp.AVG)
        assert work.wait()
        assert kept.tolist() == [3.5] * 4
        del first, work
        count = len(Communicator.latest.windows)
        if rank == 0:
            arrays.clear()
            gc.collect()
        assert transport.memory(1, genesis.int64) is None
        held = [transport.memory(100, genesis.float32)]
        assert len(Communicator.latest.windows) == count + 1  # rank 1 still has the other array
        arrays.clear()
        gc.collect()
        held.append(transport.memory(100, genesis.float32))
        assert len(Communicator.latest.windows) == count + 1  # one less, one more
        present._nccl.close()
        present._nccl = None
        assert Communicator.latest.ended == "destroyed"
        assert not Communicator.latest.windows
        assert kept.tolist() == [3.5] * 4
        assert held[1].tolist() == [0.0] * 104
    del kept, held, transport, present
    gc.collect()
    assert Buffer.num_present == number


def stuck(rank: int, size: int) -> tuple[str, list[int]]:
    """A device that waits for a rank that is gone. Returns: what the process says, and the status it ends with."""
    ended: list[int] = []
    with (
        fake_nccl.installed() as present,
        pytest.MonkeyPatch.context() as patch,
        redirect_stderr(io.StringIO()) as said,
    ):
        transport = present._nccl
        patch.setattr(nccl, "_PATIENCE", 0.2)
        patch.setattr(nccl.os, "_exit", _ending(ended))
        array = transport.memory(100, genesis.float32)
        transport.all_reduce(present.call("mean", ""), array, dist.ReduceOp.AVG).wait()
        transport._ended.set()
        transport._watch.join()
        transport.failed = dist.DistributedError("rank 7 no longer runs")
        with pytest.raises(SystemExit):
            transport._abort(fake_nccl.Unfinished())
        assert Communicator.latest.ended == "aborted"
        transport._copies.are_used = False
        transport._abort(fake_nccl.Unfinished())  # NCCL's kernels end by the abort
    return said.getvalue(), ended


def _ending(ended: list[int]):
    def exit_(status: int) -> None:
        ended.append(status)
        raise SystemExit(status)

    return exit_


def growing(rank: int, size: int) -> list[int]:
    """Each new set of buckets takes the place of the one before. Returns: windows after each."""
    numbers = []
    with fake_nccl.installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducer, "_LONG", 0)
        model, step = _training()
        for _ in range(4):
            compiled = genesis.compile(step)
            for number in range(5):
                compiled(*[programs.mine(rank, size, each).to("cuda") for each in programs.batch(number, "float64")])
            assert compiled.num_replays
            model.module[0] = copy.deepcopy(model.module[0])
            step = captured.step_of(model, programs.OPTIMIZERS["SGD"](model.module.parameters()))
            del compiled
            gc.collect()
            numbers.append(len(Communicator.latest.windows))
    return numbers
