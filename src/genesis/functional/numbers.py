"""Common divisors and multiples, the derivatives of the gamma function, and running sums of exponentials."""

from __future__ import annotations

import math

from genesis import dtypes, shapes
from genesis.autograd import Context, Function, Tensor
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_ints, require_tensors
from genesis.functional.comparison import eq
from genesis.functional.conversion import cast
from genesis.functional.elementwise import floor_divide, mul, remainder, where
from genesis.functional.joining import cat, narrow
from genesis.functional.keywords import also
from genesis.functional.special import logaddexp
from genesis.functional.transcendental import digamma
from genesis.functional.unary import abs, floor
from genesis.ndarray import ops

__all__ = ["gcd", "lcm", "logcumsumexp", "polygamma"]

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor, by Euclid's algorithm; that of 0 and n is |n|.

    Args:
        input, other: integers, shapes that broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: no integers. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.gcd(genesis.tensor([12, 0]), genesis.tensor([8, -5])).tolist()
    [4, 5]
    """
    return _divisor("gcd", input, other)


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple; that of 0 and n is 0.

    Args:
        input, other: integers, shapes that broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: no integers. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.lcm(genesis.tensor([4, 0]), genesis.tensor([6, 5])).tolist()
    [12, 0]
    """
    divisor = _divisor("lcm", input, other)
    return abs(mul(floor_divide(input, where(eq(divisor, 0), 1, divisor)), other))


def _divisor(op: str, input: Tensor, other: Tensor) -> Tensor:
    require_tensors(op, input=input, other=other)
    for name, tensor in (("input", input), ("other", other)):
        if tensor.array.dtype.is_floating_point or tensor.array.dtype.name == "bool":
            raise DTypeError(describe(op, name, "integers", tensor.array.dtype))
    zero = mul(input, 0) + mul(other, 0)
    first, second = abs(input + zero), abs(other + zero)
    while bool((second != 0).any()):
        done = eq(second, 0)
        rest = where(done, 0, remainder(first, where(done, 1, second)))
        first, second = where(done, first, second), rest
    return first


@also(axis="dim")
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials along dim, without overflow.

    Args:
        input: any shape, floating.
        dim: one dimension.
    Returns: shape and dtype of input.
    Raises: TypeError: not floating. IndexError: no such dimension.
    Grad: input.
    Example: >>> F.logcumsumexp(genesis.zeros(2), 0).exp().round().tolist()
    [1.0, 2.0]
    """
    require_tensors("logcumsumexp", input=input)
    dim = shapes.normalize_dim("logcumsumexp", dim, input.array.ndim)
    dtype = input.array.dtype
    if not dtype.is_floating_point:
        raise DTypeError(describe("logcumsumexp", "input", "a floating dtype", dtype))
    x = cast(input, dtypes.float32) if dtype.itemsize == 2 else input
    size, step = x.array.shape[dim] if x.array.ndim else 1, 1
    if size < 2:
        return input.clone()
    while step < size:  # after it, each element is the sum of the 2·step last ones up to it
        early, late = narrow(x, dim, 0, size - step), narrow(x, dim, step, size - step)
        x = cat([narrow(x, dim, 0, step), logaddexp(late, early)], dim)
        step *= 2
    return cast(x, dtype)


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of ψ, the logarithmic derivative of the gamma function.

    Args:
        n: from 0 on.
        input: any shape; integers are computed in the default floating dtype.
    Returns: the shape of input, floating.
    Raises: NotImplementedError: n below 0. TypeError: n is no int.
    Grad: input.
    Example: >>> round(F.polygamma(1, genesis.tensor(1.0)).item(), 4)
    1.6449
    """
    require_ints("polygamma", n=n)
    require_tensors("polygamma", input=input)
    if n < 0:
        raise NotImplementedError(describe("polygamma", "n", "0 or more", n))
    x = input if input.array.dtype.is_floating_point else cast(input, dtypes.get_default_dtype())
    return digamma(x) if n == 0 else Polygamma.apply(x, n)


class Polygamma(Function):
    """ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ · n! · ζ(n + 1, x). Its derivative is ψ⁽ⁿ⁺¹⁾."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, n: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.n = n
        if n == 1:
            return x._like(ops.trigamma(x.array))
        wide = cast(x, dtypes.float64) if x.array.dtype is dtypes.float64 else cast(x, dtypes.float32)
        return cast(mul(_zeta(n + 1, wide), (-1) ** (n + 1) * float(math.factorial(n))), x.array.dtype)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return mul(grad, Polygamma.apply(x, ctx.n + 1)), None


def _zeta(s: int, x: Tensor) -> Tensor:
    """Hurwitz' zeta: the first terms of Σ (x + k)⁻ˢ, and Euler and Maclaurin's formula for the rest."""
    lowest = float(x.amin()) if x.array.numel else 0.0
    total, z = mul(x, 0.0), x
    for _ in range(10 + (math.ceil(-lowest) if -1000 < lowest < 0 else 0)):
        total, z = total + z ** (-s), z + 1
    total = total + z ** (1 - s) / (s - 1) + z ** (-s) * 0.5
    factor = float(s)
    for number, bernoulli in enumerate(_BERNOULLI, 1):  # B₂ₖ · s·(s + 1)…(s + 2k − 2) / (2k)!
        total = total + z ** (1 - s - 2 * number) * (bernoulli * factor / math.factorial(2 * number))
        factor *= (s + 2 * number - 1) * (s + 2 * number)
    pole = eq(x, floor(x)) & (x <= 0)
    return where(pole, math.inf, total)
