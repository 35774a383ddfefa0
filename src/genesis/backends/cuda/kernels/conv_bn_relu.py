"""Batch norm, residual and ReLU around a convolution, on matrices: rows (pixels) × channels, channels innermost.

Sums over rows are taken in chunks, one program each, and then put together in order: the same result every time.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import Specimen

_SIZES = ["num_rows", "rows_per_chunk", "num_chunks"]


@triton.jit
def _block(index, rows_per_chunk, num_rows, num_channels, BLOCK_N: tl.constexpr):
    """The chunk's first row, the row after its last, its channels and their mask."""
    first = tl.program_id(0).to(tl.int64) * rows_per_chunk
    end = min(first + rows_per_chunk, num_rows)
    channels = index * BLOCK_N + tl.arange(0, BLOCK_N)
    return first, end, channels, channels < num_channels


@triton.jit
def _tile(num_rows, num_channels, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A pass's channels and elements, and which of them there are."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = channels < num_channels
    elements = rows[:, None] * num_channels + channels[None, :]
    return channels, mask, elements, (rows < num_rows)[:, None] & mask[None, :]


@triton.jit(do_not_specialize=_SIZES)
def _statistics_kernel(
    partial_ptr,
    x_ptr,
    num_rows,
    rows_per_chunk,
    num_chunks,
    num_channels,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """partial (2, chunk, channel): a chunk's means, and its sums of squared deviations from them.

    Summed are differences from the chunk's first row, so that nothing cancels when the mean is large.
    """
    first, end, channels, mask = _block(tl.program_id(1), rows_per_chunk, num_rows, num_channels, BLOCK_N)
    shift = tl.load(x_ptr + first * num_channels + channels, mask=mask, other=0).to(COMPUTE)
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    squares = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for start in range(0, rows_per_chunk, BLOCK_M):
        rows = first + start + tl.arange(0, BLOCK_M)
        inside = (rows < end)[:, None] & mask[None, :]
        x = tl.load(x_ptr + rows[:, None] * num_channels + channels[None, :], mask=inside, other=0).to(COMPUTE)
        difference = tl.where(inside, x - shift[None, :], 0)
        total += difference
        squares += difference * difference
    count = (end - first).to(COMPUTE)
    shifted = tl.sum(total, axis=0)
    mean = libdevice.div_rn(shifted, count)
    out = partial_ptr + tl.program_id(0) * num_channels + channels
    tl.store(out, shift + mean, mask=mask)
    tl.store(out + num_chunks * num_channels, tl.sum(squares, axis=0) - shifted * mean, mask=mask)


@triton.jit(do_not_specialize=[*_SIZES, "momentum", "eps"])
def _training_statistics_kernel(
    mean_ptr,
    inverse_std_ptr,
    running_mean_ptr,
    running_var_ptr,
    partial_ptr,
    num_rows,
    rows_per_chunk,
    num_chunks,
    num_channels,
    momentum,
    eps,
    BLOCK: tl.constexpr,
):
    """Puts the chunks together (Chan, Golub & LeVeque 1979) and moves the running statistics."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    mean = tl.zeros((BLOCK,), mean_ptr.dtype.element_ty)
    squares = tl.zeros((BLOCK,), mean_ptr.dtype.element_ty)
    partial_ptr += channels
    done = num_rows * 0
    for _ in range(num_chunks):
        count = min(rows_per_chunk, num_rows - done)
        done += count
        share = libdevice.div_rn(count.to(mean.dtype), done.to(mean.dtype))
        difference = tl.load(partial_ptr, mask=mask, other=0) - mean
        mean += difference * share
        squares += tl.load(partial_ptr + num_chunks * num_channels, mask=mask, other=0)
        squares += difference * difference * share * (done - count).to(mean.dtype)
        partial_ptr += num_channels
    var = libdevice.div_rn(tl.where(squares < 0, 0, squares), num_rows.to(mean.dtype))
    tl.store(mean_ptr + channels, mean, mask=mask)
    tl.store(inverse_std_ptr + channels, libdevice.rcp_rn(libdevice.sqrt_rn(var + eps)), mask=mask)
    if running_mean_ptr is not None:
        running = tl.load(running_mean_ptr + channels, mask=mask, other=0).to(mean.dtype)
        running += momentum * (mean - running)
        tl.store(running_mean_ptr + channels, running.to(running_mean_ptr.dtype.element_ty), mask=mask)
        unbiased = var * libdevice.div_rn(num_rows.to(mean.dtype), (num_rows - 1).to(mean.dtype))
        running = tl.load(running_var_ptr + channels, mask=mask, other=0).to(mean.dtype)
        running += momentum * (unbiased - running)
        tl.store(running_var_ptr + channels, running.to(running_var_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["eps"])
def _running_statistics_kernel(
    mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, num_channels, eps, BLOCK: tl.constexpr
):
    """The mean and the inverse deviation that inference takes."""
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    mean = tl.load(running_mean_ptr + channels, mask=mask).to(mean_ptr.dtype.element_ty)
    var = tl.load(running_var_ptr + channels, mask=mask).to(mean_ptr.dtype.element_ty)
    tl.store(mean_ptr + channels, mean, mask=mask)
    tl.store(inverse_std_ptr + channels, libdevice.rcp_rn(libdevice.sqrt_rn(var + eps)), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _normalize_kernel(
    y_ptr,
    x_ptr,
    residual_ptr,
    mean_ptr,
    inverse_std_ptr,
    gamma_ptr,
    beta_ptr,
    num_rows,
    num_channels,
    RELU: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """y = act((x − mean) · inverse_std · gamma + beta + residual)."""
    channels, mask, elements, inside = _tile(num_rows, num_channels, BLOCK_M, BLOCK_N)
    mean = tl.load(mean_ptr + channels, mask=mask, other=0)
    scale = tl.load(inverse_std_ptr + channels, mask=mask, other=0)
    if gamma_ptr is not None:
        scale *= tl.load(gamma_ptr + channels, mask=mask, other=0).to(COMPUTE)
    x = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE)
    y = (x - mean[None, :]) * scale[None, :]
    if beta_ptr is not None:
        y += tl.load(beta_ptr + channels, mask=mask, other=0).to(COMPUTE)[None, :]
    if residual_ptr is not None:
        y += tl.load(residual_ptr + elements, mask=inside, other=0).to(COMPUTE)
    if RELU:
        y = tl.where(y < 0, y * 0, y)  # NaN stays NaN
    tl.store(y_ptr + elements, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _through_relu(grad_ptr, y_ptr, offsets, mask, COMPUTE: tl.constexpr):
    """The gradient before the activation; y_ptr is None where there was none."""
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    if y_ptr is not None:
        grad = tl.where(tl.load(y_ptr + offsets, mask=mask, other=0).to(COMPUTE) > 0, grad, 0)
    return grad


@triton.jit(do_not_specialize=_SIZES)
def _backward_sums_kernel(
    partial_ptr,
    grad_ptr,
    y_ptr,
    x_ptr,
    mean_ptr,
    num_rows,
    rows_per_chunk,
    num_chunks,
    num_channels,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """partial (2, chunk, channel): a chunk's Σ g and Σ g · (x − mean), g the gradient before the activation."""
    first, end, channels, mask = _block(tl.program_id(1), rows_per_chunk, num_rows, num_channels, BLOCK_N)
    mean = tl.load(mean_ptr + channels, mask=mask, other=0)
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    products = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for start in range(0, rows_per_chunk, BLOCK_M):
        rows = first + start + tl.arange(0, BLOCK_M)
        inside = (rows < end)[:, None] & mask[None, :]
        offsets = rows[:, None] * num_channels + channels[None, :]
        grad = _through_relu(grad_ptr, y_ptr, offsets, inside, COMPUTE)
        x = tl.load(x_ptr + offsets, mask=inside, other=0).to(COMPUTE)
        total += grad
        products += tl.where(inside, grad * (x - mean[None, :]), 0)
    out = partial_ptr + tl.program_id(0) * num_channels + channels
    tl.store(out, tl.sum(total, axis=0), mask=mask)
    tl.store(out + num_chunks * num_channels, tl.sum(products, axis=0), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _parameter_grads_kernel(
    sums_ptr,
    grad_gamma_ptr,
    grad_beta_ptr,
    grad_bias_ptr,
    partial_ptr,
    inverse_std_ptr,
    gamma_ptr,
    num_chunks,
    num_channels,
    TRAINING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """sums (2, channel): the chunks' sums put together; and the gradients of gamma, beta and the convolution's bias.

    In training the bias shifts the mean along with the values: its gradient is zero.
    """
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    total = tl.zeros((BLOCK,), sums_ptr.dtype.element_ty)
    products = tl.zeros((BLOCK,), sums_ptr.dtype.element_ty)
    partial_ptr += channels
    for _ in range(num_chunks):
        total += tl.load(partial_ptr, mask=mask, other=0)
        products += tl.load(partial_ptr + num_chunks * num_channels, mask=mask, other=0)
        partial_ptr += num_channels
    tl.store(sums_ptr + channels, total, mask=mask)
    tl.store(sums_ptr + num_channels + channels, products, mask=mask)
    inverse_std = tl.load(inverse_std_ptr + channels, mask=mask, other=0)
    if grad_gamma_ptr is not None:
        tl.store(grad_gamma_ptr + channels, (products * inverse_std).to(grad_gamma_ptr.dtype.element_ty), mask=mask)
    if grad_beta_ptr is not None:
        tl.store(grad_beta_ptr + channels, total.to(grad_beta_ptr.dtype.element_ty), mask=mask)
    if grad_bias_ptr is not None:
        grad_bias = total * inverse_std
        if gamma_ptr is not None:
            grad_bias *= tl.load(gamma_ptr + channels, mask=mask, other=0).to(total.dtype)
        if TRAINING:
            grad_bias = tl.zeros((BLOCK,), total.dtype)
        tl.store(grad_bias_ptr + channels, grad_bias.to(grad_bias_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _backward_kernel(
    grad_x_ptr,
    grad_residual_ptr,
    grad_ptr,
    y_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    gamma_ptr,
    sums_ptr,
    num_rows,
    num_channels,
    TRAINING: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradients of the convolution's output and of the residual, which is g.

    grad_x = scale · (g − Σg / n − (x − mean) · inverse_std² · Σ(g · (x − mean)) / n), scale = inverse_std · gamma;
    without the sums in inference.
    """
    channels, mask, elements, inside = _tile(num_rows, num_channels, BLOCK_M, BLOCK_N)
    grad = _through_relu(grad_ptr, y_ptr, elements, inside, COMPUTE)
    if grad_residual_ptr is not None:
        tl.store(grad_residual_ptr + elements, grad.to(grad_residual_ptr.dtype.element_ty), mask=inside)
    if grad_x_ptr is not None:
        inverse_std = tl.load(inverse_std_ptr + channels, mask=mask, other=0)
        scale = inverse_std
        if gamma_ptr is not None:
            scale *= tl.load(gamma_ptr + channels, mask=mask, other=0).to(COMPUTE)
        if TRAINING:
            share = libdevice.rcp_rn(num_rows.to(COMPUTE))
            mean = tl.load(mean_ptr + channels, mask=mask, other=0)
            average = tl.load(sums_ptr + channels, mask=mask, other=0) * share
            slope = tl.load(sums_ptr + num_channels + channels, mask=mask, other=0) * share * inverse_std * inverse_std
            x = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE)
            grad -= average[None, :] + (x - mean[None, :]) * slope[None, :]
        tl.store(grad_x_ptr + elements, (grad * scale[None, :]).to(grad_x_ptr.dtype.element_ty), mask=inside)


def _specimens(dtype):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    compute = {"COMPUTE": COMPUTE[dtype]}
    block = {**compute, "BLOCK_M": 16, "BLOCK_N": 64}
    chunks = (3000, 800, 4, 64)
    return [
        Specimen(_statistics_kernel, (wide, dtype, *chunks), block),
        Specimen(_training_statistics_kernel, (wide, wide, wide, wide, wide, *chunks, 0.1, 1e-5), {"BLOCK": 64}),
        Specimen(_running_statistics_kernel, (wide, wide, wide, wide, 64, 1e-5), {"BLOCK": 64}),
        Specimen(
            _normalize_kernel,
            (dtype, dtype, dtype, wide, wide, dtype, dtype, 3000, 64),
            {**block, "RELU": True},
        ),
        Specimen(_backward_sums_kernel, (wide, dtype, dtype, dtype, wide, *chunks), block),
        Specimen(
            _parameter_grads_kernel,
            (wide, dtype, dtype, dtype, wide, wide, dtype, 4, 64),
            {"TRAINING": True, "BLOCK": 64},
        ),
        Specimen(
            _backward_kernel,
            (dtype, dtype, dtype, dtype, dtype, wide, wide, dtype, wide, 3000, 64),
            {**block, "TRAINING": True},
        ),
    ]


SPECIMENS = [specimen for dtype in (dtypes.float64, dtypes.float32, dtypes.bfloat16) for specimen in _specimens(dtype)]
