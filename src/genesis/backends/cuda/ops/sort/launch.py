"""sort, topk and cummax. Short rows are sorted within a tile; long ones in tiles that are then merged, pass by pass."""

from __future__ import annotations

import functools
from collections.abc import Callable

from genesis import dtypes
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.sort import kernels
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.ops.storage.launch import as_bits
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.shapes import contiguous_strides, is_contiguous

_BLOCK = 1024  # words per program
_LARGEST_TILE = 256


def sort(x: DeviceArray, dim: int, descending: bool, stable: bool) -> tuple[DeviceArray, DeviceArray]:
    """Always stable."""
    return _first(x, x.shape[dim] if x.shape else 1, dim, descending)


def topk(x: DeviceArray, k: int, dim: int, largest: bool) -> tuple[DeviceArray, DeviceArray]:
    return _first(x, k, dim, largest)


def cummax(x: DeviceArray, dim: int) -> tuple[DeviceArray, DeviceArray]:
    return _by_rows(x, x.shape[dim] if x.shape else 1, dim, _running_maxima)


def _first(x: DeviceArray, num_kept: int, dim: int, descending: bool) -> tuple[DeviceArray, DeviceArray]:
    """The first num_kept of each sorted row along dim, and their indices."""
    return _by_rows(x, num_kept, dim, functools.partial(_sort_rows, num_kept=num_kept, descending=descending))


def _by_rows(
    x: DeviceArray, num_kept: int, dim: int, fill: Callable[[DeviceArray, DeviceArray, DeviceArray], None]
) -> tuple[DeviceArray, DeviceArray]:
    """num_kept values for each row along dim, and their indices: fill(values, indices, x) has contiguous rows."""
    order = (*(i for i in range(len(x.shape)) if i != dim), dim) if x.shape else ()
    kept_shape = (*(x.shape[i] for i in order[:-1]), num_kept) if x.shape else ()
    values = array.empty(kept_shape, x.dtype, x.device_index)
    indices = array.empty(kept_shape, dtypes.int64, x.device_index)
    if values.size:
        rows = x.view(tuple(x.shape[i] for i in order), tuple(x.strides[i] for i in order), x.offset)
        if not is_contiguous(rows.shape, rows.strides):
            rows = storage.copy(rows, contiguous_strides(rows.shape))
        fill(values, indices, rows)
    back = sorted(range(len(order)), key=lambda i: order[i])
    values, indices = (
        storage.viewable(out.view(tuple(out.shape[i] for i in back), tuple(out.strides[i] for i in back), 0))
        for out in (values, indices)
    )
    return values, indices


def _running_maxima(values: DeviceArray, indices: DeviceArray, x: DeviceArray) -> None:
    num_columns = x.shape[-1] if x.shape else 1
    num_rows, columns = x.size // num_columns, min(1 << (num_columns - 1).bit_length(), _BLOCK)
    rows = _BLOCK // columns
    args = (as_bits(values), indices, x, as_bits(x), num_rows, num_columns)
    launch(kernels._cummax_kernel, (-(-num_rows // rows),), *args, ROWS=rows, COLUMNS=columns)


def _sort_rows(values: DeviceArray, indices: DeviceArray, x: DeviceArray, num_kept: int, descending: bool) -> None:
    num_columns = x.shape[-1] if x.shape else 1
    num_rows = x.size // num_columns
    tile = min(max(1 << (num_columns - 1).bit_length(), 16), _LARGEST_TILE)
    num_padded = -(-num_columns // tile) * tile
    words, spare = (array.empty((num_rows, num_padded), dtypes.int64, x.device_index) for _ in range(2))
    if x.dtype.itemsize < 8:
        words, _ = _ordered(words, spare, x, None, 0, tile, descending)
    else:  # by the lower halves of the keys, then by the upper
        order, spare = _ordered(words, spare, x, None, 1, tile, descending)
        words = array.empty((num_rows, num_padded), dtypes.int64, x.device_index)
        words, _ = _ordered(words, spare, x, order, 2, tile, descending)
        grid = _grid(num_rows * num_columns)
        launch(kernels._compose_kernel, grid, words, order, num_rows, num_padded, num_columns, BLOCK=_BLOCK)
    args = (as_bits(values), indices, as_bits(x), words, num_rows, num_columns, num_padded, num_kept)
    launch(kernels._sorted_kernel, _grid(num_rows * num_kept), *args, BLOCK=_BLOCK)


def _ordered(
    words: DeviceArray,
    spare: DeviceArray,
    x: DeviceArray,
    order: DeviceArray | None,
    part: int,
    tile: int,
    descending: bool,
) -> tuple[DeviceArray, DeviceArray]:
    """The words of x in order, and the array of the two that is free again."""
    num_rows, num_padded = words.shape
    key = {"DESCENDING": descending, "PART": part}
    num_columns, grid = x.size // num_rows, _grid(words.size)
    launch(kernels._words_kernel, grid, words, x, order, num_rows, num_columns, num_padded, **key, BLOCK=_BLOCK)

    tiles_per_row, num_tiles = num_padded // tile, words.size // tile
    tiles = {"TILE": tile, "NUM_TILES": _BLOCK // tile}
    launch(kernels._sort_tiles_kernel, grid, spare, words, num_tiles, num_padded, tiles_per_row, **tiles)
    words, spare = spare, words

    run = tile
    while run < num_padded:
        steps = run.bit_length()
        launch(kernels._merge_kernel, grid, spare, words, num_rows, num_padded, run, steps, BLOCK=_BLOCK)
        words, spare, run = spare, words, 2 * run
    return words, spare


def _grid(num_elements: int) -> tuple[int]:
    return (-(-num_elements // _BLOCK),)
