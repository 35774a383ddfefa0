"""Random draws. A draw is a function of (seed, call, element): the same under every launch grid, and on the simulated
device.
"""

from __future__ import annotations

from genesis import dtypes
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.random import kernels
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.generators import advance, signed
from genesis.dtypes import DType
from genesis.shapes import Shape, contiguous_strides

_BLOCK = 2048
_RANKED = 8192  # permutations up to here are drawn by ranking keys, all against all
_EXACT_BITS = {dtypes.float64: 53, dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}


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
    numbers = (*advance(device_index), low, signed(span), out.size)
    launch(kernels._randint_kernel, _grid(out.size), out, *numbers, IS_SHORT=span <= 2**31, BLOCK=_BLOCK)
    return out


def randperm(n: int, dtype: DType, device_index: int = 0) -> DeviceArray:
    out = array.empty((n,), dtype, device_index)
    seed, call = advance(device_index)
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
    numbers = (*advance(x.device_index), threshold, scale, x.size)
    launch(kernels._dropout_kernel, _grid(x.size), y, mask, x, *numbers, COMPUTE=COMPUTE[x.dtype], BLOCK=_BLOCK)
    return y, mask


def _seed_and_call(seed: int | None, device_index: int) -> tuple[int | DeviceArray, int]:
    """The seed and call that a draw depends on: the first of that seed, or the next of the device's generator."""
    return advance(device_index) if seed is None else (signed(seed % 2**64), 0)


def _grid(size: int) -> tuple[int]:
    return (-(-size // _BLOCK),)
