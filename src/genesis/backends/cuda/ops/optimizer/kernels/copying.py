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
    TARGET: tl.constexpr,
    SOURCE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Role 0, of dtype TARGET, takes the values of role 1, of dtype SOURCE; where both are one: any of that size."""
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    target_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, TARGET, ALIGNED)
    source_ptr = _pointers(table_ptr, num_arrays, which, elements, 1, SOURCE, ALIGNED)
    if is_full:
        tl.store(target_ptr, tl.load(source_ptr).to(TARGET))
    else:
        tl.store(target_ptr, tl.load(source_ptr, mask=mask).to(TARGET), mask=mask)


_OF_PAIRS = {"NUM_ROLES": 2, "BLOCK": 2048}
SPECIMENS = [
    Specimen(
        _copy_kernel, (dtypes.int64, dtypes.int64, 100),
        {"TARGET": target, "SOURCE": source, "ALIGNED": aligned, **_OF_PAIRS},
    )
    for target, source, aligned in (
        (tl.int32, tl.int32, True), (tl.int8, tl.int8, False), (tl.bfloat16, tl.float32, True),
        (tl.float32, tl.float16, False),
    )
]  # fmt: skip
