"""Activations in fused kernels: how one is applied, and those whose element-wise op has no kernel of that form.

A derivative is found from the value before the activation; it stands as a comment.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels import activation as kernels
from genesis.backends.cuda.ops.activation.kernels.activation import (
    _logistic,
    _logistic_16_bit,
    _sigmoid_backward_kernel,
)
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.dtypes import bfloat16, float32, float64


@triton.jit
def _activated(x, FORWARD: tl.constexpr, NUMBER: tl.constexpr):
    """f(x); x where FORWARD is None."""
    if FORWARD is None:
        y = x
    elif NUMBER is None:
        y = FORWARD(x)
    else:
        y = FORWARD(x, NUMBER)
    return y


@triton.jit
def _through(grad, x, BACKWARD: tl.constexpr, NUMBER: tl.constexpr):
    """grad · f′(x)."""
    if NUMBER is None:
        result = BACKWARD(grad, x)
    else:
        result = BACKWARD(grad, x, NUMBER)
    return result


@triton.jit
def _through_relu_kernel(grad, x):
    return tl.where(x > 0, grad, 0)  # d = 1 where x > 0


@triton.jit
def _relu6_kernel(x):
    y = tl.where(x < 0, 0, x)  # NaN stays NaN
    return tl.where(y > 6, 6, y)


@triton.jit
def _through_relu6_kernel(grad, x):
    return tl.where((x <= 0) | (x >= 6), 0, grad)  # d = 1 inside, and for NaN


@triton.jit
def _exp_for_mish(x):
    return libdevice.exp(tl.where(x > 20.0, 20.0, x))  # beyond, tanh(softplus(x)) is 1 in float64 too


@triton.jit
def _mish_kernel(x):
    # tanh(log(1 + e)) = n / (n + 2), e = eˣ, n = e·(e + 2)
    e = _exp_for_mish(x)
    n = e * (e + 2.0)
    return x * libdevice.div_rn(n, n + 2.0)


@triton.jit
def _through_mish(grad, x, e, n, share):
    return grad * share * (n + 4.0 * x * e * (1.0 + e) * share)  # d = n / (n + 2) + x·4e·(1 + e) / (n + 2)²


@triton.jit
def _through_mish_kernel(grad, x):
    e = _exp_for_mish(x)
    n = e * (e + 2.0)
    return _through_mish(grad, x, e, n, libdevice.rcp_rn(n + 2.0))


@triton.jit
def _exp_for_mish_16_bit(x):
    return tl.exp2(tl.where(x > 20.0, 20.0, x) * 1.4426950408889634)


@triton.jit
def _mish_16_bit_kernel(x):
    e = _exp_for_mish_16_bit(x)
    n = e * (e + 2.0)
    return x * libdevice.fast_dividef(n, n + 2.0)


@triton.jit
def _through_mish_16_bit_kernel(grad, x):
    e = _exp_for_mish_16_bit(x)
    n = e * (e + 2.0)
    return _through_mish(grad, x, e, n, libdevice.fast_dividef(1.0, n + 2.0))


@triton.jit
def _through_sigmoid_16_bit_kernel(grad, x):
    return _sigmoid_backward_kernel(grad, _logistic_16_bit(x))


@triton.jit
def _through_sigmoid_kernel(grad, x):
    return _sigmoid_backward_kernel(grad, _logistic(x))


@triton.jit
def _tanh_kernel(x):
    return libdevice.tanh(x)


@triton.jit
def _through_tanh_kernel(grad, x):
    y = libdevice.tanh(x)
    return grad * (1.0 - y * y)  # d = 1 − tanh²


@triton.jit
def _activate_kernel(
    y_ptr, x_ptr, num_elements,
    FORWARD: tl.constexpr, NUMBER: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = f(x); y may be x."""
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    y = _activated(tl.load(x_ptr + elements, mask=mask, other=0).to(COMPUTE), FORWARD, NUMBER)
    tl.store(y_ptr + elements, y.to(y_ptr.dtype.element_ty), mask=mask)


def _specimen(dtype, function, number=None):
    constants = {"FORWARD": function, "NUMBER": number, "COMPUTE": COMPUTE[dtype], "BLOCK": 1024}
    return Specimen(_activate_kernel, (dtype, dtype, 100_000), constants)


SPECIMENS = [
    *[_specimen(dtype, each) for each in (_relu6_kernel, _mish_kernel, _tanh_kernel, kernels._silu_kernel)
      for dtype in (bfloat16, float64)],
    *[_specimen(bfloat16, each) for each in (kernels._silu_16_bit_kernel, _mish_16_bit_kernel)],
    _specimen(float32, kernels._leaky_relu_kernel, 0.1),
]  # fmt: skip
