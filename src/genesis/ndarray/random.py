"""The random generators of the devices: seeds and states. The draws themselves are NDArray.random and the ops."""

from __future__ import annotations

from genesis.backends import manual_seed as manual_seed
from genesis.ndarray.array import backend_of
from genesis.ndarray.device import Device


def get_state(device: Device) -> bytes:
    return backend_of(device).get_rng_state(device.index)


def set_state(state: bytes, device: Device) -> None:
    backend_of(device).set_rng_state(state, device.index)


def manual_seed_of(seed: int, device: Device) -> None:
    """Seed the generator of one device."""
    backend_of(device).manual_seed(seed, device.index)
