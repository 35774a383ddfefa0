"""What a device can do, in one small interface; cuda_driver.py does it on a GPU, ../simulated.py on host memory.

Addresses and streams are plain ints (stream 0 is the legacy default stream, which PyTorch uses too); events are opaque.
Nothing here allocates smartly or remembers a current stream: that is memory.py and streams.py, once for both drivers.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from genesis.errors import GenesisError

Path = tuple[int, ...]
CaptureMode = Literal["global", "thread_local", "relaxed"]


class KernelError(GenesisError, RuntimeError):
    """The device reported a fault, or refused a kernel; the message names the kernels in question."""


@dataclasses.dataclass(frozen=True)
class Properties:
    """What kernels are compiled and tuned for."""

    name: str
    compute_capability: int  # 90 for sm_90
    multiprocessor_count: int
    max_shared_memory: int  # bytes per block, opt-in
    total_memory: int


class Signature(NamedTuple):
    """One way to compile a kernel. Paths are (parameter,) or (parameter, element of a tuple)."""

    types: tuple[Any, ...]  # per parameter: "*fp32", "i32", "fp32", "constexpr", or a tuple of those
    constants: tuple[tuple[Path, Any], ...]
    divisible_by_16: tuple[Path, ...]
    options: tuple[tuple[str, Any], ...]  # num_warps, num_stages, …


def kernel_name(kernel: Any, signature: Signature) -> str:
    """The name under which the device knows it; a kernel can derive it from its constants (@triton.jit(repr=…))."""
    constants = {kernel.arg_names[path[0]]: value for path, value in signature.constants if len(path) == 1}
    return kernel.repr(types.SimpleNamespace(constants=constants, signature=signature.types)).rpartition(".")[2]


class LoadedKernel(Protocol):
    """A kernel compiled for one signature, on one device."""

    name: str

    def launch(self, grid: tuple[int, int, int], stream: int, values: Sequence[Any]) -> None:
        """values: one per parameter that is no tl.constexpr, tuples flattened; constants among them are skipped."""

    def prepare(self, grid: tuple[int, int, int], num_leading: int, rest: Sequence[Any]) -> Callable[..., None]:
        """run(stream, *leading): launch with the first num_leading values before the rest; constants are skipped.

        For launches that are repeated: what does not change is packed once.
        """


class ExecutableGraph(Protocol):
    """Launches and copies that are started together."""

    def launch(self, stream: int) -> None: ...
    def destroy(self) -> None:
        """It may still be running."""


class CapturedGraph(Protocol):
    """What a capture has found. Kernels, memory and events that it names must outlive it."""

    num_nodes: int

    def instantiate(self) -> ExecutableGraph:
        """Make it ready to run, and itself unusable. Raises: OutOfMemoryError."""

    def destroy(self) -> None: ...


class Driver(Protocol):
    """The whole of what the backend asks of a device."""

    name: str
    dlpack_device_type: int  # of its memory: 2 is CUDA, 1 the host

    @property
    def version(self) -> str:
        """For people to read."""

    def device_count(self) -> int: ...
    def properties(self, device: int) -> Properties: ...
    def memory_info(self, device: int) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def allocate(self, device: int, num_bytes: int, stream: int) -> int:
        """An address, usable in the order of the stream, aligned to 256 bytes at least; 0 when there is no room."""

    def release(self, device: int, pointer: int, stream: int) -> None:
        """Give memory of allocate() back, in the order of the stream."""

    def trim(self, device: int) -> None:
        """Hand released memory back to the system."""

    def note_use(self, pointer: int, num_bytes: int, fresh: bool = True) -> None:
        """These bytes now belong to an array (0 bytes: no longer); fresh: nothing is in them yet.

        Only asked for where `watches_memory` is true.
        """

    watches_memory: bool

    def allocate_pinned(self, num_bytes: int) -> int: ...
    def release_pinned(self, pointer: int) -> None: ...
    def is_pinned(self, pointer: int) -> bool:
        """Is this address in page-locked host memory, whoever allocated it?"""

    def device_of(self, pointer: int) -> int:
        """The device on which this address lies."""

    def copy(self, device: int, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Between any two addresses, host or device, in the order of the stream. Pageable host memory may be read late
        only by the device-to-host direction: synchronize before looking at it."""

    def fill_bytes(self, device: int, pointer: int, byte: int, num_bytes: int, stream: int) -> None: ...

    def create_stream(self, device: int, priority: int) -> int: ...
    def synchronize_stream(self, device: int, stream: int) -> None: ...
    def is_capturing(self, device: int, stream: int) -> bool:
        """Does its work go into a graph, so that nothing can be waited for?"""

    def begin_capture(self, device: int, stream: int, mode: CaptureMode) -> None:
        """From now on the stream's work goes into a graph, and that of streams which wait for its events."""

    def end_capture(self, device: int, stream: int) -> CapturedGraph:
        """Its work runs again at once. Raises: KernelError: something happened that no graph can hold."""

    def unrestricted(self) -> AbstractContextManager[None]:
        """Inside the block this thread may do what captures forbid, such as waiting for streams that are not captured.

        What cannot wait for the end of a capture is done there: memory from the device, loading kernels.
        """

    def synchronize(self, device: int) -> None: ...
    def create_event(self, device: int, timing: bool) -> Any: ...
    def destroy_event(self, event: Any) -> None: ...
    def record_event(self, device: int, event: Any, stream: int) -> None: ...
    def wait_event(self, device: int, stream: int, event: Any) -> None: ...
    def event_done(self, device: int, event: Any) -> bool: ...
    def synchronize_event(self, device: int, event: Any) -> None: ...
    def elapsed_ms(self, device: int, start: Any, end: Any) -> float: ...

    def load_kernel(self, device: int, kernel: Any, signature: Signature) -> LoadedKernel:
        """Compile a @triton.jit function for this signature and put it on the device."""
