"""The weight's gradient in groups of few channels: output channels × (taps, input channels), summed over pixels.

A tile spans PACK groups, as in gather.py; of its products those between different groups are dropped. It spans TAPS
taps too, so that the gradient is read once for all of them.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow_and_hold, _let_next_begin
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.kernels.gather import _beyond_parts, _pixel

SIZES = ["num_pixels", "pixels_per_split", "out_size", "size", "taps", "stride", "padding", "dilation"]


@triton.jit(do_not_specialize=SIZES)
def _grouped_weight_grad_kernel(
    partial_ptr,
    grad_ptr,
    input_ptr,
    num_pixels,
    pixels_per_split,
    num_groups,
    out_size,
    size,
    taps,
    stride,
    padding,
    dilation,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PACK: tl.constexpr,
    WHOLE: tl.constexpr,
    TAPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """partial (split, num_groups · OUT, taps, IN), float32. WIDTH columns of a tile belong to one tap."""
    _follow_and_hold(PDL)
    num_taps = taps[0] * taps[1]
    tap_tiles = tl.cdiv(num_taps, TAPS)
    group_tiles = tl.cdiv(num_groups, PACK)
    program = tl.program_id(0)
    first_tap = program % tap_tiles * TAPS
    first_group = program // tap_tiles % group_tiles * PACK
    split = program // (tap_tiles * group_tiles)
    outs = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    ins = columns % WIDTH
    tap = first_tap + columns // WIDTH
    if WHOLE:
        out_mask = outs < PACK * OUT
        in_mask = ins < PACK * IN
    else:
        groups_left = tl.minimum(num_groups - first_group, PACK)
        out_mask = outs < groups_left * OUT
        in_mask = ins < groups_left * IN
    in_mask = in_mask & (columns < TAPS * WIDTH) & (tap < num_taps)
    tap_y = tap // taps[1] * dilation[0] - padding[0]
    tap_x = tap % taps[1] * dilation[1] - padding[1]
    num_inputs = num_groups * IN
    num_outputs = num_groups * OUT
    grad_ptrs = grad_ptr + first_group * OUT + outs
    input_ptrs = input_ptr + first_group * IN + ins

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    grad_peaks = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    peaks = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    begin = split * pixels_per_split
    end = tl.minimum(begin + pixels_per_split, num_pixels)
    for first in range(begin, end, BLOCK_K):
        pixels = first + tl.arange(0, BLOCK_K)
        pixel_mask = pixels < end
        image, row, column = _pixel(pixels, out_size, WIDE)
        places = (image * out_size[0] + row) * out_size[1] + column
        mask = out_mask[:, None] & pixel_mask[None, :]
        grads = tl.load(grad_ptrs[:, None] + (places * num_outputs)[None, :], mask=mask, other=0)
        y = (row * stride[0])[:, None] + tap_y[None, :]
        x = (column * stride[1])[:, None] + tap_x[None, :]
        inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1]) & pixel_mask[:, None] & in_mask[None, :]
        offsets = ((image * size[0])[:, None] + y) * size[1] + x
        values = tl.load(input_ptrs[None, :] + offsets * num_inputs, mask=inside, other=0)
        total = tl.dot(grads, values, total, input_precision=PRECISION, out_dtype=tl.float32)
        if PRECISION == "bf16x6":
            grad_peaks = tl.maximum(grad_peaks, tl.abs(grads))
            peaks = tl.maximum(peaks, tl.abs(values))
    if PRECISION == "bf16x6":  # noqa: SIM102  (the first is decided when it is compiled)
        if _beyond_parts(grad_peaks, peaks):  # multiply-adds, one pixel after the other
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for pixel in range(begin, end):
                image, row, column = _pixel(pixel, out_size, WIDE)
                place = (image * out_size[0] + row) * out_size[1] + column
                grads = tl.load(grad_ptrs + place * num_outputs, mask=out_mask, other=0)
                y = row * stride[0] + tap_y
                x = column * stride[1] + tap_x
                inside = in_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
                offsets = (image * size[0] + y) * size[1] + x
                values = tl.load(input_ptrs + offsets * num_inputs, mask=inside, other=0)
                total += grads[:, None] * values[None, :]

    _let_next_begin(PDL)
    rows = split.to(tl.int64) * num_outputs + first_group * OUT + outs
    offsets = (rows * num_taps)[:, None] * IN + (tap * IN + ins % IN)[None, :]
    same_group = (outs // OUT)[:, None] == (ins // IN)[None, :]
    tl.store(partial_ptr + offsets, total, mask=same_group & out_mask[:, None] & in_mask[None, :])


def _specimen(dtype, precision, ins=8, outs=8, pack=4, **options):
    constants = {
        "IN": ins, "OUT": outs, "PACK": pack, "WHOLE": True, "TAPS": 3, "WIDTH": 32, "PRECISION": precision,
        "WIDE": False, "BLOCK_M": 32, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2,
    }  # fmt: skip
    sizes = (3000, 512, 32, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1))
    return Specimen(
        _grouped_weight_grad_kernel, (dtypes.float32, dtype, dtype, *sizes), {**constants, **options}
    )  # fmt: skip


SPECIMENS = [
    _specimen(dtypes.bfloat16, "ieee"),
    _specimen(dtypes.float16, "ieee", 24, 12, 1, WHOLE=False, WIDE=True, BLOCK_M=16),
    _specimen(dtypes.float32, DOT_PRECISION[dtypes.float32], 4, 4, BLOCK_M=16, BLOCK_N=64, WIDTH=16),
]
