"""NCCL on two GPUs: collectives, training, CUDA graphs, a killed rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu(count=2)

BEGIN = """
import os
import signal
import sys
import time
import torch
import genesis
from genesis import distributed as dist
from tests.distributed import captured, programs

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
genesis.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=60)
"""
END = """
dist.barrier()
assert torch.cuda.current_device() == rank  # PyTorch's, which another context would change
dist.destroy_process_group()
print("rank", rank, "is done")
"""
COLLECTIVES = """
for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"):
    dtype = getattr(genesis, name)
    x = (genesis.arange(6) + rank).to(dtype).to("cuda").reshape(2, 3)
    total = x.T.clone().T
    dist.all_reduce(total)
    assert total.tolist() == [[2 * i + 1 for i in range(3 * j, 3 * j + 3)] for j in range(2)], (name, total)
    parts = [genesis.zeros_like(x) for _ in range(size)]
    work = dist.all_gather(parts, x, async_op=True)
    work.wait()
    assert parts[1].flatten().tolist() == [1, 2, 3, 4, 5, 6], (name, parts)
    own = genesis.zeros(3, dtype=dtype, device="cuda")
    dist.reduce_scatter_tensor(own, x.flatten())
    assert own.tolist() == [2 * i + 1 for i in range(3 * rank, 3 * rank + 3)], (name, own)
    dist.broadcast(x, src=1)
    assert x.flatten().tolist() == [1, 2, 3, 4, 5, 6], (name, x)
try:
    dist.all_reduce(genesis.ones(2 + rank, device="cuda"))
except dist.DistributedError as error:
    assert "rank 1: all_reduce(sum, float32 [3] on cuda)" in str(error), error
else:
    raise AssertionError("no error")
"""
TRAINING = """
programs.train(rank, size, device="cuda", dtype="float64")
programs.train(rank, size, device="cuda", dtype="float64", network="convolutional", accumulate=2)
"""
GRAPHS = """
for norm, num_eager, optimizer in ((False, 2, "SGD"), (False, 1, "AdamW"), (True, 2, "SGD")):
    captured.replayed(rank, size, norm, num_eager, optimizer, lambda: 0, tolerance=1e-12)
x = genesis.ones(1 << 20, device="cuda")
dist.all_reduce(x)
held = genesis.cuda.Graph()  # the group ends before it
with genesis.cuda.graph(held):
    dist.all_reduce(x)
held.replay()
assert x[:2].tolist() == [size**2] * 2
"""
COMPILED = """
from tests.distributed import compiled

for arguments in (
    {}, {"how": "accumulate"}, {"optimizer": "AdamW", "how": "scaler clip"}, {"compression": "bfloat16"},
    {"network": "convolutional", "norm": "synchronized"}, {"network": "convolutional", "how": "autocast"},
):
    print(arguments, flush=True)
    with genesis.settings.override(deterministic=True):
        assert compiled.train(rank, size, device="cuda", steps=8, **arguments) >= 4, arguments
programs.fused_norms(rank, size, "silu", device="cuda")
"""
COPIES = """
from genesis import nn
from genesis.distributed import copy_engines
from genesis.nn.parallel import reducer
from tests.distributed import compiled

copy_engines._SLOWEST = float("inf")  # other tests may use the GPUs
transport = dist.group.require("test")._nccl
for name in ("float64", "float32", "float16", "bfloat16"):
    dtype = getattr(genesis, name)
    array = transport.memory(5_000_000, dtype)
    assert transport._copies.has(array)
    genesis.manual_seed(3)
    each = [genesis.randn(array.numel).to(dtype) for _ in range(size)]
    expected = sum((x.double() for x in each), genesis.zeros(array.numel, dtype=genesis.float64)) / size
    tensor = genesis.Tensor(array)
    graph = genesis.cuda.Graph()
    for how in ("call", "call", "graph", "graph"):
        tensor.copy_(each[rank].to("cuda"))
        call = dist.group.require("test").call("mean", "", checked=False)
        if how == "call":
            transport.all_reduce(call, array, dist.ReduceOp.AVG).wait()
        else:
            if not hasattr(graph, "made"):
                with genesis.cuda.graph(graph):
                    transport.all_reduce(call, array, dist.ReduceOp.AVG).wait()
                graph.made = True
            graph.replay()
        assert (tensor.cpu().double() - expected.to(dtype).double()).abs().max().item() <= 1e-15, (name, how)
    del array, tensor, graph
reducer._LONG = 0
models = []
make = nn.parallel.DistributedDataParallel
def kept(*arguments, **options):
    models.append(make(*arguments, **options))
    return models[-1]
compiled.DistributedDataParallel = kept
for arguments in ({}, {"optimizer": "AdamW"}, {"network": "convolutional", "norm": "synchronized"}):
    models.clear()
    assert compiled.train(rank, size, device="cuda", steps=8, **arguments) >= 4, arguments
    assert any(transport._copies.has(bucket.flat) for bucket in models[0]._reducer.buckets), arguments
"""
COPIES_END = """
from genesis.distributed import copy_engines

copy_engines._SLOWEST = float("inf")
transport = dist.group.require("test")._nccl
array = transport.memory(5_000_000, genesis.float32)
def mean():
    call = dist.group.require("test").call("mean", "", checked=False)
    transport.all_reduce(call, array, dist.ReduceOp.AVG).wait()
mean()
graph = genesis.cuda.Graph()
with genesis.cuda.graph(graph):
    mean()
graph.replay()
genesis.cuda.synchronize()
print("begins", time.time(), flush=True)
if rank == 1:
    if sys.argv[1] == "raises":
        raise RuntimeError("no more data")
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "replay":
    graph.replay()
else:
    mean()
genesis.cuda.synchronize()
print("not reached")
"""
KILLED = """
x = genesis.ones(1 << 20, device="cuda")
dist.all_reduce(x)
graph = genesis.cuda.Graph()
with genesis.cuda.graph(graph):
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
def call():
    if sys.argv[1] == "replay":
        graph.replay()
    else:
        dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True).wait()
    genesis.cuda.synchronize()
if rank == 1:
    call()
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    while True:
        call()
        dist.group.require("test").settle()
except dist.DistributedError as error:
    assert time.monotonic() - start < 10, time.monotonic() - start
    assert "rank 1 (process" in str(error) and "no longer runs" in str(error), error
    print("rank 0 has seen it")
"""
APART = """
from genesis.distributed import faults

faults.LONG = 2.0
dist.group.require("test").check = False
x = genesis.ones(1 << 10, device="cuda")
dist.all_reduce(x)
graph = genesis.cuda.Graph()
with genesis.cuda.graph(graph):
    dist.all_reduce(x)
start = time.monotonic()
try:
    if sys.argv[1] == "calls":
        (dist.all_reduce if rank == 0 else dist.broadcast)(x)
    elif sys.argv[1] == "shapes":
        dist.all_reduce(x if rank == 0 else genesis.ones(1 << 24, device="cuda"))
    elif sys.argv[1] == "replay" and rank == 0:
        graph.replay()
    elif sys.argv[1] == "host" and rank == 0:
        dist.barrier()
    else:
        dist.broadcast(x, src=0)
    dist.group.require("test").settle()
    dist.barrier()
    dist.barrier()
except dist.DistributedError as error:
    assert time.monotonic() - start < 10, time.monotonic() - start
    print("apart:", error)
"""
# Beside NCCL's traffic, loads of the kernels of 1x1 expansions are late at times (expand_1x1_stages.cuh).
IN_TURN = """
import genesis.nn.functional as F
from genesis import nn

images = genesis.randn(128, 3, 224, 224, device="cuda")
labels = genesis.randint(0, 1000, (128,), device="cuda")
def loop(is_parallel):
    genesis.manual_seed(0)
    model = genesis.models.create("resnet50").to("cuda")
    optimizer = genesis.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    whole = nn.parallel.DistributedDataParallel(model) if is_parallel else model
    def step():
        optimizer.zero_grad()
        with genesis.autocast("cuda", dtype=genesis.bfloat16):
            loss = F.cross_entropy(whole(images), labels)
        loss.backward()
        optimizer.step()
        return loss
    return genesis.compile(step)
loops = loop(True), loop(True), loop(False)
for turn in range(10):
    for each in loops:
        for _ in range(35):
            loss = each()
        assert loss.isfinite().item()
"""
AROUND_COMPILED = """
import copy
import os
import sys
import torch
import torch.distributed
from torch import nn
import genesis.torch

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))


def layer(channels):
    return nn.Conv2d(channels, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.SiLU()  # smooth: no sign to flip


torch.manual_seed(0)
layers = *layer(16), *layer(256), *layer(256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
plain = nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
models = plain, genesis.torch.compile(copy.deepcopy(plain)), copy.deepcopy(plain).double()
wrapped = [nn.parallel.DistributedDataParallel(model, [rank], bucket_cap_mb=2) for model in models]
torch._dynamo.config.optimize_ddp = "ddp_optimizer" if sys.argv[1] == "buckets" else True
for step in range(8):
    generator = torch.Generator("cuda").manual_seed(2 * step + rank)
    x = torch.randn(8, 16, 12, 12, device="cuda", generator=generator)
    gradients = []
    for model in wrapped:
        model.zero_grad()
        model(x.to(next(model.parameters()).dtype)).square().mean().backward()
        gradients.append([parameter.grad.double() for parameter in model.parameters()])
        torch.optim.SGD(model.parameters(), lr=1e-3).step()
    for theirs, ours, exact in zip(*gradients, strict=True):
        error, theirs = (float((x - exact).norm() / exact.norm()) for x in (ours, theirs))
        assert error <= 2 * theirs + 1e-5, (step, exact.shape, error, theirs)
own = torch.cat([x.detach().flatten() for x in models[1].parameters()])
every = [torch.empty_like(own) for _ in range(2)]
torch.distributed.all_gather(every, own)
assert torch.equal(*every)
graphs = genesis.torch.report(models[1]).graphs
assert all(graph.captured for graph in graphs), graphs
assert (len(graphs) > 1) is (sys.argv[1] == "buckets"), graphs
torch.distributed.destroy_process_group()
print("rank", rank, "is done")
"""


def run(folder: Path, text: str, *arguments: str) -> list[tuple[int, str]]:
    """The ranks' exit statuses, and what they have said."""
    pytest.importorskip("nccl", reason="nccl4py, of the extra 'nccl', is not installed")
    program = folder / "program.py"
    program.write_text(text)
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    commands = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    for rank in ("0", "1"):  # without torchrun, which ends a rank itself if another has died
        own = {**environment, **place, "RANK": rank, "LOCAL_RANK": rank}
        command = [sys.executable, str(program), *arguments]
        commands.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [command.communicate(timeout=180)[0] for command in commands]
    finally:
        for command in commands:
            command.kill()
    return [(command.returncode, text) for command, text in zip(commands, said, strict=True)]


@pytest.mark.parametrize(
    "text",
    [COLLECTIVES, TRAINING, GRAPHS, COMPILED, COPIES, IN_TURN],
    ids=["collectives", "training", "graphs", "compiled", "copies", "in turn"],
)
def test_two_gpus(tmp_path: Path, text: str) -> None:
    for rank, (status, said) in enumerate(run(tmp_path, BEGIN + text + END)):
        assert status == 0, said
        assert f"rank {rank} is done" in said


@pytest.mark.parametrize("graphs", ["buckets", "whole"])
def test_around_a_compiled_pytorch_model(tmp_path: Path, graphs: str) -> None:
    """PyTorch's DistributedDataParallel; Dynamo ends graphs where the gradients' buckets end, or doesn't."""
    for rank, (status, said) in enumerate(run(tmp_path, AROUND_COMPILED, graphs)):
        assert status == 0, said
        assert f"rank {rank} is done" in said


@pytest.mark.parametrize("where", ["replay", "call"])
def test_a_killed_rank(tmp_path: Path, where: str) -> None:
    (status, said), (killed, _) = run(tmp_path, BEGIN + KILLED, where)
    assert killed == -signal.SIGKILL
    assert status == 0, said
    assert "rank 0 has seen it" in said


@pytest.mark.parametrize("how", ["call", "replay", "raises"])
def test_copies_that_wait_for_a_rank_that_is_gone(tmp_path: Path, how: str) -> None:
    """The device never ends them, so the process does, and says why."""
    start = time.time()
    (status, said), _ = run(tmp_path, BEGIN + COPIES_END, how)
    assert status == 1, said
    assert "DistributedError: " in said
    assert "rank 1 (process" in said
    assert ("has ended: RuntimeError: no more data" if how == "raises" else "no longer runs") in said
    assert "not reached" not in said
    begin = float(said.partition("begins ")[2].split()[0])
    assert start < begin
    assert time.time() - begin < 12, said


@pytest.mark.parametrize("what", ["calls", "shapes", "replay", "host"])
def test_ranks_in_different_calls(tmp_path: Path, what: str) -> None:
    for status, said in run(tmp_path, BEGIN + APART, what):
        assert status == 0, said
        assert "the ranks waited in different calls: rank " in said
