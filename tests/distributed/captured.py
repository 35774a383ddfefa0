"""What the ranks run on a simulated device with a stand-in for NCCL: calls on streams, CUDA graphs, and their end."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import time
from collections.abc import Callable, Sequence

import pytest

import genesis
import genesis.nn.functional as F
from genesis import distributed as dist
from genesis import nn, optim
from genesis.distributed import faults, nccl
from genesis.distributed.group import ProcessGroup
from genesis.distributed.nccl import StreamWork
from genesis.distributed.transport import Call
from genesis.nn.parallel import DistributedDataParallel
from tests.distributed import fake_nccl, programs
from tests.distributed.fake_nccl import Communicator

Tensor = genesis.Tensor


def eager(rank: int, size: int) -> None:
    """Collectives and training on the communicator's stream."""
    with fake_nccl.installed():
        x = genesis.full((2, 3), float(rank), device="cuda")
        dist.all_reduce(x.T)
        assert x.tolist() == [[1.0] * 3] * 2
        gathered = [genesis.zeros(2, device="cuda") for _ in range(size)]
        work = dist.all_gather(gathered, genesis.full((2,), float(rank), device="cuda"), async_op=True)
        assert work is not None
        assert work.wait()
        assert [each.tolist() for each in gathered] == [[0.0, 0.0], [1.0, 1.0]]
        with pytest.raises(dist.DistributedError, match=r"rank 1: all_reduce\(sum, float32 \[3\] on cuda\)"):
            dist.all_reduce(genesis.ones(2 + rank, device="cuda"))
        programs.train(rank, size, device="cuda", steps=2)


def network(norm: bool) -> nn.Module:
    layers = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 3)).double()


def step_of(model: nn.Module, stepper: optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        stepper.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        stepper.step()
        return loss.detach()

    return step


def training(rank: int, size: int, norm: bool, num_eager: int, optimizer: str = "SGD") -> int:
    with fake_nccl.installed():
        return replayed(rank, size, norm, num_eager, optimizer, lambda: Communicator.latest.num_made)


def replayed(
    rank: int, size: int, norm: bool, num_eager: int, optimizer: str, num_made: Callable[[], int],
    tolerance: float = 0.0,
) -> int:  # fmt: skip
    """A captured step of data parallel training, replayed, does what eager steps do. Returns: calls of the graph."""
    genesis.manual_seed(0)
    module = network(norm)
    eager_module = copy.deepcopy(module)
    cuda = module.to("cuda")
    models = [DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(cuda), bucket_cap_mb=1e-4)]
    models.append(
        DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(eager_module.to("cuda")), bucket_cap_mb=1e-4)
    )
    steps = [step_of(model, programs.OPTIMIZERS[optimizer](model.parameters())) for model in models]
    static = [programs.mine(rank, size, each).to("cuda") for each in programs.batch(0, "float64")]
    graph = genesis.cuda.Graph()
    num_of_graph = 0
    for number in range(num_eager + 3):
        given = [programs.mine(rank, size, each).to("cuda") for each in programs.batch(number, "float64")]
        expected = steps[1](*given)
        for memory, values in zip(static, given, strict=True):
            memory.copy_(values)
        if number < num_eager:
            loss = steps[0](*static)
        else:
            if number == num_eager:
                with genesis.cuda.graph(graph):
                    loss = steps[0](*static)
            before = num_made()
            graph.replay()
            num_of_graph = num_made() - before
        assert abs(loss.item() - expected.item()) <= tolerance, (number, loss, expected)
    for (name, one), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert float((one - other).abs().max().item()) <= tolerance, name
    programs.assert_equal_bits(models[0])
    return num_of_graph


def end(rank: int, size: int) -> str:
    """A group ends before its graphs: they are reset, and say so. Returns: what a replay says then."""
    with fake_nccl.installed() as present:
        x = genesis.ones(2, device="cuda")
        dist.all_reduce(x)
        graph, other = genesis.cuda.Graph(), genesis.cuda.Graph()
        with genesis.cuda.graph(graph):
            dist.all_reduce(x)
        with genesis.cuda.graph(other):
            y = x * 2
        dropped = genesis.cuda.Graph()
        with genesis.cuda.graph(dropped):
            dist.all_reduce(x)
        del dropped
        gc.collect()
        graph.replay()
        assert present._nccl is not None
        present._nccl.close()
        present._nccl = None
        assert Communicator.latest.ended == "destroyed"
        other.replay()
        assert y.tolist() == [2.0 * size * size] * 2
        try:
            graph.replay()
        except genesis.errors.CaptureError as error:
            return str(error)
    raise AssertionError("no error")


class _Held:
    """The event of a call that does not end by itself."""

    has_begun = has_ended = False

    def submit(self, submit: Callable[..., None], stream: int, run: Callable[[], None]) -> None:
        submit(stream, lambda: None if self.has_begun else run())

    def wait(self) -> None: ...

    def query(self) -> bool:
        return self.has_ended


def apart(rank: int, size: int, kind: str) -> tuple[float, str]:
    """Calls that wait for each other on the device. Returns: seconds until they were aborted, and the error."""
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "LONG", 0.2)
        patch.setattr(nccl, "_EVERY", 0.1)
        present = stack.enter_context(fake_nccl.installed())
        patch.setattr(present, "check", False)
        patch.setattr(present, "_num_calls", 0)  # and in the end what it was: the ranks make other numbers of calls
        transport, x, held = present._nccl, genesis.ones(2, device="cuda"), _Held()
        assert transport is not None
        patch.setattr(Communicator, "_submit", functools.partial(held.submit, Communicator._submit))
        graph = genesis.cuda.Graph()
        with genesis.cuda.graph(graph):
            dist.all_reduce(x)
            dist.broadcast(x)
        if rank or kind != "capture":  # a rank captures while the others run eagerly: its replay counts alike
            graph.replay()
        else:
            dist.all_reduce(x)
            dist.broadcast(x)
        stack.callback(setattr, held, "has_ended", True)
        held.has_begun = True
        patch.setattr(nccl, "StreamWork", functools.partial(_held_work, held))
        begin = time.monotonic()
        _call_apart(rank, kind, present, x, graph)
        limit = begin + (1.2 if kind in ("late", "capture") else 10)  # the late rank has looked several times by then
        while transport.failed is None and time.monotonic() < limit:
            time.sleep(0.02)
        return time.monotonic() - begin, str(transport.failed)


def _held_work(held: _Held, transport: nccl.Nccl, call: Call, event: object, calls: Sequence[Call] = ()) -> StreamWork:
    return StreamWork(transport, call, held, calls)  # type: ignore[arg-type]


def _call_apart(rank: int, kind: str, present: ProcessGroup, x: Tensor, graph: genesis.cuda.Graph) -> None:
    if kind == "calls":
        for call in (dist.all_reduce, dist.broadcast)[:: -1 if rank else 1]:
            call(x)
    elif kind in ("late", "capture"):
        time.sleep(0.5 * rank)
        dist.all_reduce(x)
    elif kind == "replay" and rank == 0:
        graph.replay()
    elif kind == "host" and rank == 0:  # waits in a call of gloo
        call = present.call("barrier", "")
        peers = present._nccl._peers.beside("at")
        peers.post({call.number: call.text})
        while not peers.failed():
            time.sleep(0.02)
        present._nccl.failed = dist.DistributedError(peers.apart({call.number: call.text}))
    else:
        shape, dtype = 2 + rank * (kind == "shapes"), "float64" if rank and kind == "dtypes" else "float32"
        dist.all_reduce(genesis.ones(shape, dtype=getattr(genesis, dtype), device="cuda"), dist.ReduceOp.MAX)


def failure(rank: int, size: int) -> list[str]:
    """A communicator that fails during a replay is aborted; calls, replays and checkpoints after it raise."""
    said = []
    with fake_nccl.installed() as present:
        x = genesis.ones(2, device="cuda")
        graph = genesis.cuda.Graph()
        with genesis.cuda.graph(graph):
            dist.all_reduce(x)
        transport = present._nccl
        assert transport is not None
        transport._replayed = lambda call, stream: None  # type: ignore[method-assign]
        graph.replay()
        Communicator.latest.error = 6
        held = fake_nccl.Unfinished()
        transport._on_their_way.append(held)  # type: ignore[arg-type]
        limit = time.monotonic() + 10
        while Communicator.latest.ended != "aborted":
            assert time.monotonic() < limit
            time.sleep(0.05)
        for call in (lambda: dist.all_reduce(x), graph.replay, present.settle):
            try:
                call()
            except dist.DistributedError as error:
                said.append(str(error))
    return said
