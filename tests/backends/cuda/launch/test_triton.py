"""launch(): what kernels are given, how they are compiled, what goes wrong and how it says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.runtime.jit import mangle_type

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, triton_driver
from genesis.backends.cuda.driver.triton_driver import compile_kernel
from genesis.backends.cuda.launch.triton import TRITON_NAMES, Specimen, launch, prepare_raw
from genesis.backends.cuda.runtime import array, streams


@triton.jit
def _scale(x, factor):
    return x * factor


@triton.jit
def _weighted_sum_kernel(out_ptr, x_ptr, bias_ptr, factor, shape, num_elements, BLOCK: tl.constexpr):
    """Calls a helper, the standard library, and takes None and a tuple."""
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns, mask=columns < num_elements, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr)
    total = tl.sum(tl.where(columns < num_elements, _scale(x, factor), 0.0), axis=0)
    tl.store(out_ptr, total + shape[0] * shape[1])


@triton.jit
def _shift_kernel(out_ptr, x_ptr, num_elements, BLOCK: tl.constexpr):
    """Reads `num_elements` elements from x, whatever its size."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def _careless_kernel(out_ptr, x_ptr):
    tl.store(out_ptr, tl.load(x_ptr) + tl.load(x_ptr))


def call(cuda: Backend, bias: float | None, factor: float, shape: tuple[int, int]) -> float:
    x = cuda.from_cpu(np.arange(10, dtype=np.float32), dtypes.float32)
    out = array.empty((1,), dtypes.float32)
    bias_array = None if bias is None else cuda.full((1,), bias, dtypes.float32)
    launch(_weighted_sum_kernel, (1,), out, x, bias_array, factor, shape, 10, BLOCK=16)
    return float(cuda.to_cpu(out)[0])


def test_arguments_of_every_kind(cuda: Backend) -> None:
    assert call(cuda, None, 2.0, (3, 4)) == 90 + 12
    assert call(cuda, 1.0, 2.0, (1, 16)) == 110 + 16
    assert call(cuda, 1.0, 0.5, (-5, 1)) == 27.5 - 5


def test_same_kernel_runs_and_compiles_in_one_process(simulated: Backend) -> None:
    args = (dtypes.float32, dtypes.bfloat16, None, 2.0, (1, 4), 10)
    specimen = Specimen(_weighted_sum_kernel, args, {"BLOCK": 16})
    for _ in range(2):
        assert call(simulated, None, 2.0, (3, 4)) == 102
        assert compile_kernel(_weighted_sum_kernel, specimen.signature(), 90).metadata.name == "_weighted_sum_kernel"


def test_an_empty_grid_launches_nothing(cuda: Backend) -> None:
    out = cuda.full((1,), 5.0, dtypes.float32)
    launch(_shift_kernel, (0,), out, out, 1, BLOCK=16)
    assert cuda.to_cpu(out).tolist() == [5.0]


def test_wrong_arguments_are_listed(cuda: Backend) -> None:
    x = cuda.full((1,), 5.0, dtypes.float32)
    message = "_shift_kernel: takes out_ptr, x_ptr, num_elements by position and BLOCK by name, got 2 by position"
    with pytest.raises(TypeError, match=message):
        launch(_shift_kernel, (1,), x, x, BLOCK=16)


def test_int_beyond_32_bits(cuda: Backend) -> None:
    out, x = cuda.full((16,), 0.0, dtypes.float32), cuda.full((16,), 2.0, dtypes.float32)
    launch(_shift_kernel, (1,), out, x, 2**40, BLOCK=16)
    assert (cuda.to_cpu(out) == 2).all()


def test_triton_reads_our_dtypes(simulated: Backend) -> None:
    for dtype in dtypes.ALL:
        found = tl.str_to_ty(mangle_type(array.empty((1,), dtype)), None)
        assert found == tl.str_to_ty(f"*{TRITON_NAMES[dtype]}", None)


def test_current_stream_is_used(cuda: Backend) -> None:
    with streams.use(streams.Stream()) as stream:
        assert call(cuda, None, 2.0, (3, 4)) == 102
        stream.synchronize()


# --- the simulated device sees more than a GPU ----------------------------------------------------------------------
@pytest.mark.parametrize(("what", "out_size", "x_size"), [("load", 32, 20), ("store", 20, 32)])
def test_leaving_an_array_names_the_kernel(simulated: Backend, what: str, out_size: int, x_size: int) -> None:
    out, x = (simulated.full((size,), 0.0, dtypes.float32) for size in (out_size, x_size))
    with pytest.raises(KernelError, match=rf"_shift_kernel: {what} outside of every array, in program \(1, 0, 0\)"):
        launch(_shift_kernel, (2,), out, x, 32, BLOCK=16)


def test_arithmetic_on_bfloat16_is_refused(simulated: Backend) -> None:
    x = simulated.full((1,), 1.5, dtypes.bfloat16)
    with pytest.raises(KernelError, match="_careless_kernel: arithmetic on bfloat16; convert to float32"):
        launch(_careless_kernel, (1,), x, x)


# --- a real device only ---------------------------------------------------------------------------------------------
_FAULT = """
import numpy as np
import triton, triton.language as tl
from genesis import backends, dtypes
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.driver import KernelError, triton_driver

@triton.jit
def _wild_kernel(out_ptr, offset):
    tl.store(out_ptr + offset, 1.0)

cuda = backends.get("cuda")
x = cuda.full((4,), 1.0, dtypes.float32)
launch(_wild_kernel, (1,), x, 1 << 44)
try:
    cuda.synchronize()
except KernelError as error:
    assert "_wild_kernel" in str(error), error
    assert "ILLEGAL_ADDRESS" in str(error), error
    print("named")
"""


@pytest.mark.gpu
def test_asynchronous_fault_names_the_kernel(gpu: Backend, tmp_path: Path) -> None:
    script = tmp_path / "fault.py"  # a file, since Triton reads its source; a process, since the fault ends the context
    script.write_text(_FAULT)
    environment = {**os.environ, "GENESIS_CUDA": "auto"}
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120)
    assert "named" in ran.stdout, ran.stderr


@pytest.mark.gpu
def test_threads_do_not_mix_arguments(gpu: Backend) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(100):
            out = array.empty((16,), dtypes.float32)
            x = gpu.full((16,), float(1000 * seed + i), dtypes.float32)
            launch(_shift_kernel, (1,), out, x, 16, BLOCK=16)
            if not (gpu.to_cpu(out) == 1000 * seed + i).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_thread_can_begin_with_a_launch(gpu: Backend, own_stream: bool) -> None:
    """It has no context yet: whoever allocates first has been given one."""
    out, x = gpu.full((16,), 0.0, dtypes.float32), gpu.full((16,), 3.0, dtypes.float32)
    run = prepare_raw(_shift_kernel, 0, (1,), (out.layout, x.layout), 16, BLOCK=16)
    stream = streams.Stream() if own_stream else streams.default()
    faults: list[BaseException] = []

    def work() -> None:
        try:
            with streams.use(stream):
                run(streams.current_handle(0), out.data_pointer, x.data_pointer)
            stream.synchronize()
        except BaseException as fault:
            faults.append(fault)

    gpu.synchronize(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert faults == []
    assert (gpu.to_cpu(out) == 3).all()


def test_threads_compile_for_one_architecture_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton asks a global which architecture it is; another one has to wait."""
    before = triton_driver.triton_runtime._active
    both = threading.Barrier(2)
    asked: list[tuple[int, int]] = []

    def compile(source: Any, target: Any, options: Any) -> None:
        if target.arch == 90:
            both.wait(10)  # raises where the other thread is not compiling
        asked.append((target.arch, triton_driver.triton_runtime.active.get_current_target().arch))

    monkeypatch.setattr(triton_driver.triton, "compile", compile)
    specimen = Specimen(_shift_kernel, (dtypes.float32, dtypes.float32, 16), {"BLOCK": 16})
    threads = [
        threading.Thread(target=compile_kernel, args=(_shift_kernel, specimen.signature(), arch))
        for arch in (90, 80, 90, 80)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(asked) == [(80, 80)] * 2 + [(90, 90)] * 2
    assert triton_driver.triton_runtime._active is before


@pytest.mark.gpu
def test_tritons_own_launch_runs_on_our_driver(gpu: Backend) -> None:
    out, x = gpu.full((16,), 0.0, dtypes.float32), gpu.full((16,), 3.0, dtypes.float32)
    with triton_driver.installed(driver.get()):
        _shift_kernel[(1,)](out, x, 16, BLOCK=16)
    assert (gpu.to_cpu(out) == 3).all()
