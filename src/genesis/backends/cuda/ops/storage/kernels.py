"""Copies, casts, fills and ranges."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import specimen, strided_specimen


@triton.jit
def _copy_kernel(source):
    return source


@triton.jit
def _add_into_kernel(target, source):
    return target + source


@triton.jit
def _copies_kernel(chunk_ptr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Program i: chunk[i, 2] bytes to the address chunk[i, 0] from the address chunk[i, 1], both multiples of 16."""
    chunk_ptr += tl.program_id(0) * 3
    byte = tl.pointer_type(tl.int8)
    target_ptr = tl.multiple_of(tl.load(chunk_ptr).to(byte), 16)
    source_ptr = tl.multiple_of(tl.load(chunk_ptr + 1).to(byte), 16)
    num_bytes = tl.load(chunk_ptr + 2)
    places = tl.arange(0, BLOCK)
    if num_bytes == CHUNK:  # without masks the bytes move by 16
        for start in tl.static_range(0, CHUNK, BLOCK):
            tl.store(target_ptr + start + places, tl.load(source_ptr + start + places))
    else:
        for start in range(0, num_bytes, BLOCK):
            mask = start + places < num_bytes
            tl.store(target_ptr + start + places, tl.load(source_ptr + start + places, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["start", "step"])
def _arange_kernel(out_ptr, start: tl.float64, step: tl.float64, num_elements, BLOCK: tl.constexpr):
    """Floats: start + i·step, rounded once."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = start + offsets.to(tl.float64) * step
    if out_ptr.dtype.element_ty != tl.float64:
        values = values.to(tl.float32)
    tl.store(out_ptr + offsets, values.to(out_ptr.dtype.element_ty), mask=offsets < num_elements)


@triton.jit(do_not_specialize=["start", "step"])
def _arange_integer_kernel(out_ptr, start: tl.int64, step: tl.int64, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = start + offsets * step
    tl.store(out_ptr + offsets, values.to(out_ptr.dtype.element_ty), mask=offsets < num_elements)


_CASTS = [
    (dtypes.float32, dtypes.bfloat16),
    (dtypes.bfloat16, dtypes.float32),
    (dtypes.float64, dtypes.float16),
    (dtypes.float32, dtypes.int64),
    (dtypes.float32, dtypes.uint8),
    (dtypes.int64, dtypes.bool_),
    (dtypes.float32, dtypes.bool_),
    (dtypes.bool_, dtypes.int32),
]

SPECIMENS = [
    *(specimen(_copy_kernel, source, out=target) for source, target in _CASTS),
    specimen(_copy_kernel, dtypes.int16),
    specimen(_add_into_kernel, dtypes.bfloat16, dtypes.bfloat16),
    strided_specimen(_add_into_kernel, dtypes.float32, 2),
    Specimen(_copies_kernel, (dtypes.int64,), {"CHUNK": 1 << 16, "BLOCK": 1 << 14, "num_warps": 8}),
    Specimen(_arange_kernel, (dtypes.bfloat16, 0.5, 0.5, 1000), {"BLOCK": 1024}),
    Specimen(_arange_integer_kernel, (dtypes.uint8, 0, 2, 1000), {"BLOCK": 1024}),
]
