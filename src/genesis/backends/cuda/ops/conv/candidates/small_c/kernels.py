"""Images with few channels as the copy engine reads them, with room on both sides and 4 or 8 channels; and back."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen


@triton.jit
def _widen_kernel(
    out_ptr, x_ptr, height, width, num_channels, top, left, out_height, out_width,
    FOLD: tl.constexpr, OUT_CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (N, out_height, out_width, FOLD, OUT_CHANNELS) = x (N, height, width, num_channels), with zeros around it.

    Row y of x, moved down by top, is row (y + top) % FOLD of the pixels of row (y + top) // FOLD; all is moved right by
    left. One program per row of out.
    """
    _follow(PDL)
    row = tl.program_id(0)
    first_y = row % out_height * FOLD - top
    x_ptr += (row // out_height).to(tl.int64) * height * width * num_channels
    out_ptr += row.to(tl.int64) * out_width * FOLD * OUT_CHANNELS
    for first in range(0, out_width * FOLD * OUT_CHANNELS, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        channels = elements % OUT_CHANNELS
        y = first_y + elements // OUT_CHANNELS % FOLD
        columns = elements // (OUT_CHANNELS * FOLD) - left
        inside = (y >= 0) & (y < height) & (columns >= 0) & (columns < width) & (channels < num_channels)
        values = tl.load(x_ptr + (y * width + columns) * num_channels + channels, mask=inside, other=0)
        tl.store(out_ptr + elements, values, mask=elements < out_width * FOLD * OUT_CHANNELS)


@triton.jit
def _narrow_kernel(
    out_ptr, x_ptr, height, width, num_channels, wide_height, num_terms,
    FOLD: tl.constexpr, WIDE_CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out (N, height, width, num_channels) = what _widen_kernel, without moving it, would turn into x.

    A row of x has num_terms elements, (…, FOLD, WIDE_CHANNELS). One program per row of out.
    """
    _follow(PDL)
    row = tl.program_id(0)
    y = row % height
    out_ptr += row.to(tl.int64) * width * num_channels
    x_ptr += (row // height * wide_height + y // FOLD).to(tl.int64) * num_terms + y % FOLD * WIDE_CHANNELS
    for first in range(0, width * num_channels, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        inside = elements < width * num_channels
        places = elements // num_channels * (FOLD * WIDE_CHANNELS) + elements % num_channels
        tl.store(out_ptr + elements, tl.load(x_ptr + places, mask=inside), mask=inside)


SPECIMENS = [
    Specimen(kernel, (dtype, dtype, *numbers), {"FOLD": 2, "BLOCK": 1024, **channels})
    for dtype in (dtypes.float32, dtypes.bfloat16)
    for kernel, numbers, channels in (
        (_widen_kernel, (224, 224, 3, 3, 3, 115, 230), {"OUT_CHANNELS": 4}),
        (_narrow_kernel, (7, 7, 3, 4, 56), {"WIDE_CHANNELS": 4}),
    )
]
