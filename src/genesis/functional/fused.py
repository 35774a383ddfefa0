"""Convolution, batch norm, residual and ReLU as one op; and the same with the norm folded into the weight."""

from __future__ import annotations

from typing import NoReturn, Protocol, TypedDict, Unpack

from genesis import activations, dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor, modes
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.conv import (
    Conv2d,
    check_bias,
    check_dtypes,
    check_shapes,
    conv2d,
    conv_geometry,
)  # fmt: skip
from genesis.functional.normalization import check_several_values, check_statistics
from genesis.functional.windows import Size, remembered, require_tensor, shapes_of
from genesis.ndarray import NDArray, ops
from genesis.records import ConvGeometry, ConvSettings, NormOptions, NormState, SavedConvNorm, record
from genesis.shapes import Shape

__all__ = ["PackedConv", "conv_bn_relu", "conv_prepack", "conv_prepacked", "fold_batch_norm"]


_DEFAULT = ConvSettings()


def conv_bn_relu(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], options: NormOptions,
    settings: ConvSettings = _DEFAULT, residual: Tensor | None = None, activation: str | None = "relu",
) -> Tensor:  # fmt: skip
    """activation(batch_norm(conv2d(input, weight, bias)) + residual), in one op with one exact backward.

    Args:
        input: (N, C, H, W), any floating dtype; any strides.
        weight: (K, C / groups, R, S), dtype of input.
        bias: (K,) or None.
        norm: NormState(gamma, beta, running_mean, running_var, num_batches_tracked): scale and shift, (K,) or None;
            running statistics, (K,), in training updated in place, or None; and int64 (), which grows by 1 in training,
            or None.
        options: NormOptions(training, momentum, eps): whether to normalize by the statistics of this batch or by the
            running ones, the share of this batch in the running ones, and what is added to the variance.
        settings: ConvSettings(stride, padding, dilation, groups): the convolution's geometry, in the terms of F.conv2d.
        residual: the shape of the result, added before the activation, or None.
        activation: a name of `genesis.activations.NUMBERS`, such as "relu", "silu" or "leaky_relu(0.1)"; or None.
    Returns: (N, K, P, Q), dtype of input.
    Raises: ValueError: as conv2d and batch_norm; the residual's shape differs; it is no activation. TypeError: as
        conv2d; norm, options or settings is no such record; num_batches_tracked is no int64.
    Grad: input, weight, bias, gamma, beta, residual. Saves input, parameters, mean and inverse deviation, and as the
        backend needs them the convolution's output or less, and a mask of one bit per element for ReLU, or the values
        before another activation.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167 (batch norm and its gradient).

    Example:
        >>> from genesis.records import ConvSettings, NormOptions, NormState
        >>> x, w, one, zero = genesis.ones(1, 1, 3, 3), genesis.ones(1, 1, 3, 3), genesis.ones(1), genesis.zeros(1)
        >>> norm, options = NormState(one, zero, zero, one), NormOptions(training=False, eps=0.0)
        >>> F.conv_bn_relu(x, w, None, norm, options, ConvSettings(padding=1)).tolist()
        [[[[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]]]
    """
    if type(norm) is not NormState or type(options) is not NormOptions or type(settings) is not ConvSettings:
        _refuse_records(norm, options, settings)
    gamma, beta, running_mean, running_var, num_batches_tracked = norm
    tensors = (input, weight, bias, gamma, beta, running_mean, running_var, residual)
    shapes = shapes_of("conv_bn_relu", OPERANDS, tensors, required=2)
    geometry, strides, is_empty = _check(shapes, options.training, *settings)
    activation = activations.checked("conv_bn_relu", activation)
    count = None if num_batches_tracked is None else _count("conv_bn_relu", num_batches_tracked)
    if is_empty:  # nothing to normalize, and nothing to learn from
        if count is not None and options.training:
            count.add_into(1)
        return conv2d(input, weight, bias, *settings)
    if modes.state.autocast is not None:  # the convolution's operands take its precision, the norm's stay as they are
        input, weight, bias, residual = modes.state.autocast(Conv2d, (input, weight, bias, residual))
    running = (None if running_mean is None else running_mean.array, None if running_var is None else running_var.array)
    return ConvBNReLU.apply(
        input, weight, bias, gamma, beta, residual, running=running, count=count, options=options, geometry=geometry,
        strides=strides, activation=activation,
    )  # fmt: skip


def _refuse_records(norm: object, options: object, settings: object) -> NoReturn:
    given = {"norm": (norm, NormState), "options": (options, NormOptions), "settings": (settings, ConvSettings)}
    argument, (value, kind) = next(each for each in given.items() if type(each[1][0]) is not each[1][1])
    raise DTypeError(describe("conv_bn_relu", argument, f"a {kind.__name__}", type(value).__name__))


OPERANDS = ("input", "weight", "bias", "gamma", "beta", "running_mean", "running_var", "residual")


@remembered
def _check(
    shapes: tuple[Shape, Shape, *tuple[Shape | None, ...]],
    training: bool,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> tuple[ConvGeometry, Shape, bool]:
    """check_operands, and that there are values to normalize by."""
    geometry, strides, shape = check_operands(shapes, training, stride, padding, dilation, groups)
    if training:
        check_several_values("conv_bn_relu", shape)
    check_residual("conv_bn_relu", shapes[-1], shape)
    return geometry, strides, 0 in shape


@remembered
def check_operands(
    shapes: tuple[Shape, Shape, *tuple[Shape | None, ...]],
    training: bool,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> tuple[ConvGeometry, Shape, Shape]:
    """Check shapes, those of OPERANDS, and settings; return the convolution's geometry, the strides that its input
    must have, and the shape of the result."""
    op = "conv_bn_relu"
    x_shape, w_shape, *others = shapes
    bias, gamma, beta, mean, var, _ = others
    geometry, _, strides = check_shapes(op, 2, (x_shape, w_shape, bias), stride, padding, dilation, groups)
    if len(x_shape) != 4:
        raise ShapeError(describe(op, "input", "4 dimensions", f"shape {x_shape}"))
    if strides is None:
        raise ShapeError(describe(op, "padding", '"same" with odd kernel sizes only', w_shape[2:]))
    check_statistics(op, w_shape[0], training, mean, var, gamma, beta, names=("gamma", "beta"))
    return geometry, strides, _output_shape(x_shape, w_shape, geometry)


class _Settings(TypedDict):
    """The named arguments of ConvBNReLU. strides: those that the input must have."""

    running: tuple[NDArray | None, NDArray | None]  # mean and variance
    count: NDArray | None
    options: NormOptions
    geometry: ConvGeometry
    strides: Shape
    activation: str | None


class ConvBNReLU(ArrayFunction):
    adds_up = True

    @staticmethod
    def forward(
        ctx: Context, input: NDArray, weight: NDArray, bias: NDArray | None, gamma: NDArray | None,
        beta: NDArray | None, residual: NDArray | None, **settings: Unpack[_Settings],
    ) -> NDArray:  # fmt: skip
        check_dtypes("conv_bn_relu", input, weight, bias)
        if input.strides != settings["strides"]:
            input = input.contiguous(channels_last=True)
        if residual is not None:
            residual = residual.to(input.dtype)
        running, count, options = settings["running"], settings["count"], settings["options"]
        geometry, activation = settings["geometry"], settings["activation"]
        norm = record(NormState, (gamma, beta, *running, count))
        y, mean, inverse_std, *kept = ops.conv_bn_relu(
            input, weight, bias, norm, residual, options, geometry, activation
        )  # fmt: skip
        if options.training:
            for statistic in (*running, count):
                if statistic is not None:
                    statistic.changes.note()
        if True in ctx.needs_input_grad:
            # A running mean is saved itself, so that a change of it before backward is noticed.
            mean_used = mean if options.training else running[0]
            conv_output, passed = kept
            ctx.result = None
            if activation is not None and passed is not None and passed.handle is y.handle:
                if activations.keeps_result(activation):
                    passed = y  # which learns of changes, other than an array of its own
                else:
                    ctx.result, ctx.count = y, y.changes.count
            ctx.save(input, weight, bias, gamma, beta, mean_used, inverse_std, conv_output, passed)
            ctx.options = options.training, geometry, activation
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        saved, (training, geometry, activation) = record(SavedConvNorm, ctx.saved), ctx.options
        needs, may_overwrite, addend = ctx.needs_input_grad, ctx.owns_grad, ctx.addend
        if ctx.result is not None and ctx.result.changes.count != ctx.count:
            saved = saved._replace(passed=None)  # it is computed again
        if activation is not None:
            return ops.conv_bn_relu_backward(grad, saved, training, geometry, activation, needs, may_overwrite, addend)
        *of_operands, needs_residual = needs  # without activation the gradient of the residual is grad itself
        needs, may_overwrite = (*of_operands, False), may_overwrite and not needs_residual
        *grads, _ = ops.conv_bn_relu_backward(
            grad, saved, training, geometry, None, needs, may_overwrite, addend
        )  # fmt: skip
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
        weight: (K, C / groups, R, S).
        bias, gamma, beta: (K,) or None.
        mean, var: (K,), the running statistics.
        eps: added to the variance.
    Returns: weight (K, C / groups, R, S) and bias (K,), dtype of weight; computed in float64 if weight is, else in
        float32.

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


class Packed(Protocol):
    """A backend's own packed weight."""

    fits_all_shapes: bool


class PackedConv:
    """A convolution prepared for inference: the backend's packed weight, its geometry, shape, dtype and device.

    Made by `F.conv_prepack`.
    """

    def __init__(self, packed: Packed, weight: Tensor, geometry: ConvGeometry) -> None:
        self.packed = packed
        self.geometry = geometry
        self.fits_all_shapes = packed.fits_all_shapes  # it is as good for inputs of other sizes
        self.weight_shape, self.dtype, self.device = weight.array.shape, weight.array.dtype, weight.array.device


def conv_prepack(
    weight: Tensor, bias: Tensor | None, input_shape: Shape, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1,
) -> PackedConv:  # fmt: skip
    """Pack a weight in the layout in which conv_prepacked runs fastest.

    Args:
        weight: (K, C / groups, R, S), any floating dtype.
        bias: (K,), dtype of weight, or None.
        input_shape: four ints, (N, C, H, W): the layout is chosen for such inputs, and other sizes work too.
        stride, padding, dilation, groups: as in `F.conv2d`.
    Returns: the packed convolution, for conv_prepacked.
    Raises: ValueError: weight or input_shape is not 4-d; channels don't match; "same" with an even kernel size.

    Example:
        >>> packed = F.conv_prepack(genesis.ones(1, 1, 3, 3), None, (1, 1, 5, 5))
        >>> F.conv_prepacked(genesis.ones(1, 1, 5, 5), packed).shape
        (1, 1, 3, 3)
    """
    op = "conv_prepack"
    require_tensor(op, "weight", weight)
    if len(input_shape) != 4 or weight.array.ndim != 4:
        raise ShapeError(describe(op, "input_shape", "4 sizes, and a weight of 4 dimensions", tuple(input_shape)))
    geometry, extra = conv_geometry(op, tuple(input_shape), weight.array.shape, stride, padding, dilation, groups)
    if any(extra):
        raise ShapeError(describe(op, "padding", '"same" with odd kernel sizes only', weight.array.shape[2:]))
    check_bias(op, None if bias is None else bias.array.shape, weight.array.shape[0])
    packed = ops.conv_prepack(weight.array, None if bias is None else bias.array, tuple(input_shape), geometry)
    return PackedConv(packed, weight, geometry)


def conv_prepacked(
    input: Tensor, packed: PackedConv, residual: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """activation(conv2d(input) + residual) with a weight from conv_prepack; without gradient.

    Args:
        input: (N, C, H, W), cast to the dtype of the packed weight.
        packed: the result of conv_prepack.
        residual: the shape of the result, added before the activation; or None.
        activation: as in `F.conv_bn_relu`; by default none.
    Returns: (N, K, P, Q), dtype of the packed weight.
    Raises: ValueError: it is no activation; input is not 4-d; channels don't match; the residual's shape differs.

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
        check_residual(op, residual.array.shape, shape)
    return ConvPrepacked.apply(input, residual, packed=packed, activation=activations.checked(op, activation))


class ConvPrepacked(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(
        ctx: Context, input: NDArray, residual: NDArray | None, *, packed: PackedConv, activation: str | None
    ) -> NDArray:
        return ops.conv_prepacked(
            input.to(packed.dtype),
            packed.packed,
            residual if residual is None else residual.to(packed.dtype),
            activation,
        )


@remembered
def _output_shape(x_shape: Shape, w_shape: Shape, geometry: ConvGeometry) -> Shape:
    stride, padding, dilation, _ = geometry
    sizes = [
        (x_shape[2 + i] + 2 * padding[i] - dilation[i] * (w_shape[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    return (x_shape[0], w_shape[0], *sizes)


def _count(op: str, tensor: Tensor) -> NDArray:
    """The array of num_batches_tracked, checked."""
    require_tensor(op, "num_batches_tracked", tensor)
    array = tensor.array
    if array.dtype is not dtypes.int64:
        raise DTypeError(describe(op, "num_batches_tracked", "int64", array.dtype))
    if array.shape != ():
        raise ShapeError(describe(op, "num_batches_tracked", "shape ()", array.shape))
    return array


def check_residual(op: str, residual: Shape | None, shape: Shape) -> None:
    if residual is not None and residual != shape:
        raise ShapeError(describe(op, "residual", f"the result's shape {shape}", residual))
