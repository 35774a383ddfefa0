"""cuDNN through NVIDIA's frontend: handles, graphs, plans, and running one on addresses.

The frontend's compiled graph class is used, which has been the same from 1.24 to 1.28 (as `pygraph`, then as
`backend_graph` below a layer of Python): it takes addresses as they are, in one array, without a look at the objects
behind them.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.dtypes import DType
from genesis.shapes import Shape, channels_last_strides

if TYPE_CHECKING:
    from cudnn import data_type as DataType
    from cudnn import tensor as GraphTensor

_idle: dict[tuple[int, int], list[int]] = {}  # (device, stream) → handles that nobody is using


@functools.cache
def _module() -> ModuleType | None:
    """The compiled part of the frontend; None where it, or the library behind it, is not installed."""
    try:
        import cudnn

        cudnn.backend_version()  # finds the library, or says that there is none
    except (ImportError, RuntimeError, OSError):
        return None
    return cudnn._pybind_module


def _library() -> ModuleType:
    module = _module()
    assert module is not None, "cuDNN is not installed"
    return module


def is_available() -> bool:
    """Can graphs be built here: a real device, the frontend, and cuDNN?"""
    return driver.get().name == "cuda" and _module() is not None


def version() -> str:
    """Version of cuDNN: "9.19.0"; "" where there is none."""
    module = _module()
    if module is None:
        return ""
    number = module.backend_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@functools.cache
def installed() -> str:
    """The installed version, without loading it: "nvidia-cudnn-cu13 9.19.0.56, frontend 1.28.0"; "" where cuDNN is
    missing.

    A cuDNN that came without a package is asked for its version.
    """
    try:
        frontend = metadata.version("nvidia-cudnn-frontend")
    except metadata.PackageNotFoundError:
        return ""
    for package in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            return f"{package} {metadata.version(package)}, frontend {frontend}"
        except metadata.PackageNotFoundError:
            continue
    return f"cuDNN {version()}, frontend {frontend}" if version() else ""


@contextmanager
def reported() -> Iterator[None]:
    """Whatever cuDNN raises inside the with block is a KernelError: its own exceptions have changed their class from
    version to version."""
    try:
        yield
    except Exception as error:
        raise KernelError(f"cuDNN: {error}") from error


def data_type(dtype: DType) -> DataType:
    kinds = _library().data_type
    return {dtypes.float32: kinds.FLOAT, dtypes.float16: kinds.HALF, dtypes.bfloat16: kinds.BFLOAT16}[dtype]


def _take_handle(device: int, stream: int, idle: list[int]) -> int:
    """A handle of cuDNN whose work goes to this stream; it serves one call at a time, then goes back to idle."""
    try:
        return idle.pop()
    except IndexError:
        pass
    here = driver.gpu()
    here.activate(device)
    module = _library()
    with here.unrestricted():  # it takes memory from the device
        made = int(module.create_handle())
        set_stream = getattr(module, "_raw_set_stream", None) or module.set_stream
        set_stream(made, stream)
    return made


def warm_up(device: int) -> None:
    """Load the libraries and make a handle, which takes a while, before anybody waits for it."""
    if is_available():
        idle = _idle.setdefault((device, 0), [])
        idle.append(_take_handle(device, 0, idle))


# cudnnBackendKnobType_t: what the numbers in a plan's name are called in the frontend.
_KNOBS = {
    1: "SWIZZLE", 2: "TILE_SIZE", 4: "EDGE", 11: "MULTIPLY", 12: "SPLIT_K_BUF", 13: "TILEK", 14: "STAGES",
    15: "REDUCTION_MODE", 17: "SPLIT_K_SLC", 18: "IDX_MODE", 23: "SPECFILT", 24: "KERNEL_CFG", 25: "WORKSPACE",
    27: "TILE_CGA_M", 28: "TILE_CGA_N", 29: "BLOCK_SIZE", 30: "OCCUPANCY", 31: "ARRAY_SIZE_PER_THREAD",
    33: "SPLIT_COLS", 34: "TILE_ROWS", 35: "TILE_COLS", 36: "LOAD_SIZE", 37: "CTA_COUNT", 38: "STREAM_K",
    39: "SPLIT_P_SLC", 40: "TILE_M", 41: "TILE_N", 42: "WARP_SPEC_CFG",
}  # fmt: skip


class PlanLaunch(Protocol):
    """A plan that was built."""

    def __call__(self, stream: int, workspace: int, /, *addresses: int) -> None: ...


class Sums(NamedTuple):
    """How the plans of a graph are to add up."""

    plain: bool = False  # only multiply-adds of the operands as they are: not rounded for tensor cores, nor Winograd's
    deterministic: bool = False
    any_width: bool = False  # also by engines that have settings or kernels whose sums are not in float32


class Graph:
    """An operation graph on arrays of one dtype, dense and channels-last unless given strides; sums are float32."""

    def __init__(self, device: int, dtype: DType, alignment: int = 16) -> None:
        self.device, self.dtype, self.alignment = device, dtype, alignment
        module = _library()
        self._module = module
        make = getattr(module, "backend_graph", None) or module.pygraph
        kind = data_type(dtype)
        single = module.data_type.FLOAT
        self._home = _idle.setdefault((device, 0), [])  # where the handle goes back to, after build() or with the graph
        self._handle: int | None = _take_handle(device, 0, self._home)
        self.ops = make(
            name="genesis", io_data_type=kind, intermediate_data_type=single, compute_data_type=single,
            handle=self._handle,
        )  # fmt: skip
        self._uids = 0

    def __del__(self) -> None:  # also while the interpreter ends, when this module's names are gone
        if hasattr(self, "ops"):
            self._give_handle_back()

    def _give_handle_back(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._home.append(handle)

    def operand(self, shape: Shape, strides: Shape | None = None) -> GraphTensor:
        """An array that run() is given the address of, in the order of these calls."""
        self._uids += 1
        steps = channels_last_strides(shape) if strides is None else strides
        tensor = self.ops._make_tensor(
            dim=list(shape), stride=list(steps), data_type=data_type(self.dtype), uid=self._uids
        )
        tensor.set_alignment(self.alignment)
        return tensor

    def result(
        self, tensor: GraphTensor, shape: Shape, strides: Shape | None = None, dtype: DType | None = None
    ) -> None:
        """tensor is what the graph computes; run() is given its address after those of operands and former results."""
        self._uids += 1
        tensor.set_uid(self._uids).set_output(True).set_data_type(data_type(dtype or self.dtype))
        tensor.set_dim(list(shape)).set_stride(list(channels_last_strides(shape) if strides is None else strides))
        tensor.set_alignment(self.alignment)

    def plan_names(self, sums: Sums) -> list[str]:
        """The plans that the heuristics suggest, the best first, fallbacks last; build() refuses unwanted ones.

        Sums are in float32, as far as an engine is all that matters: cuDNN tells nothing of an engine's settings.
        Raises: KernelError: cuDNN has nothing for this graph.
        """
        modes = self._module.heur_mode
        with reported():
            self.ops.validate()
            self.ops.build_operation_graph()
            self.ops.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
            self._leave_out(sums)
            return [self.ops.get_plan_name_at_index(i) for i in range(self.ops.get_execution_plan_count())]

    def plan_named(self, name: str, sums: Sums) -> bool:
        """Ask for the plan of that name only, without the heuristics; False: the frontend cannot put it that way.

        Heuristics take several times as long as a plan, and build() refuses what is unwanted here too.
        """
        try:
            self.ops.validate()
            self.ops.build_operation_graph()
            engine, *settings = name.removeprefix("eng").split("_")
            knobs = {}
            for setting in settings:
                number, _, value = setting.removeprefix("k").partition("=")
                knobs[getattr(self._module.knob_type, _KNOBS[int(number)])] = int(value)
            self.ops.create_execution_plan(int(engine), knobs)
            self._leave_out(sums)
            return bool(self.ops.get_plan_name_at_index(0) == name)
        except Exception:  # a knob that has no name there, or a version whose names mean others
            return False

    def _leave_out(self, sums: Sums) -> None:
        notes = self._module.numerical_note
        unwanted = [] if sums.any_width else [notes.REDUCED_PRECISION_REDUCTION]
        if sums.plain:
            unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.WINOGRAD, notes.FFT]
        if sums.deterministic:
            unwanted.append(notes.NONDETERMINISTIC)
        if unwanted:
            self.ops.deselect_numeric_notes(unwanted)

    def build(self, index: int) -> None:
        """Make ready the only plan of this graph that will run.

        Raises: KernelError: it cannot run here, or was deselected.
        """
        here = driver.gpu()
        here.activate(self.device)
        with reported(), here.unrestricted():
            self.ops.build_plan_at_index(index)
        self._give_handle_back()  # a plan runs with others, and a handle takes milliseconds to make

    def workspace(self, index: int) -> int:
        """Bytes; 0 before build()."""
        with reported():
            return int(self.ops.get_workspace_size_plan_at_index(index))

    def runner(self, index: int) -> PlanLaunch:
        """run(stream, workspace, *addresses): the plan that was built."""
        here = driver.gpu()
        note, device, activate = here.recorder(self.device), self.device, here.activate
        packer = struct.Struct(f"<{self._uids}Q")
        table = ctypes.create_string_buffer(packer.size)
        pack, start = packer.pack_into, ctypes.addressof(table)
        with reported():
            execute = self._execute(index)
        lock = threading.Lock()  # a graph has one table of addresses, in the frontend too
        idle: dict[int, list[int]] = {}  # by stream

        def run(stream: int, workspace: int, *addresses: int) -> None:
            activate(device)
            handles = idle.get(stream)
            if handles is None:
                handles = idle[stream] = _idle.setdefault((device, stream), [])
            try:
                handle = _take_handle(device, stream, handles)
                with lock:
                    pack(table, 0, *addresses)
                    execute(start, addresses, workspace, handle)
            except Exception as error:
                raise KernelError(f"cuDNN: {error}") from error
            handles.append(handle)
            note("cudnn")
            if here.watch_launches:
                here.launched(device, "cudnn", (1, 1, 1), stream, addresses)

        return run

    def _execute(self, index: int) -> Callable[[int, Sequence[int], int, int], None]:
        """The frontend's quick way where it has it and sees the arrays in our order, else the one with a dictionary."""
        ops, count = self.ops, self._uids
        uids = range(1, count + 1)
        quick = getattr(ops, "_execute_with_raw_ptrs", None)
        if quick is not None:
            ops._prepare_variant_pack_template()
            if list(ops._get_variant_pack_uids_sorted()) == list(uids):
                return lambda table, addresses, workspace, handle: quick(table, count, workspace, handle)
        plain = ops._execute_plan_at_index
        return lambda table, addresses, workspace, handle: plain(
            dict(zip(uids, addresses, strict=True)), workspace, index, handle
        )
