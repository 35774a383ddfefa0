"""Batch norms folded into the convolutions before them, of many layers in one launch.

With one image, a network's convolutions are as short as the launches that fold its norms into their weights.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.dtypes import DType

_SOURCE = Path(__file__).with_name("many.cu")
_HEADERS = Path(__file__).parents[1] / "conv" / "candidates"
_NAME = "fold_batch_norms"
TYPES = programs.DTYPES  # in the order of GIVEN and MADE
is_available = programs.is_available
_MOST, _MOST_FILTERS, _THREADS = 36, 64, 256  # as in the source
_ELEMENTS = 4096  # of a program
_LAYER = struct.Struct("<8Q11if")
_TABLE = struct.Struct("<ii")


class Layer(NamedTuple):
    """Addresses of the folded weight and bias, and of weight, bias, gamma, beta, mean and variance; 0: there is none.

    shape, strides: of the weight (filters, channels, height, width).
    """

    addresses: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    eps: float

    @property
    def filters_at_once(self) -> int:
        return min(max(_ELEMENTS // max(self._num_taps, 1), 1), _MOST_FILTERS)

    @property
    def num_programs(self) -> int:
        return -(-self.shape[0] // self.filters_at_once)

    @property
    def _num_taps(self) -> int:
        return self.shape[1] * self.shape[2] * self.shape[3]

    def packed(self, first_program: int) -> bytes:
        filters, channels, _, width = self.shape
        taps = self._num_taps
        filter_stride, channel_stride, row_stride, column_stride = self.strides
        dense = (taps, 1, width * channels, channels)
        is_dense = all(
            size == 1 or stride == there
            for size, stride, there in zip(self.shape, self.strides, dense, strict=True)
        )  # fmt: skip
        is_aligned = self.addresses[2] % 16 == 0 and self.addresses[0] % 16 == 0
        return _LAYER.pack(
            *self.addresses, filters, taps, channels, width, filter_stride, channel_stride, row_stride, column_stride,
            is_dense and is_aligned, self.filters_at_once, first_program, self.eps,
        )  # fmt: skip


def fold(device: int, stream: int, layers: Sequence[Layer], given: DType, made: DType) -> None:
    """Fold the norms of these layers: given, made: types of what is read and written, of TYPES."""
    from genesis.backends.cuda.driver.table_kernel import TableKernel

    kernel = TableKernel.of(device, _NAME, cubin(given, made, driver.get().properties(device).compute_capability))
    for begin in range(0, len(layers), _MOST):
        some = layers[begin : begin + _MOST]
        kernel.launch(*_table(some), _THREADS, stream)


def _table(layers: Sequence[Layer]) -> tuple[bytes, int]:
    """The kernel's argument, and how many programs there are."""
    table, number = bytearray(_TABLE.pack(len(layers), 0)), 0
    for layer in layers:
        table += layer.packed(number)
        number += layer.num_programs
    return bytes(table.ljust(_TABLE.size + _MOST * _LAYER.size, b"\0")), number


@functools.cache
def cubin(given: DType, made: DType, capability: int) -> bytes:
    """The compiled kernel; from the cache on disk if it is there."""
    from genesis.backends.cuda.nvrtc.program import Program

    options = programs.options({"GIVEN": TYPES.index(given), "MADE": TYPES.index(made)})
    program = Program(_NAME, _SOURCE.read_text(), _SOURCE.name, _SOURCE.parent, options, (_HEADERS,))
    return program.compiled(f"sm_{capability}", (_NAME,)).cubin
