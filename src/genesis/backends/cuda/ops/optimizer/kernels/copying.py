"""Copies and casts of many arrays in one launch; see steps.py for the tables."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.optimizer.kernels.steps import _chunk, _pointers


@triton.jit
def _copy_kernel(
    table_ptr,
    chunk_ptr,
    num_arrays,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Role 0 takes the elements of role 1. DTYPE: any of their size."""
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    target_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, DTYPE, ALIGNED)
    source_ptr = _pointers(table_ptr, num_arrays, which, elements, 1, DTYPE, ALIGNED)
    if is_full:
        tl.store(target_ptr, tl.load(source_ptr))
    else:
        tl.store(target_ptr, tl.load(source_ptr, mask=mask), mask=mask)


@triton.jit
def _cast_kernel(
    table_ptr,
    chunk_ptr,
    num_arrays,
    TARGET: tl.constexpr,
    SOURCE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Role 0, of dtype TARGET, takes the values of role 1, of dtype SOURCE."""
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    target_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, TARGET, ALIGNED)
    source_ptr = _pointers(table_ptr, num_arrays, which, elements, 1, SOURCE, ALIGNED)
    if is_full:
        tl.store(target_ptr, tl.load(source_ptr).to(TARGET))
    else:
        tl.store(target_ptr, tl.load(source_ptr, mask=mask).to(TARGET), mask=mask)


_OF_PAIRS = {"NUM_ROLES": 2, "BLOCK": 2048}
SPECIMENS = [
    Specimen(_copy_kernel, (dtypes.int64, dtypes.int64, 100), {"DTYPE": tl.int32, "ALIGNED": True, **_OF_PAIRS}),
    Specimen(_copy_kernel, (dtypes.int64, dtypes.int64, 100), {"DTYPE": tl.int8, "ALIGNED": False, **_OF_PAIRS}),
    Specimen(
        _cast_kernel,
        (dtypes.int64, dtypes.int64, 100),
        {"TARGET": tl.bfloat16, "SOURCE": tl.float32, "ALIGNED": True, **_OF_PAIRS},
    ),
    Specimen(
        _cast_kernel,
        (dtypes.int64, dtypes.int64, 100),
        {"TARGET": tl.float32, "SOURCE": tl.float16, "ALIGNED": False, **_OF_PAIRS},
    ),
]
