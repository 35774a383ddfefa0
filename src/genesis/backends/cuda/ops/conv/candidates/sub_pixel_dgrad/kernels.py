"""A weight as the convolution wants it that computes all residues of an input's gradient at once; and its result."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _gather_weight_kernel(
    out_ptr, weight_ptr, num_inputs, num_outputs, taps, stride, start, window, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (…, window[0], window[1], num_outputs) = the taps that position residue + i · stride meets at pixel i + t.

    weight (num_outputs, taps[0], taps[1], num_inputs). Of out, (residue_y · stride[1] + residue_x) · num_inputs + c is
    of channel c, and at t there is tap start + residue − t · stride, or zeros. One program per row.
    """
    _follow(PDL)
    row = tl.program_id(0)
    tap_y = row // window[1] % window[0]
    tap_x = row % window[1]
    channel = row // (window[0] * window[1])
    residue = channel // num_inputs
    channel %= num_inputs
    r = start[0] + residue // stride[1] - tap_y * stride[0]
    s = start[1] + residue % stride[1] - tap_x * stride[1]
    there = (residue // stride[1] < stride[0]) & (r >= 0) & (r < taps[0]) & (s >= 0) & (s < taps[1])
    weight_ptr += (r * taps[1] + s) * num_inputs + channel
    for first in range(0, num_outputs, BLOCK):
        outputs = first + tl.arange(0, BLOCK)
        places = outputs.to(tl.int64) * (taps[0] * taps[1] * num_inputs)
        values = tl.load(weight_ptr + places, mask=there & (outputs < num_outputs), other=0)
        tl.store(out_ptr + row.to(tl.int64) * num_outputs + outputs, values, mask=outputs < num_outputs)


@triton.jit
def _shuffle_pixels_kernel(
    out_ptr, x_ptr, size, num_channels, x_size, num_wide, stride, first_pixel, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (N, size[0], size[1], num_channels): its pixel (i · stride + residue) has the channels of that residue.

    x (N, x_size[0], x_size[1], num_wide); pixel i is pixel i + first_pixel there. One program per row of out.
    """
    _follow(PDL)
    row = tl.program_id(0)
    y = row % size[0]
    x_ptr += (row // size[0] * x_size[0] + y // stride[0] + first_pixel[0]).to(tl.int64) * x_size[1] * num_wide
    x_ptr += y % stride[0] * stride[1] * num_channels
    out_ptr += row.to(tl.int64) * size[1] * num_channels
    for first in range(0, size[1] * num_channels, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        inside = elements < size[1] * num_channels
        x = elements // num_channels
        places = (x // stride[1] + first_pixel[1]) * num_wide + x % stride[1] * num_channels + elements % num_channels
        tl.store(out_ptr + elements, tl.load(x_ptr + places, mask=inside), mask=inside)


SPECIMENS = [
    Specimen(kernel, (dtype, dtype, *numbers), {"BLOCK": block})
    for dtype in (dtypes.float32, dtypes.bfloat16)
    for kernel, numbers, block in (
        (_gather_weight_kernel, (3, 64, (7, 7), (2, 2), (5, 5), (4, 4)), 64),
        (_shuffle_pixels_kernel, ((224, 224), 3, (113, 113), 16, (2, 2), (1, 1)), 1024),
    )
]
