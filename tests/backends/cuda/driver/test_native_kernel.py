"""What a launch of a CUDA C++ kernel hands to the driver, seen without a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver as cu

import genesis
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, launching
from genesis.backends.cuda.driver.cuda_driver import _check
from genesis.errors import DeviceError, DTypeError, ShapeError
from genesis.settings import override
from tests.backends.cuda.driver.test_cuda_driver import Call, arguments, as_driver_call

SOURCE = """
extern "C" __global__ void mixed(const float* x, float* out, int n, double factor, bool flag, uint8_t small,
                                 size_t m) {}
extern "C" __global__ void __launch_bounds__(64) nothing() {}
"""


class Gpu:
    """Stands in for a CudaDriver: all of a GPU that loading and launching ask for."""

    name = "stand-in"  # pools of memory are kept by this name
    watch_launches = False
    dlpack_device_type = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, simulated: Any) -> None:
        self._simulated = simulated
        self.launches: list[SimpleNamespace] = []
        self.noted: list[str] = []
        self.shown: list[str] = []
        self.shared_limits: list[int] = []
        self.max_threads = 1024
        self.functions: list[str] = []
        self.status = 0  # of launches
        done = cu.CUresult.CUDA_SUCCESS
        monkeypatch.setattr(cu, "cuModuleLoadData", lambda cubin: (done, len(cubin)))
        monkeypatch.setattr(cu, "cuModuleGetFunction", self._function)
        monkeypatch.setattr(cu, "cuFuncGetAttribute", self._attribute)
        monkeypatch.setattr(cu, "cuFuncSetAttribute", lambda f, which, n: (self.shared_limits.append(n), (done,))[1])
        monkeypatch.setattr(launching, "driver_call", as_driver_call(self._launch))

    def _attribute(self, which: Any, function: int) -> tuple[Any, int]:
        is_threads = which == cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        return cu.CUresult.CUDA_SUCCESS, self.max_threads if is_threads else 1000

    def _function(self, module: int, name: bytes) -> tuple[Any, int]:
        self.functions.append(name.decode())
        return cu.CUresult.CUDA_SUCCESS, len(self.functions)

    def _launch(self, configuration: int, function: int, table: int, extra: None) -> int:
        call = Call(configuration, function, table)
        name = self.functions[call.function - 1]
        values = arguments(call.table, "QQidBBQ") if name == "mixed" else []
        self.launches.append(SimpleNamespace(**{**vars(call), "function": name, "values": values}))
        return self.status

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulated, name)

    def activate(self, device: int) -> None: ...

    def check(self, device: int, result: tuple[Any, ...], doing: str) -> Any:
        return _check(result, doing)

    def recorder(self, device: int) -> Any:
        return self.noted.append

    def launched(self, device: int, name: str, *launch: Any) -> None:
        self.shown.append(name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with override(cuda="simulated"):
        found = Gpu(monkeypatch, driver.get())
        monkeypatch.setitem(driver._drivers, "simulated", found)
        yield found


@pytest.fixture
def module() -> genesis.cuda.Module:
    return genesis.cuda.load_inline("test_native_kernel", SOURCE)


def test_arguments_grid_and_block(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x, out = genesis.ones(600, device="cuda"), genesis.empty(600, device="cuda")
    for n, factor in [(-3, 0.5), (7, 2)]:
        module.mixed(x, out, n, factor, True, 200, 2**40)
        launch = gpu.launches[-1]
        assert (launch.grid, launch.block, launch.shared, launch.stream) == ((3, 1, 1), (256, 1, 1), 0, 0)
        assert launch.values == [x.data_ptr(), out.data_ptr(), n, factor, 1, 200, 2**40]
    module.mixed(None, out, 1, 1, False, 0, 0, grid=[4, 5], block=(8, 4, 2), shared=100)
    launch = gpu.launches[-1]
    assert (launch.grid, launch.block, launch.shared) == ((4, 5, 1), (8, 4, 2), 100)
    assert launch.values[0] == 0
    with pytest.raises(
        DeviceError, match="argument 'x': expected a tensor on a CUDA device"
    ):  # which is no null pointer
        module.mixed(genesis.ones(600), out, 1, 1, False, 0, 0, grid=[4, 5], block=(8, 4, 2), shared=100)
    module.mixed(x, out, 10, 1, False, 0, 0, grid=lambda x, out, n, *rest: (n, x.numel()))
    assert gpu.launches[-1].grid == (10, 600, 1)
    module.nothing()
    assert (gpu.launches[-1].grid, gpu.launches[-1].block) == ((1, 1, 1), (64, 1, 1))
    assert gpu.noted == ["mixed"] * 4 + ["nothing"]


def test_streams(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x = genesis.ones(6, device="cuda")
    side = genesis.cuda.Stream()
    with genesis.cuda.stream(side):
        module.mixed(x, x, 1, 1, False, 0, 0)
    assert gpu.launches[-1].stream == side.cuda_stream
    module.mixed(x, x, 1, 1, False, 0, 0, stream=side)
    assert gpu.launches[-1].stream == side.cuda_stream
    assert side.cuda_stream in x.array.handle.storage.block.others  # freed, it waits for the stream
    module.mixed(x, x, 1, 1, False, 0, 0, stream=77)
    assert gpu.launches[-1].stream == 77
    with pytest.raises(
        DTypeError, match=r"launch: argument 'stream': expected a stream of Genesis or PyTorch, .* got 'x'"
    ):
        module.mixed(x, x, 1, 1, False, 0, 0, stream="x")


def test_a_repeated_call_is_only_looked_up(
    gpu: Gpu, module: genesis.cuda.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = genesis.ones(6, device="cuda")
    module.mixed(x, x, 1, 1.0, False, 0, 0)
    monkeypatch.setattr("genesis.cuda.launch_checks.check_arguments", None)
    module.mixed(x, x, 5, 0.25, True, 1, 1)
    assert gpu.launches[-1].values[2:] == [5, 0.25, 1, 1, 1]


def test_a_number_out_of_range_is_found_on_the_fast_path_too(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x = genesis.ones(6, device="cuda")
    for _ in range(2):
        module.mixed(x, x, 1, 1, False, 0, 0)
        with pytest.raises(ValueError, match=r"mixed: argument 'small': expected a number from 0 to 255 .*, got 256"):
            module.mixed(x, x, 1, 1, False, 256, 0)
        with pytest.raises(DTypeError, match=r"argument 'n': expected an integer \(int n\), got 0.5"):
            module.mixed(x, x, 0.5, 1, False, 0, 0)
    assert len(gpu.launches) == 2


def test_a_write_counts_as_a_change(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x, out = genesis.ones(6, device="cuda", requires_grad=True), genesis.ones(6, device="cuda")
    y = (x * out).sum()
    changes = x.array.changes.count
    module.mixed(x.detach(), out, 1, 1, False, 0, 0)
    assert x.array.changes.count == changes  # const float* x
    with pytest.raises(genesis.errors.GraphError, match="changed in place"):
        y.backward()


def test_shared_memory_and_bounds(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x = genesis.ones(6, device="cuda")
    for _ in range(2):
        module.mixed(x, x, 1, 1, False, 0, 0, shared=100_000)
    assert gpu.shared_limits == [100_000]
    with pytest.raises(KernelError, match="mixed: argument 'shared': expected at most 231448 bytes, got 232000"):
        module.mixed(x, x, 1, 1, False, 0, 0, shared=232_000)
    gpu.max_threads = 128
    other = genesis.cuda.load_inline("test_native_kernel", SOURCE)
    with pytest.raises(ValueError, match=r"mixed: argument 'block': expected at most 128 threads .*, got 256: \(256, "):
        other.mixed(x, x, 1, 1, False, 0, 0)


def test_debug_shows_each_launch(gpu: Gpu, module: genesis.cuda.Module) -> None:
    gpu.watch_launches = True
    module.nothing()
    assert gpu.shown == ["nothing"]


def test_a_refused_launch_names_the_kernel(
    gpu: Gpu, module: genesis.cuda.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.status = int(cu.CUresult.CUDA_ERROR_INVALID_VALUE)
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (cu.CUresult.CUDA_SUCCESS, b"invalid argument"))
    with pytest.raises(KernelError, match="launch nothing: CUDA_ERROR_INVALID_VALUE: invalid argument"):
        module.nothing()


def test_arrays_of_other_libraries(gpu: Gpu, module: genesis.cuda.Module) -> None:
    x = genesis.ones(6, device="cuda")

    class Dlpack:
        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

    class Interface:
        __cuda_array_interface__ = {
            "shape": (6,), "typestr": "<f4", "data": (x.data_ptr(), False), "version": 3, "strides": None, "stream": 5,
        }  # fmt: skip

    module.mixed(Dlpack(), x, 1, 1, False, 0, 0)
    module.mixed(x, Interface(), 1, 1, False, 0, 0)
    assert [launch.values[:2] for launch in gpu.launches] == [[x.data_ptr()] * 2] * 2
    with pytest.raises(DTypeError, match=r"argument 'x': expected a float32 tensor .*, got float64"):
        module.mixed(x.double().array.handle, x, 1, 1, False, 0, 0)
    with pytest.raises(ShapeError, match=r"argument 'x': expected a contiguous tensor .*, got strides \(1, 3\)"):
        module.mixed(genesis.ones(2, 3, device="cuda").t().array.handle, x, 1, 1, False, 0, 0)
    strange = type("Strange", (), {"__cuda_array_interface__": {"typestr": "<c8", "data": (0, 0), "shape": (1,)}})
    with pytest.raises(DTypeError, match=r"from_array_interface: argument 'source': expected a dtype .*, got <c8"):
        module.mixed(strange(), x, 1, 1, False, 0, 0)


def test_slots_are_eight_bytes() -> None:
    from genesis.backends.cuda.nvrtc.types import _NUMBERS

    assert {struct.calcsize("<" + number.slot) for number in _NUMBERS.values()} == {8}
