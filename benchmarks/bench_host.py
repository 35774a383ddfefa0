"""What a call costs on the host, in microseconds: Genesis beside torch in one run, on tensors too small to matter.

python benchmarks/bench_host.py             on the CPU, and on the GPU where there is one
python benchmarks/bench_host.py --stubbed   the CUDA backend with launches that do nothing: needs no GPU
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

import genesis
from genesis import backends, dtypes, nn
from genesis.backends.cuda import driver
from genesis.backends.cuda.simulated import SimulatedDriver

CALLS, ROUNDS = 100, 30
Sides = dict[str, Callable[[], object]]


def compare(case: str, sides: Sides, wait: Callable[[], object]) -> None:
    """Print the median and the least time of a call of each side; sides take turns, and wait() is not timed."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(ROUNDS):
        for name, side in sides.items():
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                side()
            if round_number >= 3:
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    wait()
    shown = "   ".join(f"{name} {statistics.median(t):7.2f} (least {min(t):.2f})" for name, t in times.items())
    print(f"  {case:<28} {shown}")


def compare_on(device: str, title: str, wait: Callable[[], object], beside_torch: bool = True) -> list[str]:
    """All cases on one device. Returns the names of those that failed: one must not cost the others."""
    print(f"{title}: µs per call")
    failed = []
    with genesis.no_grad(), torch.no_grad():
        for case, prepare in CASES.items():
            try:
                sides = prepare(device, torch.device(device if beside_torch else "cpu"))
                if not beside_torch:
                    sides.pop("torch", None)
                compare(case, sides, wait)
            except Exception as error:
                failed.append(f"{title}: {case}")
                print(f"  {case:<28} {type(error).__name__}: {error}")
    return failed


def add_alone(device: str, torch_device: torch.device) -> Sides:
    backend, handle = backends.get(device), genesis.ones(16, device=device).array.handle
    return {"genesis": lambda: backend.add(handle, handle)}


def allocate(device: str, torch_device: torch.device) -> Sides:
    backend, float32 = backends.get(device), dtypes.float32
    return {
        "genesis": lambda: backend.empty((16,), (1,), float32, 0),
        "torch": lambda: torch.empty(16, device=torch_device),
    }


def add(device: str, torch_device: torch.device) -> Sides:
    x, tx = genesis.ones(16, device=device), torch.ones(16, device=torch_device)
    return {"genesis": lambda: x + x, "torch": lambda: tx + tx}


def add_number(device: str, torch_device: torch.device) -> Sides:
    x, tx = genesis.ones(16, device=device), torch.ones(16, device=torch_device)
    return {"genesis": lambda: x + 1.0, "torch": lambda: tx + 1.0}


def add_broadcast(device: str, torch_device: torch.device) -> Sides:
    x, tx = genesis.ones(16, device=device), torch.ones(16, device=torch_device)
    return {"genesis": lambda: x[:, None] + x, "torch": lambda: tx[:, None] + tx}


def mlp(device: str, torch_device: torch.device) -> Sides:
    sizes = (784, 512, 256, 10)

    def layers(kind: Any) -> list[Any]:
        return [kind.Linear(*sizes[:2]), kind.ReLU(), kind.Linear(*sizes[1:3]), kind.ReLU(), kind.Linear(*sizes[2:])]

    ours = nn.Sequential(*layers(nn)).to(device)
    theirs = torch.nn.Sequential(*layers(torch.nn)).to(torch_device)
    x, tx = genesis.ones(1, 784, device=device), torch.ones(1, 784, device=torch_device)
    return {"genesis": lambda: ours(x), "torch": lambda: theirs(tx)}


CASES: dict[str, Callable[[str, torch.device], Sides]] = {
    "add, backend alone": add_alone,
    "allocate and free": allocate,
    "add": add,
    "add a number": add_number,
    "add, broadcast": add_broadcast,
    "MLP 784-512-256-10, batch 1": mlp,
}


class StubbedDriver(SimulatedDriver):
    """The simulated device, but kernels are packed as for a GPU, and launching them does nothing."""

    watches_memory = False
    watch_launches = False

    def load_kernel(self, device: int, kernel: Any, signature: Any) -> Any:
        from genesis.backends.cuda.driver import cuda_driver

        cuda_driver.cu.cuLaunchKernel = lambda *args: done  # type: ignore[attr-defined]
        done = (cuda_driver.cu.CUresult.CUDA_SUCCESS,)
        types_ = [kind for kind, param in zip(signature.types, kernel.params, strict=True) if not param.is_constexpr]
        metadata = types.SimpleNamespace(num_warps=4, num_ctas=1, shared=0, global_scratch_size=0)
        function = cuda_driver.cu.CUfunction(0)
        return cuda_driver.CudaKernel(self, device, kernel.__name__, function, types_, metadata)  # type: ignore[arg-type]

    def activate(self, device: int) -> None:
        pass

    def recorder(self, device: int) -> Callable[[str], None]:
        return lambda name: None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stubbed", action="store_true", help="the CUDA backend with launches that do nothing")
    if parser.parse_args().stubbed:
        driver._drivers["simulated"] = StubbedDriver()
        genesis.settings.settings.cuda = "simulated"
        return 1 if compare_on("cuda", "stubbed launches", lambda: None, beside_torch=False) else 0
    torch.set_num_threads(1)
    failed = compare_on("cpu", "cpu", lambda: None)
    if torch.cuda.is_available() and driver.is_available():
        failed += compare_on("cuda", torch.cuda.get_device_name(), torch.cuda.synchronize)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
