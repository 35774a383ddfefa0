"""What the driver for GPUs hands to CUDA, seen without a GPU: packed arguments, launch attributes, errors."""

from __future__ import annotations

import ctypes
import gc
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver as cu

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, launching, overlap, table_kernel, tensor_maps
from genesis.backends.cuda.driver.cuda_driver import CudaDriver, _check, _Streams
from genesis.backends.cuda.driver.cuda_kernel import CudaKernel
from genesis.errors import DeviceError
from genesis.settings import override


class Call:
    """What the driver reads when it is called, by NVIDIA's own declarations."""

    def __init__(self, configuration: int, function: int, table: int) -> None:
        config = cu.CUlaunchConfig(configuration)
        self.grid = config.gridDimX, config.gridDimY, config.gridDimZ
        self.block = config.blockDimX, config.blockDimY, config.blockDimZ
        self.shared, self.stream, self.function = config.sharedMemBytes, int(config.hStream), function
        self.table = table
        (first,) = struct.unpack_from("<Q", ctypes.string_at(configuration, 56), 40)
        found = [cu.CUlaunchAttribute(first + 72 * i) for i in range(config.numAttrs)]
        self.attributes = [
            (each.id, (each.value.clusterDim.x, each.value.clusterDim.y, each.value.clusterDim.z)) for each in found
        ]


def as_driver_call(record: Callable[..., int]) -> Callable[[], Any]:
    """record(configuration, function, table, extra) in the place of launching.driver_call; it gets addresses."""
    address = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(ctypes.c_int, address, address, address, address)(record)
    return lambda: call


class Recorder:
    """Stands in for CudaDriver and for the CUDA calls of a launch."""

    watch_launches = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._streams = _Streams()
        self.launched: list[str] = []
        self.calls: list[Call] = []
        self.activated: list[tuple[int, bool]] = []
        self.count = 1
        self.statuses: list[int] = []  # of the next calls; then success
        monkeypatch.setattr(launching, "driver_call", as_driver_call(self._record))

    def _record(self, configuration: int, function: int, table: int, extra: None) -> int:
        self.calls.append(Call(configuration, function, table))
        return self.statuses.pop(0) if self.statuses else 0

    def device_count(self) -> int:
        return self.count

    def activate(self, device: int, anew: bool = False) -> None:
        self.activated.append((device, anew))

    def check(self, device: int, result: tuple[Any, ...], doing: str) -> Any:
        return _check(result, doing)

    def recorder(self, device: int) -> Any:
        return self.launched.append


def metadata(**changes: Any) -> SimpleNamespace:
    given = {"num_warps": 4, "num_ctas": 1, "shared": 128, "global_scratch_size": 0}
    return SimpleNamespace(**{**given, "launch_pdl": False, "launch_cooperative_grid": False, **changes})


def arguments(address: int, formats: str) -> list[Any]:
    """What a kernel would read through the table of addresses."""
    table = (ctypes.c_void_p * len(formats)).from_address(address)
    return [
        struct.unpack("<" + f, ctypes.string_at(slot or 0, struct.calcsize(f)))[0]
        for f, slot in zip(formats, table, strict=True)
    ]


def test_arguments_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    types = ["*fp32", "constexpr", "i32", ("i32", "constexpr", "i64"), "fp32", "fp64", "constexpr"]
    kernel = CudaKernel(recorder, 0, "_some_kernel", cu.CUfunction(0), types, metadata())  # type: ignore[arg-type]
    kernel.launch((5, 6, 7), 9, [0x7F0000001000, None, -3, 4, 1, 2**40, 0.5, 0.1, 1])
    call = recorder.calls[0]
    assert (call.grid, call.block, call.shared, call.stream) == ((5, 6, 7), (128, 1, 1), 128, 9)
    assert arguments(call.table, "QiiqfdQQ") == [0x7F0000001000, -3, 4, 2**40, 0.5, 0.1, 0, 0]
    assert recorder.launched == ["_some_kernel"]


def test_a_single_argument_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    for types, values, expected in [
        (["constexpr", "*i64"], [1, 64], [64, 0, 0]),
        (["constexpr"], [None], [0, 0]),
        ([], [], [0, 0]),
    ]:
        kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), types, metadata())  # type: ignore[arg-type]
        kernel.launch((1, 1, 1), 0, values)
        assert arguments(recorder.calls[-1].table, "Q" * len(expected)) == expected


def test_float_beyond_float32_becomes_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i64", "fp32"], metadata())  # type: ignore[arg-type]
    kernel.launch((1, 1, 1), 0, [2**60, -1e300])
    assert arguments(recorder.calls[0].table, "qf") == [2**60, -math.inf]


def test_argument_memory_is_reused_after_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32"], metadata())  # type: ignore[arg-type]
    for value in range(3):
        kernel.launch((1, 1, 1), 0, [value])
    assert len({call.table for call in recorder.calls}) == 1


def test_prepared_launch_packs_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    types = ["*fp32", "fp32", "constexpr", "i32", ("i64", "constexpr")]
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), types, metadata())  # type: ignore[arg-type]
    run = kernel.prepare((5, 1, 1), 2, (None, -3, 2**40, 1))
    for stream, pointer, factor in [(0, 64, 0.5), (9, 128, 1e300)]:
        run(stream, pointer, factor)
        call = recorder.calls[-1]
        assert (call.grid, call.block, call.shared, call.stream) == ((5, 1, 1), (128, 1, 1), 128, stream)
        assert arguments(call.table, "QfiqQQ") == [pointer, 0.5 if stream == 0 else math.inf, -3, 2**40, 0, 0]
    assert len({call.table for call in recorder.calls}) == 1
    assert recorder.launched == ["_kernel", "_kernel"]


def test_prepared_launch_skips_constants_among_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    types = ["*fp32", "constexpr", "*fp32", "fp32", "i32"]
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), types, metadata())  # type: ignore[arg-type]
    run = kernel.prepare((1, 1, 1), 4, (7,))
    for nothing in (0, None, 1.5, -1):  # whatever is given for a constant
        run(0, 64, nothing, 128, 0.5)
        assert arguments(recorder.calls[-1].table, "QQfiQQ") == [64, 128, 0.5, 7, 0, 0]
    run(0, 64, None, 128, 1e300)
    assert arguments(recorder.calls[-1].table, "QQf") == [64, 128, math.inf]
    with pytest.raises(struct.error):
        run(0, None, 0, 128, 0.5)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), types[:2], metadata())  # type: ignore[arg-type]
    run = kernel.prepare((1, 1, 1), 2, ())
    run(0, 192, 0)
    assert arguments(recorder.calls[-1].table, "QQQ") == [192, 0, 0]
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), types, metadata(global_scratch_size=1))  # type: ignore[arg-type]
    recorder.allocate = lambda device, num_bytes, stream: 1000  # type: ignore[attr-defined]
    recorder.release = lambda *_: None  # type: ignore[attr-defined]
    run = kernel.prepare((1, 1, 1), 4, (7,))
    run(0, 64, None, 128, 0.5)
    assert arguments(recorder.calls[-1].table, "QQfiQQ") == [64, 128, 0.5, 7, 1000, 0]


def test_prepared_extended_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32", "i32"], metadata(launch_pdl=True))  # type: ignore[arg-type]
    run = kernel.prepare((3, 1, 1), 1, (7,))
    run(0, 42)
    assert arguments(recorder.calls[0].table, "ii") == [42, 7]


def test_launches_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    recorder.watch_launches = True
    seen: list[tuple[Any, ...]] = []
    recorder.launched = lambda *launch: seen.append(launch)  # type: ignore[assignment, method-assign]
    recorder.recorder = lambda device: lambda name: None  # type: ignore[method-assign]
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32", "i32"], metadata())  # type: ignore[arg-type]
    kernel.launch((1, 2, 3), 9, [4, 5])
    kernel.prepare((1, 2, 3), 1, (5,))(9, 4)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32", "constexpr", "i32"], metadata())  # type: ignore[arg-type]
    kernel.prepare((1, 2, 3), 2, (5,))(9, 4, None)
    assert [(device, name, grid, stream, [*values]) for device, name, grid, stream, values in seen] == [
        (0, "_kernel", (1, 2, 3), 9, [4, 5])
    ] * 3


def test_a_thread_without_context_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32"], metadata())  # type: ignore[arg-type]
    kernel.launch((1, 1, 1), 0, [1])
    assert recorder.activated == []
    recorder.statuses = [int(cu.CUresult.CUDA_ERROR_INVALID_CONTEXT)]
    kernel.launch((1, 1, 1), 0, [2])
    assert recorder.activated == [(0, True)]
    assert [arguments(call.table, "i") for call in recorder.calls[1:]] == [[2], [2]]


def test_with_several_devices_each_launch_makes_its_own_current(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    recorder.count = 2
    kernel = CudaKernel(recorder, 1, "_kernel", cu.CUfunction(0), ["i32"], metadata())  # type: ignore[arg-type]
    kernel.launch((1, 1, 1), 0, [1])
    kernel.prepare((1, 1, 1), 1, ())(0, 1)
    assert recorder.activated == [(1, False)] * 2


def test_refused_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    recorder.statuses = [1]
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (cu.CUresult.CUDA_SUCCESS, b"invalid argument"))
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32"], metadata())  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="launch _kernel: CUDA_ERROR_INVALID_VALUE: invalid argument"):
        kernel.launch((1, 1, 1), 0, [1])
    assert recorder.launched == []


def test_scratch_memory_is_taken_for_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    released: list[tuple[int, int, int]] = []
    recorder.allocate = lambda device, num_bytes, stream: 1000 + num_bytes  # type: ignore[attr-defined]
    recorder.release = lambda *released_: released.append(released_)  # type: ignore[attr-defined]
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32"], metadata(global_scratch_size=128))  # type: ignore[arg-type]
    kernel.launch((2, 1, 1), 9, [42])
    assert arguments(recorder.calls[0].table, "iQQ") == [42, 1256, 0]
    assert released == [(0, 1256, 9)]


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_tensor_maps_lie_where_the_copy_engine_wants_them(monkeypatch: pytest.MonkeyPatch, capability: int) -> None:
    recorder = Recorder(monkeypatch)
    recorder.properties = lambda device: SimpleNamespace(compute_capability=capability)  # type: ignore[attr-defined]
    recorder.load_binary = lambda name, cubin, shared, device: (None, 7)  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "get", lambda: recorder)
    encoded: list[int] = []
    box = SimpleNamespace(encode=lambda address: encoded.append(address) or bytes([address]) * 128)
    run = tensor_maps.MapKernel(0, "_kernel", b"", 4096).prepare(3, 384, [box, box], 1, b"structure...")  # type: ignore[list-item]
    for stream in (9, 0, 9):
        run(stream, 1, 2, 64)
        call = recorder.calls[-1]
        assert (call.grid, call.block, call.shared, call.stream) == ((3, 1, 1), (384, 1, 1), 4096, stream)
        assert len(call.attributes) == (capability == 90)  # it comes up while the kernel before it runs
        first, second, address, structure = (ctypes.c_uint64 * 4).from_address(call.table)
        assert first % 64 == second % 64 == 0
        assert ctypes.string_at(first, 128) + ctypes.string_at(second, 128) == bytes([1]) * 128 + bytes([2]) * 128
        assert ctypes.string_at(address, 8) == (64).to_bytes(8, "little")
        assert ctypes.string_at(structure, 12) == b"structure..."
    assert encoded == [1, 2, 1, 2]  # once for each stream
    assert recorder.launched == ["_kernel"] * 3


@pytest.mark.parametrize("capability", [80, 90])
def test_a_table_is_passed_by_value(monkeypatch: pytest.MonkeyPatch, capability: int) -> None:
    recorder = Recorder(monkeypatch)
    recorder.properties = lambda device: SimpleNamespace(compute_capability=capability)  # type: ignore[attr-defined]
    recorder.load_binary = lambda name, cubin, shared, device: (None, 7)  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "get", lambda: recorder)
    blocks: list[launching.Block] = []

    def kept(*args: Any) -> launching.Block:
        blocks.append(launching.Block(*args))
        return blocks[-1]

    monkeypatch.setattr(table_kernel, "Block", kept)
    kernel = table_kernel.TableKernel(0, "_kernel", b"")
    for stream, text in ((9, b"a table "), (0, b"another ")):
        kernel.launch(text * 500, 3, 256, stream)
        gc.collect()
        call = recorder.calls[-1]
        assert (call.grid, call.block, call.shared, call.stream) == ((3, 1, 1), (256, 1, 1), 0, stream)
        assert len(call.attributes) == (capability == 90)
        assert ctypes.string_at(ctypes.c_uint64.from_address(call.table).value, 4000) == text * 500


def test_kernels_overlap_from_hopper_on() -> None:
    assert [overlap.overlaps(capability) for capability in (80, 90, 100, 120)] == [False, True, True, False]
    with override(overlap=False):
        assert not overlap.overlaps(90)


def test_events_outlive_the_driver_quietly() -> None:
    ended = CudaDriver.__new__(CudaDriver)
    ended._end()
    ended.destroy_event(object())  # no event at all: cuEventDestroy would refuse it


def test_extended_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    asked = metadata(num_ctas=2, launch_pdl=True, launch_cooperative_grid=True)
    kernel = CudaKernel(recorder, 0, "_kernel", cu.CUfunction(0), ["i32"], asked)  # type: ignore[arg-type]
    kernel.launch((3, 4, 5), 9, [42])
    call = recorder.calls[0]
    assert (call.grid, call.block, call.shared, call.stream) == ((6, 4, 5), (128, 1, 1), 128, 9)
    assert call.attributes == [
        (cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, (1, 0, 0)),
        (cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, (1, 0, 0)),
        (cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, (2, 1, 1)),
    ]
    assert arguments(call.table, "i") == [42]


def test_errors_name_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (cu.CUresult.CUDA_SUCCESS, b"an illegal memory access"))
    with pytest.raises(KernelError, match="launch _kernel: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"):
        _check((cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,), "launch _kernel")


def test_errors_name_the_kernels_that_may_have_caused_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (cu.CUresult.CUDA_SUCCESS, b"an illegal memory access"))
    faulty = CudaDriver.__new__(CudaDriver)
    faulty._devices = [SimpleNamespace(recent=["_first_kernel", "_second_kernel"])]  # type: ignore[list-item]
    with pytest.raises(KernelError, match=r"synchronize \(kernels since .* first: _second_kernel, _first_kernel\)"):
        faulty.check(0, (cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,), "synchronize")


def test_no_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(flags: int) -> tuple[Any, ...]:
        raise RuntimeError("no libcuda")

    monkeypatch.setattr(cu, "cuInit", no_device)
    with pytest.raises(DeviceError, match=r"no NVIDIA GPU .*; GENESIS_CUDA=simulated needs none \(no libcuda\)"):
        CudaDriver()


def test_switched_off() -> None:
    with override(cuda="off"):
        assert not driver.is_available()
        with pytest.raises(DeviceError, match="switched off by GENESIS_CUDA=off"):
            driver.get()
