"""Rows of channels with zeros behind them, and back."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _pad_kernel(
    out_ptr, x_ptr, num_rows, num_wide_rows,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (num_wide_rows, WIDE) = x (num_rows, CHANNELS), and zeros. A program has a tile of ROWS × COLUMNS."""
    _follow(PDL)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    channels = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    values = tl.load(x_ptr + rows * CHANNELS + channels, mask=(rows < num_rows) & (channels < CHANNELS), other=0)
    tl.store(out_ptr + rows * WIDE + channels, values, mask=(rows < num_wide_rows) & (channels < WIDE))


@triton.jit
def _cut_kernel(
    out_ptr, x_ptr, num_rows,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (num_rows, CHANNELS) = the first channels of x (…, WIDE). A program has a tile of ROWS × COLUMNS."""
    _follow(PDL)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    channels = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (rows < num_rows) & (channels < CHANNELS)
    tl.store(out_ptr + rows * CHANNELS + channels, tl.load(x_ptr + rows * WIDE + channels, mask=inside), mask=inside)


SPECIMENS = [
    Specimen(kernel, (dtype, dtype, *rows), {"CHANNELS": 21, "WIDE": 24, "ROWS": 64, "COLUMNS": 32})
    for dtype in (dtypes.float32, dtypes.bfloat16)
    for kernel, rows in ((_pad_kernel, (100, 104)), (_cut_kernel, (100,)))
]
