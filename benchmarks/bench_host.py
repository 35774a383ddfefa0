"""What a call costs on the host, in microseconds: Genesis beside torch in one run, on tensors too small to matter.

python benchmarks/bench_host.py             on the CPU, and on the GPU where there is one
python benchmarks/bench_host.py --stubbed   the CUDA backend with launches that do nothing: needs no GPU
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import genesis
import genesis.torch
from genesis import backends, dtypes, nn
from genesis import functional as F
from genesis.backends.cuda import driver
from genesis.records import ConvGeometry

CALLS, ROUNDS = 100, 30  # at most so many calls in a round
LONGEST_ROUND = 0.05  # seconds, where a call takes long
Sides = dict[str, Callable[[], object]]


def compare(case: str, sides: Sides, wait: Callable[[], object]) -> None:
    """Print the median and the least time of a call of each side; sides take turns, and wait() is not timed."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    calls = CALLS
    for side in sides.values():
        side()
        start = time.perf_counter()
        side()
        calls = max(1, min(calls, round(LONGEST_ROUND / (time.perf_counter() - start))))
    for round_number in range(ROUNDS):
        for name, side in sides.items():
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                side()
            if round_number >= 3:
                times[name].append((time.perf_counter() - start) / calls * 1e6)
    wait()
    shown = "   ".join(f"{name} {statistics.median(t):7.2f} (least {min(t):.2f})" for name, t in times.items())
    print(f"  {case:<30} {shown}")


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
                if sides:
                    compare(case, sides, wait)
            except Exception as error:
                failed.append(f"{title}: {case}")
                print(f"  {case:<30} {type(error).__name__}: {error}")
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


IMAGES, CHANNELS, LAYERS = (4, 64, 3, 3), 64, 10


def images(device: str, torch_device: torch.device, dtype: str = "bfloat16") -> tuple[Any, torch.Tensor]:
    """The same images for both sides, NHWC in memory."""
    theirs = torch.ones(IMAGES, dtype=getattr(torch, dtype), device=torch_device)
    ours = genesis.ones(IMAGES, dtype=getattr(genesis, dtype), device=device)
    return ours.contiguous("channels_last"), theirs.contiguous(memory_format=torch.channels_last)


def conv_alone(device: str, torch_device: torch.device) -> Sides:
    backend, (x, _) = backends.get(device), images(device, torch_device)
    weight = nn.Conv2d(CHANNELS, CHANNELS, 1, device=device, dtype=genesis.bfloat16).weight
    handle, taps = x.array.handle, weight.array.handle
    geometry = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
    return {"genesis": lambda: backend.conv_forward(handle, taps, None, geometry)}


def conv2d(device: str, torch_device: torch.device) -> Sides:
    x, tx = images(device, torch_device)
    weight = nn.Conv2d(CHANNELS, CHANNELS, 1, device=device, dtype=genesis.bfloat16).weight
    their_weight = torch.ones(CHANNELS, CHANNELS, 1, 1, dtype=tx.dtype, device=torch_device)
    return {"genesis": lambda: F.conv2d(x, weight), "torch": lambda: torch.nn.functional.conv2d(tx, their_weight)}


def conv_bn_relu(device: str, torch_device: torch.device, kernel_size: int = 3) -> Sides:
    """Forward and backward of several layers in training, to all parameters and the input."""
    x, tx = images(device, torch_device)
    grad, their_grad = images(device, torch_device)
    ours = nn.Sequential(*[nn.ConvBNReLU(CHANNELS, CHANNELS, kernel_size, device=device) for _ in range(LAYERS)])
    fused = torch.nn.Sequential(
        *[genesis.torch.ConvBNReLU(CHANNELS, CHANNELS, kernel_size, device=torch_device) for _ in range(LAYERS)]
    ).to(memory_format=torch.channels_last)
    for layer, their_layer in zip(ours, fused, strict=True):
        layer.conv.to(dtype=x.dtype)
        their_layer.conv.to(dtype=tx.dtype)
    theirs = torch.nn.Sequential(*[part for layer in fused for part in layer.children()])
    x.requires_grad, tx.requires_grad = True, True
    leaves, their_leaves = [x, *ours.parameters()], [tx, *fused.parameters()]

    def step() -> object:
        with genesis.enable_grad():
            return genesis.autograd.grad(ours(x), leaves, grad)

    def their_step(layers: Any) -> object:
        with torch.enable_grad():
            return torch.autograd.grad(layers(tx), their_leaves, their_grad)

    return {
        "genesis": step,
        "genesis.torch": lambda: their_step(fused),
        "torch": lambda: their_step(theirs),
    }


def conv_relu(device: str, torch_device: torch.device, training: bool = False) -> Sides:
    """Several convolutions and activations without norms of a PyTorch model: inference, or forward and backward."""
    _, x = images(device, torch_device)
    _, grad = images(device, torch_device)
    layers = [
        part for _ in range(LAYERS) for part in (torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), torch.nn.ReLU())
    ]
    theirs = torch.nn.Sequential(*layers).to(torch_device, x.dtype, memory_format=torch.channels_last)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    x.requires_grad = training

    def step(model: torch.nn.Module) -> object:
        if not training:
            return model(x)
        with torch.enable_grad():
            return torch.autograd.grad(model(x), [x, *model.parameters()], grad)

    return {"genesis.torch": lambda: step(ours), "torch": lambda: step(theirs)}


SOURCE = """
__global__ void vector_add(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
"""


def user_kernel(device: str, torch_device: torch.device) -> Sides:
    """Beside torch's own addition into a tensor that is there: hosts differ, and so does one host from hour to hour."""
    if device == "cpu":
        return {}
    kernel = genesis.cuda.load_inline("bench_host", SOURCE).vector_add
    x, tx = genesis.ones(64, device=device), torch.ones(64, device=torch_device)
    return {
        "genesis": lambda: kernel(x, x, x, 64),
        "genesis.torch": lambda: kernel(tx, tx, tx, 64),
        "torch": lambda: torch.add(tx, tx, out=tx),
    }


FIRST_CALLS = {
    "first convolution, tuned before": """
x, w = genesis.ones(32, 64, 28, 28, device="cuda"), genesis.ones(64, 64, 3, 3, device="cuda")
call = lambda: genesis.nn.functional.conv2d(x, w, padding=1)
genesis.cuda.synchronize()
if WARM:
    print(milliseconds(call))
else:
    with genesis.tuning(60):
        print(milliseconds(call))
""",
    "first launch of a user's kernel": f"""
SOURCE = '''{SOURCE}'''
x = genesis.ones(64, device="cuda")
genesis.cuda.synchronize()
print(milliseconds(lambda: genesis.cuda.load_inline("bench_host", SOURCE).vector_add(x, x, x, 64)))
""",
}
FIRST_CALL = """
import sys, time, genesis
WARM = sys.argv[1] == "warm"
def milliseconds(call):
    start = time.perf_counter()
    call()
    genesis.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3
"""


def first_calls() -> None:
    """Milliseconds of the first call in a process that finds on disk what an earlier one has tuned and compiled."""
    for case, program in FIRST_CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "GENESIS_CACHE_DIR": folder}
            times = []
            for mode in ("cold", *["warm"] * 5):
                command = [sys.executable, "-c", FIRST_CALL + program, mode]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                times.append(float(done.stdout))
        cold, *warm = times
        print(f"  {case:<31} {statistics.median(warm):.1f} ms (least {min(warm):.1f}); nothing on disk: {cold:.0f} ms")


CASES: dict[str, Callable[[str, torch.device], Sides]] = {
    "add, backend alone": add_alone,
    "allocate and free": allocate,
    "add": add,
    "add a number": add_number,
    "add, broadcast": add_broadcast,
    "MLP 784-512-256-10, batch 1": mlp,
    "conv2d, backend alone": conv_alone,
    "conv2d": conv2d,
    "10 conv_bn_relu 3x3, fwd + bwd": conv_bn_relu,
    "10 conv_bn_relu 1x1, fwd + bwd": functools.partial(conv_bn_relu, kernel_size=1),
    "10 conv, ReLU, inference": conv_relu,
    "10 conv, ReLU, fwd + bwd": functools.partial(conv_relu, training=True),
    "a user's kernel": user_kernel,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stubbed", action="store_true", help="the CUDA backend with launches that do nothing")
    if parser.parse_args().stubbed:
        import stubbed  # wants NVIDIA's bindings

        stubbed.install()
        return 1 if compare_on("cuda", "stubbed launches", lambda: None, beside_torch=False) else 0
    torch.set_num_threads(1)
    failed = compare_on("cpu", "cpu", lambda: None)
    if torch.cuda.is_available() and driver.is_available():
        failed += compare_on("cuda", torch.cuda.get_device_name(), torch.cuda.synchronize)
        first_calls()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
