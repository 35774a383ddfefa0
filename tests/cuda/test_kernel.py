"""Kernels in CUDA C++ on a GPU: results, streams, faults, a second process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import genesis
from genesis.cuda import KernelError
from genesis.settings import override

pytestmark = pytest.mark.gpu

SOURCE = """
extern "C" __global__ void vector_add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
template <typename T, int FACTOR> __global__ void scale(const T* x, T* out, size_t n) {
    extern __shared__ char memory[];
    T* shared = reinterpret_cast<T*>(memory);
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    shared[threadIdx.x] = i < n ? x[i] : T(0);
    __syncthreads();
    if (i < n) out[i] = shared[threadIdx.x] * T(FACTOR);
}
extern "C" __global__ void wait(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
extern "C" __global__ void out_of_bounds(float* x, size_t offset) { x[offset] = 1; }
"""


@pytest.fixture(scope="module")
def module() -> genesis.cuda.Module:
    return genesis.cuda.load_inline("test_kernel", SOURCE)


class Dlpack:
    """Nothing but DLPack, as another library's array."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class Interface:
    """Nothing but __cuda_array_interface__."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._tensor.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [torch.clone, genesis.from_torch, Dlpack, Interface])
@pytest.mark.parametrize("wrap_out", [torch.Tensor.detach, genesis.from_torch, Dlpack, Interface])
def test_one_call_for_all_tensors(module: genesis.cuda.Module, wrap: Any, wrap_out: Any) -> None:
    a, b, out = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    for _ in range(2):
        module.vector_add(wrap(a), wrap(b), wrap_out(out), 1000)
    assert torch.equal(out, a + b)  # in the memory that was given


def test_the_current_stream_of_the_tensors_library(module: genesis.cuda.Module) -> None:
    a = torch.ones(1 << 20, device="cuda")
    out = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        module.wait(50_000_000, stream=side)
        a.mul_(2)  # after the wait
        module.vector_add(a, a, out, a.numel())
        doubled = out * 1
    torch.cuda.current_stream().wait_stream(side)
    assert doubled.sum().item() == 4 * (1 << 20)


def test_tensors_of_both_libraries_in_one_call(module: genesis.cuda.Module) -> None:
    """Each on its own stream: the launch waits for both, and both wait for it."""
    ours, theirs = genesis.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with genesis.cuda.stream(ours), torch.cuda.stream(theirs):
        a = genesis.ones(1 << 20, device="cuda")
        module.wait(50_000_000, stream=ours)
        a.mul_(3)
        out = torch.zeros(1 << 20, device="cuda")
        module.vector_add(out, a, out, out.numel())
        module.vector_add(a, out, a, out.numel())
        total, other = (out * 1).sum(), (a * 1).sum()
        assert total.item() == 3 * (1 << 20)
        assert other.item() == 6 * (1 << 20)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_templates_and_shared_memory(module: genesis.cuda.Module, dtype: str) -> None:
    ctype = {"float32": "float", "float64": "double", "int32": "int", "uint8": "unsigned char"}[dtype]
    x = torch.arange(100, device="cuda").to(getattr(torch, dtype))
    out = torch.zeros_like(x)
    module[f"scale<{ctype}, 2>"](x, out, 100, block=64, grid=2, shared=64 * x.itemsize)
    assert torch.equal(out, 2 * x)
    if dtype == "float64":
        big = torch.ones(1024 * 8, device="cuda", dtype=torch.float64)
        module["scale<double, 2>"](big, big, big.numel(), block=1024, grid=8, shared=100_000)
        assert big.sum().item() == 2 * 1024 * 8


def test_debug_shows_launches_and_waits(module: genesis.cuda.Module, capfd: pytest.CaptureFixture[str]) -> None:
    x = genesis.ones(4, device="cuda")
    with override(debug=3):
        start = time.perf_counter()
        module.wait(50_000_000)
        assert time.perf_counter() - start > 0.01
        module.vector_add(x, x, x, 4)
    assert "genesis: launch vector_add(1, 1, 1) on stream 0x0: 0x" in capfd.readouterr().err


def process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(["src", *sys.path])
    command = [sys.executable, "-c", f"SOURCE = '''{SOURCE}'''\n{script}"]
    everything = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(command, env=everything, capture_output=True, text=True, check=False)


FAULT = """
import genesis
module = genesis.cuda.load_inline("fault", SOURCE)
x = genesis.ones(4, device="cuda")
module.vector_add(x, x, x, 4)
genesis.cuda.synchronize()
module.out_of_bounds(x, OFFSET)
try:
    genesis.cuda.synchronize()
except genesis.cuda.KernelError as error:
    print("caught", error)
else:
    print("sum", x.sum().item())
"""


def test_a_fault_names_the_kernel_and_a_new_process_works() -> None:
    bad = process(FAULT.replace("OFFSET", "1 << 45"))
    assert "caught synchronize (kernels since the last synchronization, newest first: out_of_bounds)" in bad.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in bad.stdout
    good = process(FAULT.replace("OFFSET", "0"))
    assert good.stdout.strip() == "sum 7.0", good.stderr


LOADING = """
import genesis
from genesis.backends.cuda.driver import nvrtc

compiled, compile_cubin = [], nvrtc.compile_cubin
nvrtc.compile_cubin = lambda *args: (compiled.append(args), compile_cubin(*args))[1]
x = genesis.ones(4, device="cuda")
module = genesis.cuda.load_inline("loading", SOURCE)
module.vector_add(x, x, x, 4)
print(len(compiled))
assert x.tolist() == [2.0] * 4
"""


def test_a_second_process_loads_from_the_cache(tmp_path: Path) -> None:
    for expected in (1, 0):
        done = process(LOADING, GENESIS_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == expected


def test_a_write_into_what_torch_has_saved_is_noticed(module: genesis.cuda.Module) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    saved = torch.ones(4, device="cuda")
    y = (x * saved).sum()
    module.vector_add(saved, saved, saved, 4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_launch_that_the_device_refuses(module: genesis.cuda.Module) -> None:
    with pytest.raises(
        KernelError, match=r"vector_add: argument 'shared': expected at most 2324\d\d bytes, got 300000"
    ):
        module.vector_add(torch.ones(1, device="cuda"), None, None, 0, shared=300_000)
