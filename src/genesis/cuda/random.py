"""The random generators of the devices."""

from __future__ import annotations

from genesis import backends, creation
from genesis.cuda.device import DeviceLike, index_of, is_available
from genesis.ndarray import Device
from genesis.tensor import Tensor


def manual_seed(seed: int) -> None:
    """Start the generator of the current device from seed; without CUDA nothing happens."""
    if is_available():
        backends.get("cuda").manual_seed(int(seed), index_of("manual_seed", None))


def manual_seed_all(seed: int) -> None:
    """Start the generators of all devices from seed; without CUDA nothing happens."""
    if is_available():
        backends.get("cuda").manual_seed(int(seed))


def get_rng_state(device: DeviceLike = None) -> Tensor:
    """The state of a device's generator, the current one's by default, as bytes in a uint8 tensor on the CPU."""
    return creation.get_rng_state(Device("cuda", index_of("get_rng_state", device)))


def set_rng_state(new_state: Tensor, device: DeviceLike = None) -> None:
    """Put a device's generator, the current one's by default, into a state that get_rng_state gave."""
    creation.set_rng_state(new_state, Device("cuda", index_of("set_rng_state", device)))
