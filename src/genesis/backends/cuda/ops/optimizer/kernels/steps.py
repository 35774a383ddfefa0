"""Steps over many arrays in one launch.

tables: NUM_ROLES rows of num_arrays addresses (of parameters, gradients, …), then a row of their sizes.
chunks: for each program, the number of its array and which BLOCK of elements it takes there.
"""

import math

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.optimizer.kernels.powers import power
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES: tl.constexpr, BLOCK: tl.constexpr):
    """This program's array, the elements in it, which of them exist, and whether all do."""
    chunk = tl.program_id(0)
    which = tl.load(chunk_ptr + 2 * chunk)
    first = tl.load(chunk_ptr + 2 * chunk + 1) * BLOCK
    size = tl.load(table_ptr + NUM_ROLES * num_arrays + which)
    elements = first + tl.arange(0, BLOCK)
    return which, elements, elements < size, first + BLOCK <= size


@triton.jit
def _pointers(table_ptr, num_arrays, which, elements, ROLE: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """To the elements of the array in this role."""
    pointer = tl.load(table_ptr + ROLE * num_arrays + which).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer + elements


@triton.jit
def _is_set(flag_ptr):
    """A bool in memory; None is False."""
    if flag_ptr is None:
        return False
    else:
        return tl.load(flag_ptr) != 0


# Each step is a function of pointers and a mask; a full chunk passes None, so that its loads are of 16 bytes.
@triton.jit
def _sgd(
    param_ptr,
    grad_ptr,
    buffer_ptr,
    mask,
    lr,
    momentum,
    dampening,
    weight_decay,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    FIRST: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    param = tl.load(param_ptr, mask=mask).to(COMPUTE)
    grad = tl.load(grad_ptr, mask=mask).to(COMPUTE)
    if MAXIMIZE:
        grad = grad * -1.0
    grad += weight_decay.to(COMPUTE) * param
    if buffer_ptr is not None:
        if FIRST:
            buffer = grad
        else:
            buffer = tl.load(buffer_ptr, mask=mask).to(COMPUTE)
            buffer = momentum.to(COMPUTE) * buffer + (1.0 - dampening).to(COMPUTE) * grad
        tl.store(buffer_ptr, buffer.to(DTYPE), mask=mask)
        if NESTEROV:
            grad += momentum.to(COMPUTE) * buffer
        else:
            grad = buffer
    tl.store(param_ptr, (param - lr.to(COMPUTE) * grad).to(DTYPE), mask=mask)


@triton.jit
def _sgd_kernel(
    table_ptr,
    chunk_ptr,
    numbers_ptr,
    found_inf_ptr,
    num_arrays,
    lr: tl.float64,
    momentum: tl.float64,
    dampening: tl.float64,
    weight_decay: tl.float64,
    HAS_MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    FIRST: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """b = μ·b + (1 − dampening)·g with g = grad + decay·p; p −= lr·b, or lr·(g + μ·b) for Nesterov's.

    numbers_ptr: None, or the four numbers. found_inf_ptr: None, or a bool; true: do nothing.
    """
    if _is_set(found_inf_ptr):
        return
    if numbers_ptr is not None:
        lr, momentum = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
        dampening, weight_decay = tl.load(numbers_ptr + 2), tl.load(numbers_ptr + 3)
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    param_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, DTYPE, ALIGNED)
    grad_ptr = _pointers(table_ptr, num_arrays, which, elements, 1, DTYPE, ALIGNED)
    if HAS_MOMENTUM:
        buffer_ptr = _pointers(table_ptr, num_arrays, which, elements, 2, DTYPE, ALIGNED)
    else:
        buffer_ptr = None
    if is_full:
        _sgd(
            param_ptr, grad_ptr, buffer_ptr, None, lr, momentum, dampening, weight_decay,
            NESTEROV, MAXIMIZE, FIRST, DTYPE, COMPUTE,
        )  # fmt: skip
    else:
        _sgd(
            param_ptr, grad_ptr, buffer_ptr, mask, lr, momentum, dampening, weight_decay,
            NESTEROV, MAXIMIZE, FIRST, DTYPE, COMPUTE,
        )  # fmt: skip


@triton.jit
def _adam(
    param_ptr,
    grad_ptr,
    exp_avg_ptr,
    exp_avg_sq_ptr,
    max_exp_avg_sq_ptr,
    mask,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    bias_correction1,
    bias_correction2_sqrt,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    param = tl.load(param_ptr, mask=mask).to(COMPUTE)
    grad = tl.load(grad_ptr, mask=mask).to(COMPUTE)
    exp_avg = tl.load(exp_avg_ptr, mask=mask).to(COMPUTE)
    exp_avg_sq = tl.load(exp_avg_sq_ptr, mask=mask).to(COMPUTE)
    if MAXIMIZE:
        grad = grad * -1.0
    if DECOUPLED:
        param -= (lr * weight_decay).to(COMPUTE) * param
    else:
        grad += weight_decay.to(COMPUTE) * param
    exp_avg += (1.0 - beta1).to(COMPUTE) * (grad - exp_avg)
    exp_avg_sq = beta2.to(COMPUTE) * exp_avg_sq + (1.0 - beta2).to(COMPUTE) * grad * grad
    tl.store(exp_avg_ptr, exp_avg.to(DTYPE), mask=mask)
    tl.store(exp_avg_sq_ptr, exp_avg_sq.to(DTYPE), mask=mask)
    if max_exp_avg_sq_ptr is not None:
        greatest = tl.load(max_exp_avg_sq_ptr, mask=mask).to(COMPUTE)
        exp_avg_sq = tl.where((exp_avg_sq > greatest) | (exp_avg_sq != exp_avg_sq), exp_avg_sq, greatest)
        tl.store(max_exp_avg_sq_ptr, exp_avg_sq.to(DTYPE), mask=mask)
    denominator = libdevice.sqrt(exp_avg_sq) * (1.0 / bias_correction2_sqrt).to(COMPUTE) + eps.to(COMPUTE)
    step = (lr / bias_correction1).to(COMPUTE) * exp_avg
    tl.store(param_ptr, (param - step / denominator).to(DTYPE), mask=mask)


@triton.jit
def _adam_advance_kernel(
    corrections_ptr,
    step_ptr,
    numbers_ptr,
    found_inf_ptr,
    beta1: tl.float64,
    beta2: tl.float64,
):
    """step += 1; corrections: c₁ and √c₂, cᵢ = 1 − βᵢᵗ. See _sgd_kernel for numbers_ptr and found_inf_ptr."""
    if _is_set(found_inf_ptr):
        return
    if numbers_ptr is not None:
        beta1, beta2 = tl.load(numbers_ptr + 1), tl.load(numbers_ptr + 2)
    step = tl.load(step_ptr) + 1
    tl.store(step_ptr, step)
    tl.store(corrections_ptr, 1.0 - power(beta1, step))
    tl.store(corrections_ptr + 1, libdevice.sqrt(1.0 - power(beta2, step)))


@triton.jit
def _adam_kernel(
    table_ptr,
    chunk_ptr,
    numbers_ptr,
    corrections_ptr,
    found_inf_ptr,
    num_arrays,
    lr: tl.float64,
    beta1: tl.float64,
    beta2: tl.float64,
    eps: tl.float64,
    weight_decay: tl.float64,
    bias_correction1: tl.float64,
    bias_correction2_sqrt: tl.float64,
    DECOUPLED: tl.constexpr,
    AMSGRAD: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """m = β₁·m + (1 − β₁)·g, v = β₂·v + (1 − β₂)·g²; p −= lr·(m / c₁) / (√v / √c₂ + ε), cᵢ = 1 − βᵢᵗ

    numbers_ptr: None, or five numbers; corrections_ptr: None, or c₁ and √c₂. found_inf_ptr: as in _sgd_kernel.
    """
    if _is_set(found_inf_ptr):
        return
    if numbers_ptr is not None:
        lr, beta1, beta2 = tl.load(numbers_ptr), tl.load(numbers_ptr + 1), tl.load(numbers_ptr + 2)
        eps, weight_decay = tl.load(numbers_ptr + 3), tl.load(numbers_ptr + 4)
    if corrections_ptr is not None:
        bias_correction1, bias_correction2_sqrt = tl.load(corrections_ptr), tl.load(corrections_ptr + 1)
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    param_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, DTYPE, ALIGNED)
    grad_ptr = _pointers(table_ptr, num_arrays, which, elements, 1, DTYPE, ALIGNED)
    exp_avg_ptr = _pointers(table_ptr, num_arrays, which, elements, 2, DTYPE, ALIGNED)
    exp_avg_sq_ptr = _pointers(table_ptr, num_arrays, which, elements, 3, DTYPE, ALIGNED)
    if AMSGRAD:
        max_ptr = _pointers(table_ptr, num_arrays, which, elements, 4, DTYPE, ALIGNED)
    else:
        max_ptr = None
    if is_full:
        _adam(
            param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, max_ptr, None, lr, beta1, beta2, eps, weight_decay,
            bias_correction1, bias_correction2_sqrt, DECOUPLED, MAXIMIZE, DTYPE, COMPUTE,
        )  # fmt: skip
    else:
        _adam(
            param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, max_ptr, mask, lr, beta1, beta2, eps, weight_decay,
            bias_correction1, bias_correction2_sqrt, DECOUPLED, MAXIMIZE, DTYPE, COMPUTE,
        )  # fmt: skip


@triton.jit
def _scale(x_ptr, found_ptr, mask, factor, DTYPE: tl.constexpr, COMPUTE: tl.constexpr):
    x = (tl.load(x_ptr, mask=mask).to(COMPUTE) * factor).to(DTYPE)
    tl.store(x_ptr, x, mask=mask)
    if found_ptr is not None:
        is_bad = (tl.abs(x.to(COMPUTE)) < float("inf")) == 0
        if mask is not None:
            is_bad = is_bad & mask
        num_bad = tl.sum(is_bad.to(tl.int32), 0)
        tl.store(found_ptr, num_bad != 0, mask=num_bad != 0)  # whoever stores, stores the same


@triton.jit
def _scale_kernel(
    table_ptr,
    chunk_ptr,
    found_ptr,
    factor_ptr,
    num_arrays,
    factor: tl.float64,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x *= factor, or *factor_ptr unless None. found_ptr: None, or a bool set where a result is not finite."""
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    x_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, DTYPE, ALIGNED)
    if factor_ptr is not None:
        by = tl.load(factor_ptr).to(COMPUTE)
    else:
        by = factor.to(COMPUTE)
    if is_full:
        _scale(x_ptr, found_ptr, None, by, DTYPE, COMPUTE)
    else:
        _scale(x_ptr, found_ptr, mask, by, DTYPE, COMPUTE)


@triton.jit
def _update_scale_kernel(
    scale_ptr,
    tracker_ptr,
    found_inf_ptr,
    growth_factor: tl.float64,
    backoff_factor: tl.float64,
    growth_interval: tl.int64,
    LIMIT: tl.constexpr,
):
    """scale *= backoff_factor where found; else *= growth_factor, if below LIMIT, each growth_interval calls."""
    scale = tl.load(scale_ptr)
    if tl.load(found_inf_ptr) != 0:
        tl.store(scale_ptr, scale * backoff_factor)
        tl.store(tracker_ptr, 0)
    else:
        tracker = tl.load(tracker_ptr) + 1
        grown = scale * growth_factor
        is_due = tracker == growth_interval
        tl.store(scale_ptr, tl.where(is_due & (grown < LIMIT), grown, scale))
        tl.store(tracker_ptr, tl.where(is_due, 0, tracker))


@triton.jit
def _norm(partial_ptr, x_ptr, mask, ord, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    x = tl.abs(tl.load(x_ptr, mask=mask).to(COMPUTE))
    if KIND == "square":
        x = x * x
    elif KIND == "count":
        x = (x != 0).to(COMPUTE)
    elif KIND == "power":
        x = libdevice.pow(x, tl.zeros_like(x) + ord.to(COMPUTE))
    if mask is not None:
        x = tl.where(mask, x, float("inf") if KIND == "minimum" else 0.0)
    if KIND == "maximum":
        result = tl.max(tl.where(x != x, 0.0, x), 0)
    elif KIND == "minimum":
        result = tl.min(tl.where(x != x, float("inf"), x), 0)
    else:
        result = tl.sum(x, 0)
    if KIND == "maximum" or KIND == "minimum":
        result = tl.where(tl.max((x != x).to(tl.int32), 0) != 0, float("nan"), result)
    tl.store(partial_ptr, result.to(partial_ptr.dtype.element_ty))


@triton.jit
def _norm_kernel(
    partial_ptr,
    table_ptr,
    chunk_ptr,
    num_arrays,
    ord: tl.float64,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NUM_ROLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Per chunk: Σ |x|, Σ x², Σ (x ≠ 0), Σ |x|ᵖ, or the maximum or minimum of |x|."""
    which, elements, mask, is_full = _chunk(table_ptr, chunk_ptr, num_arrays, NUM_ROLES, BLOCK)
    x_ptr = _pointers(table_ptr, num_arrays, which, elements, 0, DTYPE, ALIGNED)
    if is_full:
        _norm(partial_ptr + tl.program_id(0), x_ptr, None, ord, KIND, COMPUTE)
    else:
        _norm(partial_ptr + tl.program_id(0), x_ptr, mask, ord, KIND, COMPUTE)


@triton.jit
def _norm_finish_kernel(
    out_ptr,
    partial_ptr,
    first_ptr,
    position_ptr,
    ord: tl.float64,
    KIND: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program i: from chunks first[i] to first[i + 1] to out[position[i]]."""
    array = tl.program_id(0)
    first = tl.load(first_ptr + array)
    last = tl.load(first_ptr + array + 1)
    total = tl.full((BLOCK,), float("inf") if KIND == "minimum" else 0.0, COMPUTE)
    for start in range(first, last, BLOCK):
        chunks = start + tl.arange(0, BLOCK)
        mask = chunks < last
        if KIND == "maximum":
            x = tl.load(partial_ptr + chunks, mask=mask, other=0).to(COMPUTE)
            total = tl.where((x > total) | (x != x), x, total)
        elif KIND == "minimum":
            x = tl.load(partial_ptr + chunks, mask=mask, other=float("inf")).to(COMPUTE)
            total = tl.where((x < total) | (x != x), x, total)
        else:
            total += tl.load(partial_ptr + chunks, mask=mask, other=0).to(COMPUTE)
    is_nan = total != total
    any_nan = tl.max(is_nan.to(tl.int32), 0) != 0
    if KIND == "maximum":
        result = tl.where(any_nan, float("nan"), tl.max(tl.where(is_nan, 0.0, total), 0))
    elif KIND == "minimum":
        result = tl.where(any_nan, float("nan"), tl.min(tl.where(is_nan, float("inf"), total), 0))
    else:
        result = tl.sum(total, 0)
        if KIND == "square":
            result = libdevice.sqrt(result)
        elif KIND == "power":
            result = libdevice.pow(result, (1.0 / ord).to(COMPUTE))
    position = tl.load(position_ptr + array)
    tl.store(out_ptr + position, result.to(out_ptr.dtype.element_ty))


def _specimens(dtype, element, wide):
    block = {"DTYPE": element, "COMPUTE": COMPUTE[dtype], "ALIGNED": True, "BLOCK": 2048}
    tables = (dtypes.int64, dtypes.int64)
    for first in (True, False):
        flags = {"HAS_MOMENTUM": True, "NESTEROV": not first, "MAXIMIZE": first, "FIRST": first}
        numbers = (None, None) if first else (dtypes.float64, dtypes.bool_)  # the second as in a CUDA graph
        yield Specimen(_sgd_kernel, (*tables, *numbers, 100, 0.1, 0.9, 0.0, 0.1), {**flags, **block, "NUM_ROLES": 3})
        flags = {"DECOUPLED": first, "AMSGRAD": first, "MAXIMIZE": first}
        yield Specimen(
            _adam_kernel,
            (*tables, numbers[0], *numbers, 100, 0.1, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.5),
            {**flags, **block, "NUM_ROLES": 5},
        )
    yield Specimen(_scale_kernel, (*tables, dtypes.bool_, None, 100, 0.5), {**block, "NUM_ROLES": 1})
    yield Specimen(
        _scale_kernel, (*tables, None, dtypes.float32, 100, 0.5), {**block, "ALIGNED": False, "NUM_ROLES": 1}
    )
    for kind in ("square", "absolute", "count", "power", "maximum", "minimum"):
        yield Specimen(_norm_kernel, (wide, *tables, 100, 2.0), {"KIND": kind, **block, "NUM_ROLES": 1})
        finish = {"KIND": kind, "COMPUTE": COMPUTE[dtype], "BLOCK": 1024}
        yield Specimen(_norm_finish_kernel, (dtype, wide, *tables, 2.0), finish)


SPECIMENS = [
    Specimen(_adam_advance_kernel, (dtypes.float64, dtypes.int64, dtypes.float64, dtypes.bool_, 0.9, 0.99), {}),
    Specimen(_adam_advance_kernel, (dtypes.float64, dtypes.int64, None, None, 0.9, 0.99), {}),
    Specimen(
        _update_scale_kernel,
        (dtypes.float64, dtypes.int64, dtypes.bool_, 2.0, 0.5, 2000),
        {"LIMIT": math.ldexp(1, 128)},
    ),
    *_specimens(dtypes.float32, tl.float32, dtypes.float32),
    *_specimens(dtypes.bfloat16, tl.bfloat16, dtypes.float32),
    *_specimens(dtypes.float64, tl.float64, dtypes.float64),
]
