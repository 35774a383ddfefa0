"""Matrix products: cuBLASLt where it is installed or the Triton kernel, whichever is faster for the shapes at hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import cublaslt
from genesis.backends.cuda.engine import timing as tuning
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch import triton as launch
from genesis.backends.cuda.launch.tiles import Tile
from genesis.backends.cuda.ops.matmul.kernels import _matmul_kernel
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import collapse
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.memory import allocate
from genesis.dtypes import DType
from genesis.precision import get_float32_precision
from genesis.shapes import Shape, broadcast, broadcast_strides, contiguous_strides

Run = Callable[[DeviceArray, DeviceArray, DeviceArray, DeviceArray | None], None]

# By bytes per element, from large to small: as many as two neighbours of the first guess are measured.
_TILES = {
    2: (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 4), Tile(64, 64, 64, 4, 4)),
    4: (Tile(64, 64, 32, 4, 3), Tile(32, 64, 32, 4, 3), Tile(32, 32, 64, 4, 3), Tile(16, 64, 64, 4, 3)),
    8: (Tile(64, 64, 16, 4, 3), Tile(32, 32, 32, 4, 3)),
}
_INTEGER_TILES = (Tile(32, 32, 16, 4, 2),)
_GROUP = 8
_NUM_TRIED = 2  # Triton tiles
_NUM_ASKED = 3  # of cuBLASLt's algorithms


class Problem(NamedTuple):
    """All that decides how a product is run: (batch, rows, terms) @ (batch, terms, columns)."""

    device: int
    dtype: DType
    rows: int
    columns: int
    terms: int
    x_strides: Shape
    y_strides: Shape
    batch_shape: Shape  # the innermost first, at least one
    x_batch_strides: Shape
    y_batch_strides: Shape
    has_bias: bool
    alignment: int  # of the addresses, up to 16 bytes
    precision: str  # of float32: "highest" | "high" | "medium"; "highest" of all else

    @property
    def num_matrices(self) -> int:
        return math.prod(self.batch_shape)


class _Call(NamedTuple):
    """What calls with operands of the same layouts share."""

    result: Layout
    run: Run | None  # None: the result is empty


_calls: dict[tuple[Any, ...], _Call] = {}
driver.forget_on_switch(_calls.clear)


def matmul(x: DeviceArray, y: DeviceArray) -> DeviceArray:
    return _product(x, y, None, transposed=False)


def linear(x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None) -> DeviceArray:
    return _product(x, weight, bias, transposed=True)


def _product(x: DeviceArray, y: DeviceArray, bias: DeviceArray | None, transposed: bool) -> DeviceArray:
    """x @ y, or of rows x with y transposed, plus bias."""
    if bias is not None and bias.strides != (1,):
        bias = copy(bias, (1,))
    bits = x.data_pointer | y.data_pointer | (0 if bias is None else bias.data_pointer) | 16
    alignment = bits & -bits
    precision = get_float32_precision() if x.dtype is dtypes.float32 else "highest"
    key = (x._layout or x.layout, y._layout or y.layout, bias is None, alignment, precision, transposed)
    call = _calls.get(key)
    if call is None:
        call = _calls[key] = _prepared(x, y, bias, alignment, precision, transposed)
    out = call.result.new(streams.current_handle(call.result.device_index))
    if call.run is not None:
        call.run(out, x, y, bias)
    return out


def _prepared(
    x: DeviceArray, y: DeviceArray, bias: DeviceArray | None, alignment: int, precision: str, transposed: bool
) -> _Call:
    if x.dtype is dtypes.bool_:
        raise NotImplementedError("matmul has no cuda implementation for bool")
    if transposed:
        shape = (*x.shape[:-1], y.shape[0])
        y = y.view(y.shape[::-1], y.strides[::-1], y.offset)
        x = x if len(x.shape) > 1 else x.view((1, *x.shape), (0, *x.strides), x.offset)
        batch = x.shape[:-2]
    else:
        batch = broadcast("matmul", x.shape[:-2], y.shape[:-2])
        shape = (*batch, x.shape[-2], y.shape[-1])
    result = layout_of(shape, x.dtype, x.device_index)
    if result.size == 0:
        return _Call(result, None)
    out = result.new(streams.current_handle(x.device_index))
    return _Call(result, _plan(_problem(x, y, bias is not None, alignment, precision, batch), out, x, y, bias))


def _problem(x: DeviceArray, y: DeviceArray, has_bias: bool, alignment: int, precision: str, batch: Shape) -> Problem:
    rows, terms, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    x_strides, y_strides = x.strides[-2:], y.strides[-2:]
    x_walk = broadcast_strides("matmul", x.shape[:-2], x.strides[:-2], batch)
    y_walk = broadcast_strides("matmul", y.shape[:-2], y.strides[:-2], batch)
    if batch and not any(y_walk):  # one matrix for all: x's batch becomes more rows, where its strides allow
        whole, walk = (*batch, rows), (*x_walk, x_strides[0])
        sizes, walks = collapse(whole, [contiguous_strides(whole), walk])
        if len(sizes) == 1:
            rows, x_strides, batch, x_walk, y_walk = sizes[0], (walks[1][0], x_strides[1]), (), (), ()
    sizes, walks = collapse(batch, [contiguous_strides(batch), x_walk, y_walk])
    return Problem(
        x.device_index, x.dtype, rows, columns, terms, x_strides, y_strides,
        sizes[::-1], walks[1][::-1], walks[2][::-1], has_bias, alignment, precision,
    )  # fmt: skip


def _plan(problem: Problem, out: DeviceArray, x: DeviceArray, y: DeviceArray, bias: DeviceArray | None) -> Run:
    runs = _triton_runs(problem) + (_cublaslt_runs(problem) if problem.terms else [])

    def bound(run: Run) -> Callable[[], None]:
        return lambda: run(out, x, y, bias)

    return runs[tuning.fastest([bound(run) for run in runs], problem.device)]


def _triton_runs(problem: Problem) -> list[Run]:
    p = problem
    choice = _TILES[p.dtype.itemsize] if p.dtype.is_floating_point else _INTEGER_TILES
    best = tiles.ranked(choice, p.rows, p.columns, p.terms, p.num_matrices, p.dtype, p.device)
    return [_triton_run(p, tile) for tile in best[:_NUM_TRIED]]


def _triton_run(problem: Problem, tile: Tile) -> Run:
    p = problem
    reach = [(p.rows, p.x_strides[0]), (p.terms, max(p.x_strides[1], p.y_strides[0])), (p.columns, p.y_strides[1])]
    wide = sum((size + 256) * abs(stride) for size, stride in [*reach, (p.rows, p.columns)]) >= 2**31
    constants: dict[str, Any] = {
        "BATCH_RANK": len(p.batch_shape),
        "COMPUTE": COMPUTE[p.dtype if p.dtype.is_floating_point else dtypes.int64],
        "PRECISION": "ieee" if p.precision == "highest" else "tf32",
        "WIDE": wide,
        "GROUP": _GROUP,
        **tile.constants,
    }
    numbers = (p.rows, p.columns, p.terms)
    tuples = (p.x_strides, p.y_strides, p.batch_shape, p.x_batch_strides, p.y_batch_strides)
    pointer = "*" + launch.TRITON_NAMES[p.dtype]
    given = pointer + "/16" if p.alignment == 16 else pointer
    kinds = (
        pointer + "/16", given, given, given if p.has_bias else None,
        *map(launch.number_kind, numbers), *(tuple(map(launch.number_kind, each)) for each in tuples),
    )  # fmt: skip
    kernel = launch.load(_matmul_kernel, p.device, kinds, constants)
    tail = (*numbers, *itertools.chain(*tuples))
    launch_kernel = kernel.prepare((p.num_matrices * tile.num_tiles(p.rows, p.columns), 1, 1), 4, tail)

    def run(out: DeviceArray, x: DeviceArray, y: DeviceArray, bias: DeviceArray | None) -> None:
        third = None if bias is None else bias.data_pointer
        launch_kernel(streams.current_handle(p.device), out.data_pointer, x.data_pointer, y.data_pointer, third)

    return run


def _cublaslt_runs(problem: Problem) -> list[Run]:
    p = problem
    if len(p.batch_shape) > 1:
        return []
    gemm = cublaslt.Gemm(
        p.device, p.dtype, p.rows, p.columns, p.terms, (p.x_strides[0], p.x_strides[1]),
        (p.y_strides[0], p.y_strides[1]), p.num_matrices, p.x_batch_strides[0], p.y_batch_strides[0], p.has_bias,
        alignment=p.alignment, precision=p.precision,
    )  # fmt: skip
    return [_cublaslt_run(p, product) for product in cublaslt.products(gemm, _NUM_ASKED)]


def _cublaslt_run(problem: Problem, product: cublaslt.Product) -> Run:
    device, launch, num_bytes = problem.device, product.runner(), product.workspace

    def run(out: DeviceArray, x: DeviceArray, y: DeviceArray, bias: DeviceArray | None) -> None:
        stream = streams.current_handle(device)
        workspace = allocate(num_bytes, device, stream) if num_bytes else None
        launch(
            stream, out.data_pointer, x.data_pointer, y.data_pointer, 0 if bias is None else bias.data_pointer, 0,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip

    return run
