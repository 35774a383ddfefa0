"""Triton without torch: compiling for a named architecture, and the driver object that Triton asks about the device.

Nothing here needs a GPU. Triton's global driver object is ours only while we compile, so that PyTorch's compiler finds
its own in the same process; threads that compile for one architecture do so at the same time. installed() makes it ours
for a while, for kernels launched as kernel[grid](…).
"""

from __future__ import annotations

import hashlib
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver as triton_runtime

from genesis.backends.cuda.driver import deferred
from genesis.backends.cuda.driver.current import current_handle
from genesis.backends.cuda.driver.interface import GpuDriver, Signature
from genesis.backends.cuda.driver.overlap import overlaps

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction, CUmodule
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction

    from genesis.backends.cuda.driver.interface import KernelMetadata, TritonLaunch


class _Compiling:
    """Triton's active driver is a global: threads share it while they compile for one target, and wait for others."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._target: GPUTarget | None = None
        self._threads = 0
        self._before: object = None

    @contextmanager
    def compiling(self, target: GPUTarget) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: self._threads == 0 or self._target == target)
            if self._threads == 0:
                self._target, self._before = target, triton_runtime._active
                triton_runtime.set_active(TritonDriver(target))
            self._threads += 1
        try:
            yield
        finally:
            with self._free:
                self._threads -= 1
                if self._threads == 0:
                    triton_runtime._active = self._before
                    self._free.notify_all()


_shared = _Compiling()


def compile_kernel(kernel: JITFunction, signature: Signature, compute_capability: int) -> CompiledKernel:
    """Triton's CompiledKernel (metadata, asm["cubin"]), from its cache on disk where it is there."""
    target = GPUTarget("cuda", compute_capability, 32)
    source = ASTSource(
        fn=kernel,
        signature=dict(zip(kernel.arg_names, signature.types, strict=True)),
        constexprs=dict(signature.constants),
        attrs={path: [["tt.divisibility", 16]] for path in signature.divisible_by_16},
    )
    if deferred.is_deferring() and not is_on_disk(source, target, dict(signature.options)):
        key = ("triton", kernel.fn, signature, compute_capability)
        deferred.require(deferred.Request.of(key, compile_kernel, kernel, signature, compute_capability))
    with _shared.compiling(target):
        return triton.compile(source, target=target, options=dict(signature.options))


@triton.jit
def _copy_one_kernel(y_ptr, x_ptr):  # type: ignore[no-untyped-def]
    tl.store(y_ptr, tl.load(x_ptr))


def warm_up(folder: str) -> None:
    """Compile a kernel into this folder: it makes Triton import what compiling takes."""
    with knobs.cache.scope():
        knobs.cache.dir = folder
        compile_kernel(_copy_one_kernel, Signature(("*fp32", "*fp32"), (), (), ()), 90)


def overlapping(kernel: JITFunction, signature: Signature, compute_capability: int) -> Signature:
    """Have a kernel that can (see launch.overlap) come up while the one before it runs, on devices that can."""
    if "PDL" not in kernel.arg_names or not overlaps(compute_capability):
        return signature
    switch = (kernel.arg_names.index("PDL"),)
    constants = tuple((path, path == switch or value) for path, value in signature.constants)
    return signature._replace(constants=constants, options=(*signature.options, ("launch_pdl", True)))


def is_on_disk(source: ASTSource, target: GPUTarget, options: dict[str, object]) -> bool:
    """Would triton.compile() find it in its cache? False also where a later Triton names its files otherwise."""
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars
        from triton.compiler import make_backend
        from triton.runtime.cache import get_cache_key, get_cache_manager

        backend = make_backend(target)
        chosen = backend.parse_options({**options, **source.parse_options()})
        key = get_cache_key(source, backend, chosen, env_vars=get_cache_invalidating_env_vars())
        name = f"{source.name[:150]}.json"
        return bool((get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(name) or {}).get(name))
    except (AttributeError, ImportError, TypeError):
        return False


@contextmanager
def installed(device: GpuDriver) -> Iterator[None]:
    """Triton's own kernel[grid](…) takes DeviceArrays, and runs on our current stream, inside the with block."""
    target = GPUTarget("cuda", device.properties(0).compute_capability, 32)
    with _active(TritonDriver(target, device)):
        yield


@contextmanager
def _active(driver: TritonDriver) -> Iterator[None]:
    before = triton_runtime._active
    triton_runtime.set_active(driver)
    try:
        yield
    finally:
        triton_runtime._active = before


class TritonDriver:
    """The driver as Triton sees it: the device, the stream, how to load a binary and how to launch it."""

    def __init__(self, target: GPUTarget, device: GpuDriver | None = None) -> None:
        """device: a CudaDriver to launch on; without one it only answers for compiling."""
        self._target, self._device = target, device
        self.launcher_cls = self._launcher
        self.utils = types.SimpleNamespace(
            load_binary=self._load_binary,
            unload_module=lambda module: None,
            get_device_properties=self._properties,
            set_printf_fifo_size=lambda num_bytes: None,
        )

    def get_current_device(self) -> int:
        return 0 if self._device is None else self._device.current_device()

    def get_current_stream(self, device: int) -> int:
        return current_handle(device)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_benchmarker(self) -> Callable[..., object]:
        from triton.testing import do_bench

        return do_bench

    def _properties(self, device: int) -> dict[str, int]:
        assert self._device is not None
        properties = self._device.properties(device)
        return {
            "max_shared_mem": properties.max_shared_memory,
            "multiprocessor_count": properties.multiprocessor_count,
            "warpSize": 32,
            "max_num_regs": 65536,
        }

    def _load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[CUmodule, CUfunction, int, int, int]:
        assert self._device is not None
        return self._device.load_binary(name, cubin, shared, device)

    def _launcher(self, source: ASTSource, metadata: KernelMetadata) -> TritonLaunch:
        assert self._device is not None
        return self._device.triton_launcher(source, metadata)
