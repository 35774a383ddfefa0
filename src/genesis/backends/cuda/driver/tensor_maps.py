"""Tensor maps, what Hopper's copy engine (TMA) reads memory by; and launches of kernels that take them by value."""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from cuda.bindings import driver as cu

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.interface import AddressLaunch, GpuDriver, KernelError
from genesis.backends.cuda.driver.launching import Block, Configuration, Launcher, attribute
from genesis.backends.cuda.driver.overlap import overlaps
from genesis.dtypes import DType

_SUCCESS = cu.CUresult.CUDA_SUCCESS
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_KEPT = 256  # argument blocks per kernel; allocators hand out the same addresses again and again

_type = cu.CUtensorMapDataType
_TYPES = {
    dtypes.float32: _type.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    dtypes.float16: _type.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    dtypes.bfloat16: _type.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}
_LAYOUT = (
    cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
    cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
)


class Pixels(NamedTuple):
    """Images as a convolution reads them: some pixels and channels at a time, for one tap after the other.

    A copy begins at one of the positions low, low + step, … up to size − 1 + high along each axis, of which there are
    as many as results; outside of the image there are zeros.
    """

    dtype: DType
    shape: tuple[int, int, int, int]  # (N, H, W, C), dense
    low: tuple[int, int]
    high: tuple[int, int]
    step: tuple[int, int]
    num_pixels: int
    num_channels: int
    strides: tuple[int, int, int] | None = None  # (N, H, W) in elements, where they are not dense: pixels may overlap

    def encode(self, address: int) -> bytes:
        n, h, w, c = self.shape
        strides = self.strides or (h * w * c, w * c, c)
        bytes_apart = [stride * self.dtype.itemsize for stride in strides[::-1]]
        result = cu.cuTensorMapEncodeIm2col(
            _TYPES[self.dtype], 4, address, _wide([c, w, h, n]), _wide(bytes_apart),
            [self.low[1], self.low[0]], [self.high[1], self.high[0]], self.num_channels, self.num_pixels,
            _narrow([1, self.step[1], self.step[0], 1]), *_LAYOUT,
        )  # fmt: skip
        return _map_bytes(result, self)


class Box(NamedTuple):
    """A dense array of three or four dimensions, a box of it at a time; outside of it there are zeros."""

    dtype: DType
    shape: tuple[int, ...]
    box: tuple[int, ...]
    tf32: bool = False  # float32 is rounded to 11 bits, to nearest, on its way into shared memory

    def encode(self, address: int) -> bytes:
        sizes, rank = self.shape[::-1], len(self.shape)
        bytes_apart = itertools.accumulate(sizes[:-1], operator.mul, initial=self.dtype.itemsize)
        kind = _type.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 if self.tf32 else _TYPES[self.dtype]
        result = cu.cuTensorMapEncodeTiled(
            kind, rank, address, _wide(sizes), _wide(list(bytes_apart)[1:]), _narrow(self.box[::-1]),
            _narrow([1] * rank), *_LAYOUT,
        )  # fmt: skip
        return _map_bytes(result, self)


class MapKernel:
    """A function of a cubin that takes tensor maps, then addresses, then a structure, all by value.

    From Hopper on it comes up while the kernel before it runs, and calls follow() of overlap.cuh before it reads.
    """

    def __init__(self, device: int, name: str, cubin: bytes, shared: int) -> None:
        """shared: bytes of dynamic shared memory that it is launched with."""
        here = driver.gpu()
        self._launcher = Launcher(here, device, _function(here, name, cubin, shared, device), name)
        self._shared = shared
        does_overlap = overlaps(here.properties(device).compute_capability)
        self._attributes = [attribute("PROGRAMMATIC_STREAM_SERIALIZATION", 1)] if does_overlap else []

    def prepare(
        self, grid: int, threads: int, maps: Sequence[Pixels | Box], num_addresses: int, structure: bytes
    ) -> AddressLaunch:
        """run(stream, *addresses): of the arrays that the maps describe, then num_addresses more."""
        configuration = Configuration((grid, 1, 1), (threads, 1, 1), self._shared, self._attributes)
        launch, num_maps = self._launcher.launch, len(maps)
        known: dict[tuple[int, ...], Block] = {}  # by stream and addresses

        def run(*launched: int) -> None:
            block = known.get(launched)
            if block is None:
                if len(known) >= _KEPT:
                    known.clear()
                stream, *addresses = launched
                encoded = [each.encode(address) for each, address in zip(maps, addresses, strict=False)]
                assert len(addresses) == num_maps + num_addresses
                values = [*encoded, *map(_eight_bytes, addresses[num_maps:]), structure]
                block = known[launched] = _filled(configuration, stream, values)
            launch(block, launched[0], launched[1:])

        return run


@functools.cache  # every prepared launch asks for it, and a module stays on the device for good
def _function(here: GpuDriver, name: str, cubin: bytes, shared: int, device: int) -> cu.CUfunction:
    return here.load_binary(name, cubin, shared, device)[1]


def _filled(configuration: Configuration, stream: int, values: Sequence[bytes]) -> Block:
    """A block of these arguments, in memory that suits tensor maps."""
    places = [0]
    for value in values:
        places.append(places[-1] + -(-len(value) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT)
    block = Block(configuration, places[:-1], places[-1], _MAP_ALIGNMENT)
    block.change_stream(stream)
    start = ctypes.addressof(block.arguments)
    for place, value in zip(places, values, strict=False):
        ctypes.memmove(start + place, value, len(value))
    return block


def _map_bytes(result: tuple[cu.CUresult, cu.CUtensorMap], what: Pixels | Box) -> bytes:
    if result[0] != _SUCCESS:
        raise KernelError(f"tensor map: {result[0].name}: {what}")
    return ctypes.string_at(result[1].getPtr(), _MAP_BYTES)


def _eight_bytes(address: int) -> bytes:
    return address.to_bytes(8, "little")


def _wide(values: Sequence[int]) -> list[cu.cuuint64_t]:
    return [cu.cuuint64_t(value) for value in values]


def _narrow(values: Sequence[int]) -> list[cu.cuuint32_t]:
    return [cu.cuuint32_t(value) for value in values]
