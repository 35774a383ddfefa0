"""Running maxima, and stable sorting of rows: by counting within tiles, then by merging tiles.

What is sorted are int64 words: a 32-bit key in the upper half, whose signed order is the order of the values, and the
position in the lower half. So no two words are equal, and sorting them is stable. Keys of 64 bits are sorted twice:
by their lower half, then by their upper half.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _key(x, DESCENDING: tl.constexpr):
    """A signed integer of 32 or 64 bits with the order of x: NaN above all, both zeros equal."""
    if x.dtype.is_floating():
        if x.dtype.primitive_bitwidth == 64:
            x = tl.where(x == 0, 0.0, x)
            bits = x.to(tl.int64, bitcast=True)
            key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
            key = tl.where(x != x, 0x7FFFFFFFFFFFFFFF, key)
        else:
            x = x.to(tl.float32)
            x = tl.where(x == 0, 0.0, x)
            bits = x.to(tl.int32, bitcast=True)
            key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
            key = tl.where(x != x, 0x7FFFFFFF, key)
    elif x.dtype.primitive_bitwidth == 64:
        key = x
    else:
        key = x.to(tl.int32)
    if DESCENDING:
        key = -1 - key
    return key


@triton.jit
def _elements(num_rows, num_columns, BLOCK: tl.constexpr):
    """Row and column of each element of this program, and which of them exist."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = element // num_columns
    return row, (element - row * num_columns).to(tl.int32), row < num_rows


@triton.jit
def _words_kernel(
    words_ptr,
    x_ptr,
    order_ptr,
    num_rows,
    num_columns,
    num_padded,
    DESCENDING: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The words of each row; what pads it comes last. order: the positions that a first pass put the row in, or None.

    PART 0: the key has 32 bits; 1: its lower half; 2: its upper half.
    """
    row, column, exist = _elements(num_rows, num_padded, BLOCK)
    mask = exist & (column < num_columns)
    source = column.to(tl.int64)
    if order_ptr is not None:
        source = tl.load(order_ptr + row * num_padded + column, mask=mask, other=0) & 0xFFFFFFFF
    key = _key(tl.load(x_ptr + row * num_columns + source, mask=mask, other=0), DESCENDING)
    if PART == 1:
        key = (key & 0xFFFFFFFF) - 0x80000000  # its unsigned order
    elif PART == 2:
        key = key >> 32
    key = tl.where(mask, key.to(tl.int64), 0x7FFFFFFF)
    tl.store(words_ptr + row * num_padded + column, key * 0x100000000 + column, mask=exist)


@triton.jit
def _sort_tiles_kernel(
    out_ptr, words_ptr, num_tiles, num_padded, tiles_per_row, TILE: tl.constexpr, NUM_TILES: tl.constexpr
):
    """Sort each tile of TILE words: a word's place is the number of smaller ones."""
    tile = tl.program_id(0).to(tl.int64) * NUM_TILES + tl.arange(0, NUM_TILES)
    start = tile // tiles_per_row * num_padded + tile % tiles_per_row * TILE
    mask = (tile < num_tiles)[:, None] & (tl.arange(0, TILE) < TILE)[None, :]
    words = tl.load(words_ptr + start[:, None] + tl.arange(0, TILE)[None, :], mask=mask, other=0)
    place = tl.zeros((NUM_TILES, TILE), tl.int32)
    for i in range(TILE):
        other = tl.load(words_ptr + start + i, mask=tile < num_tiles, other=0)
        place += (other[:, None] < words).to(tl.int32)
    tl.store(out_ptr + start[:, None] + place, words, mask=mask)


@triton.jit(do_not_specialize=["run", "num_steps"])
def _merge_kernel(out_ptr, words_ptr, num_rows, num_padded, run, num_steps, BLOCK: tl.constexpr):
    """Merge neighbouring sorted runs: a word moves on by the number of words in the other run that are smaller.

    num_steps: of the binary search for them, so that 2 ** num_steps > run.
    """
    row, column, mask = _elements(num_rows, num_padded, BLOCK)
    row = row * num_padded
    word = tl.load(words_ptr + row + column, mask=mask, other=0)
    own_start = column // run * run
    pair_start = column // (2 * run) * (2 * run)
    other_start = tl.where(own_start == pair_start, own_start + run, pair_start)
    low = tl.minimum(other_start, num_padded)
    high = tl.minimum(other_start + run, num_padded)
    first = low
    for _ in range(num_steps):
        middle = (low + high) // 2
        smaller = tl.load(words_ptr + row + middle, mask=mask & (low < high), other=0) < word
        searching = low < high
        low = tl.where(searching & smaller, middle + 1, low)
        high = tl.where(searching & (smaller == 0), middle, high)
    tl.store(out_ptr + row + pair_start + (column - own_start) + (low - first), word, mask=mask)


@triton.jit
def _compose_kernel(words_ptr, order_ptr, num_rows, num_padded, num_columns, BLOCK: tl.constexpr):
    """The positions in words count in the order of a first pass: make them count in the row."""
    row, column, mask = _elements(num_rows, num_columns, BLOCK)
    row = row * num_padded
    position = tl.load(words_ptr + row + column, mask=mask, other=0) & 0xFFFFFFFF
    tl.store(words_ptr + row + column, tl.load(order_ptr + row + position, mask=mask, other=0), mask=mask)


@triton.jit
def _sorted_kernel(
    values_ptr,
    indices_ptr,
    x_ptr,
    words_ptr,
    num_rows,
    num_columns,
    num_padded,
    num_kept,
    BLOCK: tl.constexpr,
):
    """The first num_kept values of each row in order, and where in the row they were."""
    row, column, mask = _elements(num_rows, num_kept, BLOCK)
    position = tl.load(words_ptr + row * num_padded + column, mask=mask, other=0) & 0xFFFFFFFF
    value = tl.load(x_ptr + row * num_columns + position, mask=mask, other=0)
    tl.store(values_ptr + row * num_kept + column, value, mask=mask)
    tl.store(indices_ptr + row * num_kept + column, position, mask=mask)


@triton.jit
def _cummax_kernel(
    values_ptr, indices_ptr, x_ptr, bits_ptr, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Running maxima of each row and where they are: at the last element that was no smaller than all before it.

    bits_ptr: x as integers, from which values are copied.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exist = (row < num_rows)[:, None]
    start = (row * num_columns)[:, None]
    greatest = _key(tl.load(x_ptr + start, mask=exist, other=0), False)
    latest = tl.zeros((ROWS, 1), tl.int32)
    for first in range(0, num_columns, COLUMNS):
        column = (first + tl.arange(0, COLUMNS))[None, :]
        mask = exist & (column < num_columns)
        key = _key(tl.load(x_ptr + start + column, mask=mask, other=0), False)
        running = tl.maximum(tl.associative_scan(key, 1, _greater), greatest)
        index = tl.where(key == running, column, latest)
        index = tl.maximum(tl.associative_scan(index, 1, _greater), latest)
        tl.store(values_ptr + start + column, tl.load(bits_ptr + start + index, mask=mask, other=0), mask=mask)
        tl.store(indices_ptr + start + column, index.to(tl.int64), mask=mask)
        greatest = tl.max(running, 1, keep_dims=True)  # what pads a row is in none but its last tile
        latest = tl.max(index, 1, keep_dims=True)


@triton.jit
def _greater(x, y):
    return tl.maximum(x, y)


_WORD = dtypes.int64
_KEYS = [  # dtype, descending, part of the key
    (dtypes.float32, False, 0),
    (dtypes.bfloat16, True, 0),
    (dtypes.float16, False, 0),
    (dtypes.float64, False, 1),
    (dtypes.float64, True, 2),
    (dtypes.int64, True, 1),
    (dtypes.int64, False, 2),
    (dtypes.uint8, True, 0),
    (dtypes.bool_, False, 0),
]

SPECIMENS = [
    *(
        Specimen(
            _words_kernel,
            (_WORD, dtype, _WORD if part == 2 else None, 30, 1000, 1024),
            {"DESCENDING": descending, "PART": part, "BLOCK": 1024},
        )
        for dtype, descending, part in _KEYS
    ),
    Specimen(_sort_tiles_kernel, (_WORD, _WORD, 100, 1024, 4), {"TILE": 256, "NUM_TILES": 4}),
    Specimen(_sort_tiles_kernel, (_WORD, _WORD, 100, 16, 1), {"TILE": 16, "NUM_TILES": 64}),
    Specimen(_merge_kernel, (_WORD, _WORD, 30, 1024, 256, 9), {"BLOCK": 1024}),
    Specimen(_compose_kernel, (_WORD, _WORD, 30, 1024, 1000), {"BLOCK": 1024}),
    *(
        Specimen(_sorted_kernel, (dtype, _WORD, dtype, _WORD, 30, 1000, 1024, 1000), {"BLOCK": 1024})
        for dtype in (dtypes.int64, dtypes.int32, dtypes.int16, dtypes.int8)
    ),
    *(
        Specimen(_cummax_kernel, (bits, _WORD, dtype, bits, 30, 1000), {"ROWS": 2, "COLUMNS": 512})
        for dtype, bits in (
            (dtypes.float32, dtypes.int32),
            (dtypes.bfloat16, dtypes.int16),
            (dtypes.float64, dtypes.int64),
            (dtypes.int64, dtypes.int64),
            (dtypes.bool_, dtypes.int8),
        )
    ),
]
