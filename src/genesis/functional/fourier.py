"""Discrete Fourier transforms over several dimensions, with gradients: the ops that genesis.fft is made of.

Each is linear, and its gradient is its transpose, another transform: of the full one, the same in the other direction.
"""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.autograd.complex_forms import FORMS
from genesis.autograd.recorded_walk import RULES, Recorded
from genesis.functional.elementwise import mul
from genesis.functional.padding import pad
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__: list[str] = []


class FFT(ArrayFunction):
    """From complex numbers to complex numbers, in either direction."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, scale: str, forward: bool) -> NDArray:
        ctx.dims, ctx.scale, ctx.forward = dims, scale, forward
        return ops.fft(x, dims, scale, forward)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return ops.fft(grad, ctx.dims, ctx.scale, not ctx.forward)


class RFFT(ArrayFunction):
    """From real numbers forward; onesided: the last of dims has the frequencies 0 … size // 2 alone."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, scale: str, onesided: bool) -> NDArray:
        ctx.dims, ctx.scale, ctx.size = dims, scale, x.shape[dims[-1]]
        return ops.rfft(x, dims, scale, onesided)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        missing, last = ctx.size - grad.shape[ctx.dims[-1]], ctx.dims[-1]
        if missing:  # the frequencies that were left out have no part in the result
            grad = ops.pad(grad, tuple([(0, missing if dim == last else 0) for dim in range(grad.ndim)]), "constant", 0)
        return ops.fft(grad, ctx.dims, ctx.scale, False).part(0)


class IRFFT(ArrayFunction):
    """Backward to `size` real numbers along the last of dims, from the frequencies 0 … size // 2."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, scale: str, size: int) -> NDArray:
        ctx.dims, ctx.scale = dims, scale
        return ops.irfft(x, dims, scale, size)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        found, last = ops.rfft(grad, ctx.dims, ctx.scale, True), ctx.dims[-1]
        return found.mul(_counts(grad, last, found))


def _counts(real: NDArray, last: int, half: NDArray) -> NDArray:
    """How often each of half's frequencies counts in the real values: twice where its negative was left out."""
    size = half.shape[last]
    counts = real.full_like(2, (size,))
    counts.narrow(0, 0, 1).copy_into(1)
    if real.shape[last] % 2 == 0:
        counts.narrow(0, size - 1, 1).copy_into(1)
    return counts.reshape((size,) + (1,) * (half.ndim - 1 - last))


def _rfft_rule(call: Recorded, grad: Tensor) -> Tensor:
    ctx, last = call.ctx, call.ctx.dims[-1]
    missing = ctx.size - grad.array.shape[last]
    if missing:
        grad = pad(grad, (0, 0) * (grad.array.ndim - 1 - last) + (0, missing))
    return FFT.apply(grad, dims=ctx.dims, scale=ctx.scale, forward=False).real


def _irfft_rule(call: Recorded, grad: Tensor) -> Tensor:
    ctx = call.ctx
    found = RFFT.apply(grad, dims=ctx.dims, scale=ctx.scale, onesided=True)
    return mul(found, call.constant(_counts(grad.array, ctx.dims[-1], found.array)))


FORMS.update({FFT: FFT, RFFT: RFFT, IRFFT: IRFFT})
RULES[FFT] = lambda call, grad: FFT.apply(grad, dims=call.ctx.dims, scale=call.ctx.scale, forward=not call.ctx.forward)
RULES[RFFT], RULES[IRFFT] = _rfft_rule, _irfft_rule
