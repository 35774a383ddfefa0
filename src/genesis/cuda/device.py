"""The devices, and which of them "cuda" without a number means in this thread."""

from __future__ import annotations

import dataclasses

from genesis import backends
from genesis.backends.cuda import driver
from genesis.errors import DeviceError, describe
from genesis.ndarray import Device, current_index, set_current_index

DeviceLike = Device | str | int | None


def is_available() -> bool:
    """Whether there is a device: a GPU, or with GENESIS_CUDA=simulated a simulated one in host memory.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.is_available()
        True
    """
    return driver.is_available()


def device_count() -> int:
    """The number of devices; 0 if CUDA is not available.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.device_count() >= 1
        True
    """
    return driver.get().device_count() if is_available() else 0


def current_device() -> int:
    """The index of this thread's current device, which "cuda" stands for; 0 until it is set.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"), genesis.cuda.device(1):
        ...     genesis.cuda.current_device()
        1
    """
    return current_index()


def set_device(device: DeviceLike) -> None:
    """Set this thread's current device, which "cuda" stands for.

    Args:
        device: an index, "cuda:1" or a genesis.device.
    Raises: DeviceError: there is no such device.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"), genesis.cuda.device(0):
        ...     genesis.cuda.set_device(1)
        ...     genesis.ones(1, device="cuda").device
        device(type='cuda', index=1)
    """
    index = index_of("set_device", device)
    driver.get().properties(index)
    set_current_index(index)


class device:  # noqa: N801  (PyTorch's name)
    """Set this thread's current device inside a with block.

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
    """Properties of a device, under PyTorch's names. Made by `genesis.cuda.get_device_properties`."""

    name: str
    major: int  # of the compute capability
    minor: int
    total_memory: int  # bytes
    multi_processor_count: int
    shared_memory_per_block_optin: int  # bytes
    warp_size: int = 32


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, compute capability, memory (bytes) and multiprocessors of a device.

    Args:
        device: an index, "cuda:1" or a genesis.device; the current device by default.
    Returns: a record.
    Raises: DeviceError: there is no such device.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.get_device_properties("cuda:0").name
        'simulated'
    """
    found = driver.get().properties(index_of("get_device_properties", device))
    major, minor = divmod(found.compute_capability, 10)
    return DeviceProperties(
        found.name, major, minor, found.total_memory, found.multiprocessor_count, found.max_shared_memory
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The name of a device.

    Args:
        device: as in `genesis.cuda.get_device_properties`.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.get_device_name()
        'simulated'
    """
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """The compute capability of a device: (9, 0) for sm_90.

    Args:
        device: as in `genesis.cuda.get_device_properties`.
    Returns: (major, minor).

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     major, minor = genesis.cuda.get_device_capability()
        ...     major >= 8
        True
    """
    found = get_device_properties(device)
    return found.major, found.minor


def driver_version() -> str:
    """The driver and its version, in words. Raises: DeviceError: CUDA is not available."""
    return driver.get().version


def synchronize(device: DeviceLike = None) -> None:
    """Wait until all work launched on a device is done.

    Args:
        device: as in `genesis.cuda.get_device_properties`.
    Raises: KernelError: a kernel has failed since the last synchronization.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(2, device="cuda") * 2
        ...     genesis.cuda.synchronize()
        ...     x.tolist()
        [2.0, 2.0]
    """
    backends.get("cuda").synchronize(index_of("synchronize", device))


def index_of(op: str, device: DeviceLike) -> int:
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
