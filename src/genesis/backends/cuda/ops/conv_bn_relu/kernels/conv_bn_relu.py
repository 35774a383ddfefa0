"""Batch norm, residual and activation around a convolution, on matrices: rows (pixels) × channels, channels innermost.

Each program sums every so-manieth block of rows; the programs' sums are put together in one order: the same result
every time. Several rows may be taken as one, whose columns are the channels again and again: see _folded. What a kernel
left in the cache last, the next one reads first: sums walk the rows backward, passes forward.

The value before the activation is found again from the convolution's output. With a residual, what the backward needs
of it is written down: where ReLU let through, one bit per element (byte b of a row has channels 8·b to 8·b + 7, the
first in its lowest bit); for other activations the value itself.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels import activation as activations
from genesis.backends.cuda.ops.activation.kernels.fused import _activated, _through, _through_relu_kernel
from genesis.backends.cuda.ops.conv.kernels.statistics import _channels_of, _count_of, _folded, _tile
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

_SIZES = ["num_rows", "num_channels"]


@triton.jit
def _pack_positive(y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(BLOCK_M, BLOCK_N / 8) bytes: one bit per element, set where y > 0."""
    bits = tl.reshape(tl.where(y > 0, 1, 0), (BLOCK_M, BLOCK_N // 8, 8))
    return tl.sum(bits << tl.arange(0, 8)[None, None, :], axis=2).to(tl.uint8)


@triton.jit
def _packed_places(rows, first_channel, num_rows, num_channels, BLOCK_N: tl.constexpr):
    """Offsets of the bytes of a block's bits, and which of them exist."""
    row_bytes = tl.cdiv(num_channels, 8)
    places = first_channel // 8 + tl.arange(0, BLOCK_N // 8)
    return rows[:, None] * row_bytes + places[None, :], (rows < num_rows)[:, None] & (places < row_bytes)[None, :]


@triton.jit
def _load_passed(passed_ptr, rows, first_channel, num_rows, num_channels, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(BLOCK_M, BLOCK_N) bool from the bits that were written down."""
    places, there = _packed_places(rows, first_channel, num_rows, num_channels, BLOCK_N)
    packed = tl.load(passed_ptr + places, mask=there, other=0).to(tl.int32)
    bits = (packed[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(bits, (BLOCK_M, BLOCK_N)) != 0


@triton.jit
def _load_running(running_mean_ptr, running_var_ptr, channels, mask, dtype: tl.constexpr):
    """The running statistics, 0 without any; to be loaded first, as a load waits for half a microsecond."""
    mean = tl.zeros(channels.shape, dtype)
    var = tl.zeros(channels.shape, dtype)
    if running_mean_ptr is not None:
        mean += tl.load(running_mean_ptr + channels, mask=mask, other=0).to(dtype)
        var += tl.load(running_var_ptr + channels, mask=mask, other=0).to(dtype)
    return mean, var


@triton.jit
def _store_training_statistics(
    mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, count_ptr, running_mean, running_var, channels, mask,
    mean, var, num_rows, momentum, eps
):  # fmt: skip
    """Writes what a batch's mean and variance come to, moves the running statistics, and counts the batch."""
    if count_ptr is not None:
        first = tl.program_id(0) == 0
        tl.store(count_ptr, tl.load(count_ptr, mask=first, other=0) + 1, mask=first)
    var = tl.where(var < 0, var * 0, var)  # rounding; NaN stays NaN
    tl.store(mean_ptr + channels, mean, mask=mask)
    tl.store(inverse_std_ptr + channels, libdevice.rcp_rn(libdevice.sqrt_rn(var + eps)), mask=mask)
    if running_mean_ptr is not None:
        running_mean += momentum * (mean - running_mean)
        tl.store(running_mean_ptr + channels, running_mean.to(running_mean_ptr.dtype.element_ty), mask=mask)
        unbiased = var * libdevice.div_rn(num_rows.to(mean.dtype), (num_rows - 1).to(mean.dtype))
        running_var += momentum * (unbiased - running_var)
        tl.store(running_var_ptr + channels, running_var.to(running_var_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "num_parts", "momentum", "eps"])
def _training_statistics_kernel(
    mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, count_ptr, partial_ptr, momentum, num_rows,
    num_parts, num_channels, eps, BLOCK_M: tl.constexpr, FOLD: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Puts the parts together (Chan, Golub & LeVeque 1979) and moves the running statistics.

    partial (3, part, channel): of part i's blocks of BLOCK_M rows, i, i + num_parts, …, a pivot, their mean less that,
    and the sum of squared deviations from the mean. FOLD: see engine.candidate.Parts.
    """
    _follow(PDL)
    parts = tl.arange(0, PARTS)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    inside = (parts < num_parts)[:, None] & mask[None, :]
    elements = parts[:, None] * num_channels + channels[None, :]
    plane = num_parts * num_channels
    running = _load_running(running_mean_ptr, running_var_ptr, channels, mask, partial_ptr.dtype.element_ty)
    origin = tl.load(partial_ptr + channels, mask=mask, other=0)
    means = tl.load(partial_ptr + elements, mask=inside, other=0) - origin[None, :]  # small numbers lose nothing
    means += tl.load(partial_ptr + plane + elements, mask=inside, other=0)
    squares = tl.load(partial_ptr + 2 * plane + elements, mask=inside, other=0)
    counts = _count_of(parts // FOLD, num_parts // FOLD, num_rows // FOLD, BLOCK_M)
    counts = tl.where(parts < num_parts, counts, 0).to(means.dtype)[:, None]
    rows = num_rows.to(means.dtype)
    shifted = libdevice.div_rn(tl.sum(libdevice.mul_rn(means, counts), axis=0), rows)
    deviations = tl.where(inside, means - shifted[None, :], 0)
    var = libdevice.div_rn(tl.sum(squares + deviations * deviations * counts, axis=0), rows)
    mean = shifted + origin
    _store_training_statistics(
        mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, count_ptr, running[0], running[1], channels, mask,
        mean, var, num_rows, momentum, eps,
    )  # fmt: skip


@triton.jit
def _load_scale(inverse_std_ptr, gamma_ptr, channels, mask, COMPUTE: tl.constexpr):
    """inverse_std · gamma."""
    return _scaled(tl.load(inverse_std_ptr + channels, mask=mask, other=0).to(COMPUTE), gamma_ptr, channels, mask)


@triton.jit
def _scaled(inverse_std, gamma_ptr, channels, mask):
    if gamma_ptr is not None:
        inverse_std *= tl.load(gamma_ptr + channels, mask=mask, other=0).to(inverse_std.dtype)
    return inverse_std


@triton.jit
def _normalized(x, mean, scale, beta_ptr, channels, mask):
    """(x − mean) · scale + beta."""
    y = (x - mean[None, :]) * scale[None, :]
    if beta_ptr is not None:
        y += tl.load(beta_ptr + channels, mask=mask, other=0).to(x.dtype)[None, :]
    return y


@triton.jit(do_not_specialize=_SIZES)
def _normalize_kernel(
    y_ptr, passed_ptr, x_ptr, residual_ptr, mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, gamma_ptr,
    beta_ptr, num_rows, num_channels, eps,
    FORWARD: tl.constexpr, NUMBER: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FOLD: tl.constexpr, EVEN: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act((x − mean) · inverse_std · gamma + beta + residual), and the bits or values before act, if wanted.

    For inference the two are made from the running statistics here, and written down.
    """
    _follow(PDL)
    num_lines, num_columns = _folded(num_rows, num_channels, FOLD, VECTOR)
    lines, columns, mask, elements, inside = _tile(tl.program_id(0), num_lines, num_columns, BLOCK_M, BLOCK_N, EVEN)
    channels = _channels_of(columns, num_channels, FOLD)
    x = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE)
    if running_var_ptr is None:
        mean = tl.load(mean_ptr + channels, mask=mask, other=0)
        scale = _load_scale(inverse_std_ptr, gamma_ptr, channels, mask, COMPUTE)
    else:
        mean = tl.load(running_mean_ptr + channels, mask=mask, other=0).to(mean_ptr.dtype.element_ty)
        var = tl.load(running_var_ptr + channels, mask=mask, other=1).to(mean_ptr.dtype.element_ty)
        inverse_std = libdevice.rcp_rn(libdevice.sqrt_rn(var + eps))
        first = mask & (tl.program_id(0) == 0)
        tl.store(mean_ptr + channels, mean, mask=first)
        tl.store(inverse_std_ptr + channels, inverse_std, mask=first)
        scale = _scaled(inverse_std.to(COMPUTE), gamma_ptr, channels, mask)
    y = _normalized(x, mean, scale, beta_ptr, channels, mask)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + elements, mask=inside, other=0).to(COMPUTE)
    if passed_ptr is not None:
        if passed_ptr.dtype.element_ty == tl.uint8:
            places, there = _packed_places(lines, tl.program_id(1) * BLOCK_N, num_lines, num_columns, BLOCK_N)
            positive = tl.where(inside, y, 0)
            tl.store(passed_ptr + places, _pack_positive(positive, BLOCK_M, BLOCK_N), mask=there)
        else:
            tl.store(passed_ptr + elements, y.to(passed_ptr.dtype.element_ty), mask=inside)
    y = _activated(y, FORWARD, NUMBER)
    tl.store(y_ptr + elements, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _before_activation(
    grad, passed_ptr, x, mean, scale, beta_ptr, lines, channels, mask, elements, inside, num_lines, num_columns,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient before the activation: by the bits or values that were written, else by the output found again."""
    if BACKWARD is not None:
        if passed_ptr is None:
            before = _normalized(x, mean, scale, beta_ptr, channels, mask)
            grad = _through(grad, before, BACKWARD, NUMBER)
        elif passed_ptr.dtype.element_ty == tl.uint8:
            first = tl.program_id(1) * BLOCK_N
            passed = _load_passed(passed_ptr, lines, first, num_lines, num_columns, BLOCK_M, BLOCK_N)
            grad = tl.where(passed, grad, 0)
        else:
            before = tl.load(passed_ptr + elements, mask=inside, other=0).to(grad.dtype)
            grad = _through(grad, before, BACKWARD, NUMBER)
    return grad


@triton.jit(do_not_specialize=_SIZES)
def _backward_sums_kernel(
    partial_ptr, grad_residual_ptr, grad_ptr, passed_ptr, x_ptr, mean_ptr, inverse_std_ptr, gamma_ptr, beta_ptr,
    num_rows, num_channels,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FOLD: tl.constexpr, EVEN: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """partial (2, part, channel): a part's Σ g and Σ g · (x − mean), g the gradient before the activation.

    g is the residual's gradient too, and is written if that is wanted. It is 0 outside of the matrix.
    """
    _follow(PDL)
    num_lines, num_columns = _folded(num_rows, num_channels, FOLD, VECTOR)
    index, num_parts = tl.program_id(0), tl.num_programs(0)
    num_blocks = tl.cdiv(num_lines, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = columns < num_columns
    channels = _channels_of(columns, num_channels, FOLD)
    mean = tl.load(mean_ptr + channels, mask=mask, other=0).to(COMPUTE)
    scale = _load_scale(inverse_std_ptr, gamma_ptr, channels, mask, COMPUTE)
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    products = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    last = index + (num_blocks - 1 - index) // num_parts * num_parts
    for step in tl.range(0, num_blocks - index, num_parts, num_stages=STAGES):
        lines, _, _, elements, inside = _tile(last - step, num_lines, num_columns, BLOCK_M, BLOCK_N, EVEN)
        grad = tl.load(grad_ptr + elements, mask=inside, other=0).to(COMPUTE)
        x = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE)
        grad = _before_activation(
            grad, passed_ptr, x, mean, scale, beta_ptr, lines, channels, mask, elements, inside, num_lines, num_columns,
            BACKWARD, NUMBER, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if grad_residual_ptr is not None:
            tl.store(grad_residual_ptr + elements, grad.to(grad_residual_ptr.dtype.element_ty), mask=inside)
        total += grad
        products += grad * (x - mean[None, :])
    out = partial_ptr + index * num_columns + columns
    tl.store(out, tl.sum(total, axis=0), mask=mask)
    tl.store(out + num_parts * num_columns, tl.sum(products, axis=0), mask=mask)


@triton.jit(do_not_specialize=["num_parts"])
def _parameter_grads_kernel(
    sums_ptr, grad_gamma_ptr, grad_beta_ptr, grad_bias_ptr, partial_ptr, inverse_std_ptr, gamma_ptr,
    num_parts, num_channels, TRAINING: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """sums (2, channel): the parts' sums put together; and the gradients of gamma, beta and the convolution's bias.

    In training the bias shifts the mean along with the values: its gradient is zero.
    """
    _follow(PDL)
    parts = tl.arange(0, PARTS)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < num_channels
    inside = (parts < num_parts)[:, None] & mask[None, :]
    elements = parts[:, None] * num_channels + channels[None, :]
    inverse_std = tl.load(inverse_std_ptr + channels, mask=mask, other=0).to(sums_ptr.dtype.element_ty)
    total = tl.sum(tl.load(partial_ptr + elements, mask=inside, other=0), axis=0)
    products = tl.sum(tl.load(partial_ptr + num_parts * num_channels + elements, mask=inside, other=0), axis=0)
    tl.store(sums_ptr + channels, total, mask=mask)
    tl.store(sums_ptr + num_channels + channels, products, mask=mask)
    if grad_gamma_ptr is not None:
        tl.store(grad_gamma_ptr + channels, (products * inverse_std).to(grad_gamma_ptr.dtype.element_ty), mask=mask)
    if grad_beta_ptr is not None:
        tl.store(grad_beta_ptr + channels, total.to(grad_beta_ptr.dtype.element_ty), mask=mask)
    if grad_bias_ptr is not None:
        grad_bias = total * _load_scale(inverse_std_ptr, gamma_ptr, channels, mask, total.dtype)
        if TRAINING:
            grad_bias = tl.zeros((BLOCK,), total.dtype)
        tl.store(grad_bias_ptr + channels, grad_bias.to(grad_bias_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _backward_kernel(
    grad_x_ptr, grad_residual_ptr, grad_ptr, passed_ptr, x_ptr, mean_ptr, inverse_std_ptr, gamma_ptr, beta_ptr,
    sums_ptr, num_rows, num_channels,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr, TRAINING: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FOLD: tl.constexpr, EVEN: tl.constexpr, VECTOR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The gradients of the convolution's output and of the residual, which is g.

    grad_x = scale · (g − Σg / n − (x − mean) · inverse_std² · Σ(g · (x − mean)) / n), scale = inverse_std · gamma;
    without the sums in inference.
    """
    _follow(PDL)
    num_lines, num_columns = _folded(num_rows, num_channels, FOLD, VECTOR)
    lines, columns, mask, elements, inside = _tile(tl.program_id(0), num_lines, num_columns, BLOCK_M, BLOCK_N, EVEN)
    channels = _channels_of(columns, num_channels, FOLD)
    grad = tl.load(grad_ptr + elements, mask=inside, other=0).to(COMPUTE)
    x = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE)
    mean = tl.load(mean_ptr + channels, mask=mask, other=0).to(COMPUTE)
    scale = _load_scale(inverse_std_ptr, gamma_ptr, channels, mask, COMPUTE)
    grad = _before_activation(
        grad, passed_ptr, x, mean, scale, beta_ptr, lines, channels, mask, elements, inside, num_lines, num_columns,
        BACKWARD, NUMBER, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if grad_residual_ptr is not None:
        tl.store(grad_residual_ptr + elements, grad.to(grad_residual_ptr.dtype.element_ty), mask=inside)
    if grad_x_ptr is not None:
        if TRAINING:
            share = libdevice.rcp_rn(num_rows.to(COMPUTE))
            inverse_std = tl.load(inverse_std_ptr + channels, mask=mask, other=0).to(COMPUTE)
            average = tl.load(sums_ptr + channels, mask=mask, other=0) * share
            slope = tl.load(sums_ptr + num_channels + channels, mask=mask, other=0) * share * inverse_std * inverse_std
            grad -= average[None, :] + (x - mean[None, :]) * slope[None, :]
        tl.store(grad_x_ptr + elements, (grad * scale[None, :]).to(grad_x_ptr.dtype.element_ty), mask=inside)


def _specimens(dtype):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    block = {"COMPUTE": COMPUTE[dtype], "BLOCK_M": 16, "BLOCK_N": 64, "FOLD": 1, "EVEN": False, "VECTOR": 8}
    parts = {"PARTS": 128, "BLOCK": 16}
    channels = (wide, wide, dtype, dtype)  # mean, inverse deviation, gamma, beta
    relu, silu = (
        (activations._relu_kernel, _through_relu_kernel),
        (activations._silu_kernel, activations._silu_backward_kernel),
    )
    return [
        *[
            Specimen(
                _training_statistics_kernel,
                (wide, wide, running, running, count, wide, 0.1, 3000, 100, 64, 1e-5),
                {**parts, "BLOCK_M": 16, "FOLD": 1},
            )
            for running, count in ((wide, dtypes.int64), (None, None))
        ],
        *[
            Specimen(
                _normalize_kernel,
                (dtype, passed, dtype, dtype, wide, wide, running, running, dtype, dtype, 3000, 64, 1e-5),
                {**block, "FORWARD": forward, "NUMBER": None},
            )
            for running, passed, forward in (
                (None, dtypes.uint8, relu[0]), (wide, dtypes.uint8, relu[0]), (None, dtype, silu[0]),
                (None, None, silu[0]),
            )
        ],
        *[
            Specimen(
                _backward_sums_kernel, (wide, dtype, dtype, passed, dtype, *channels, 3000, 64),
                {**block, "BACKWARD": backward, "NUMBER": None, "STAGES": 3},
            )
            for passed, backward in ((dtypes.uint8, relu[1]), (dtype, silu[1]), (None, silu[1]))
        ],
        Specimen(_parameter_grads_kernel, (wide, dtype, dtype, dtype, wide, wide, dtype, 100, 64),
                 {**parts, "TRAINING": True}),
        *[
            Specimen(
                _backward_kernel, (dtype, dtype, dtype, None, dtype, *channels, wide, 3000, 64),
                {**block, "BACKWARD": backward, "NUMBER": None, "TRAINING": True},
            )
            for backward in (relu[1], silu[1])
        ],
    ]  # fmt: skip


SPECIMENS = [specimen for dtype in (dtypes.float64, dtypes.float32, dtypes.bfloat16) for specimen in _specimens(dtype)]
