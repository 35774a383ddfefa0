"""Which devices there are, and which of them "cuda" without a number means in this thread."""

from __future__ import annotations

import dataclasses
from typing import Any

from genesis import backends
from genesis.backends.cuda import driver
from genesis.errors import DeviceError, describe
from genesis.ndarray import Device, current_index, set_current_index

DeviceLike = Device | str | int | None


def is_available() -> bool:
    """Is there a device, a GPU or with GENESIS_CUDA=simulated one on host memory?"""
    return driver.is_available()


def device_count() -> int:
    """How many devices there are; 0 where CUDA is not available."""
    return driver.get().device_count() if is_available() else 0


def current_device() -> int:
    """The index of the device that "cuda" means in this thread; 0 until it is set."""
    return current_index()


def set_device(device: DeviceLike) -> None:
    """Let "cuda" mean this device from now on, in this thread.

    Raises: DeviceError: there is no such device.
    """
    index = index_of("set_device", device)
    driver.get().properties(index)
    set_current_index(index)


class device:  # noqa: N801  (PyTorch's name)
    """Let "cuda" mean this device inside the with block, in this thread.

    Args:
        device: an index, "cuda:1" or a genesis.device; None changes nothing.
    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"), genesis.cuda.device(1):
        ...     genesis.device("cuda")
        device(type='cuda', index=1)
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = index_of("device", device)

    def __enter__(self) -> None:
        self._before = current_index()
        set_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        set_current_index(self._before)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What a device is, under PyTorch's names."""

    name: str
    major: int  # of the compute capability
    minor: int
    total_memory: int  # bytes
    multi_processor_count: int
    shared_memory_per_block_optin: int  # bytes
    warp_size: int = 32


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, compute capability, memory and multiprocessors of a device, the current one by default."""
    found = driver.get().properties(index_of("get_device_properties", device))
    major, minor = divmod(found.compute_capability, 10)
    return DeviceProperties(
        found.name, major, minor, found.total_memory, found.multiprocessor_count, found.max_shared_memory
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The name of a device, the current one by default."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """The compute capability of a device, the current one by default: (9, 0) for sm_90."""
    found = get_device_properties(device)
    return found.major, found.minor


def driver_version() -> str:
    """What stands between Genesis and the devices, in words. Raises: DeviceError: there is none."""
    return driver.get().version


def synchronize(device: DeviceLike = None) -> None:
    """Wait until all that was launched on a device, the current one by default, is done; late errors show here."""
    backends.get("cuda").synchronize(index_of("synchronize", device))


def index_of(op: str, device: Any) -> int:
    """The index of a device given as an index, a name, a genesis.device, or None for the current one."""
    if device is None:
        return current_index()
    if isinstance(device, str | Device):
        device = Device(device)
        if device.type != "cuda":
            raise DeviceError(describe(op, "device", "a CUDA device", device))
        return device.index
    if isinstance(device, bool) or not hasattr(device, "__index__") or device.__index__() < 0:
        raise DeviceError(describe(op, "device", "an index, 'cuda:N' or a genesis.device", repr(device)))
    return int(device)
