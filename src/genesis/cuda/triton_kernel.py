"""Triton kernels on tensors of Genesis and of PyTorch, launched by Genesis: PyTorch's CUDA build is not needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from genesis.autograd.modes import state, unrecordable
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.runtime import streams
from genesis.cuda import arguments, launch_checks
from genesis.cuda.arguments import framework_of
from genesis.cuda.frameworks.genesis import GENESIS
from genesis.cuda.frameworks.interface import Framework
from genesis.cuda.kernel import LAUNCHES
from genesis.cuda.ordering import ordered
from genesis.cuda.triton_writes import written_parameters
from genesis.errors import DeviceError, DTypeError, describe
from genesis.ndarray import NDArray
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Grid = int | Sequence[int] | Callable[[dict[str, object]], int | Sequence[int]]


class Launcher(Protocol):
    """A kernel with its grid: call it with the kernel's arguments and launch options."""

    def __call__(self, *args: object, **named: object) -> None: ...


class TritonKernel:
    """A @triton.jit function on tensors, launched as in Triton: kernel[grid](x, out, n, BLOCK=1024, num_warps=4)."""

    def __init__(self, kernel: JITFunction) -> None:
        if not (hasattr(kernel, "arg_names") and hasattr(kernel, "params")):
            raise DTypeError(describe("triton_kernel", "kernel", "a @triton.jit function", type(kernel).__name__))
        self.name = self.__name__ = kernel.__name__
        self.kernel = kernel
        self._constants = {param.name for param in kernel.params if param.is_constexpr}
        parameters = inspect.signature(kernel.fn).parameters.values()
        self._defaults = {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }

    def __repr__(self) -> str:
        return f"<Triton kernel {self.name}({', '.join(self.kernel.arg_names)})>"

    def __getitem__(self, grid: Grid) -> Launcher:
        """A launcher for this grid: 1 to 3 numbers of programs, or a function of the arguments by name."""

        def call(*args: object, **named: object) -> None:
            self._launch(grid, args, named)

        return call

    def __call__(self, *args: object, **named: object) -> None:
        raise TypeError(f"{self.name}: expected a grid: {self.name}[grid](…)")

    def _launch(self, grid: Grid, args: Sequence[object], named: dict[str, object]) -> None:
        names = self.kernel.arg_names
        if len(args) > len(names):
            raise DTypeError(f"{self.name}: expected {len(names)} arguments ({', '.join(names)}), got {len(args)}")
        options = {name: value for name, value in named.items() if name not in names}
        given = {**self._defaults, **dict(zip(names, args, strict=False))}
        twice = [name for name in names[: len(args)] if name in named]
        if twice:
            raise DTypeError(f"{self.name}: expected each argument once; {', '.join(twice)} by position and by name")
        given |= {name: value for name, value in named.items() if name in names}
        missing = [name for name in names if name not in given]
        if missing:
            raise DTypeError(f"{self.name}: expected arguments {', '.join(names)}; {', '.join(missing)} missing")
        blocks = launch_checks.check_grid(self.name, grid(given) if callable(grid) else grid)
        by_position = {name: given[name] for name in names if name not in self._constants}
        constants = {name: given[name] for name in names if name in self._constants}
        device, frameworks = self._check(by_position)
        if frameworks == [GENESIS]:
            tensors = {name: value.array for name, value in by_position.items() if isinstance(value, Tensor)}

            def run(arrays: Sequence[NDArray]) -> None:
                handles = {name: array.handle for name, array in zip(tensors, arrays, strict=True)}
                values = {**by_position, **handles}.values()
                launch.launch(self.kernel, blocks, *values, **constants, **options)

            self._launched(run, tensors)
            return
        unrecordable(LAUNCHES)
        values = [arguments.array_of(v) if framework_of(type(v)) else v for v in by_position.values()]
        with (
            ordered(list(by_position.values()), frameworks, device) as stream,
            streams.use(streams.Stream(device, handle=stream)),
        ):
            launch.launch(self.kernel, blocks, *values, **constants, **options)

    def _launched(self, run: Callable[[Sequence[NDArray]], None], tensors: dict[str, NDArray]) -> None:
        arrays = list(tensors.values())
        watcher = state.watcher
        if watcher is None:
            run(arrays)
            return
        written = written_parameters(self.kernel.fn)
        if written is None:
            watcher.refuse(f"{LAUNCHES}, {self.name}, whose source does not show where it writes")
            written = frozenset(tensors)
        watcher.launch(run, arrays, [array for name, array in tensors.items() if name in written])

    def _check(self, by_position: dict[str, object]) -> tuple[int, list[Framework]]:
        """The device of the tensors, and the libraries that they are from."""
        devices: dict[int, str] = {}
        frameworks: dict[Framework, None] = {}
        for name, value in by_position.items():
            framework = framework_of(type(value))
            if framework is None:
                continue
            device = framework.device_of(value)
            if device is None:
                raise DeviceError(describe(self.name, name, "a tensor on a CUDA device", "one on the CPU"))
            devices.setdefault(device, name)
            frameworks[framework] = None
        if len(devices) != 1:
            found = ", ".join(f"'{name}' on cuda:{device}" for device, name in devices.items()) or "no tensors"
            raise DeviceError(f"{self.name}: expected tensors on one CUDA device, got {found}")
        return next(iter(devices)), list(frameworks)


def triton_kernel(kernel: JITFunction) -> TritonKernel:
    """Let a @triton.jit function take tensors of Genesis and of PyTorch; it is launched as in Triton.

    Launched on the current stream of the tensors' library, compiled once and kept, on the simulated device interpreted.
    It stands above @triton.jit as a decorator.

    Args:
        kernel: decorated with @triton.jit.
    Returns: a kernel, to be launched as kernel[grid](…).
    Raises: DTypeError: kernel is something else, as what @triton.autotune gives. At a launch: DTypeError: an argument
        is missing; DeviceError: a tensor is on the CPU, or on another device than the others.

    Example:
        >>> import triton
        >>> from triton import language as tl
        >>> from genesis.settings import override
        >>> @genesis.cuda.triton_kernel
        ... @triton.jit
        ... def _double_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
        ...     i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ...     tl.store(out_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)
        >>> with override(cuda="simulated"):
        ...     x, out = genesis.ones(3, device="cuda"), genesis.empty(3, device="cuda")
        ...     _double_kernel[(1,)](out, x, 3, BLOCK=4)
        ...     out.tolist()
        [2.0, 2.0, 2.0]
    """
    return TritonKernel(kernel)
