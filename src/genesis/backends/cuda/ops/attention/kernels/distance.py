"""How far two results of attention are from each other: no array of differences, one small kernel to compile."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit(do_not_specialize=["num_rows"])
def _distance_kernel(
    out_ptr,
    y_ptr,
    wanted_ptr,
    logsumexp_ptr,
    wanted_logsumexp_ptr,
    num_rows,
    VALUE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """out (2, programs): the largest of a block's rows of Σ (y − wanted)² / Σ wanted² and |logsumexp − wanted|.

    NaN counts as infinite.
    """
    rows, columns = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_V)
    present = rows < num_rows
    mask = present[:, None] & (columns < VALUE_SIZE)[None, :]
    offsets = rows[:, None].to(tl.int64) * VALUE_SIZE + columns[None, :]
    wanted = tl.load(wanted_ptr + offsets, mask=mask, other=0).to(tl.float32)
    difference = tl.load(y_ptr + offsets, mask=mask, other=0).to(tl.float32) - wanted
    relative = tl.sum(difference * difference, axis=1) / tl.sum(wanted * wanted, axis=1)
    absolute = tl.abs(
        tl.load(logsumexp_ptr + rows, mask=present, other=0)
        - tl.load(wanted_logsumexp_ptr + rows, mask=present, other=0)
    )
    _store_largest(out_ptr, relative, present)
    _store_largest(out_ptr + tl.num_programs(0), absolute, present)


@triton.jit
def _store_largest(out_ptr, values, present):
    values = tl.where(values == values, values, float("inf"))
    tl.store(out_ptr + tl.program_id(0), tl.max(tl.where(present, values, 0.0), axis=0))


SPECIMENS = [
    Specimen(
        _distance_kernel,
        (dtypes.float32, dtype, dtype, dtypes.float32, dtypes.float32, 1000),
        {"VALUE_SIZE": 80, "BLOCK_M": 32, "BLOCK_V": 128},
    )
    for dtype in (dtypes.float16, dtypes.bfloat16)
]
