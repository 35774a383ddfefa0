"""The random generators of the devices: seeds and states. The draws themselves are NDArray.random and the ops."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from genesis.backends import manual_seed as manual_seed
from genesis.ndarray.array import backend_of
from genesis.ndarray.device import Device
from genesis.records import RandomStream as RandomStream

P = ParamSpec("P")
R = TypeVar("R")


def get_state(device: Device) -> bytes:
    return backend_of(device).get_rng_state(device.index)


def set_state(state: bytes, device: Device) -> None:
    backend_of(device).set_rng_state(state, device.index)


def manual_seed_of(seed: int, device: Device) -> None:
    """Seed the generator of one device."""
    backend_of(device).manual_seed(seed, device.index)


# --- streams beside the devices' generators ---------------------------------------------------------------------------
class _InForce(threading.local):
    def __init__(self) -> None:
        self.streams: tuple[tuple[RandomStream, Device], ...] = ()


_in_force = _InForce()


@contextlib.contextmanager
def drawing_from(stream: RandomStream, device: Device) -> Iterator[None]:
    """Inside, a stream stands in for the device's generator."""
    before = _in_force.streams
    _in_force.streams = (*before, (stream, device))
    try:
        with backend_of(device).drawing_from(stream, device.index):
            yield
    finally:
        _in_force.streams = before


def fork(stream: RandomStream, device: Device) -> None:
    """Let the stream go on from where the device's generator stands."""
    backend_of(device).fork_rng(stream, device.index)


def drawing_as_here(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which draws from the streams that are in force now, whenever it is called."""
    streams = _in_force.streams
    if not streams:
        return function

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with contextlib.ExitStack() as stack:
            for stream, device in streams:
                stack.enter_context(drawing_from(stream, device))
            return function(*args, **kwargs)

    return run
