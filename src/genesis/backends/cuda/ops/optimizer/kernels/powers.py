"""Powers of float64 on the device, rounded as the host rounds them."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit
def _halves(x):
    """A float64 as the sum of two whose products with such halves are exact."""
    upper = (x.to(tl.int64, bitcast=True) & -(1 << 27)).to(tl.float64, bitcast=True)
    return upper, x - upper


@triton.jit
def _times(a, a_rest, b, b_rest):
    """(a + a_rest) · (b + b_rest) as such a sum, to 100 bits."""
    product = libdevice.mul_rn(a, b)  # not contracted: its rounding error is wanted
    a_upper, a_lower = _halves(a)
    b_upper, b_lower = _halves(b)
    error = ((a_upper * b_upper - product) + a_upper * b_lower + a_lower * b_upper) + a_lower * b_lower
    error += a * b_rest + a_rest * b
    total = product + error
    return total, error - (total - product)


@triton.jit
def power(base, exponent):
    """base ** exponent, a whole number, correctly rounded. libdevice's may differ from the host's in the last bit, and
    a replayed step from an eager one."""
    result, result_rest = base * 0.0 + 1.0, base * 0.0
    square, square_rest = base * 1.0, base * 0.0
    while exponent > 0:
        if exponent % 2 == 1:
            result, result_rest = _times(result, result_rest, square, square_rest)
        square, square_rest = _times(square, square_rest, square, square_rest)
        exponent = exponent // 2
    return result
