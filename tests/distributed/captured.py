"""What the ranks run on a simulated device with a stand-in for NCCL: calls on streams, CUDA graphs, and their end."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable

import pytest

import genesis
import genesis.nn.functional as F
from genesis import distributed as dist
from genesis import nn, optim
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
