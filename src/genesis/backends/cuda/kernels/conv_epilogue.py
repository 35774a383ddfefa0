"""What a convolution kernel does with a tile of sums before it stores it; only what is asked for is compiled.

A kernel calls, on its float32 tile (pixels, channels):

    result = _affine(result, channels, channel_mask, scale_ptr, bias_ptr)     · scale per channel, + bias or shift
    _store_sums(…)                                                            Σ, Σ² per channel, for batch norm
    result = _activated(result, residual, RELU)                               + residual, ReLU
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch import Specimen


@triton.jit
def _affine(result, channels, channel_mask, scale_ptr, bias_ptr):
    """result · scale + bias, each (channels) or None."""
    if scale_ptr is not None:
        result *= tl.load(scale_ptr + channels, mask=channel_mask, other=0).to(result.dtype)[None, :]
    if bias_ptr is not None:
        result += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(result.dtype)[None, :]
    return result


@triton.jit
def _store_sums(sums_ptr, pivot_ptr, result, tile, num_tiles, channels, num_channels, pixel_mask):
    """sums (2, tiles, channels), float32: of result − pivot and of its square over the tile's pixels.

    pivot: (channels) or None, a value near the mean: E[x²] − E[x]² loses digits where the mean is large. Nothing
    happens where sums_ptr is None.
    """
    if sums_ptr is not None:
        channel_mask = channels < num_channels
        if pivot_ptr is not None:
            result -= tl.load(pivot_ptr + channels, mask=channel_mask, other=0)[None, :]
        result = tl.where(pixel_mask[:, None], result, 0)
        place = tile.to(tl.int64) * num_channels + channels
        tl.store(sums_ptr + place, tl.sum(result, axis=0), mask=channel_mask)
        square_place = place + num_tiles.to(tl.int64) * num_channels
        tl.store(sums_ptr + square_place, tl.sum(result * result, axis=0), mask=channel_mask)


@triton.jit
def _activated(result, residual, RELU: tl.constexpr):
    """act(result + residual); residual: a tile or None."""
    if residual is not None:
        result += residual.to(result.dtype)
    if RELU:
        result = tl.where(result < 0, result * 0, result)  # NaN stays NaN
    return result


@triton.jit
def _finish_splits_kernel(
    out_ptr,
    partial_ptr,
    bias_ptr,
    residual_ptr,
    num_splits,
    num_elements,
    num_channels,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = act(Σ partial + bias + residual); partial: (splits, …, channels), added up in that order, in float64.

    Many short splits are then more accurate than few long ones; reading them takes longer than adding them up.
    """
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    exact = tl.zeros((BLOCK,), tl.float64)
    for _ in range(num_splits):
        exact += tl.load(partial_ptr + elements, mask=mask, other=0).to(tl.float64)
        partial_ptr += num_elements
    total = exact.to(tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + elements % num_channels, mask=mask, other=0).to(tl.float32)
    residual = None
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + elements, mask=mask, other=0)
    total = _activated(total, residual, RELU)
    tl.store(out_ptr + elements, total.to(out_ptr.dtype.element_ty), mask=mask)


_f32 = dtypes.float32
SPECIMENS = [
    Specimen(_finish_splits_kernel, (_f32, _f32, None, None, 3, 100_000, 64), {"RELU": False, "BLOCK": 1024}),
    Specimen(_finish_splits_kernel, (_f32, _f32, _f32, _f32, 3, 100_000, 64), {"RELU": True, "BLOCK": 1024}),
]
