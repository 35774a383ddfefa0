"""The random generators of the devices."""

from __future__ import annotations

from collections.abc import Iterable

from genesis import backends, random
from genesis.cuda.device import DeviceLike, device_count, index_of, is_available
from genesis.ndarray import Device
from genesis.tensor import Tensor


def manual_seed(seed: int) -> None:
    """Seed the random generator of the current device; without CUDA, do nothing.

    Args:
        seed: any int.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.manual_seed(0)
        ...     first = genesis.rand(2, device="cuda").tolist()
        ...     genesis.cuda.manual_seed(0)
        ...     genesis.rand(2, device="cuda").tolist() == first
        True
    """
    if is_available():
        backends.get("cuda").manual_seed(int(seed), index_of("manual_seed", None))


def manual_seed_all(seed: int) -> None:
    """Seed the random generators of all devices; without CUDA, do nothing. See `genesis.cuda.manual_seed`."""
    if is_available():
        backends.get("cuda").manual_seed(int(seed))


def get_rng_state(device: DeviceLike = None) -> Tensor:
    """The state of a device's random generator.

    Args:
        device: as in `genesis.cuda.memory_allocated`.
    Returns: a uint8 vector on the CPU.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     state = genesis.cuda.get_rng_state()
        ...     first = genesis.rand(2, device="cuda").tolist()
        ...     genesis.cuda.set_rng_state(state)
        ...     genesis.rand(2, device="cuda").tolist() == first
        True
    """
    return random.get_rng_state(Device("cuda", index_of("get_rng_state", device)))


def get_rng_state_all() -> list[Tensor]:
    """The states of the random generators of all devices. See `genesis.cuda.get_rng_state`.

    Returns: a uint8 vector on the CPU for each device.
    """
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Restore the states of get_rng_state_all. See `genesis.cuda.get_rng_state`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def set_rng_state(new_state: Tensor, device: DeviceLike = None) -> None:
    """Restore a state of get_rng_state to a device's random generator. See `genesis.cuda.get_rng_state`."""
    random.set_rng_state(new_state, Device("cuda", index_of("set_rng_state", device)))
