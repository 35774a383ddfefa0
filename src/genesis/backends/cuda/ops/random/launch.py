"""Random numbers. A device's generator is a seed and the number of calls so far, both on the host.

A draw is a function of (seed, call, element): the same under every launch grid, and on the simulated device.
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.random import kernels
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime import array, capturing
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.capture import outside
from genesis.backends.cuda.runtime.capturing import Capture
from genesis.dtypes import DType
from genesis.shapes import Shape, contiguous_strides

_DEFAULT_STREAM = 0
_BLOCK = 2048
_RANKED = 8192  # permutations up to here are drawn by ranking keys, all against all
_STATE = struct.Struct("<QQ")
_EXACT_BITS = {dtypes.float64: 53, dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}


@dataclass
class _Generator:
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(8), "little"))
    num_calls: int = 0

    def advance(self, num_calls: int = 1) -> tuple[int, int]:
        """The seed and the number of the next call, as int64."""
        with _lock:
            call = self.num_calls
            self.num_calls += num_calls
            return _signed(self.seed), call


class _Draws:
    """The draws that a CUDA graph makes on a device: numbered in the graph, and anew in each replay."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._num_calls = 0
        with outside(device_index):  # it is written before a replay, which must not compute in the same memory
            self._state = array.empty((2,), dtypes.int64, device_index)  # the seed, the number of calls before
        self._state.storage.record_stream(_DEFAULT_STREAM)

    def advance(self) -> tuple[DeviceArray, int]:
        """In the place of the generator's."""
        self._num_calls += 1
        return self._state, self._num_calls - 1

    def prepare(self, stream: int) -> None:
        """The next replay on the stream draws what the generator would give now."""
        state = np.array(_generator(self._device_index).advance(self._num_calls), np.int64)
        target = self._state.data_pointer
        driver.get().copy(self._device_index, target, state.ctypes.data, state.nbytes, stream)


_lock = threading.Lock()
_generators: dict[int, _Generator] = {}
_captured: WeakKeyDictionary[Capture, dict[int, _Draws]] = WeakKeyDictionary()
_seed_of_all: int | None = None  # of the devices that have no generator yet


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


# --- draws ------------------------------------------------------------------------------------------------------------
def rand(shape: Shape, seed: int | None = None, dtype: DType = dtypes.float32, device_index: int = 0) -> DeviceArray:
    array.require_float("rand", dtype)
    out = array.empty(shape, dtype, device_index)
    numbers = (*_seed_and_call(seed, device_index), out.size)
    launch(kernels._rand_kernel, _grid(out.size), out, *numbers, BITS=_EXACT_BITS[dtype], BLOCK=_BLOCK)
    return out


def randn(shape: Shape, seed: int | None = None, dtype: DType = dtypes.float32, device_index: int = 0) -> DeviceArray:
    array.require_float("randn", dtype)
    out = array.empty(shape, dtype, device_index)
    numbers = (*_seed_and_call(seed, device_index), out.size)
    launch(kernels._randn_kernel, _grid(out.size), out, *numbers, BLOCK=_BLOCK)
    return out


def randint(low: int, high: int, shape: Shape, dtype: DType, device_index: int = 0) -> DeviceArray:
    out = array.empty(shape, dtype, device_index)
    span = high - low
    numbers = (*_advance(device_index), low, _signed(span), out.size)
    launch(kernels._randint_kernel, _grid(out.size), out, *numbers, IS_SHORT=span <= 2**31, BLOCK=_BLOCK)
    return out


def randperm(n: int, dtype: DType, device_index: int = 0) -> DeviceArray:
    out = array.empty((n,), dtype, device_index)
    seed, call = _advance(device_index)
    if n <= _RANKED:
        block_rows = min(power_of_2(n), 32)
        kernel, blocks = kernels._randperm_ranks_kernel, {"BLOCK_ROWS": block_rows, "BLOCK": 128}
        launch(kernel, (-(-n // block_rows),), out, seed, call, n, **blocks)
        return out
    half_bits = -(-(n - 1).bit_length() // 2)
    launch(kernels._randperm_kernel, (-(-n // 512),), out, seed, call, n, HALF_BITS=half_bits, NUM_ROUNDS=8, BLOCK=512)
    return out


def dropout(x: DeviceArray, p: float) -> tuple[DeviceArray, DeviceArray]:
    array.require_float("dropout", x.dtype)
    if not is_dense(x):
        x = copy(x, contiguous_strides(x.shape))
    y, mask = (array.empty(x.shape, dtype, x.device_index, x.strides) for dtype in (x.dtype, dtypes.bool_))
    threshold, scale = round(p * 2**32), 1.0 / (1.0 - p)
    numbers = (*_advance(x.device_index), threshold, scale, x.size)
    launch(kernels._dropout_kernel, _grid(x.size), y, mask, x, *numbers, COMPUTE=COMPUTE[x.dtype], BLOCK=_BLOCK)
    return y, mask


def _seed_and_call(seed: int | None, device_index: int) -> tuple[int | DeviceArray, int]:
    """The seed and call that a draw depends on: the first of that seed, or the next of the device's generator."""
    return _advance(device_index) if seed is None else (_signed(seed % 2**64), 0)


def _advance(device_index: int) -> tuple[int | DeviceArray, int]:
    """The next call of the device's generator; in a CUDA graph, where the seed stands, and the call's number there."""
    capture = capturing.here(device_index)
    if capture is None:
        return _generator(device_index).advance()
    draws = _captured.setdefault(capture, {})
    if device_index not in draws:
        draws[device_index] = _Draws(device_index)
        capture.before_replay.append(draws[device_index].prepare)
    return draws[device_index].advance()


def _generator(device_index: int) -> _Generator:
    with _lock:
        if device_index not in _generators:
            _generators[device_index] = _Generator() if _seed_of_all is None else _Generator(_seed_of_all)
        return _generators[device_index]


def _grid(size: int) -> tuple[int]:
    return (-(-size // _BLOCK),)


def _signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number
