"""The driver on host memory: GENESIS_CUDA=simulated. Work is done when it is launched; fresh memory reads as NaN."""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genesis.backends.cuda.driver.debug import show_code, show_device, show_launch
from genesis.backends.cuda.driver.interface import (
    CaptureMode,
    Grid,
    KernelError,
    Properties,
    RawLaunch,
    Signature,
    Value,
    kernel_name,
)
from genesis.backends.cuda.driver.simulated_graphs import Captured, Captures, Event
from genesis.errors import DeviceError

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

_ALIGNMENT = 512
_L2_CACHE = 1 << 20  # bytes: little, as tensors are on it


class SimulatedDriver:
    """Two devices of a few GiB that nobody has to own."""

    name = "simulated"
    version = "none: on host memory, by Triton's interpreter"
    watches_memory = True
    dlpack_device_type = 1

    def __init__(self, num_devices: int = 2, total_memory: int = 8 << 30) -> None:
        self.total_memory = total_memory
        self._num_devices = num_devices
        self._blocks: dict[int, tuple[int, npt.NDArray[np.uint8]]] = {}  # pointer → device, memory
        self._regions: dict[int, int] = {}  # pointer → bytes in use by an array
        self._foreign: dict[int, int] = {}
        self._pinned: dict[int, int] = {}  # pointer → bytes
        self._used = [0] * num_devices
        self._streams = itertools.count(0x100)
        self.captures = Captures()
        show_device(0, self.properties(0))

    def device_count(self) -> int:
        return self._num_devices

    def properties(self, device: int) -> Properties:
        if not 0 <= device < self._num_devices:
            raise DeviceError(f"cuda: expected a device below {self._num_devices}, got {device}")
        return Properties("simulated", 90, 4, 232448, self.total_memory, _L2_CACHE)

    def memory_info(self, device: int) -> tuple[int, int]:
        return self.total_memory - self._used[device], self.total_memory

    def allocate(self, device: int, num_bytes: int, stream: int) -> int:
        if self.captures.of(stream) is not None:
            raise KernelError("allocate memory: on a stream that is being captured it would belong to the graph")
        if self._used[device] + num_bytes > self.total_memory:
            return 0
        memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        pointer = -(-memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._blocks[pointer] = device, memory
        self._used[device] += num_bytes
        return pointer

    def release(self, device: int, pointer: int, stream: int) -> None:
        owner, memory = self._blocks.pop(pointer)
        assert owner == device, f"memory of device {owner} released on {device}"
        self._used[device] -= memory.nbytes - _ALIGNMENT

    def trim(self, device: int) -> None:
        pass  # release() already has

    def note_use(self, pointer: int, num_bytes: int, fresh: bool = True) -> None:
        if not fresh:  # others' memory: how long they keep it is not known here
            self._foreign[pointer] = max(num_bytes, self._foreign.get(pointer, 0))
        elif num_bytes:
            self._regions[pointer] = num_bytes
            ctypes.memset(pointer, 0xFF, num_bytes)
        else:
            self._regions.pop(pointer, None)

    def regions(self) -> dict[int, int]:
        """The address ranges of all arrays."""
        return {**self._foreign, **self._regions}

    def allocate_pinned(self, num_bytes: int) -> int:
        pointer = self.allocate(0, num_bytes, 0)
        self._pinned[pointer] = num_bytes
        return pointer

    def release_pinned(self, pointer: int) -> None:
        del self._pinned[pointer]
        self.release(0, pointer, 0)

    def is_pinned(self, pointer: int) -> bool:
        return any(start <= pointer < start + size for start, size in self._pinned.copy().items())

    def device_of(self, pointer: int) -> int:
        blocks = self._blocks.copy().items()
        return next((owner for start, (owner, memory) in blocks if start <= pointer < start + memory.nbytes), 0)

    def copy(self, device: int, target: int, source: int, num_bytes: int, stream: int) -> None:
        if num_bytes and self.captures.of(stream) is not None:
            for pointer in (target, source):
                if not self._is_known(pointer):
                    raise KernelError("copy memory: a graph would copy pageable memory that may be gone by then")
        self.captures.submit(stream, functools.partial(ctypes.memmove, target, source, num_bytes))

    def _is_known(self, pointer: int) -> bool:
        """Is this the device's memory, pinned, or another library's?"""
        blocks = [(start, memory.nbytes) for start, (_, memory) in self._blocks.copy().items()]
        return any(start <= pointer < start + size for start, size in (*blocks, *self._foreign.copy().items()))

    def fill_bytes(self, device: int, pointer: int, byte: int, num_bytes: int, stream: int) -> None:
        self.captures.submit(stream, functools.partial(ctypes.memset, pointer, byte, num_bytes))

    def create_stream(self, device: int, priority: int) -> int:
        return next(self._streams)

    def synchronize_stream(self, device: int, stream: int) -> None:
        self.captures.refuse_waiting("wait for a stream", stream=stream)  # else: work is done when it is launched

    def is_capturing(self, device: int, stream: int) -> bool:
        return self.captures.of(stream) is not None

    def begin_capture(self, device: int, stream: int, mode: CaptureMode) -> None:
        self.captures.begin(device, stream, mode)

    def end_capture(self, device: int, stream: int) -> Captured:
        return self.captures.end(stream)

    def unrestricted(self) -> AbstractContextManager[None]:
        return self.captures.unrestricted()

    def synchronize(self, device: int) -> None:
        self.captures.refuse_waiting("wait for a device", device=device)

    def create_event(self, device: int, timing: bool) -> object:
        return Event()

    def destroy_event(self, event: object) -> None:
        pass

    def record_event(self, device: int, event: object, stream: int) -> None:
        assert isinstance(event, Event)
        event.seconds = time.perf_counter()
        self.captures.record(event, stream)

    def wait_event(self, device: int, stream: int, event: object) -> None:
        assert isinstance(event, Event)
        self.captures.wait(device, stream, event)

    def event_done(self, device: int, event: object) -> bool:
        assert isinstance(event, Event)
        self.captures.refuse_waiting_for("query an event", event)
        return True

    def synchronize_event(self, device: int, event: object) -> None:
        assert isinstance(event, Event)
        self.captures.refuse_waiting_for("wait for an event", event)

    def elapsed_ms(self, device: int, start: object, end: object) -> float:
        assert isinstance(start, Event)
        assert isinstance(end, Event)
        return (end.seconds - start.seconds) * 1e3

    def load_kernel(self, device: int, kernel: JITFunction, signature: Signature) -> SimulatedKernel:
        show_code(kernel_name(kernel, signature), f"{kernel.src}\n{signature}")
        return SimulatedKernel(self, kernel, signature)


class SimulatedKernel:
    """A kernel that Triton's interpreter runs."""

    def __init__(self, driver: SimulatedDriver, kernel: JITFunction, signature: Signature) -> None:
        self.name = kernel_name(kernel, signature)
        self._driver, self._kernel, self._signature = driver, kernel, signature

    def launch(self, grid: Grid, stream: int, values: Sequence[Value]) -> None:
        show_launch(self.name, grid, stream, values)
        self._driver.captures.submit(stream, functools.partial(self._run, grid, tuple(values)))

    def _run(self, grid: Grid, values: tuple[Value, ...]) -> None:
        from genesis.backends.cuda.driver import interpreter  # patches Triton, so only when something runs

        interpreter.run(self._kernel, self._signature, grid, values, interpreter.Regions(self._driver.regions()))

    def prepare(self, grid: Grid, num_leading: int, rest: Sequence[Value]) -> RawLaunch:
        return lambda stream, *leading: self.launch(grid, stream, (*leading, *rest))
