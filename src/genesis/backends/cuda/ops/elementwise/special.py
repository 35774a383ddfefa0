"""Transcendental functions on one element, beside those of kernels.py: the same rules hold."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis.backends.cuda.ops.pointwise.kernels import specimen
from genesis.dtypes import float32, float64


@triton.jit
def _tan_kernel(x):
    return libdevice.tan(x)


@triton.jit
def _asin_kernel(x):
    return libdevice.asin(x)


@triton.jit
def _acos_kernel(x):
    return libdevice.acos(x)


@triton.jit
def _atan_kernel(x):
    return libdevice.atan(x)


@triton.jit
def _sinh_kernel(x):
    return libdevice.sinh(x)


@triton.jit
def _cosh_kernel(x):
    return libdevice.cosh(x)


@triton.jit
def _asinh_kernel(x):
    return libdevice.asinh(x)


@triton.jit
def _acosh_kernel(x):
    return libdevice.acosh(x)


@triton.jit
def _atanh_kernel(x):
    return libdevice.atanh(x)


@triton.jit
def _exp2_kernel(x):
    return libdevice.exp2(x)


@triton.jit
def _log2_kernel(x):
    return libdevice.log2(x)


@triton.jit
def _log10_kernel(x):
    return libdevice.log10(x)


@triton.jit
def _erfc_kernel(x):
    return libdevice.erfc(x)


@triton.jit
def _erfinv_kernel(x):
    return libdevice.erfinv(x)


@triton.jit
def _lgamma_kernel(x):
    return libdevice.lgamma(x)


@triton.jit
def _exact(x, number: tl.constexpr):
    """A constant in x's dtype: by itself a float is one of float32, in float64's company too."""
    return tl.full(x.shape, number, x.dtype)


@triton.jit
def _digamma_kernel(x):
    """ψ(x) = ψ(x + 1) − 1/x up to where the asymptotic series holds; below 0 by reflection: ψ(1 − x) − π/tan(πx)."""
    x = x.to(tl.float64)  # float32's sums would be four times as far from ψ as PyTorch's
    pi = _exact(x, 3.141592653589793)
    rest = x - libdevice.trunc(x)  # tan(πx) of a large x would be noise
    below = x < 0
    z = tl.where(below, 1.0 - x, x)
    result = z * 0.0
    for _ in range(10):
        small = z < 10
        result = tl.where(small, result - libdevice.div_rn(z * 0.0 + 1.0, z), result)
        z = tl.where(small, z + 1.0, z)
    w = libdevice.rcp_rn(z * z)
    tail = _exact(x, 691 / 32760) - w * _exact(x, 1 / 12)
    tail = _exact(x, 1 / 240) - w * (_exact(x, 1 / 132) - w * tail)
    tail = w * (_exact(x, 1 / 120) - w * (_exact(x, 1 / 252) - w * tail))
    result += libdevice.log(z) - 0.5 * libdevice.rcp_rn(z) - w * _exact(x, 1 / 12) + w * tail
    result = tl.where(below, result - libdevice.div_rn(pi, libdevice.tan(pi * rest)), result)
    result = tl.where(below & (rest == 0), float("nan"), result)
    return tl.where(x == 0, libdevice.copysign(rest * 0.0 + float("inf"), x * -1.0), result)


@triton.jit
def _trigamma_kernel(x):
    """ψ′(x), as digamma: by recurrence, series and reflection."""
    x = x.to(tl.float64)  # float32's sums would be four times as far from ψ as PyTorch's
    pi = _exact(x, 3.141592653589793)
    below = x < 0.5
    z = tl.where(below, 1.0 - x, x)
    result = z * 0.0
    for _ in range(6):
        result += libdevice.rcp_rn(z * z)
        z += 1.0
    w = libdevice.rcp_rn(z * z)
    tail = w * (_exact(x, 1 / 6) - w * (_exact(x, 1 / 30) - w * _exact(x, 1 / 42)))
    result += (1.0 + 0.5 * libdevice.rcp_rn(z) + tail) * libdevice.rcp_rn(z)
    sine = libdevice.sin(pi * x)
    return tl.where(below, libdevice.div_rn(pi * pi, sine * sine) - result, result)


_OPS = [
    _tan_kernel,
    _asin_kernel,
    _acos_kernel,
    _atan_kernel,
    _sinh_kernel,
    _cosh_kernel,
    _asinh_kernel,
    _acosh_kernel,
    _atanh_kernel,
    _exp2_kernel,
    _log2_kernel,
    _log10_kernel,
    _erfc_kernel,
    _erfinv_kernel,
    _lgamma_kernel,
    _digamma_kernel,
    _trigamma_kernel,
]

SPECIMENS = [specimen(op, dtype) for op in _OPS for dtype in (float32, float64)]
