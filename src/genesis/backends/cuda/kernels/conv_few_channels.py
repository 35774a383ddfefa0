"""Images with few channels as the copy engine reads them, with room on both sides and 4 or 8 channels; and back."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch import Specimen


@triton.jit
def _widen_kernel(
    out_ptr, x_ptr, width, num_channels, left, out_width, OUT_CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    """out (rows, out_width, OUT_CHANNELS) = x (rows, width, num_channels), moved right by left, with zeros around.

    One program per row.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * width * num_channels
    out_ptr += row * out_width * OUT_CHANNELS
    for first in range(0, out_width * OUT_CHANNELS, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        channels = elements % OUT_CHANNELS
        columns = elements // OUT_CHANNELS - left
        inside = (columns >= 0) & (columns < width) & (channels < num_channels)
        values = tl.load(x_ptr + columns * num_channels + channels, mask=inside, other=0)
        tl.store(out_ptr + elements, values, mask=elements < out_width * OUT_CHANNELS)


SPECIMENS = [
    Specimen(_widen_kernel, (dtype, dtype, 224, 3, 3, 230), {"OUT_CHANNELS": 4, "BLOCK": 1024})
    for dtype in (dtypes.float32, dtypes.bfloat16)
]
