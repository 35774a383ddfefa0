"""Epilogue of a convolution kernel on a tile of sums before the store; only what is asked for is compiled.

A kernel calls, on its float32 tile (pixels, channels):

    result = _biased(result, channels, channel_mask, bias_ptr)
    result = _activated(result, residual, RELU)
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _biased(result, channels, channel_mask, bias_ptr):
    """result + bias; bias: (channels) or None."""
    if bias_ptr is not None:
        result += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(result.dtype)[None, :]
    return result


@triton.jit
def _activated(result, residual, RELU: tl.constexpr):
    """act(result + residual); residual: a tile or None."""
    if residual is not None:
        result += residual.to(result.dtype)
    if RELU:
        result = tl.where(result < 0, 0, result)  # NaN stays NaN
    return result


@triton.jit(do_not_specialize=["num_splits"])
def _finish_splits_kernel(
    out_ptr,
    partial_ptr,
    bias_ptr,
    residual_ptr,
    num_splits,
    num_elements,
    num_channels,
    RELU: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = act(Σ partial + bias + residual); partial: (splits, …, channels), added up in a fixed order, in float64.

    Many short splits are then more accurate than few long ones; reading them takes longer than adding them up. SPLITS
    of them are read at a time, as one after the other each read would wait for the one before, and have sums of their
    own: threads exchange them once.
    """
    _follow(PDL)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    exact = tl.zeros((SPLITS, BLOCK), tl.float64)
    for first in range(0, num_splits, SPLITS):
        splits = first + tl.arange(0, SPLITS)
        places = partial_ptr + splits.to(tl.int64)[:, None] * num_elements + elements[None, :]
        partial = tl.load(places, mask=(splits < num_splits)[:, None] & mask[None, :], other=0)
        exact += partial.to(tl.float64)
    total = tl.sum(exact, 0)
    if partial_ptr.dtype.element_ty != tl.float64:
        total = total.to(tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + elements % num_channels, mask=mask, other=0).to(total.dtype)
    residual = None
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + elements, mask=mask, other=0)
    total = _activated(total, residual, RELU)
    tl.store(out_ptr + elements, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_kernel(out_ptr, addend_ptr, num_elements, COMPUTE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out += addend."""
    _follow(PDL)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    total = tl.load(out_ptr + elements, mask=mask).to(COMPUTE) + tl.load(addend_ptr + elements, mask=mask).to(COMPUTE)
    tl.store(out_ptr + elements, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _epilogue_kernel(
    out_ptr, bias_ptr, residual_ptr, num_elements, num_channels,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out = act(out + bias + residual), channels innermost."""
    _follow(PDL)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    total = tl.load(out_ptr + elements, mask=mask).to(COMPUTE)
    if BIAS:
        total += tl.load(bias_ptr + elements % num_channels, mask=mask).to(COMPUTE)
    residual = None
    if RESIDUAL:
        residual = tl.load(residual_ptr + elements, mask=mask)
    total = _activated(total, residual, RELU)
    tl.store(out_ptr + elements, total.to(out_ptr.dtype.element_ty), mask=mask)


_f32 = dtypes.float32
SPECIMENS = [
    Specimen(_add_kernel, (dtypes.bfloat16, dtypes.bfloat16, 100_000), {"COMPUTE": tl.float32, "BLOCK": 1024}),
    Specimen(
        _epilogue_kernel, (_f32, _f32, _f32, 100_000, 64),
        {"BIAS": True, "RESIDUAL": True, "RELU": True, "COMPUTE": tl.float32, "BLOCK": 1024},
    ),
    Specimen(
        _finish_splits_kernel, (_f32, _f32, None, None, 3, 100_000, 64),
        {"RELU": False, "SPLITS": 4, "BLOCK": 64},
    ),
    Specimen(
        _finish_splits_kernel, (*(_f32,) * 4, 3, 100_000, 64),
        {"RELU": True, "SPLITS": 64, "BLOCK": 32, "num_warps": 2},
    ),
    Specimen(
        _finish_splits_kernel, (dtypes.bfloat16, _f32, None, None, 264, 576, 48),
        {"RELU": False, "SPLITS": 512, "BLOCK": 16, "num_warps": 8},
    ),
    Specimen(
        _finish_splits_kernel, (dtypes.float64, dtypes.float64, None, None, 3, 100_000, 64),
        {"RELU": False, "SPLITS": 16, "BLOCK": 128, "num_warps": 2},
    ),
]  # fmt: skip
