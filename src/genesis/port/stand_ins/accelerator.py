"""torch.accelerator: the kind of device that is not the CPU, which here is CUDA or none."""

from __future__ import annotations

import genesis.cuda
from genesis.ndarray import Device


def is_available() -> bool:
    """Whether there is a CUDA device."""
    return genesis.cuda.is_available()


def device_count() -> int:
    """Number of CUDA devices."""
    return genesis.cuda.device_count() if is_available() else 0


def current_accelerator(check_available: bool = False) -> Device | None:
    """The device type, without an index; None where there is no GPU."""
    return Device("cuda") if is_available() else None


def current_device_index() -> int:
    """Index of the current device."""
    _require("current_device_index")
    return genesis.cuda.current_device()


def set_device_index(device: int | str | Device, /) -> None:
    """Make a device the current one."""
    _require("set_device_index")
    genesis.cuda.set_device(device)


def synchronize(device: int | str | Device | None = None, /) -> None:
    """Wait until a device has done all its work."""
    _require("synchronize")
    genesis.cuda.synchronize(device)


def empty_cache() -> None:
    """Give unused memory back to the device."""
    _require("empty_cache")
    genesis.cuda.empty_cache()


def memory_allocated(device_index: int | str | Device | None = None, /) -> int:
    """Bytes in tensors of a device."""
    _require("memory_allocated")
    return genesis.cuda.memory_allocated(device_index)


def max_memory_allocated(device_index: int | str | Device | None = None, /) -> int:
    """The most bytes that there were in tensors of a device."""
    _require("max_memory_allocated")
    return genesis.cuda.max_memory_allocated(device_index)


current_device_idx, set_device_idx = current_device_index, set_device_index


def _require(op: str) -> None:
    if not is_available():
        raise RuntimeError(f"{op}: expected a CUDA device, got none")
