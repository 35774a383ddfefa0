"""A 1×1 convolution to more channels with batch norm and activation, without its output ever being written.

Rows (pixels) x of C channels, weight W (K, C), K ≥ C. A linear map's statistics follow from those of its input:

    u = Wx,   mean(u) = W·mean(x),   var(u)_k = W_k · Cov(x) · W_kᵀ

so one product over the small input gives them, and a second pass convolves, normalizes and activates at once. So does
the backward: with g the gradient before the activation, x̃ = x − mean(x), P = gᵀx̃, V = W·Cov(x), n rows,
s = gamma · inverse_std and t_k = inverse_std_k · W_k · P_k (which is Σ g · û, the gradient of gamma),

    grad_W = s · (P − t · inverse_std · V)
    grad_x = g · (s·W) − x̃ · Wᵀ·diag(s · inverse_std · t / n)·W − (s · Σg / n)·W

Only W, x and g are read; u, of K channels, is not kept. Where g follows from the value before the activation, u is
computed again, which costs less than to write that value and to read it twice; only with a residual it is written (of
ReLU's, one bit). Sums are taken of differences from the input's first row or mean, so nothing cancels when these are
large. Partial sums are put together in a fixed order.
Products that are summed at once are rounded for themselves (mul_rn): contracted with the sum's first addition, they
would differ from thread to thread, and threads write the sum to one place.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels import activation as activations
from genesis.backends.cuda.ops.activation.kernels.fused import _activated, _through, _through_relu_kernel
from genesis.backends.cuda.ops.conv_bn_relu.kernels.conv_bn_relu import (
    _load_passed,
    _load_running,
    _load_scale,
    _pack_positive,
    _packed_places,
    _store_training_statistics,
)
from genesis.backends.cuda.ops.conv_bn_relu.kernels.expand_1x1_rows import (
    _centred,
    _in_eights,
    _load_affine,
    _load_block,
    _load_centre,
    _load_rest,
    _load_rows,
    _output_mean,
    _places,
)

_SIZES = ["num_rows", "num_inputs", "num_outputs"]


@triton.jit(do_not_specialize=["num_rows", "num_channels"])
def _gram_kernel(
    partial_ptr, x_ptr, num_rows, num_channels,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """partial (part, C + 1, C): Σ d·dᵀ over a part's rows and below it Σ d, d = x − x[0]."""
    _follow(PDL)
    num_channels = _in_eights(num_channels)
    part, num_parts = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, BLOCK_C)
    there = channels < num_channels
    origin = tl.load(x_ptr + channels, mask=there, other=0).to(tl.float32)
    products = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for block in tl.range(part, tl.cdiv(num_rows, BLOCK_M), num_parts, num_stages=STAGES):
        x = _load_block(x_ptr, block, num_rows, channels, num_channels, BLOCK_M, EVEN)
        d = _centred(x, origin, block, num_rows, EVEN)
        total += d
        short = d.to(x_ptr.dtype.element_ty)
        products = tl.dot(tl.trans(short), short, products)
    out = partial_ptr + part.to(tl.int64) * (num_channels + 1) * num_channels
    elements = channels[:, None] * num_channels + channels[None, :]
    tl.store(out + elements, products, mask=there[:, None] & there[None, :])
    tl.store(out + num_channels * num_channels + channels, tl.sum(total, axis=0), mask=there)


@triton.jit(do_not_specialize=["num_parts"])
def _join_parts_kernel(
    out_ptr, partial_ptr, num_parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """out = Σ partial (part, size) over the parts."""
    _follow(PDL)
    parts = tl.arange(0, PARTS).to(tl.int64)
    elements = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (parts < num_parts)[:, None] & (elements < size)[None, :]
    values = tl.load(partial_ptr + parts[:, None] * size + elements[None, :], mask=inside, other=0)
    tl.store(out_ptr + elements, tl.sum(values, axis=0), mask=elements < size)


@triton.jit(do_not_specialize=["num_rows", "momentum", "eps"])
def _wide_statistics_kernel(
    mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, count_ptr, state_ptr, gram_ptr, x_ptr, weight_ptr,
    bias_ptr, momentum, num_rows, num_inputs, num_outputs, eps,
    PRECISION: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """state: C of the input's mean, (K, C) of V = W·Cov(x), and K of W times what bfloat16 loses of that mean.

    From them the statistics of the output.
    """
    _follow(PDL)
    outputs = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    inputs = tl.arange(0, BLOCK_C)
    mask, there = outputs < num_outputs, inputs < num_inputs
    rows = num_rows.to(tl.float32)
    running = _load_running(running_mean_ptr, running_var_ptr, outputs, mask, tl.float32)
    weight = _load_rows(weight_ptr, outputs, num_outputs, inputs, num_inputs).to(tl.float32)
    gram = _load_rows(gram_ptr, inputs, num_inputs, inputs, num_inputs)
    shifted = tl.load(gram_ptr + num_inputs * num_inputs + inputs, mask=there, other=0) / rows
    covariance = gram / rows - shifted[:, None] * shifted[None, :]
    v = tl.dot(weight, covariance, input_precision=PRECISION)
    centre = shifted + tl.load(x_ptr + inputs, mask=there, other=0).to(tl.float32)
    if tl.program_id(0) == 0:
        tl.store(state_ptr + inputs, centre, mask=there)
    elements = num_inputs + outputs[:, None] * num_inputs + inputs[None, :]
    tl.store(state_ptr + elements, v, mask=mask[:, None] & there[None, :])
    lost = centre - centre.to(weight_ptr.dtype.element_ty).to(tl.float32)
    rest = tl.sum(libdevice.mul_rn(weight, lost[None, :]), axis=1)
    tl.store(state_ptr + (1 + num_outputs) * num_inputs + outputs, rest, mask=mask)
    mean = tl.sum(libdevice.mul_rn(weight, centre[None, :]), axis=1)
    if bias_ptr is not None:
        mean += tl.load(bias_ptr + outputs, mask=mask, other=0).to(tl.float32)
    var = tl.sum(libdevice.mul_rn(weight, v), axis=1)
    _store_training_statistics(
        mean_ptr, inverse_std_ptr, running_mean_ptr, running_var_ptr, count_ptr, running[0], running[1], outputs, mask,
        mean, var, num_rows, momentum, eps,
    )  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _wide_forward_kernel(
    y_ptr, passed_ptr, x_ptr, weight_ptr, residual_ptr, state_ptr, inverse_std_ptr, gamma_ptr, beta_ptr,
    num_rows, num_inputs, num_outputs, FORWARD: tl.constexpr, NUMBER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act((x − mean(x))·Wᵀ · inverse_std · gamma + beta + residual), and if wanted what the backward needs of the
    value before act: of ReLU's where it is positive, of others' itself.

    A program keeps a block of the weight and walks over blocks of rows; neighbours share rows, which stay in the cache.
    """
    _follow(PDL)
    num_inputs, num_outputs = _in_eights(num_inputs), _in_eights(num_outputs)
    num_blocks = tl.cdiv(num_outputs, BLOCK_K)
    first = tl.program_id(0) % num_blocks * BLOCK_K
    outputs = first + tl.arange(0, BLOCK_K)
    inputs = tl.arange(0, BLOCK_C)
    weight = _load_rows(weight_ptr, outputs, num_outputs, inputs, num_inputs)
    _, short = _load_centre(state_ptr, inputs, num_inputs, weight.dtype)
    rest = _load_rest(state_ptr, outputs, num_inputs, num_outputs)
    mean = _output_mean(weight, short, rest, BLOCK_M, BLOCK_C)
    scale, beta = _load_affine(inverse_std_ptr, gamma_ptr, beta_ptr, outputs, num_outputs)
    step = tl.num_programs(0) // num_blocks
    for block in tl.range(tl.program_id(0) // num_blocks, tl.cdiv(num_rows, BLOCK_M), step, num_stages=STAGES):
        x = _load_block(x_ptr, block, num_rows, inputs, num_inputs, BLOCK_M, EVEN)
        elements, inside = _places(block, num_rows, outputs, num_outputs, BLOCK_M, EVEN)
        if residual_ptr is not None:  # on its way before the product is waited for
            residual = tl.load(residual_ptr + elements, mask=inside, other=0)
        y = (tl.dot(x, tl.trans(weight)) - mean[None, :]) * scale[None, :] + beta[None, :]
        if residual_ptr is not None:
            y += residual.to(tl.float32)
        if passed_ptr is not None:
            if passed_ptr.dtype.element_ty == tl.uint8:
                rows = tl.cast(block, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
                places, there = _packed_places(rows, first, num_rows, num_outputs, BLOCK_K)
                tl.store(passed_ptr + places, _pack_positive(tl.where(inside, y, 0), BLOCK_M, BLOCK_K), mask=there)
            else:
                tl.store(passed_ptr + elements, y.to(passed_ptr.dtype.element_ty), mask=inside)
        y = _activated(y, FORWARD, NUMBER)
        tl.store(y_ptr + elements, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _passed_grad(
    grad, unscaled, scale, beta, passed_ptr, block, first, num_rows, num_outputs,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient before the activation, in its dtype; unscaled: u − mean(u), which is of use without passed_ptr."""
    if BACKWARD is not None:
        if passed_ptr is None:
            before = unscaled * scale[None, :] + beta[None, :]
            grad = _through(grad.to(tl.float32), before, BACKWARD, NUMBER).to(grad.dtype)
        elif passed_ptr.dtype.element_ty == tl.uint8:
            rows = tl.cast(block, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
            passed = _load_passed(passed_ptr, rows, first, num_rows, num_outputs, BLOCK_M, BLOCK_K)
            grad = tl.where(passed, grad, tl.zeros_like(grad))
        else:
            outputs = first + tl.arange(0, BLOCK_K)
            before = _load_block(passed_ptr, block, num_rows, outputs, num_outputs, BLOCK_M, EVEN)
            wide = _through(grad.to(tl.float32), before.to(tl.float32), BACKWARD, NUMBER)
            grad = wide.to(grad.dtype)
    return grad


@triton.jit(do_not_specialize=_SIZES)
def _wide_products_kernel(
    partial_ptr, grad_residual_ptr, grad_ptr, passed_ptr, x_ptr, weight_ptr, state_ptr, inverse_std_ptr, gamma_ptr,
    beta_ptr, num_rows, num_inputs, num_outputs, BACKWARD: tl.constexpr, NUMBER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """partial (part, C + 1, K): P = Σ x̃·gᵀ over a part's rows and below it Σ g; and g, if the residual wants it."""
    _follow(PDL)
    num_inputs, num_outputs = _in_eights(num_inputs), _in_eights(num_outputs)
    part, num_parts = tl.program_id(0), tl.num_programs(0)
    first = tl.program_id(1) * BLOCK_K
    outputs = first + tl.arange(0, BLOCK_K)
    inputs = tl.arange(0, BLOCK_C)
    weight = _load_rows(weight_ptr, outputs, num_outputs, inputs, num_inputs)
    centre, short = _load_centre(state_ptr, inputs, num_inputs, weight.dtype)
    rest = _load_rest(state_ptr, outputs, num_inputs, num_outputs)
    mean = _output_mean(weight, short, rest, BLOCK_M, BLOCK_C)
    scale, beta = _load_affine(inverse_std_ptr, gamma_ptr, beta_ptr, outputs, num_outputs)
    products = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for block in tl.range(part, tl.cdiv(num_rows, BLOCK_M), num_parts, num_stages=STAGES):
        x = _load_block(x_ptr, block, num_rows, inputs, num_inputs, BLOCK_M, EVEN)
        elements, inside = _places(block, num_rows, outputs, num_outputs, BLOCK_M, EVEN)
        grad = tl.load(grad_ptr + elements, mask=inside, other=0)
        grad = _passed_grad(
            grad, tl.dot(x, tl.trans(weight)) - mean[None, :], scale, beta, passed_ptr, block, first, num_rows,
            num_outputs, BACKWARD, NUMBER, BLOCK_M, BLOCK_K, EVEN,
        )  # fmt: skip
        if grad_residual_ptr is not None:
            tl.store(grad_residual_ptr + elements, grad, mask=inside)
        total += grad.to(tl.float32)
        products = tl.dot(tl.trans(_centred(x, centre, block, num_rows, EVEN).to(x.dtype)), grad, products)
    out = partial_ptr + part.to(tl.int64) * (num_inputs + 1) * num_outputs
    inside = (inputs < num_inputs)[:, None] & (outputs < num_outputs)[None, :]
    tl.store(out + inputs[:, None] * num_outputs + outputs[None, :], products, mask=inside)
    tl.store(out + num_inputs * num_outputs + outputs, tl.sum(total, axis=0), mask=outputs < num_outputs)


@triton.jit
def _load_products(
    products_ptr, weight_ptr, inverse_std_ptr, outputs, inputs, num_inputs, num_outputs,
):  # fmt: skip
    """Load, for some outputs, the weight and Pᵀ (outputs, C), inverse_std, t and Σg."""
    mask = outputs < num_outputs
    weight = _load_rows(weight_ptr, outputs, num_outputs, inputs, num_inputs)
    products = tl.trans(_load_rows(products_ptr, inputs, num_inputs, outputs, num_outputs))
    inverse_std = tl.load(inverse_std_ptr + outputs, mask=mask, other=0)
    slopes = tl.sum(libdevice.mul_rn(weight.to(tl.float32), products), axis=1) * inverse_std
    total = tl.load(products_ptr + num_inputs * num_outputs + outputs, mask=mask, other=0)
    return weight, products, inverse_std, slopes, total


@triton.jit(do_not_specialize=["num_rows"])
def _wide_parameter_grads_kernel(
    grad_weight_ptr, grad_gamma_ptr, grad_beta_ptr, grad_bias_ptr, scaled_ptr, projection_ptr, constant_ptr,
    products_ptr, state_ptr, weight_ptr, inverse_std_ptr, gamma_ptr, num_rows, num_inputs, num_outputs,
    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_L: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gradients of the parameters and scaled = s·W; beside them, by further programs, what the input's gradient takes:
    projection (C, C) = −Wᵀ·diag(s · inverse_std · t / n)·W, BLOCK_I rows of it each, and constant = (s · Σg / n)·W."""
    _follow(PDL)
    inputs = tl.arange(0, BLOCK_C)
    there = inputs < num_inputs
    num_blocks = tl.cdiv(num_outputs, BLOCK_K)
    if tl.program_id(0) < num_blocks:
        outputs = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
        mask = outputs < num_outputs
        weight, products, inverse_std, slopes, total = _load_products(
            products_ptr, weight_ptr, inverse_std_ptr, outputs, inputs, num_inputs, num_outputs
        )
        scale = _load_scale(inverse_std_ptr, gamma_ptr, outputs, mask, tl.float32)
        inside = mask[:, None] & there[None, :]
        elements = outputs[:, None] * num_inputs + inputs[None, :]
        scaled = weight.to(tl.float32) * scale[:, None]
        tl.store(scaled_ptr + elements, scaled.to(scaled_ptr.dtype.element_ty), mask=inside)
        if grad_weight_ptr is not None:
            v = tl.load(state_ptr + num_inputs + elements, mask=inside, other=0)
            grad = scale[:, None] * (products - (slopes * inverse_std)[:, None] * v)
            tl.store(grad_weight_ptr + elements, grad.to(grad_weight_ptr.dtype.element_ty), mask=inside)
        if grad_gamma_ptr is not None:
            tl.store(grad_gamma_ptr + outputs, slopes.to(grad_gamma_ptr.dtype.element_ty), mask=mask)
        if grad_beta_ptr is not None:
            tl.store(grad_beta_ptr + outputs, total.to(grad_beta_ptr.dtype.element_ty), mask=mask)
        if grad_bias_ptr is not None:  # the bias shifts the mean along with the values
            tl.store(grad_bias_ptr + outputs, tl.zeros((BLOCK_K,), grad_bias_ptr.dtype.element_ty), mask=mask)
    elif projection_ptr is not None:
        part = tl.program_id(0) - num_blocks
        left = part * BLOCK_I + tl.arange(0, BLOCK_I)
        share = 1 / num_rows.to(tl.float32)
        projection = tl.zeros((BLOCK_I, BLOCK_C), tl.float32)
        constant = tl.zeros((BLOCK_C,), tl.float32)
        for first in range(0, num_outputs, BLOCK_L):
            outputs = first + tl.arange(0, BLOCK_L)
            weight, _, inverse_std, slopes, total = _load_products(
                products_ptr, weight_ptr, inverse_std_ptr, outputs, inputs, num_inputs, num_outputs
            )
            scale = _load_scale(inverse_std_ptr, gamma_ptr, outputs, outputs < num_outputs, tl.float32) * share
            w_left = _load_rows(weight_ptr, outputs, num_outputs, left, num_inputs).to(tl.float32)
            sloped = (w_left * -(scale * inverse_std * slopes)[:, None]).to(weight.dtype)
            projection = tl.dot(tl.trans(sloped), weight, projection)
            constant += tl.sum(libdevice.mul_rn(weight.to(tl.float32), (scale * total)[:, None]), axis=0)
        inside = (left < num_inputs)[:, None] & there[None, :]
        out = projection_ptr + left[:, None] * num_inputs + inputs[None, :]
        tl.store(out, projection.to(projection_ptr.dtype.element_ty), mask=inside)
        tl.store(constant_ptr + inputs, constant, mask=there & (part == 0))


@triton.jit(do_not_specialize=_SIZES)
def _wide_input_grad_kernel(
    grad_input_ptr, addend_ptr, grad_ptr, passed_ptr, x_ptr, weight_ptr, state_ptr, inverse_std_ptr, gamma_ptr,
    beta_ptr, scaled_ptr, projection_ptr, constant_ptr, num_rows, num_inputs, num_outputs,
    BACKWARD: tl.constexpr, NUMBER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grad_x = g·scaled + x̃·projection − constant, plus addend, (rows, inputs), or None."""
    _follow(PDL)
    num_inputs, num_outputs = _in_eights(num_inputs), _in_eights(num_outputs)
    block, inputs = tl.program_id(0), tl.arange(0, BLOCK_C)
    x = _load_block(x_ptr, block, num_rows, inputs, num_inputs, BLOCK_M, EVEN)
    centre, short = _load_centre(state_ptr, inputs, num_inputs, x.dtype)
    distance = _centred(x, centre, block, num_rows, EVEN).to(x.dtype)
    result = tl.dot(distance, _load_rows(projection_ptr, inputs, num_inputs, inputs, num_inputs))
    for first in tl.range(0, num_outputs, BLOCK_K, num_stages=STAGES):
        outputs = first + tl.arange(0, BLOCK_K)
        grad = _load_block(grad_ptr, block, num_rows, outputs, num_outputs, BLOCK_M, EVEN)
        if BACKWARD is not None and passed_ptr is None:
            weight = _load_rows(weight_ptr, outputs, num_outputs, inputs, num_inputs)
            rest = _load_rest(state_ptr, outputs, num_inputs, num_outputs)
            mean = tl.dot(tl.broadcast_to(short[None, :], (BLOCK_M, BLOCK_C)), tl.trans(weight))  # as _output_mean()
            unscaled = tl.dot(x, tl.trans(weight)) - (mean + rest[None, :])
            scale, beta = _load_affine(inverse_std_ptr, gamma_ptr, beta_ptr, outputs, num_outputs)
        else:
            unscaled, scale, beta = None, None, None
        grad = _passed_grad(
            grad, unscaled, scale, beta, passed_ptr, block, first, num_rows, num_outputs, BACKWARD, NUMBER, BLOCK_M,
            BLOCK_K, EVEN,
        )  # fmt: skip
        scaled = _load_rows(scaled_ptr, outputs, num_outputs, inputs, num_inputs)
        result = tl.dot(grad, scaled, result)
    result -= tl.load(constant_ptr + inputs, mask=inputs < num_inputs, other=0)[None, :]
    places, inside = _places(block, num_rows, inputs, num_inputs, BLOCK_M, EVEN)
    if addend_ptr is not None:
        result += tl.load(addend_ptr + places, mask=inside, other=0).to(tl.float32)
    tl.store(grad_input_ptr + places, result.to(grad_input_ptr.dtype.element_ty), mask=inside)


def _specimens():
    short, wide, bits = dtypes.bfloat16, dtypes.float32, dtypes.uint8
    sizes = (3000, 64, 256)
    rows = {"EVEN": False, "STAGES": 3}
    tile = {**rows, "BLOCK_M": 64, "BLOCK_K": 128, "BLOCK_C": 64, "num_warps": 4}
    small = {"BLOCK_K": 16, "BLOCK_C": 64}
    relu = {"BACKWARD": _through_relu_kernel, "NUMBER": None}
    silu = {"BACKWARD": activations._silu_16_bit_backward_kernel, "NUMBER": None}
    alone = {"BACKWARD": None, "NUMBER": None}
    norm = (wide,) * 4  # state, inverse deviation, gamma, beta
    backwards = ((None, short, bits, relu), (None, short, None, silu), (short, short, short, silu))
    return [
        Specimen(_gram_kernel, (wide, short, 3000, 64), {**rows, "BLOCK_M": 128, "BLOCK_C": 64}),
        Specimen(_join_parts_kernel, (wide, wide, 100, 4160), {"PARTS": 128, "BLOCK": 32}),
        Specimen(
            _wide_statistics_kernel, (*(wide,) * 4, dtypes.int64, wide, wide, short, short, wide, 0.1, *sizes, 1e-5),
            {**small, "PRECISION": "bf16x6"},
        ),
        *(
            Specimen(
                _wide_forward_kernel, (short, passed, short, short, residual, *norm, *sizes),
                {**tile, "FORWARD": forward, "NUMBER": None},
            )
            for passed, residual, forward in (
                (bits, short, activations._relu_kernel), (short, short, activations._silu_16_bit_kernel),
                (None, None, activations._silu_16_bit_kernel),
            )
        ),
        *(
            Specimen(
                _wide_products_kernel, (wide, residual, grad, passed, short, short, *norm, *sizes),
                {**tile, **backward},
            )
            for residual, grad, passed, backward in backwards
        ),
        Specimen(
            _wide_parameter_grads_kernel,
            (*(wide,) * 4, short, short, wide, wide, wide, short, wide, wide, *sizes),
            {**small, "BLOCK_I": 16, "BLOCK_L": 64},
        ),
        *(
            Specimen(
                _wide_input_grad_kernel,
                (short, addend, grad, passed, short, short, *norm, short, short, wide, *sizes), {**tile, **backward},
            )
            for addend, grad, passed, backward in (*backwards, (None, short, None, alone))
        ),
    ]  # fmt: skip


SPECIMENS = _specimens()
