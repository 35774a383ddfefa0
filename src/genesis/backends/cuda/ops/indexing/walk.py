"""Walks through a table and an array of indices into it: gather, scatter, and what else reads or writes by index."""

from __future__ import annotations

import math
from typing import NamedTuple

from genesis.backends.cuda.launch.planned import Run, planned
from genesis.backends.cuda.launch.strides import collapse, reach
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.indexing import kernels
from genesis.backends.cuda.ops.storage.launch import bits_of
from genesis.backends.cuda.runtime import faults, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.shapes import Shape

_BLOCK = 1024


class Way(NamedTuple):
    """How a walk over some shape leads through a table, and through the array of indices into it."""

    table_steps: Shape
    index_steps: Shape
    step: int  # in the table, of one index
    size: int | None  # that indices are checked against; None: they have been
    wrap: bool  # negative ones count from the end


@planned
def walk(table: Layout, other: Layout, index: Layout, action: str, op: str, way: Way) -> Run[None]:
    """Do action over other's shape."""
    if not other.size:
        return lambda table, other, index: None
    if action != "scatter_add":
        table, other = bits_of(table), bits_of(other)
    device, report = table.device_index, faults.report(table.device_index)
    grid, numbers, constants = _geometry(other, way, reach(table.shape, table.strides))
    launch = prepare_raw(
        kernels.indexed_kernel, device, grid, (table, other, index, report.layout), *numbers, way.step, way.size,
        faults.code_of(op), ACTION=action, WRAP=way.wrap, **constants,
    )  # fmt: skip

    def run(table: DeviceArray, other: DeviceArray, index: DeviceArray) -> None:
        stream = streams.current_handle(device)
        launch(stream, table.data_pointer, other.data_pointer, index.data_pointer, report.data_pointer)
        faults.check(device)

    return run


def _geometry(other: Layout, way: Way, table_reach: int) -> tuple[tuple[int], tuple[int | Shape, ...], dict[str, int]]:
    """The grid of a walk over other's shape, what it gives the kernel to step by, and the kernel's constants."""
    sizes, walks = collapse(other.shape, [other.strides, way.table_steps, way.index_steps])
    if len(sizes) == 1:  # the kernel has rows
        sizes, walks = (1, *sizes), [(0, *walk) for walk in walks]
    num_columns, others = sizes[-1], sizes[:-1][::-1]
    num_rows = math.prod(others)
    block_columns = min(1 << (num_columns - 1).bit_length(), _BLOCK)
    block_rows = min(1 << (num_rows - 1).bit_length(), _BLOCK // block_columns)
    other_steps, steps, places = (walk[::-1] for walk in walks)
    widest = max(reach(sizes, walk) for walk in walks) + table_reach + _BLOCK
    constants: dict[str, int] = {
        "RANK": len(others), "INDEX_PER_ROW": places[0] == 0, "WIDE": widest >= 2**31, "BLOCK_ROWS": block_rows,
        "BLOCK_COLUMNS": block_columns,
    }  # fmt: skip
    grid = (-(-num_rows // block_rows) * -(-num_columns // block_columns),)
    return grid, (num_rows, num_columns, others, steps, other_steps, places), constants
