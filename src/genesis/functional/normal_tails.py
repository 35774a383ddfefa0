"""Tails of the normal distribution: log_ndtr, ndtri, and erfcx, the complementary error function times e^x²."""

from __future__ import annotations

import math

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.dtypes import float32, float64
from genesis.functional.series import floating_array, in_float64, polynomial, ratio
from genesis.ndarray import NDArray, ops

__all__ = ["erfcx", "log_ndtr", "ndtri"]


def erfcx(input: Tensor) -> Tensor:
    """e^x² · erfc(x), which does not underflow.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input and the output.
    Example: >>> F.erfcx(genesis.tensor([0.0])).tolist()
    [1.0]
    """
    return Erfcx.apply(input)


class Erfcx(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        x = floating_array(x)
        y = in_float64(_erfcx, x)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        return grad.mul(x.mul(y).mul(2.0).sub(2 / math.sqrt(math.pi)))  # d erfcx = 2x·erfcx − 2/√π


def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of the distribution function of the standard normal, accurate far below 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.log_ndtr(genesis.tensor([-40.0])).tolist()
    [-804.6084594726562]
    """
    return LogNdtr.apply(input)


class LogNdtr(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        x = floating_array(x)
        ctx.save(x)
        return in_float64(_log_ndtr, x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        density = in_float64(lambda wide: ops.div(math.sqrt(2 / math.pi), _erfcx(wide.mul(-math.sqrt(0.5)))), x)
        return grad.mul(density)  # d ln Φ = φ/Φ = √(2/π) / erfcx(−x/√2)


def ndtri(input: Tensor) -> Tensor:
    """The inverse of ndtr: the quantile of the standard normal; ∓∞ at 0 and 1, NaN outside.

    Args:
        input: probabilities, any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Source: Cephes, S. L. Moshier 1989: rational functions, below e⁻² of √(−2 ln p).
    Example: >>> F.ndtri(genesis.tensor([0.5])).tolist()
    [0.0]
    """
    return Ndtri.apply(input)


class Ndtri(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = in_float64(_ndtri, floating_array(x))
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(y).mul(0.5).exp().mul(math.sqrt(2 * math.pi)))  # d Φ⁻¹ = √2π · e^(y²/2)


# --- values in float64 ------------------------------------------------------------------------------------------------


def _erfcx(x: NDArray) -> NDArray:
    """e^x² · erfc(x) up to 10; beyond, its asymptotic series, whose terms fall to 1e-16 there."""
    head = x.to(float32).to(float64)  # its square is exact, so that no rounding of x² is raised to a power
    square = head.mul(head).exp().mul(x.sub(head).mul(x.add(head)).exp())
    z = ops.div(0.5, x.mul(x))
    series = polynomial(z, _ASYMPTOTIC).div(x.mul(math.sqrt(math.pi)))
    return x.gt(10).where(series, x.lt(-30).where(math.inf, square.mul(ops.erfc(x))))


def _double_factorials(count: int) -> tuple[float, ...]:
    """(−1)ⁿ (2n − 1)!!, from the last one to n = 0."""
    found = [1.0]
    for n in range(1, count):
        found.insert(0, -found[0] * (2 * n - 1))
    return tuple(found)


_ASYMPTOTIC = _double_factorials(14)


def _log_ndtr(x: NDArray) -> NDArray:
    t = x.mul(math.sqrt(0.5))
    below = _erfcx(t.neg()).mul(0.5).log().sub(t.mul(t))
    return x.lt(-1).where(below, ops.erfc(t).mul(-0.5).log1p())


def _ndtri(p: NDArray) -> NDArray:
    upper = p.gt(1 - _TAIL)
    y = upper.where(p.neg().add(1.0), p)
    centre = y.sub(0.5)
    square = centre.mul(centre)
    near = centre.add(centre.mul(square.mul(ratio(square, _CENTRE_OVER, _CENTRE_UNDER)))).mul(math.sqrt(2 * math.pi))
    x = y.log().mul(-2.0).sqrt()
    z = ops.div(1.0, x)
    rest = x.lt(8).where(ratio(z, _TAIL_OVER, _TAIL_UNDER), ratio(z, _FAR_OVER, _FAR_UNDER))
    tail = x.sub(x.log().div(x)).sub(z.mul(rest))
    inside = y.gt(_TAIL).where(near, upper.where(tail, tail.neg()))
    return p.eq(0).where(-math.inf, p.eq(1).where(math.inf, inside))


_TAIL = 0.13533528323661269189  # e⁻²
_CENTRE_OVER = (
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125,
)  # fmt: skip
_CENTRE_UNDER = (
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066,
    -82.03722561683334, 15.90562251262117, -1.1833162112133,
)  # fmt: skip
_TAIL_OVER = (
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803,
    2.1866330685079025, -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854,
)  # fmt: skip
_TAIL_UNDER = (
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094,
    -0.14218292285478779, -0.03808064076915783, -0.0009332594808954574,
)  # fmt: skip
_FAR_OVER = (
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908,
    0.012371663481782003, 0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09,
)  # fmt: skip
_FAR_UNDER = (
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663, 0.013420400608854318,
    0.00032801446468212774, 2.8924786474538068e-06, 6.790194080099813e-09,
)  # fmt: skip
