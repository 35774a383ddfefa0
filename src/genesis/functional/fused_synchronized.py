"""conv_bn_relu over the batches of several processes: the halves of the op, an exchange of statistics between them."""

from __future__ import annotations

from typing import Protocol, TypedDict, Unpack

from genesis import activations, dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor, modes
from genesis.dtypes import DType
from genesis.functional.conv import Conv2d, check_dtypes
from genesis.functional.fused import OPERANDS, check_operands, check_residual
from genesis.functional.windows import shapes_of
from genesis.ndarray import NDArray, ops
from genesis.records import (
    BegunConvNorm,
    ConvGeometry,
    ConvSettings,
    NormOptions,
    NormState,
    SavedConvNorm,
    is_output,
    record,
)
from genesis.shapes import Shape


class Exchange(Protocol):
    """Tells the ranks each other's sums; all of them get the same bits."""

    def join(self, mean: NDArray, var: NDArray, count: int) -> tuple[NDArray, NDArray, NDArray]:
        """Count, mean and biased variance of each channel over all ranks, of this rank's; float64."""

    def add_up(self, sums: NDArray) -> None:
        """Sum over all ranks, in place."""


def conv_bn_relu_synchronized(
    operands: tuple[Tensor, Tensor, Tensor | None, Tensor | None], norm: NormState[Tensor], options: NormOptions,
    settings: ConvSettings, activation: str | None, exchange: Exchange,
) -> Tensor:  # fmt: skip
    """F.conv_bn_relu in training, normalized by the batches of all ranks together.

    Args:
        operands: input, of one pixel at least, weight, bias and residual, as in F.conv_bn_relu.
        norm, options, settings, activation: as there; the norm's counter is the caller's.
        exchange: takes the statistics of this rank to the others.
    """
    input, weight, bias, residual = operands
    gamma, beta, mean, var, _ = norm
    tensors = (input, weight, bias, gamma, beta, mean, var, residual)
    shapes = shapes_of("conv_bn_relu", OPERANDS, tensors, required=2)
    geometry, strides, shape = check_operands(shapes, True, *settings)
    check_residual("conv_bn_relu", shapes[-1], shape)
    if modes.state.autocast is not None:
        input, weight, bias, residual = modes.state.autocast(Conv2d, (input, weight, bias, residual))
    return ConvSyncBNReLU.apply(
        input, weight, bias, gamma, beta, residual,
        running=(None if mean is None else mean.array, None if var is None else var.array), options=options,
        geometry=geometry, strides=strides, activation=activations.checked("conv_bn_relu", activation),
        exchange=exchange,
    )  # fmt: skip


class _Settings(TypedDict):
    running: tuple[NDArray | None, NDArray | None]  # mean and variance
    options: NormOptions
    geometry: ConvGeometry
    strides: Shape
    activation: str | None
    exchange: Exchange


class ConvSyncBNReLU(ArrayFunction):
    """With x the convolution's output, x̂ = (x − mean) / √(var + eps), n values of a channel on all ranks, and g the
    gradient before the activation:

        dx = γ / √(var + eps) · (g − Σ g / n − x̂ · Σ g·x̂ / n)

    Σ is over all ranks; of γ and β, each rank has the gradients of its own batch.
    """

    @staticmethod
    def forward(
        ctx: Context, input: NDArray, weight: NDArray, bias: NDArray | None, gamma: NDArray | None,
        beta: NDArray | None, residual: NDArray | None, **settings: Unpack[_Settings],
    ) -> NDArray:  # fmt: skip
        check_dtypes("conv_bn_relu", input, weight, bias)
        if input.strides != settings["strides"]:
            input = input.contiguous(channels_last=True)
        residual = None if residual is None else residual.to(input.dtype)
        geometry, activation, (_, momentum, eps) = settings["geometry"], settings["activation"], settings["options"]
        norm = record(NormState, (gamma, beta, None, None, None))
        own_mean, own_var, x = _begun(input, weight, bias, norm, geometry)
        count, mean, var = settings["exchange"].join(own_mean, own_var, x.numel // x.shape[1])
        kind = own_mean.dtype
        inverse_std = ops.rsqrt(var.add(eps)).to(kind)
        begun = BegunConvNorm(mean.to(kind), inverse_std, x, None)
        y, mean_used, inverse_std, kept, passed = ops.conv_bn_finish(
            input, None, norm, begun, residual, eps, activation
        )
        take_up(settings["running"], count, mean, var, momentum)
        if True in ctx.needs_input_grad:
            ctx.save(input, weight, bias, gamma, beta, mean_used, inverse_std, kept, passed)
            ctx.options = geometry, activation, settings["exchange"], count
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        saved, (geometry, activation, exchange, count) = record(SavedConvNorm, ctx.saved), ctx.options
        input, weight, _, gamma, _, mean, inverse_std, x, _ = saved
        needs_input, needs_weight, needs_bias, needs_gamma, needs_beta, needs_residual = ctx.needs_input_grad
        # With fixed statistics, the op's backward gives the two sums, and the gradient before the activation.
        needs = (False, False, False, True, True, activation is not None)
        *_, of_gamma, of_beta, before = ops.conv_bn_relu_backward(grad, saved, False, geometry, activation, needs)
        before = grad if activation is None else before
        assert of_gamma is not None
        assert of_beta is not None
        assert before is not None
        kind, channels = mean.dtype, mean.shape[0]
        sums = ops.cat([of_gamma.to(kind), of_beta.to(kind)], 0)
        exchange.add_up(sums)
        grad_input = grad_weight = grad_bias = None
        if needs_input or needs_weight or needs_bias:
            scale = inverse_std if gamma is None else inverse_std.mul(gamma.to(kind))
            share = scale.div(count.to(kind)).neg()
            slope, shift = (share.mul(sums.narrow(0, start, channels)) for start in (0, channels))
            # x̂ · slope + shift in one pass; the deviation comes back as a variance, with eps 0.
            variance = inverse_std.mul(inverse_std).reciprocal()
            x_wide = x.to(wide(x.dtype))
            rest = ops.batch_norm(x_wide, slope, shift, mean, variance, False, 0.0, 0.0)[0]
            grad_x = rest.add(before.to(rest.dtype).mul(scale.reshape((1, channels, 1, 1)))).to(x.dtype)
            grad_x = grad_x.contiguous(channels_last=True)
            grad_input = ops.conv_input_grad(grad_x, weight, input.shape, geometry) if needs_input else None
            grad_weight = ops.conv_weight_grad(grad_x, input, weight.shape, geometry) if needs_weight else None
            grad_bias = ops.sum(grad_x, (0, 2, 3)) if needs_bias else None
        of_gamma, of_beta = (of_gamma if needs_gamma else None), (of_beta if needs_beta else None)
        return grad_input, grad_weight, grad_bias, of_gamma, of_beta, before if needs_residual else None


_without_output: set[object] = set()  # convolutions for which the backend finds statistics without an output


def _begun(
    input: NDArray, weight: NDArray, bias: NDArray | None, norm: NormState[NDArray], geometry: ConvGeometry
) -> tuple[NDArray, NDArray, NDArray]:
    """Mean and biased variance of this batch, and the convolution's output."""
    key = input.device.type, input.dtype, weight.shape, geometry
    if key not in _without_output:
        begun = ops.conv_bn_begin(input, weight, bias, norm, NormOptions(True, 0.0, 0.0), geometry)
        mean, inverse_std, x, _ = begun
        if mean is not None and inverse_std is not None and is_output(x) and mean.dtype is wide(mean.dtype):
            return mean, inverse_std.mul(inverse_std).reciprocal(), x
        _without_output.add(key)
    x = ops.conv_forward(input, weight, bias, geometry)
    x_wide = x.to(wide(x.dtype))
    return ops.mean(x_wide, (0, 2, 3)), ops.var(x_wide, (0, 2, 3), 0), x


def take_up(
    running: tuple[NDArray | None, NDArray | None], count: NDArray, mean: NDArray, var: NDArray, momentum: float
) -> None:  # fmt: skip
    """Move the running statistics towards those of a batch, float64; var: biased."""
    unbiased = var.mul(count).div(count.sub(1).clamp(1, None))
    for statistic, new in ((running[0], mean), (running[1], unbiased)):
        if statistic is not None:
            statistic.copy_into(statistic.to(dtypes.float64).mul(1 - momentum).add(new.mul(momentum)))


def wide(dtype: DType) -> DType:
    """In which statistics are computed."""
    return dtype if dtype is dtypes.float64 else dtypes.float32
