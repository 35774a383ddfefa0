"""The driver in force: a GPU where there is one, host memory with GENESIS_CUDA=simulated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeGuard

from genesis.backends.cuda.driver.interface import AddressLaunch as AddressLaunch
from genesis.backends.cuda.driver.interface import CapturedGraph as CapturedGraph
from genesis.backends.cuda.driver.interface import CaptureMode as CaptureMode
from genesis.backends.cuda.driver.interface import Driver as Driver
from genesis.backends.cuda.driver.interface import ExecutableGraph as ExecutableGraph
from genesis.backends.cuda.driver.interface import GpuDriver as GpuDriver
from genesis.backends.cuda.driver.interface import Grid as Grid
from genesis.backends.cuda.driver.interface import KernelError as KernelError
from genesis.backends.cuda.driver.interface import Kind as Kind
from genesis.backends.cuda.driver.interface import LoadedKernel as LoadedKernel
from genesis.backends.cuda.driver.interface import Properties as Properties
from genesis.backends.cuda.driver.interface import RawLaunch as RawLaunch
from genesis.backends.cuda.driver.interface import Signature as Signature
from genesis.backends.cuda.driver.interface import Value as Value
from genesis.distribution import install_command
from genesis.errors import DeviceError
from genesis.settings import on_change, settings

_drivers: dict[str, Driver] = {}
_caches: list[Callable[[], None]] = []
_choice = settings.cuda
_lock = threading.Lock()


def get() -> Driver:
    """The driver that settings.cuda asks for, made on first use. Raises: DeviceError: there is no device."""
    driver = _drivers.get(settings.cuda)
    if driver is None:
        with _lock:
            driver = _drivers.get(settings.cuda)
            if driver is None:
                driver = _drivers[settings.cuda] = _create(settings.cuda)
    return driver


def _create(choice: str) -> Driver:
    if choice == "off":
        raise DeviceError("cuda: switched off by GENESIS_CUDA=off")
    try:
        if choice == "simulated":
            import triton  # noqa: F401  (its interpreter runs the kernels)

            from genesis.backends.cuda.driver.simulated import SimulatedDriver

            return SimulatedDriver()
        from genesis.backends.cuda.driver.cuda_driver import CudaDriver
    except ImportError as error:
        what = "Triton is" if (error.name or "").startswith("triton") else "NVIDIA's bindings are"
        raise DeviceError(f"cuda: {what} not installed ({error}); {install_command('cuda')}") from error
    return CudaDriver()


def gpu() -> GpuDriver:
    """The driver in force, for those who are asked only on a GPU."""
    here = get()
    assert _drives_gpu(here), f"{here.name} has none of NVIDIA's libraries"
    return here


def _drives_gpu(here: Driver) -> TypeGuard[GpuDriver]:
    return hasattr(here, "recorder")


def is_available() -> bool:
    """Is there a device, real or simulated?"""
    try:
        return get().device_count() > 0
    except DeviceError:
        return False


def forget_on_switch(clear: Callable[[], None]) -> None:
    """Call clear whenever another driver comes into force; for caches of what belongs to one driver."""
    _caches.append(clear)


def _follow_settings() -> None:
    global _choice
    if settings.cuda != _choice:
        _choice = settings.cuda
        for clear in _caches:
            clear()


on_change(_follow_settings)
