"""What DistributedDataParallel costs the host, in milliseconds per step.

python benchmarks/bench_ddp_host.py gloo      a small model in 2 processes on the CPU, beside PyTorch's, in turns
python benchmarks/bench_ddp_host.py stubbed   ResNet-50 on the CUDA backend with launches and NCCL that do nothing,
                                              with and without the wrapper, in turns: needs no GPU
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

import genesis
import genesis.nn.functional as F
from genesis import distributed as dist
from genesis import nn, optim

PORT = 29531  # two stores: of PyTorch's group, and of Genesis'
Step = Callable[[], object]


def report(steps: dict[str, Step], rounds: int, steps_of_round: int, begin: Step, is_shown: bool = True) -> None:
    """Print the median and the least time of a step of each side; sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(8):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            begin()
            start = time.perf_counter()
            for _ in range(steps_of_round):
                step()
            times[name].append((time.perf_counter() - start) / steps_of_round * 1e3)
    for name, measured in times.items():
        if is_shown:
            print(f"  {name:<16} {statistics.median(measured):7.3f} ms (least {min(measured):.3f})", flush=True)


def _theirs(size: int, wraps: bool) -> Step:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 10))
    parameters = list(model.parameters())
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if wraps else model
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    x, y = torch.randn(8, size), torch.randint(0, 10, (8,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _mine(size: int, wraps: bool) -> Step:
    genesis.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    model = nn.parallel.DistributedDataParallel(model) if wraps else model
    x, y = genesis.randn(8, size), genesis.randint(0, 10, (8,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def gloo_rank(rank: int, arguments: argparse.Namespace) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    place = {"rank": rank, "world_size": 2}
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", **place)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT + 1}", **place)
    sides: dict[str, Step] = {
        "PyTorch, DDP": _theirs(arguments.size, True), "Genesis, DDP": _mine(arguments.size, True),
        "PyTorch, alone": _theirs(arguments.size, False), "Genesis, alone": _mine(arguments.size, False),
    }  # fmt: skip
    report(sides, arguments.rounds, arguments.steps, torch.distributed.barrier, is_shown=rank == 0)
    dist.destroy_process_group()
    torch.distributed.destroy_process_group()


class _Communicator:
    """NCCL's, whose calls do nothing."""

    @classmethod
    def init(cls, size: int, rank: int, shared: object) -> _Communicator:
        return cls()

    def allreduce(self, sent: object, received: object, op: object, *, stream: int) -> None:
        pass

    def broadcast(self, sent: object, received: object, root: int, *, stream: int) -> None:
        pass

    def get_async_error(self) -> int:
        return 0

    def abort(self) -> None:
        pass

    def destroy(self) -> None:
        pass


def stubbed(arguments: argparse.Namespace) -> None:
    """The steps of one process, whose group has no other."""
    import stubbed as device

    from genesis.backends.cuda import driver
    from genesis.distributed import nccl

    device.install()
    driver.get().copy = lambda *args: None  # the simulated device would copy the gradients
    unique = types.SimpleNamespace(as_bytes=b"", from_bytes=lambda given: given)
    core = types.SimpleNamespace(
        Communicator=_Communicator, UniqueId=unique, get_unique_id=lambda: unique, AVG=0, SUM=1
    )
    nccl.require_package = lambda: core  # type: ignore[assignment]
    dist.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)

    def made(wraps: bool) -> Step:
        model: nn.Module = genesis.models.create(arguments.network, num_classes=10).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        model = nn.parallel.DistributedDataParallel(model) if wraps else model
        x, y = genesis.zeros(2, 3, 64, 64, device="cuda"), genesis.zeros(2, dtype=genesis.int64, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with genesis.autocast("cuda", dtype=genesis.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

        return step

    sides = {"alone": made(False), "DDP": made(True)}
    report(sides, arguments.rounds, arguments.steps, lambda: None)
    if arguments.profile:
        import cProfile
        import pstats

        for name, step in sides.items():
            print(name)
            with cProfile.Profile() as profile:
                for _ in range(20):
                    step()
            pstats.Stats(profile).sort_stats(arguments.profile).print_stats(60)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gloo", "stubbed"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10, help="in a row")
    parser.add_argument("--size", type=int, default=64, help="features of the small model")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--profile", help="print a profile, sorted by this column of pstats: tottime, cumtime")
    arguments = parser.parse_args()
    if arguments.what == "gloo":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.multiprocessing.spawn(gloo_rank, (arguments,), 2)
    else:
        stubbed(arguments)


if __name__ == "__main__":
    main()
