"""The driver on NVIDIA GPUs, through cuda.bindings.

Each device is used in its primary context, which is PyTorch's too, so addresses and streams can be exchanged with it.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver import cuda_graphs, triton_driver
from genesis.backends.cuda.driver.cuda_graphs import Captured, Captures
from genesis.backends.cuda.driver.cuda_kernel import CudaKernel, flat
from genesis.backends.cuda.driver.debug import show_code, show_device, show_launch
from genesis.backends.cuda.driver.interface import (
    CaptureMode,
    Function,
    Grid,
    KernelError,
    KernelMetadata,
    Properties,
    Signature,
    TritonLaunch,
    Value,
    kernel_name,
)
from genesis.backends.cuda.driver.results import check as _check
from genesis.errors import DeviceError
from genesis.settings import on_change, settings

if TYPE_CHECKING:
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

T = TypeVar("T")
U = TypeVar("U")
Ts = TypeVarTuple("Ts")
_NO_GPU = "cuda: no NVIDIA GPU to be found; GENESIS_CUDA=simulated needs none"
_SUCCESS = cu.CUresult.CUDA_SUCCESS
_NON_BLOCKING = 1  # streams do not wait for the legacy default stream
_PORTABLE = 1  # pinned memory for all contexts
_NO_TIMING = 2
_MEMORY_TYPE, _HOST_MEMORY = [cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE], 1
_STATIC_SHARED = 48 << 10  # bytes of shared memory that need no asking


class CudaDriver:
    """All devices that the process sees (CUDA_VISIBLE_DEVICES)."""

    name = "cuda"
    watches_memory = False
    dlpack_device_type = 2

    def __init__(self) -> None:
        try:
            _check(cu.cuInit(0), "cuInit")
            count = _check(cu.cuDeviceGetCount(), "cuDeviceGetCount")
        except (RuntimeError, OSError) as error:  # no libcuda, no device, a driver too old
            raise DeviceError(f"{_NO_GPU} ({error})") from error
        if count == 0:
            raise DeviceError(_NO_GPU)
        self._count: int = count
        self._devices = [_Device(index) for index in range(count)]
        self._thread = _Thread()
        self._captures = Captures()
        self._ending = False
        atexit.register(self._end)
        self.watch_launches = False
        on_change(self._follow_settings)

    def _follow_settings(self) -> None:
        self.watch_launches = settings.debug >= 2

    @property
    def version(self) -> str:
        number = _check(cu.cuDriverGetVersion(), "cuDriverGetVersion")
        return f"for CUDA {number // 1000}.{number % 1000 // 10}"

    def _end(self) -> None:
        """From now on nothing is given back one by one: the process does so, and modules may be gone already."""
        self._ending = True

    # --- devices ----------------------------------------------------------------------------------------------------
    def device_count(self) -> int:
        return self._count

    def properties(self, device: int) -> Properties:
        return self._device(device).properties

    def memory_info(self, device: int) -> tuple[int, int]:
        self.activate(device)
        free, total = _check(cu.cuMemGetInfo(), "cuMemGetInfo")
        return free, total

    def activate(self, device: int, anew: bool = False) -> None:
        """Make the device's context current in this thread; anew: even where it has been."""
        # With several devices, others may have switched meanwhile.
        if anew or self._thread.device != device or self._count > 1:
            _check(cu.cuCtxSetCurrent(self._device(device).context), "cuCtxSetCurrent")
            self._thread.device = device

    def current_device(self) -> int:
        return max(self._thread.device, 0)

    def _device(self, device: int) -> _Device:
        if not 0 <= device < self._count:
            raise DeviceError(f"cuda: expected a device below {self._count}, got {device}")
        return self._devices[device]

    @overload
    def check(self, device: int, result: tuple[cu.CUresult], doing: str) -> tuple[()]: ...
    @overload
    def check(self, device: int, result: tuple[cu.CUresult, T], doing: str) -> T: ...
    @overload
    def check(self, device: int, result: tuple[cu.CUresult, T, U, *Ts], doing: str) -> tuple[T, U, *Ts]: ...
    def check(self, device: int, result: tuple[object, ...], doing: str) -> object:
        """The result's value; a fault of the device names the kernels that can have caused it."""
        if result[0] is _SUCCESS or result[0] == _SUCCESS:
            return result[1] if len(result) == 2 else result[1:]
        recent = list(self._devices[device].recent)[::-1]
        if recent:
            doing += f" (kernels since the last synchronization, newest first: {', '.join(recent)})"
        return _check((result[0],), doing)

    # --- memory -----------------------------------------------------------------------------------------------------
    def allocate(self, device: int, num_bytes: int, stream: int) -> int:
        self.activate(device)
        pool = self._device(device).pool
        with self.unrestricted():  # another stream, or another thread, may be captured
            result = cu.cuMemAllocFromPoolAsync(num_bytes, pool, STREAMS[stream])
        if result[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return 0
        return int(self.check(device, result, f"allocate {num_bytes} bytes"))

    def release(self, device: int, pointer: int, stream: int) -> None:
        self.activate(device)
        self.check(device, cu.cuMemFreeAsync(pointer, STREAMS[stream]), "free memory")

    def trim(self, device: int) -> None:
        self.synchronize(device)  # frees take effect in stream order
        self.check(device, cu.cuMemPoolTrimTo(self._device(device).pool, 0), "trim the memory pool")

    def note_use(self, pointer: int, num_bytes: int, fresh: bool = True) -> None:
        raise AssertionError("a real device does not watch its memory")

    def allocate_pinned(self, num_bytes: int) -> int:
        self.activate(self.current_device())
        with self.unrestricted():
            return int(_check(cu.cuMemHostAlloc(num_bytes, _PORTABLE), f"allocate {num_bytes} bytes of pinned memory"))

    def release_pinned(self, pointer: int) -> None:
        self.activate(self.current_device())
        with self.unrestricted():
            _check(cu.cuMemFreeHost(pointer), "cuMemFreeHost")

    def is_pinned(self, pointer: int) -> bool:
        self.activate(self.current_device())
        # The plural form gives 0 for memory that CUDA doesn't know, where the singular one reports an error.
        (kind,) = _check(cu.cuPointerGetAttributes(1, _MEMORY_TYPE, pointer), "cuPointerGetAttributes")
        return int(kind) == _HOST_MEMORY

    def device_of(self, pointer: int) -> int:
        self.activate(self.current_device())
        ordinal = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(_check(cu.cuPointerGetAttribute(ordinal, pointer), "find the device of an address"))

    def copy(self, device: int, target: int, source: int, num_bytes: int, stream: int) -> None:
        if num_bytes:
            self.activate(device)
            self.check(device, cu.cuMemcpyAsync(target, source, num_bytes, STREAMS[stream]), "copy memory")

    def fill_bytes(self, device: int, pointer: int, byte: int, num_bytes: int, stream: int) -> None:
        if num_bytes:
            self.activate(device)
            self.check(device, cu.cuMemsetD8Async(pointer, byte, num_bytes, STREAMS[stream]), "fill memory")

    # --- streams and events -----------------------------------------------------------------------------------------
    def create_stream(self, device: int, priority: int) -> int:
        self.activate(device)
        with self.unrestricted():
            return int(self.check(device, cu.cuStreamCreateWithPriority(_NON_BLOCKING, priority), "create a stream"))

    def synchronize_stream(self, device: int, stream: int) -> None:
        self.activate(device)
        with self.unrestricted():
            self.check(device, cu.cuStreamSynchronize(STREAMS[stream]), "synchronize a stream")

    def is_capturing(self, device: int, stream: int) -> bool:
        self.activate(device)
        error, status = cu.cuStreamIsCapturing(STREAMS[stream])
        # The legacy stream reports another stream's capture as an error: it may not be used until that ends.
        return bool(error != _SUCCESS or status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def begin_capture(self, device: int, stream: int, mode: CaptureMode) -> None:
        self.activate(device)
        self._captures.begin(stream, mode)

    def end_capture(self, device: int, stream: int) -> Captured:
        self.activate(device)
        return self._captures.end(stream, functools.partial(self.activate, device))

    def unrestricted(self) -> AbstractContextManager[None]:
        return cuda_graphs.unrestricted()

    def synchronize(self, device: int) -> None:
        self.activate(device)
        self.check(device, cu.cuCtxSynchronize(), "synchronize")
        self._devices[device].recent.clear()

    def create_event(self, device: int, timing: bool) -> object:
        self.activate(device)
        return self.check(device, cu.cuEventCreate(0 if timing else _NO_TIMING), "create an event")

    def destroy_event(self, event: object) -> None:
        if not self._ending:
            cu.cuEventDestroy(event)

    def record_event(self, device: int, event: object, stream: int) -> None:
        self.activate(device)
        self.check(device, cu.cuEventRecord(event, STREAMS[stream]), "record an event")

    def wait_event(self, device: int, stream: int, event: object) -> None:
        self.activate(device)
        self.check(device, cu.cuStreamWaitEvent(STREAMS[stream], event, 0), "wait for an event")

    def event_done(self, device: int, event: object) -> bool:
        self.activate(device)
        with self.unrestricted():
            result = cu.cuEventQuery(event)
        if result[0] == cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self.check(device, result, "query an event")
        return True

    def synchronize_event(self, device: int, event: object) -> None:
        self.activate(device)
        with self.unrestricted():
            self.check(device, cu.cuEventSynchronize(event), "wait for an event")

    def elapsed_ms(self, device: int, start: object, end: object) -> float:
        self.activate(device)
        return float(self.check(device, cu.cuEventElapsedTime(start, end), "take the time between events"))

    # --- kernels ----------------------------------------------------------------------------------------------------
    def load_kernel(self, device: int, kernel: JITFunction, signature: Signature) -> CudaKernel:
        capability = self.properties(device).compute_capability
        signature = triton_driver.overlapping(kernel, signature, capability)
        compiled = triton_driver.compile_kernel(kernel, signature, capability)
        metadata = compiled.metadata
        function = self.load_binary(metadata.name, compiled.asm["cubin"], metadata.shared, device)[1]
        show_code(metadata.name, compiled.asm["ptx"])
        types = [kind for kind, param in zip(signature.types, kernel.params, strict=True) if not param.is_constexpr]
        return CudaKernel(self, device, kernel_name(kernel, signature), function, types, metadata)

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[cu.CUmodule, cu.CUfunction, int, int, int]:
        """(module, function, registers, spilled registers, most threads per block), as Triton wants it."""
        self.activate(device)
        limit = self.properties(device).max_shared_memory
        if shared > limit:
            raise KernelError(f"{name}: expected at most {limit} bytes of shared memory, got {shared}")
        with self.unrestricted():
            module = self.check(device, cu.cuModuleLoadData(cubin), f"load {name}")
            function = self.check(device, cu.cuModuleGetFunction(module, name.encode()), f"load {name}")
        attribute = cu.CUfunction_attribute
        if shared > _STATIC_SHARED:
            dynamic = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            result = cu.cuFuncSetAttribute(function, dynamic, shared)
            self.check(device, result, f"{name}: {shared} bytes of shared memory")

        def ask(which: cu.CUfunction_attribute) -> int:
            return int(self.check(device, cu.cuFuncGetAttribute(which, function), f"query {name}"))

        registers = ask(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS)
        spilled = ask(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES) // 4
        return module, function, registers, spilled, ask(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)

    def triton_launcher(self, source: ASTSource, metadata: KernelMetadata) -> TritonLaunch:
        """The function that Triton's own kernel[grid](…) calls to launch."""
        types = list(source.signature.values())
        kernels: dict[int, CudaKernel] = {}

        def launch(x: int, y: int, z: int, stream: int, function: Function, /, *rest: object) -> None:
            _, info, enter, leave, *args = rest
            kernel = kernels.get(int(function))
            if kernel is None:
                kernel = CudaKernel(self, self.current_device(), metadata.name, function, types, metadata)
                kernels[int(function)] = kernel
            if callable(enter):
                enter(info)
            kernel.launch((x, y, z), stream, [_plain(value) for value in flat(args)])
            if callable(leave):
                leave(info)

        return launch

    def launched(self, device: int, name: str, grid: Grid, stream: int, values: Sequence[object]) -> None:
        """Called after each launch while watch_launches is true: with GENESIS_DEBUG, a fault shows at its kernel."""
        show_launch(name, grid, stream, values)
        # The context of a captured stream cannot be waited for.
        if not (self._captures.num_underway or self.is_capturing(device, stream)):
            self.synchronize(device)

    def recorder(self, device: int) -> Callable[[str], None]:
        """The recorder of a kernel's name at each launch, for the messages about faults."""
        return self._devices[device].recent.append


class _Thread(threading.local):
    device = -1


class _Streams(dict[int, cu.CUstream]):
    """CUstream objects by their address."""

    def __missing__(self, handle: int) -> cu.CUstream:
        stream = self[handle] = cu.CUstream(handle)
        return stream


STREAMS = _Streams()


class _Device:
    """One device: made current and asked about on first use, since each context costs memory."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._context: cu.CUcontext | None = None
        self._pool: cu.CUmemoryPool | None = None
        self._properties: Properties | None = None
        self.recent: deque[str] = deque(maxlen=8)  # kernels launched since the last synchronization

    @property
    def handle(self) -> cu.CUdevice:
        return _check(cu.cuDeviceGet(self._index), "cuDeviceGet")

    @property
    def context(self) -> cu.CUcontext:
        if self._context is None:
            with self._lock:
                if self._context is None:
                    self._context = _check(cu.cuDevicePrimaryCtxRetain(self.handle), "cuDevicePrimaryCtxRetain")
        return self._context

    @property
    def pool(self) -> cu.CUmemoryPool:
        """A memory pool of our own, so that trimming it does not touch anybody else's."""
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    wanted = cu.CUmemPoolProps()
                    wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                    wanted.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
                    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                    wanted.location.id = self._index
                    self._pool = _check(cu.cuMemPoolCreate(wanted), "cuMemPoolCreate")
        return self._pool

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            attribute = cu.CUdevice_attribute
            name = _check(cu.cuDeviceGetName(256, self.handle), "cuDeviceGetName")
            major = self._ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            minor = self._ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
            self._properties = Properties(
                name=bytes(name).split(b"\0")[0].decode(),
                compute_capability=10 * major + minor,
                multiprocessor_count=self._ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                max_shared_memory=self._ask(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                total_memory=int(_check(cu.cuDeviceTotalMem(self.handle), "cuDeviceTotalMem")),
                l2_cache=self._ask(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            )
            show_device(self._index, self._properties)
        return self._properties

    def _ask(self, which: cu.CUdevice_attribute) -> int:
        return int(_check(cu.cuDeviceGetAttribute(which, self.handle), "cuDeviceGetAttribute"))


def _plain(value: Any) -> Value:
    """An argument of Triton's launch as a number."""
    return value.data_ptr() if hasattr(value, "data_ptr") else value
