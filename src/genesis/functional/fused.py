"""Convolution, batch norm, residual and ReLU as one op; and the same with the norm folded into the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import dtypes
from genesis.autograd import ArrayFunction, Gradients, Tensor, modes
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.conv import (
    Conv2d,
    Geometry,
    check_bias,
    check_dtypes,
    check_shapes,
    conv2d,
    conv_geometry,
)  # fmt: skip
from genesis.functional.normalization import check_several_values, check_statistics
from genesis.functional.windows import Size, remembered, require_tensor, shapes_of
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["PackedConv", "conv_bn_relu", "conv_prepack", "conv_prepacked", "fold_batch_norm"]


def conv_bn_relu(
    input: Tensor, weight: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1, groups: int = 1,
    residual: Tensor | None = None, activation: str | None = "relu", num_batches_tracked: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """activation(batch_norm(conv2d(input, weight, bias)) + residual), in one op with one exact backward.

    Args:
        input: (N, C, H, W), any floating dtype; any strides.
        weight: (K, C / groups, R, S), dtype of input.
        bias: (K,) or None.
        gamma, beta: (K,), scale and shift of the norm, or None.
        running_mean, running_var: (K,); in training they are updated in place, and may be None.
        training: normalize by the statistics of this batch, else by the running ones.
        momentum: the share of this batch in the running statistics.
        residual: the shape of the result, added before the activation, or None.
        activation: "relu" or None.
        num_batches_tracked: (), int64: in training it grows by 1; or None.
    Returns: (N, K, P, Q), dtype of input.
    Raises: ValueError: as conv2d and batch_norm; the residual's shape differs. TypeError: as conv2d;
        num_batches_tracked is no int64.
    Grad: input, weight, bias, gamma, beta, residual. Saves input, parameters, mean and inverse deviation, and what the
        backend wants: the convolution's output or less, and one bit per element where it can't tell the ReLU's mask.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167 (batch norm and its gradient).

    Example:
        >>> x, w, one, zero = genesis.ones(1, 1, 3, 3), genesis.ones(1, 1, 3, 3), genesis.ones(1), genesis.zeros(1)
        >>> F.conv_bn_relu(x, w, None, one, zero, zero, one, eps=0.0).item()
        9.0
    """
    tensors = (input, weight, bias, gamma, beta, running_mean, running_var, residual)
    operands = shapes_of("conv_bn_relu", _OPERANDS, tensors, required=2)
    geometry, strides, is_empty = _check(*operands, training, stride, padding, dilation, groups, activation)
    count = None if num_batches_tracked is None else _count("conv_bn_relu", num_batches_tracked)
    if is_empty:  # nothing to normalize, and nothing to learn from
        if count is not None and training:
            count.add_into(1)
        return conv2d(input, weight, bias, stride, padding, dilation, groups)
    if modes.state.autocast is not None:  # the convolution's operands take its precision, the norm's stay as they are
        input, weight, bias, residual = modes.state.autocast(Conv2d, (input, weight, bias, residual))
    running = (None if running_mean is None else running_mean.array, None if running_var is None else running_var.array)
    return ConvBNReLU.apply(
        input, weight, bias, gamma, beta, residual, running=running, training=training, momentum=momentum,
        eps=eps, geometry=geometry, strides=strides, activation=activation, count=count,
    )  # fmt: skip


_OPERANDS = ("input", "weight", "bias", "gamma", "beta", "running_mean", "running_var", "residual")


@remembered
def _check(
    x_shape: Shape, w_shape: Shape, bias: Shape | None, gamma: Shape | None, beta: Shape | None, mean: Shape | None,
    var: Shape | None, residual: Shape | None, training: bool, stride: Any, padding: Any, dilation: Any, groups: Any,
    activation: Any,
) -> tuple[Geometry, Shape, bool]:  # fmt: skip
    """All that is checked of shapes and settings; gives the convolution's geometry, the strides that its input must
    have, and whether the result is empty."""
    op = "conv_bn_relu"
    geometry, _, strides = check_shapes(op, 2, x_shape, w_shape, bias, stride, padding, dilation, groups)
    if len(x_shape) != 4:
        raise ShapeError(describe(op, "input", "4 dimensions", f"shape {x_shape}"))
    if strides is None:
        raise ShapeError(describe(op, "padding", '"same" with odd kernel sizes only', w_shape[2:]))
    check_statistics(op, w_shape[0], training, mean, var, gamma, beta, names=("gamma", "beta"))
    shape = _output_shape(x_shape, w_shape, geometry)
    if training:
        check_several_values(op, shape)
    _check_residual(op, residual, shape)
    _check_activation(op, activation)
    return geometry, strides, 0 in shape


class ConvBNReLU(ArrayFunction):
    adds_up = True

    @staticmethod
    def forward(
        ctx: Any, input: NDArray, weight: NDArray, bias: NDArray | None, gamma: NDArray | None, beta: NDArray | None,
        residual: NDArray | None, *, running: Sequence[NDArray | None], training: bool, momentum: float,
        eps: float, geometry: Geometry, strides: Shape, activation: str | None, count: NDArray | None,
    ) -> NDArray:  # fmt: skip
        check_dtypes("conv_bn_relu", input, weight, bias)
        if input.strides != strides:
            input = input.contiguous(channels_last=True)
        if residual is not None:
            residual = residual.to(input.dtype)
        mean, var = running
        options = training, momentum, eps, *geometry, activation, count
        y, mean, inverse_std, *kept = ops.conv_bn_relu(input, weight, bias, gamma, beta, mean, var, residual, *options)
        if training:
            for statistic in (*running, count):
                if statistic is not None:
                    statistic.changes.note()
        else:
            mean = running[0]  # the array itself, so that a change of it before backward is noticed
        if True in ctx.needs_input_grad:
            ctx.save(input, weight, bias, gamma, beta, mean, inverse_std, *kept)
            ctx.options = (training, *geometry, activation)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Gradients:
        if ctx.options[-1] is not None:
            args = *ctx.saved, *ctx.options, ctx.needs_input_grad, ctx.owns_grad, ctx.addend
            return ops.conv_bn_relu_backward(grad, *args)
        *needs, needs_residual = ctx.needs_input_grad  # without activation the gradient of the residual is grad itself
        args = *ctx.saved, *ctx.options, (*needs, False), ctx.owns_grad and not needs_residual, ctx.addend
        *grads, _ = ops.conv_bn_relu_backward(grad, *args)
        return *grads, grad if needs_residual else None


def fold_batch_norm(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that does convolution and batch norm (in eval mode) at once, without gradient.

        scale = γ / √(var + eps);  weight' = weight · scale;  bias' = (bias − mean) · scale + β

    Args:
        weight: (K, C / groups, R, S); the others (K,) or None.
    Returns: weight and bias in the dtype of weight; computed in float64 where weight is that, else in float32.

    Example:
        >>> one, kernel = genesis.ones(1), genesis.ones(1, 1, 1, 1)
        >>> weight, bias = F.fold_batch_norm(kernel, None, None, None, mean=one, var=one, eps=0.0)
        >>> weight.item(), bias.item()
        (1.0, -1.0)
    """
    dtype = weight.array.dtype
    scale = var.array.add(eps).rsqrt()
    scale = scale if gamma is None else scale.mul(gamma.array)
    shift = (mean.array.neg() if bias is None else bias.array.sub(mean.array)).mul(scale)
    shift = shift if beta is None else shift.add(beta.array)
    folded = weight.array.mul(scale.reshape((weight.array.shape[0], *(1,) * (weight.array.ndim - 1))))
    return weight._like(folded.to(dtype)), weight._like(shift.to(dtype))


class PackedConv:
    """A convolution prepared for inference: the backend's own packed weight, and what must be known of it to check."""

    def __init__(self, packed: Any, weight: Tensor, geometry: Geometry) -> None:
        self.packed = packed
        self.geometry = geometry
        self.fits_all_shapes: bool = packed.fits_all_shapes  # it is as good for inputs of other sizes
        self.weight_shape, self.dtype, self.device = weight.array.shape, weight.array.dtype, weight.array.device


def conv_prepack(
    weight: Tensor, bias: Tensor | None, input_shape: Shape, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1,
) -> PackedConv:  # fmt: skip
    """weight in the layout in which conv_prepacked runs fastest, for inputs like input_shape (others work too)."""
    op = "conv_prepack"
    require_tensor(op, "weight", weight)
    if len(input_shape) != 4 or weight.array.ndim != 4:
        raise ShapeError(describe(op, "input_shape", "4 sizes, and a weight of 4 dimensions", tuple(input_shape)))
    geometry, extra = conv_geometry(op, tuple(input_shape), weight.array.shape, stride, padding, dilation, groups)
    if any(extra):
        raise ShapeError(describe(op, "padding", '"same" with odd kernel sizes only', weight.array.shape[2:]))
    check_bias(op, None if bias is None else bias.array.shape, weight.array.shape[0])
    packed = ops.conv_prepack(weight.array, None if bias is None else bias.array, tuple(input_shape), *geometry)
    return PackedConv(packed, weight, geometry)


def conv_prepacked(
    input: Tensor, packed: PackedConv, residual: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """activation(conv2d(input) + residual) with a weight from conv_prepack; without gradient.

    Example:
        >>> x = genesis.ones(1, 1, 3, 3)
        >>> F.conv_prepacked(x, F.conv_prepack(genesis.ones(1, 1, 3, 3), None, x.shape)).item()
        9.0
    """
    op = "conv_prepacked"
    require_tensor(op, "input", input)
    if input.array.ndim != 4:
        raise ShapeError(describe(op, "input", "4 dimensions", f"shape {input.array.shape}"))
    conv_geometry(op, input.array.shape, packed.weight_shape, *packed.geometry)
    if residual is not None:
        require_tensor(op, "residual", residual)
        shape = _output_shape(input.array.shape, packed.weight_shape, packed.geometry)
        _check_residual(op, residual.array.shape, shape)
    _check_activation(op, activation)
    return ConvPrepacked.apply(input, residual, packed=packed, activation=activation)


class ConvPrepacked(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(
        ctx: Any, input: NDArray, residual: NDArray | None, *, packed: PackedConv, activation: str | None
    ) -> NDArray:
        return ops.conv_prepacked(
            input.to(packed.dtype),
            packed.packed,
            residual if residual is None else residual.to(packed.dtype),
            activation,
        )


@remembered
def _output_shape(x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
    stride, padding, dilation, _ = geometry
    sizes = [
        (x_shape[2 + i] + 2 * padding[i] - dilation[i] * (w_shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    return (x_shape[0], w_shape[0], *sizes)


def _count(op: str, tensor: Any) -> NDArray:
    """The array of what counts batches."""
    require_tensor(op, "num_batches_tracked", tensor)
    array: NDArray = tensor.array
    if array.dtype is not dtypes.int64:
        raise DTypeError(describe(op, "num_batches_tracked", "int64", array.dtype))
    if array.shape != ():
        raise ShapeError(describe(op, "num_batches_tracked", "shape ()", array.shape))
    return array


def _check_residual(op: str, residual: Shape | None, shape: Shape) -> None:
    if residual is not None and residual != shape:
        raise ShapeError(describe(op, "residual", f"the result's shape {shape}", residual))


def _check_activation(op: str, activation: str | None) -> None:
    if activation not in ("relu", None):
        raise ValueError(describe(op, "activation", '"relu" or None', repr(activation)))
