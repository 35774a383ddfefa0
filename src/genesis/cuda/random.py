"""The random generators of the devices."""

from __future__ import annotations

from genesis import backends, creation
from genesis.cuda.device import DeviceLike, index_of, is_available
from genesis.ndarray import Device
from genesis.tensor import Tensor


def manual_seed(seed: int) -> None:
    """Seed the random generator of the current device; does nothing without CUDA."""
    if is_available():
        backends.get("cuda").manual_seed(int(seed), index_of("manual_seed", None))


def manual_seed_all(seed: int) -> None:
    """Seed the random generators of all devices; does nothing without CUDA."""
    if is_available():
        backends.get("cuda").manual_seed(int(seed))


def get_rng_state(device: DeviceLike = None) -> Tensor:
    """The state of a device's random generator, the current device's by default: a uint8 tensor on the CPU.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     state = genesis.cuda.get_rng_state()
        ...     first = genesis.rand(2, device="cuda").tolist()
        ...     genesis.cuda.set_rng_state(state)
        ...     genesis.rand(2, device="cuda").tolist() == first
        True
    """
    return creation.get_rng_state(Device("cuda", index_of("get_rng_state", device)))


def set_rng_state(new_state: Tensor, device: DeviceLike = None) -> None:
    """Restore a state of get_rng_state to a device's random generator, the current device's by default."""
    creation.set_rng_state(new_state, Device("cuda", index_of("set_rng_state", device)))
