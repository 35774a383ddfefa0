"""A batch norm's running statistics folded into the convolution before it: weight · scale, and the bias for that."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit(do_not_specialize=["eps"])
def _fold_kernel(
    folded_ptr,  # (filters, kernel height, kernel width, channels), dense
    folded_bias_ptr,  # (filters,)
    weight_ptr,  # (filters, channels, kernel height, kernel width), with the strides below
    bias_ptr, gamma_ptr, beta_ptr,  # (filters,) or None
    mean_ptr, var_ptr,  # (filters,)
    num_filters, num_taps, num_channels, kernel_width,  # num_taps: elements of a filter
    filter_stride, channel_stride, row_stride, column_stride,
    eps,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """scale = gamma / sqrt(var + eps); weight · scale, and (bias − mean) · scale + beta."""
    filters = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    taps = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = filters < num_filters
    scale = libdevice.rcp_rn(libdevice.sqrt_rn(tl.load(var_ptr + filters, mask=mask, other=1).to(COMPUTE) + eps))
    if gamma_ptr is not None:
        scale *= tl.load(gamma_ptr + filters, mask=mask, other=0).to(COMPUTE)
    channels, places = taps % num_channels, taps // num_channels
    offsets = channels * channel_stride + places // kernel_width * row_stride + places % kernel_width * column_stride
    inside = mask[:, None] & (taps < num_taps)[None, :]
    first = filters.to(tl.int64)
    weight = tl.load(weight_ptr + first[:, None] * filter_stride + offsets[None, :], mask=inside, other=0).to(COMPUTE)
    folded = (weight * scale[:, None]).to(folded_ptr.dtype.element_ty)
    tl.store(folded_ptr + first[:, None] * num_taps + taps[None, :], folded, mask=inside)
    if tl.program_id(1) == 0:
        shift = -tl.load(mean_ptr + filters, mask=mask, other=0).to(COMPUTE)
        if bias_ptr is not None:
            shift += tl.load(bias_ptr + filters, mask=mask, other=0).to(COMPUTE)
        shift *= scale
        if beta_ptr is not None:
            shift += tl.load(beta_ptr + filters, mask=mask, other=0).to(COMPUTE)
        tl.store(folded_bias_ptr + filters, shift.to(folded_bias_ptr.dtype.element_ty), mask=mask)


def _specimen(dtype: dtypes.DType, given: dtypes.DType) -> Specimen:
    vectors = (given,) * 5
    sizes = (64, 576, 64, 3, 576, 9, 3, 1)
    constants = {"COMPUTE": COMPUTE[given], "BLOCK_M": 2, "BLOCK_N": 512}
    return Specimen(_fold_kernel, (dtype, dtype, given, *vectors, *sizes, 1e-5), constants)


SPECIMENS = [
    _specimen(dtypes.float64, dtypes.float64),
    _specimen(dtypes.float32, dtypes.float32),
    _specimen(dtypes.bfloat16, dtypes.float32),
    _specimen(dtypes.float16, dtypes.float16),
]
