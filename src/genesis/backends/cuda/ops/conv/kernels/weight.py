"""A convolution's weight in another dtype or order of memory: that of the kernels, and back for its gradient."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _weight_kernel(
    out_ptr, weight_ptr,  # (filters, channels, kernel height, kernel width), with the strides below
    num_elements, num_channels, kernel_height, kernel_width,
    out_filter, out_channel, out_row, out_column, filter_stride, channel_stride, row_stride, column_stride,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = weight."""
    _follow(PDL)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    channels, rest = elements % num_channels, elements // num_channels
    columns, rest = rest % kernel_width, rest // kernel_width
    rows, filters = rest % kernel_height, rest // kernel_height
    places = filters * filter_stride + channels * channel_stride + rows * row_stride + columns * column_stride
    weight = tl.load(weight_ptr + places, mask=mask, other=0).to(COMPUTE)
    places = filters * out_filter + channels * out_channel + rows * out_row + columns * out_column
    tl.store(out_ptr + places, weight.to(out_ptr.dtype.element_ty), mask=mask)


def _specimen(out: dtypes.DType, dtype: dtypes.DType) -> Specimen:
    arguments = (out, dtype, 36864, 64, 3, 3, 576, 1, 192, 64, 576, 9, 3, 1)
    return Specimen(_weight_kernel, arguments, {"COMPUTE": COMPUTE[dtype], "BLOCK": 1024})


SPECIMENS = [
    _specimen(dtypes.bfloat16, dtypes.float32),
    _specimen(dtypes.float32, dtypes.float16),
    _specimen(dtypes.float64, dtypes.float64),
]
