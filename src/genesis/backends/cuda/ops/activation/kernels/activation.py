"""Activations and their derivatives, one element at a time; ops/pointwise/ has the loops around them.

Each backward is the incoming gradient times the derivative, which stands as a comment.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis.backends.cuda.ops.pointwise.kernels import specimen
from genesis.dtypes import bfloat16, float32, float64


@triton.jit
def _logistic(x):
    return libdevice.rcp_rn(1.0 + libdevice.exp(x * -1.0))


@triton.jit
def _logistic_16_bit(x):
    """σ(x), by the fast exponential and quotient, and with one multiplication: enough for results of 16 bits."""
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _relu_kernel(x):
    return tl.where(x < 0, 0, x)  # NaN stays NaN


@triton.jit
def _relu_backward_kernel(grad, y):
    return tl.where(y <= 0, 0, grad)  # d = 1 where y > 0, and for NaN


@triton.jit
def _leaky_relu_kernel(x, negative_slope):
    return tl.where(x > 0, x, x * negative_slope)


@triton.jit
def _leaky_relu_backward_kernel(grad, x, negative_slope):
    return tl.where(x > 0, grad, grad * negative_slope)  # d = 1 | slope


@triton.jit
def _elu_kernel(x, alpha):
    return tl.where(x > 0, x, alpha * libdevice.expm1(x))


@triton.jit
def _elu_backward_kernel(grad, x, alpha):
    return tl.where(x <= 0, grad * alpha * libdevice.exp(x), grad)  # d = 1 | α·eˣ; 1 for NaN, as in PyTorch


@triton.jit
def _elu_16_bit_kernel(x, alpha):
    near = x * (1.0 + x * (0.5 + x * (1.0 / 6.0)))  # eˣ − 1 where the difference would cancel
    return tl.where(x > 0, x, alpha * tl.where(x > -0.05, near, tl.exp2(x * 1.4426950408889634) - 1.0))


@triton.jit
def _elu_16_bit_backward_kernel(grad, x, alpha):
    return tl.where(x <= 0, grad * alpha * tl.exp2(x * 1.4426950408889634), grad)


@triton.jit
def _gelu_kernel(x):
    return 0.5 * x * (1.0 + libdevice.erf(x * 0.7071067811865476))  # x·Φ(x)


@triton.jit
def _gelu_backward_kernel(grad, x):
    cdf = 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))
    pdf = 0.3989422804014327 * libdevice.exp(-0.5 * x * x)
    return grad * (cdf + x * pdf)  # d = Φ(x) + x·φ(x)


@triton.jit
def _normal_cdf(x):
    """Φ(x), to 1e-7, and e^(−x²/2): enough for results of 16 bits, and fewer instructions than erf and exp.

    Source: Abramowitz & Stegun 1964, 7.1.26.
    """
    density = tl.exp2(-0.7213475204444817 * x * x)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.23164190 * tl.abs(x))
    series = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    tail = density * t * series
    return tl.where(x < 0, tail, 1.0 - tail), density


@triton.jit
def _gelu_16_bit_kernel(x):
    cdf, _ = _normal_cdf(x)
    return x * cdf


@triton.jit
def _gelu_16_bit_backward_kernel(grad, x):
    cdf, density = _normal_cdf(x)
    return grad * (cdf + 0.3989422804014327 * x * density)


@triton.jit
def _twice_u(x):
    """2u of GELU's approximation: (1 + tanh u) / 2 is σ(2u), without the cancellation for negative u."""
    return 1.5957691216057308 * (x + 0.044715 * x * x * x)


@triton.jit
def _through_gelu_tanh(grad, x, s):
    inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    return grad * (s + x * s * (1.0 - s) * inner)  # d = s + x·s·(1 − s)·2u′, s = σ(2u)


@triton.jit
def _gelu_tanh_kernel(x):
    return x * _logistic(_twice_u(x))


@triton.jit
def _gelu_tanh_backward_kernel(grad, x):
    return _through_gelu_tanh(grad, x, _logistic(_twice_u(x)))


@triton.jit
def _gelu_tanh_16_bit_kernel(x):
    return x * _logistic_16_bit(_twice_u(x))


@triton.jit
def _gelu_tanh_16_bit_backward_kernel(grad, x):
    return _through_gelu_tanh(grad, x, _logistic_16_bit(_twice_u(x)))


@triton.jit
def _silu_kernel(x):
    return libdevice.div_rn(x, 1.0 + libdevice.exp(x * -1.0))


@triton.jit
def _through_silu(grad, x, s):
    return grad * s * (1.0 + x * (1.0 - s))  # d = s·(1 + x·(1 − s)), s = σ(x)


@triton.jit
def _silu_backward_kernel(grad, x):
    return _through_silu(grad, x, _logistic(x))


@triton.jit
def _silu_16_bit_kernel(x):
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _silu_16_bit_backward_kernel(grad, x):
    return _through_silu(grad, x, _logistic_16_bit(x))


@triton.jit
def _softplus_kernel(x, beta, threshold):
    scaled = x * beta
    smooth = libdevice.div_rn(libdevice.log1p(libdevice.exp(scaled)), tl.zeros_like(scaled) + beta)
    return tl.where(scaled > threshold, x, smooth)


@triton.jit
def _softplus_backward_kernel(grad, x, beta, threshold):
    scaled = x * beta
    return tl.where(scaled > threshold, grad, grad * _logistic(scaled))  # d = σ(β·x)


@triton.jit
def _clip_to_unit(x):
    x = tl.where(x < 0.0, 0.0, x)
    return tl.where(x > 1.0, 1.0, x)


@triton.jit
def _hardsigmoid_kernel(x):
    return _clip_to_unit(libdevice.div_rn(x + 3.0, tl.zeros_like(x) + 6.0))


@triton.jit
def _hardsigmoid_16_bit_kernel(x):
    return _clip_to_unit((x + 3.0) * (1.0 / 6.0))


@triton.jit
def _hardsigmoid_backward_kernel(grad, x):
    return tl.where((x > -3.0) & (x < 3.0), grad * (1.0 / 6.0), 0)  # d = 1/6 inside


@triton.jit
def _hardswish_kernel(x):
    return x * _clip_to_unit((x + 3.0) * (1.0 / 6.0))


@triton.jit
def _hardswish_backward_kernel(grad, x):
    inside = grad * ((x + 1.5) * (1.0 / 3.0))  # d = 0 | x/3 + 1/2, exactly 0 at −3/2 | 1
    return tl.where(x <= -3.0, 0, tl.where(x < 3.0, inside, grad))


@triton.jit
def _sigmoid_backward_kernel(grad, y):
    return grad * (1.0 - y) * y  # d = y·(1 − y)


@triton.jit
def _tanh_backward_kernel(grad, y):
    return grad * (1.0 - y * y)  # d = 1 − y²


_FORWARDS = [_relu_kernel, _gelu_kernel, _gelu_tanh_kernel, _silu_kernel, _hardsigmoid_kernel, _hardswish_kernel]
_BACKWARDS = [_relu_backward_kernel, _gelu_backward_kernel, _gelu_tanh_backward_kernel, _silu_backward_kernel]
_BACKWARDS += [_hardsigmoid_backward_kernel, _hardswish_backward_kernel]
_BACKWARDS += [_sigmoid_backward_kernel, _tanh_backward_kernel]
_16_BIT_FORWARDS = [_gelu_16_bit_kernel, _gelu_tanh_16_bit_kernel, _silu_16_bit_kernel, _hardsigmoid_16_bit_kernel]
_16_BIT_FORWARDS += [_logistic_16_bit]
_16_BIT_BACKWARDS = [_gelu_16_bit_backward_kernel, _gelu_tanh_16_bit_backward_kernel, _silu_16_bit_backward_kernel]

SPECIMENS = [
    *(specimen(op, dtype) for op in _FORWARDS for dtype in (bfloat16, float64)),
    *(specimen(op, float32, float32) for op in _BACKWARDS),
    *(specimen(op, float32, 0.5) for op in (_leaky_relu_kernel, _elu_kernel)),
    *(specimen(op, float32, float32, 0.5) for op in (_leaky_relu_backward_kernel, _elu_backward_kernel)),
    *(specimen(op, bfloat16) for op in _16_BIT_FORWARDS),
    *(specimen(op, bfloat16, bfloat16) for op in _16_BIT_BACKWARDS),
    specimen(_elu_16_bit_kernel, bfloat16, 0.5),
    specimen(_elu_16_bit_backward_kernel, bfloat16, bfloat16, 0.5),
    specimen(_softplus_kernel, float32, 2.0, 20.0),
    specimen(_softplus_backward_kernel, float32, float32, 2.0, 20.0),
]
