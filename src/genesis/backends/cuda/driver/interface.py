"""The interface of a device; cuda_driver.py implements it on a GPU, ../simulated.py on host memory.

Addresses and streams are plain ints (stream 0 is the legacy default stream, which PyTorch uses too); events are opaque.
Nothing here allocates smartly or remembers a current stream: that is memory.py and streams.py, once for both drivers.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple, overload

from genesis.errors import GenesisError

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction, CUmodule, CUresult
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

T = TypeVar("T")
U = TypeVar("U")
Ts = TypeVarTuple("Ts")
Path = tuple[int, ...]
CaptureMode = Literal["global", "thread_local", "relaxed"]
Grid = tuple[int, int, int]
Value: TypeAlias = int | float | None  # of a kernel's argument, as it is packed: an address, a number; None is constant
Kind: TypeAlias = "str | tuple[Kind, ...]"  # of a parameter: "*fp32", "i32", "fp32", "constexpr"; of a tuple's elements


class KernelError(GenesisError, RuntimeError):
    """The device reported a fault, or refused a kernel; the message names the kernels in question."""


@dataclasses.dataclass(frozen=True)
class Properties:
    """Properties of a device that kernels are compiled and tuned for."""

    name: str
    compute_capability: int  # 90 for sm_90
    multiprocessor_count: int
    max_shared_memory: int  # bytes per block, opt-in
    total_memory: int
    l2_cache: int  # bytes


class Signature(NamedTuple):
    """One way to compile a kernel. Paths are (parameter,) or (parameter, element of a tuple)."""

    types: tuple[Kind, ...]  # per parameter
    constants: tuple[tuple[Path, object], ...]
    divisible_by_16: tuple[Path, ...]
    options: tuple[tuple[str, object], ...]  # num_warps, num_stages, …


def kernel_name(kernel: JITFunction, signature: Signature) -> str:
    """The name under which the device knows it; a kernel can derive it from its constants (@triton.jit(repr=…))."""
    constants = {kernel.arg_names[path[0]]: value for path, value in signature.constants if len(path) == 1}
    name: str = kernel.repr(types.SimpleNamespace(constants=constants, signature=signature.types))
    return name.rpartition(".")[2]


class RawLaunch(Protocol):
    """A launch of which everything is packed but what each call gives."""

    def __call__(self, stream: int, /, *values: Value) -> None: ...


class AddressLaunch(Protocol):
    """One that is given addresses only."""

    def __call__(self, stream: int, /, *addresses: int) -> None: ...


class LoadedKernel(Protocol):
    """A kernel compiled for one signature, on one device."""

    name: str

    def launch(self, grid: Grid, stream: int, values: Sequence[Value]) -> None:
        """values: one per parameter that is no tl.constexpr, tuples flattened; constants among them are skipped."""

    def prepare(self, grid: Grid, num_leading: int, rest: Sequence[Value]) -> RawLaunch:
        """run(stream, *leading): launch with the first num_leading values before the rest; constants are skipped.

        For launches that are repeated: what does not change is packed once.
        """


class ExecutableGraph(Protocol):
    """Launches and copies that are started together."""

    def launch(self, stream: int) -> None: ...
    def destroy(self) -> None:
        """It may still be running."""


class CapturedGraph(Protocol):
    """A graph of captured work. Kernels, memory and events that it names must outlive it."""

    num_nodes: int

    def replace_memsets(self, kernel: Callable[[], Function | None], overlaps: bool) -> None:
        """Let a kernel do what short memsets do; see memset_nodes.replace()."""

    def overlaps(self) -> bool:
        """Does a kernel in it come up while one before it still runs? See launch/overlap.py."""

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
    def create_event(self, device: int, timing: bool) -> object: ...
    def destroy_event(self, event: object) -> None: ...
    def record_event(self, device: int, event: object, stream: int) -> None: ...
    def wait_event(self, device: int, stream: int, event: object) -> None: ...
    def event_done(self, device: int, event: object) -> bool: ...
    def synchronize_event(self, device: int, event: object) -> None: ...
    def elapsed_ms(self, device: int, start: object, end: object) -> float: ...

    def load_kernel(self, device: int, kernel: JITFunction, signature: Signature) -> LoadedKernel:
        """Compile a @triton.jit function for this signature and put it on the device."""


Function: TypeAlias = "CUfunction | int"  # on a device; its address where Triton has loaded it


class KernelMetadata(Protocol):
    """Triton's metadata of a compiled kernel."""

    @property
    def name(self) -> str: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def num_ctas(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def global_scratch_size(self) -> int: ...


class TritonLaunch(Protocol):
    """The function that Triton's own kernel[grid](…) calls to launch."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: Function, /, *rest: object) -> None:
        """rest: packed metadata, launch metadata, a hook before the launch, one after it, the kernel's arguments."""


class GpuDriver(Driver, Protocol):
    """The driver of a real GPU, as its libraries ask it."""

    watch_launches: bool

    def __hash__(self) -> int: ...
    def activate(self, device: int, anew: bool = False) -> None:
        """Make the device's context current in this thread; anew: even where it has been."""

    def current_device(self) -> int: ...
    def recorder(self, device: int) -> Callable[[str], None]:
        """A function that a kernel tells its name at each launch, for messages about faults."""

    def launched(self, device: int, name: str, grid: Grid, stream: int, values: Sequence[object]) -> None:
        """To be called after each launch while watch_launches is true."""

    @overload
    def check(self, device: int, result: tuple[CUresult], doing: str) -> tuple[()]: ...
    @overload
    def check(self, device: int, result: tuple[CUresult, T], doing: str) -> T: ...
    @overload
    def check(self, device: int, result: tuple[CUresult, T, U, *Ts], doing: str) -> tuple[T, U, *Ts]:
        """The value of a call of NVIDIA's driver. Raises: KernelError."""

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[CUmodule, CUfunction, int, int, int]:
        """(module, function, registers, spilled registers, most threads per block), as Triton wants it."""

    def triton_launcher(self, source: ASTSource, metadata: KernelMetadata) -> TritonLaunch:
        """The function that Triton's own kernel[grid](…) calls to launch."""
