"""Functions of a cubin on a device: loading them, and what may be asked of a launch."""

from __future__ import annotations

from collections.abc import Sequence

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver.interface import Function, GpuDriver, Grid, KernelError, RawLaunch
from genesis.backends.cuda.driver.launching import Configuration, Launcher

_STATIC_SHARED = 48 << 10  # bytes of shared memory that need no asking


class NativeModule:
    """A cubin on one device."""

    def __init__(self, driver: GpuDriver, device: int, name: str, cubin: bytes) -> None:
        self._driver, self._device = driver, device
        driver.activate(device)
        with driver.unrestricted():
            self._module = driver.check(device, cu.cuModuleLoadData(cubin), f"load {name}")

    def function(self, lowered: str, name: str, slots: Sequence[str]) -> NativeKernel:
        """A function of it: `lowered` is its name in the cubin, `name` what messages call it."""
        self._driver.activate(self._device)
        with self._driver.unrestricted():
            result = cu.cuModuleGetFunction(self._module, lowered.encode())
        return NativeKernel(self._driver, self._device, self._driver.check(self._device, result, name), name, slots)


class NativeKernel:
    """A function that takes numbers and addresses, packed as its slots say."""

    def __init__(self, driver: GpuDriver, device: int, function: Function, name: str, slots: Sequence[str]) -> None:
        self.name = name
        self._driver, self._device, self._function = driver, device, function
        self._launcher, self._slots = Launcher(driver, device, function, name), slots
        self._shared = _STATIC_SHARED
        attribute = cu.CUfunction_attribute
        self.max_threads = self._ask(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self._static_shared = self._ask(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)

    def _ask(self, which: cu.CUfunction_attribute) -> int:
        return int(self._driver.check(self._device, cu.cuFuncGetAttribute(which, self._function), self.name))

    def prepare(self, grid: Grid, block: Grid, shared: int) -> RawLaunch:
        """run(stream, *values) launches; values are packed each time. Raises: KernelError: too much shared memory."""
        self._allow_shared(shared)
        return self._launcher.prepare(Configuration(grid, block, shared), self._slots)

    def _allow_shared(self, shared: int) -> None:
        """More than 48 KiB of dynamic shared memory must be asked for, once per function."""
        limit = self._driver.properties(self._device).max_shared_memory - self._static_shared
        if shared > limit:
            raise KernelError(f"{self.name}: argument 'shared': expected at most {limit} bytes, got {shared}")
        if shared > self._shared:
            dynamic = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.activate(self._device)
            self._driver.check(self._device, cu.cuFuncSetAttribute(self._function, dynamic, shared), self.name)
            self._shared = shared
