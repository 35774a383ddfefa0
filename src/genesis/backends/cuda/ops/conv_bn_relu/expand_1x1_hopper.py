"""The large passes of wide_conv_bn_relu on Hopper: CUDA C++ (expand_1x1_*.cu) in place of the kernels in Triton.

A warpgroup gets tiles of 64 rows by 256 outputs from the copy engine, masks and centres them where they lie, and feeds
them to the matrix instructions, so that the passes run at the speed of the memory. Each function returns the launch of
a pass, which takes what the Triton kernel of that name takes, or None where there is none for these operands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.interface import AddressLaunch
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.with_residual_pass import adder
from genesis.backends.cuda.runtime.array import Layout
from genesis.shapes import Shape

_HEADER = Path(__file__).with_name("expand_1x1.cuh")
_ROWS, _COLUMNS, _MOST_INPUTS = 64, 256, 64  # of a tile
_NARROW_BYTES, _WIDE_BYTES = 2 * _ROWS * _MOST_INPUTS, 2 * _ROWS * _COLUMNS  # of a tile of the input, of the output
_WEIGHT_BYTES = 2 * _COLUMNS * _MOST_INPUTS
_THREADS = 384
_BOX, _WEIGHT_BOX = (1, _ROWS, 64), (1, _COLUMNS, 64)
_VECTOR_BYTES = {dtypes.float32: 4, dtypes.bfloat16: 2}  # of an element of gamma and beta

# Of the stream and addresses: each function below names them.
Gram = Callable[[int, int, int], None]
Forward = Callable[[int, int, int, int, int, int, int, int, int, int], None]
Products = Callable[[int, int, int, int, int, int, int, int, int, int, int], None]
InputGrad = Callable[[int, int, int, int, int, int, int, int, int, int, int, int, int, int], None]


class Kernel(NamedTuple):
    """A kernel with the macros that it is compiled with: so many tiles on the way; with a residual or without."""

    name: str
    stages: int
    stage_bytes: int
    other_bytes: int = 0  # of shared memory
    residual: bool = False

    def cubin(self) -> bytes:
        source = Path(__file__).with_name(self.name.replace("wide", "expand_1x1") + ".cu")
        return hopper.cubin(self.name, source, (("STAGES", self.stages), ("RESIDUAL", int(self.residual))))

    @property
    def shared_memory(self) -> int:
        return self.stages * self.stage_bytes + self.other_bytes + 1024  # tiles begin at multiples of 1024


_BOTH_BYTES = _NARROW_BYTES + _WIDE_BYTES
GRAM = Kernel("wide_gram", 16, _NARROW_BYTES)
FORWARD = Kernel("wide_forward", 6, _NARROW_BYTES, _WEIGHT_BYTES + 2 * _WIDE_BYTES)
FORWARD_RESIDUAL = Kernel("wide_forward", 3, _BOTH_BYTES, _WEIGHT_BYTES + 2 * _WIDE_BYTES, residual=True)
PRODUCTS = Kernel("wide_products", 5, _BOTH_BYTES)
INPUT_GRAD = Kernel("wide_input_grad", 4, _BOTH_BYTES, _WEIGHT_BYTES + 128 * _MOST_INPUTS + 2 * _NARROW_BYTES)
KERNELS = (GRAM, FORWARD, FORWARD_RESIDUAL, PRODUCTS, INPUT_GRAD)


def num_programs(num_rows: int, num_outputs: int, device: int) -> int:
    """Programs that share the rows for so many outputs; 0: of the Gram matrix, each with a part of its own.

    Of the products each has two.
    """
    processors = driver.get().properties(device).multiprocessor_count
    return max(1, min(-(-num_rows // _ROWS), processors // max(1, num_outputs // _COLUMNS)))


def has_tiles(num_outputs: int) -> bool:
    """Are there kernels for so many outputs? On some GPU, that is."""
    return num_outputs % _COLUMNS == 0


def gram(x: Layout) -> Gram | None:
    """run(stream, partial, x), partial of num_programs() parts"""
    num_rows, num_inputs = _rows(x), x.shape[1]
    if not _supports(num_rows, num_inputs, _COLUMNS, x):
        return None
    launch = _prepare(GRAM, x.device_index, [(num_rows, num_inputs, _BOX)], 2, (num_rows, num_inputs, 0))
    return lambda stream, partial, x: launch(stream, x, partial, x)


def forward(
    x: Layout, weight: Layout, residual: Layout | None, gamma: Layout | None, beta: Layout | None, relu: bool
) -> Forward | None:
    """run(stream, y, passed, x, weight, residual, state, inverse_std, gamma, beta)"""
    num_rows, (num_outputs, num_inputs) = _rows(x), weight.shape
    types = {vector.dtype for vector in (gamma, beta) if vector is not None} or {dtypes.float32}
    vector_bytes = _VECTOR_BYTES.get(types.pop(), 0) if len(types) == 1 else 0
    if not vector_bytes or not _supports(num_rows, num_inputs, num_outputs, x, weight, residual):
        return None
    narrow, wide = (num_rows, num_inputs, _BOX), (num_rows, num_outputs, _BOX)
    maps = [narrow, (num_outputs, num_inputs, _WEIGHT_BOX), wide if residual else narrow, wide]
    sizes = (num_rows, num_inputs, num_outputs)
    launch = _prepare(FORWARD_RESIDUAL if residual else FORWARD, x.device_index, maps, 5, sizes, vector_bytes, relu)

    def run(stream: int, y: int, passed: int, x: int, weight: int, residual: int, *vectors: int) -> None:
        launch(stream, x, weight, residual or x, y, passed, *vectors)

    return run


def products(grad: Layout, x: Layout, weight_shape: Shape) -> Products | None:
    """run(stream, partial, grad_residual, grad, passed, x, weight, state, inverse_std, gamma, beta), partial of
    2 · num_programs() parts"""
    num_rows, (num_outputs, num_inputs) = _rows(x), weight_shape
    if not _supports(num_rows, num_inputs, num_outputs, x, grad):
        return None
    maps = [(num_rows, num_inputs, _BOX), (num_rows, num_outputs, _BOX)]
    launch = _prepare(PRODUCTS, x.device_index, maps, 4, (num_rows, num_inputs, num_outputs))
    return lambda stream, partial, grad_residual, grad, passed, x, weight, state, *_: launch(
        stream, x, grad, partial, grad_residual, passed, state
    )


def input_grad(grad: Layout, x: Layout, weight_shape: Shape, addend: Layout | None = None) -> InputGrad | None:
    """run(stream, grad_input, addend, grad, passed, x, weight, state, inverse_std, gamma, beta, scaled, projection,
    constant)"""
    num_rows, (num_outputs, num_inputs) = _rows(x), weight_shape
    if num_outputs != _COLUMNS or not _supports(num_rows, num_inputs, num_outputs, x, grad):
        return None
    narrow, wide = (num_rows, num_inputs, _BOX), (num_rows, num_outputs, _BOX)
    maps = [narrow, wide, (num_outputs, num_inputs, _WEIGHT_BOX), (num_inputs, num_inputs, _BOX), narrow]
    launch = _prepare(INPUT_GRAD, x.device_index, maps, 3, (num_rows, num_inputs, num_outputs))
    add = None if addend is None else adder(x.device_index, x.dtype, 16 if addend.aligned else 2, x.size)

    def run(
        stream: int, out: int, addend: int, grad: int, passed: int, x: int, weight: int, state: int, *rest: int
    ) -> None:
        *_, scaled, projection, constant = rest
        launch(stream, x, grad, scaled, projection, out, passed, state, constant)
        if add is not None:
            add(stream, out, addend)

    return run


def _rows(x: Layout) -> int:
    return x.size // x.shape[1]


def _supports(num_rows: int, num_inputs: int, num_outputs: int, *arrays: Layout | None) -> bool:
    there = [array for array in arrays if array is not None]
    return (
        0 < num_rows < 2**31 - _ROWS
        and num_inputs <= _MOST_INPUTS
        and num_inputs % 8 == 0
        and has_tiles(num_outputs)
        and all(array.aligned and array.dtype is dtypes.bfloat16 for array in there)
        and hopper.is_available(there[0].device_index)
    )


def _prepare(
    kernel: Kernel, device: int, maps: list[tuple[int, int, tuple[int, int, int]]], num_addresses: int,
    sizes: tuple[int, int, int], vector_bytes: int = 4, relu: bool = False,
) -> AddressLaunch:  # fmt: skip
    """maps: rows, columns and box of the arrays that the copy engine moves. sizes: rows, inputs, outputs."""
    from genesis.backends.cuda.driver.tensor_maps import Box, MapKernel

    ready = MapKernel(device, kernel.name, kernel.cubin(), kernel.shared_memory)
    num_rows, num_inputs, num_outputs = sizes
    geometry = hopper.geometry(_HEADER).pack(
        num_rows=num_rows, num_inputs=num_inputs, num_outputs=num_outputs, vector_bytes=vector_bytes, relu=int(relu)
    )
    boxes = [Box(dtypes.bfloat16, (1, rows, columns), box) for rows, columns, box in maps]
    grid = num_programs(num_rows, num_outputs, device) * max(1, num_outputs // _COLUMNS)
    return ready.prepare(grid, _THREADS, boxes, num_addresses, geometry)
