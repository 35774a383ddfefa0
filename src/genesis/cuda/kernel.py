"""A kernel that can be called: kernel(a, b, out, n, grid=…, block=…).

The first call with tensors of some dtypes and shapes checks everything and prepares the launch; later ones look it up.
What can still differ between them, the values of numbers, is checked by packing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from genesis.autograd.modes import Constant, Watcher, state
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch, Value
from genesis.backends.cuda.nvrtc.program import Program, base_name
from genesis.backends.cuda.nvrtc.types import Pointer
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.cuda import arguments, launch_checks
from genesis.cuda.arguments import framework_of
from genesis.cuda.frameworks.genesis import GENESIS
from genesis.cuda.frameworks.interface import Framework, Operand
from genesis.cuda.ordering import ordered
from genesis.errors import DeviceError
from genesis.ndarray import NDArray
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.backends.cuda.driver.native_kernel import NativeKernel, NativeModule

Grid = int | Sequence[int] | Callable[..., int | Sequence[int]] | None

LAUNCHES = "launches a kernel of its own"  # on another stream or on other tensors than Genesis': not recorded
_MOST_PREPARED = 4096  # launches that a kernel remembers
_BLOCK = 256  # threads, where the caller does not say
_UNKNOWN: Any = object()
_modules: dict[tuple[Program, tuple[str, ...], int], NativeModule] = {}  # loaded, for all kernels of a source
driver.forget_on_switch(_modules.clear)


class Kernel(Constant):
    """A __global__ function of a module; call it to launch it.

    Args of a call, by position, as the kernel declares them:
        pointers: tensors of Genesis, of PyTorch, or of anything with DLPack or `__cuda_array_interface__`, contiguous,
            all on one device; None is a null pointer.
        numbers: Python or NumPy numbers in the range of their type.
        grid: 1 to 3 numbers of blocks, or a function of the arguments that gives them. By default as many blocks as
            cover the largest tensor with a thread per element.
        block: 1 to 3 numbers of threads; by default 256, or what __launch_bounds__ allows.
        shared: bytes of dynamic shared memory.
        stream: a stream of Genesis or PyTorch, or its address; by default the current one of the tensors' library.
        strided: take tensors that are not contiguous; the kernel is told their strides by the caller.
    Raises: DTypeError, DeviceError, ShapeError, ValueError: an argument does not fit, by its name; KernelError: the
        device refused the launch, or an earlier kernel has failed.
    """

    def __init__(self, program: Program, expressions: tuple[str, ...], name: str) -> None:
        self.name = name
        self.declaration = program.kernels[base_name(name)]
        self._program, self._expressions = program, expressions
        self._kinds = self.declaration.kinds(name, program.aliases)
        self._written = [i for i, kind in enumerate(self._kinds) if isinstance(kind, Pointer) and kind.writable]
        self._prepared: dict[tuple[object, ...] | None, _Launch | None] = {}
        self._loaded: dict[int, NativeKernel] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(map(str, self.declaration.parameters))})>"

    def __call__(
        self,
        *args: Any,
        grid: Grid = None,
        block: int | Sequence[int] | None = None,
        shared: int = 0,
        stream: object = None,
        strided: bool = False,
    ) -> None:
        if grid is not None and callable(grid):
            grid = grid(*args)
            grid = () if grid is None else grid  # which is refused: to leave it out says another thing
        marks: list[object] = [grid, block, shared, strided]
        values: list[Value] = []
        readers = arguments.readers
        for arg in args:  # what GenesisTensors.read() does is written out: this is on the way of every launch
            kind = type(arg)
            if kind is int:
                marks.append(int)
                values.append(arg)
            elif kind is Tensor and type(handle := arg.array.handle) is DeviceArray:
                marks.append(handle._layout or handle.layout)
                values.append(handle.data_pointer)
            else:
                mark, value = (readers.get(kind) or arguments.reader_of(kind))(arg)
                marks.append(mark)
                values.append(value)
        key: tuple[object, ...] | None = tuple(marks)
        try:
            launch = self._prepared.get(key, _UNKNOWN)
        except TypeError:  # a list as the grid
            launch, key = _UNKNOWN, None
        if launch is _UNKNOWN:
            launch = self._prepare(args, grid, block, shared, strided)
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            if key is not None:
                self._prepared[key] = launch
        if launch is not None:  # None: an empty grid
            try:
                run, device, frameworks, stream_of, written = launch
                if state.watcher is not None:
                    _launch_watched(state.watcher, launch, args, values, stream)
                elif stream is None and stream_of is not None:
                    run(stream_of(device), *values)
                else:
                    with ordered(args, frameworks, device, stream) as chosen:
                        run(chosen, *values)
                for index, note_write in written:
                    note_write(args[index])
                return
            except (struct.error, OverflowError):  # a number that its type does not hold
                pass
            launch_checks.check_arguments(self.name, self.declaration, self._kinds, args, strided)
            raise AssertionError(f"{self.name}: the checks have let pass what cannot be packed: {values}")

    def _prepare(
        self, args: Sequence[object], grid: object, block: object, shared: int, strided: bool
    ) -> _Launch | None:
        """Check the call and find what it launches; None where there is nothing to do."""
        operands = launch_checks.check_arguments(self.name, self.declaration, self._kinds, args, strided)
        bound = min(self.declaration.max_threads or launch_checks.MAX_THREADS, launch_checks.MAX_THREADS)
        sizes = launch_checks.check_block(self.name, min(_BLOCK, bound) if block is None else block, bound)
        if grid is None:
            threads = sizes[0] * sizes[1] * sizes[2]
            grid = -(-max([operand.numel for operand in operands], default=1) // threads)
        blocks = launch_checks.check_grid(self.name, grid)
        shared = launch_checks.check_shared(self.name, shared)
        if 0 in blocks:
            return None
        device = _device_of(operands)
        native = self._load(device)
        launch_checks.check_block(self.name, sizes, native.max_threads)
        frameworks: list[Framework] = list(dict.fromkeys(operand.framework for operand in operands)) or [GENESIS]
        stream_of = frameworks[0].current_stream if len(frameworks) == 1 else None
        written = [(i, _framework(args[i]).note_write) for i in self._written if args[i] is not None]
        return _Launch(native.prepare(blocks, sizes, shared), device, frameworks, stream_of, written)

    def _load(self, device: int) -> NativeKernel:
        """The function on a device; compiled if it is not yet."""
        active = driver.get()
        if active.name == "simulated":
            raise DeviceError(
                f"{self.name}: CUDA C++ needs a GPU; the simulated device runs Triton kernels only, and an op of "
                "genesis.cuda.op can be given a cpu= implementation"
            )
        if device not in self._loaded:
            from genesis.backends.cuda.driver.native_kernel import NativeModule

            arch = f"sm_{active.properties(device).compute_capability}"
            entry = self._program.compiled(arch, self._expressions)
            key = (self._program, self._expressions, device)
            module = _modules.get(key)
            if module is None:
                module = _modules[key] = NativeModule(driver.gpu(), device, self._program.name, entry.cubin)
            slots = [kind.slot for kind in self._kinds]
            self._loaded[device] = module.function(entry.names.get(self.name, self.name), self.name, slots)
        return self._loaded[device]


class _Launch(NamedTuple):
    """A checked launch."""

    run: RawLaunch
    device: int
    frameworks: Sequence[Framework]
    stream_of: Callable[[int], int] | None  # the current stream of a device; None: the tensors' libraries differ
    written: Sequence[tuple[int, Callable[[object], None]]]  # what is to be told that an argument has changed


def _launch_watched(
    watcher: Watcher, launch: _Launch, args: Sequence[object], values: Sequence[Value], stream: object
) -> None:
    """Launch, and have the recorder of this run repeat it, if it can."""
    run, device, frameworks, stream_of, written = launch
    if stream is not None or stream_of is None or frameworks != [GENESIS]:
        watcher.refuse(LAUNCHES)
        with ordered(args, frameworks, device, stream) as chosen:
            run(chosen, *values)
        return
    arrays = {place: arg.array for place, arg in enumerate(args) if isinstance(arg, Tensor)}

    def again(present: Sequence[NDArray]) -> None:
        addresses = {place: array.handle.data_pointer for place, array in zip(arrays, present, strict=True)}
        run(stream_of(device), *[addresses.get(place, value) for place, value in enumerate(values)])

    watcher.launch(again, list(arrays.values()), [arrays[place] for place, _ in written])


def _framework(tensor: object) -> Framework:
    framework = framework_of(type(tensor))
    assert framework is not None, "the checks have let pass what is no tensor"
    return framework


def _device_of(operands: Sequence[Operand]) -> int:
    """The device of the kernel's tensors; without any, the current device."""
    from genesis.cuda.device import current_device

    device = operands[0].device if operands else current_device()
    assert device is not None, "the checks have let pass a tensor on the CPU"
    return device
