"""The devices' random generators, each a seed and the number of calls so far, both on the host.

In a CUDA graph, draws are numbered from where the generator stands when the graph is replayed.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import array, capturing
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.capture import outside
from genesis.backends.cuda.runtime.capturing import Capture
from genesis.records import RandomStream

_DEFAULT_STREAM = 0
_STATE = struct.Struct("<QQ")


@dataclass
class _Generator:
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(8), "little"))
    num_calls: int = 0

    def advance(self, num_calls: int = 1) -> tuple[int, int]:
        """The seed and the number of the next call, as int64."""
        with _lock:
            call = self.num_calls
            self.num_calls += num_calls
            return signed(self.seed), call


_lock = threading.Lock()
_generators: dict[int, _Generator] = {}
_seed_of_all: int | None = None  # of the devices that have no generator yet


def _generator(device_index: int) -> _Generator:
    with _lock:
        if device_index not in _generators:
            _generators[device_index] = _Generator() if _seed_of_all is None else _Generator(_seed_of_all)
        return _generators[device_index]


def manual_seed(seed: int, device_index: int | None = None) -> None:
    global _seed_of_all
    _refuse_to_seed(device_index)
    with _lock:
        if device_index is None:
            _seed_of_all = seed % 2**64
            _generators.clear()
        else:
            _generators[device_index] = _Generator(seed % 2**64)


def get_rng_state(device_index: int = 0) -> bytes:
    generator = _generator(device_index)
    return _STATE.pack(generator.seed, generator.num_calls)


def set_rng_state(state: bytes, device_index: int = 0) -> None:
    _refuse_to_seed(device_index)
    if len(state) != _STATE.size:
        raise ValueError(
            f"set_rng_state: argument 'state': expected {_STATE.size} bytes of a cuda generator, got {len(state)}"
        )
    with _lock:
        _generators[device_index] = _Generator(*_STATE.unpack(state))


def _refuse_to_seed(device_index: int | None) -> None:
    if capturing.underway:
        for device in range(driver.get().device_count()) if device_index is None else (device_index,):
            capturing.refuse(device, "seeds the generator", "seed it before replay()")


@contextmanager
def drawing_from(stream: RandomStream, device_index: int = 0) -> Iterator[None]:
    capture = capturing.here(device_index)
    if capture is not None:
        cursors = _cursors(capture, device_index)
        before, cursors.in_force = cursors.in_force, stream
        try:
            yield
        finally:
            cursors.in_force = before
        return
    saved = get_rng_state(device_index)
    if stream.state:
        set_rng_state(stream.state, device_index)
    try:
        yield
        stream.state = get_rng_state(device_index)
    finally:
        set_rng_state(saved, device_index)


def fork_rng(stream: RandomStream, device_index: int = 0) -> None:
    capture = capturing.here(device_index)
    if capture is None:
        stream.state = get_rng_state(device_index)
    else:
        _cursors(capture, device_index).fork(capture, stream)


def advance(device_index: int) -> tuple[int | DeviceArray, int]:
    """The next call of the device's generator; in a CUDA graph, where the seed stands, and the call's number there."""
    capture = capturing.here(device_index)
    if capture is None:
        return _generator(device_index).advance()
    return _cursors(capture, device_index).present(capture).advance()


# --- in CUDA graphs ---------------------------------------------------------------------------------------------------
class _Draws:
    """The draws that a CUDA graph makes from one generator: numbered in the graph, and anew in each replay.

    Args:
        stream: stands in for the device's generator.
    """

    def __init__(self, capture: Capture, device_index: int, stream: RandomStream | None) -> None:
        self._device_index, self._stream = device_index, stream
        self.num_calls = 0
        with outside(device_index):  # it is written before a replay, which must not compute in the same memory
            self.state = array.empty((2,), dtypes.int64, device_index)  # the seed, the number of calls before
        self.state.storage.record_stream(_DEFAULT_STREAM)
        capture.before_replay.append(self._prepare)

    def _prepare(self, stream: int) -> None:
        """The next replay on the stream draws what the generator would give now."""
        state = np.array(self._advance(), np.int64)
        driver.get().copy(self._device_index, self.state.data_pointer, state.ctypes.data, state.nbytes, stream)

    def _advance(self) -> tuple[int, int]:
        if self._stream is None:
            return _generator(self._device_index).advance(self.num_calls)
        generator = _Generator(*_STATE.unpack(self._stream.state))
        found = generator.advance(self.num_calls)
        self._stream.state = _STATE.pack(generator.seed, generator.num_calls)
        return found


@dataclass
class _Cursor:
    """The number of the next call among the draws of a graph."""

    draws: _Draws
    call: int = 0

    def advance(self) -> tuple[DeviceArray, int]:
        call, self.call = self.call, self.call + 1
        self.draws.num_calls = max(self.draws.num_calls, self.call)
        return self.draws.state, call


class _Cursors:
    """The place at which the draws of a capture stand.

    Attributes:
        in_force: the stream that stands in for the device's generator, if one does.
    """

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._of: dict[RandomStream | None, _Cursor] = {}
        self.in_force: RandomStream | None = None

    def present(self, capture: Capture) -> _Cursor:
        if self.in_force not in self._of:
            self._of[self.in_force] = _Cursor(_Draws(capture, self._device_index, self.in_force))
        return self._of[self.in_force]

    def fork(self, capture: Capture, stream: RandomStream) -> None:
        """Both go on from the same call of the same draws."""
        present = self.present(capture)
        self._of[stream] = _Cursor(present.draws, present.call)


_captured: WeakKeyDictionary[Capture, dict[int, _Cursors]] = WeakKeyDictionary()


def _cursors(capture: Capture, device_index: int) -> _Cursors:
    of_devices = _captured.setdefault(capture, {})
    if device_index not in of_devices:
        of_devices[device_index] = _Cursors(device_index)
    return of_devices[device_index]


def signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number
