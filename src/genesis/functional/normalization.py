"""Normalisation: over the batch, over the last dimensions, over groups of channels, over each instance."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import activations, shapes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.windows import require_tensor, shapes_of
from genesis.ndarray import NDArray, ops
from genesis.records import SavedGroupNorm
from genesis.shapes import Shape

__all__ = ["batch_norm", "group_norm", "group_norm_act", "instance_norm", "layer_norm", "rms_norm"]


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalize each channel over the batch.

        y = (x − mean) / √(var + eps) · weight + bias

    Args:
        input: (N, C, …), any floating dtype.
        running_mean, running_var: (C,). In training they are updated in place (var without bias), and may be None.
        weight, bias: (C,) or None; float32 beside a 16-bit input, or its dtype.
        training: mean and var are those of this batch, else the running ones.
        momentum: the share of this batch in the running statistics.
        eps: added to the variance; positive in training.
    Returns: the shape and dtype of input.
    Raises: ValueError: a size isn't C; no running statistics in eval mode; a single value per channel in training.
    Grad: input, weight, bias. Saves input, mean and inverse deviation.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.

    Example:
        >>> F.batch_norm(genesis.tensor([[1.0], [3.0]]), None, None, training=True, eps=1e-9).tolist()
        [[-1.0], [1.0]]
    """
    op = "batch_norm"
    _check_channels(op, input)
    of_channels = shapes_of(op, _OF_CHANNELS, (running_mean, running_var, weight, bias), required=0)
    check_statistics(op, input.array.shape[1], training, *of_channels)
    if eps < 0 or (training and eps == 0):
        raise ValueError(describe(op, "eps", "a positive number (0 only in eval mode)", eps))
    if training:
        check_several_values(op, input.array.shape)
    if not input.array.numel:
        return NormOfNothing.apply(input, weight, bias)
    running = tuple(None if statistic is None else statistic.array for statistic in (running_mean, running_var))
    return BatchNorm.apply(input, weight, bias, running=running, training=training, momentum=momentum, eps=eps)


class BatchNorm(ArrayFunction):
    """Without a rule for autocast: 16-bit inputs have float32 statistics anyway, and stay 16 bits wide on their way."""

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None, *,
        running: tuple[NDArray | None, NDArray | None], training: bool, momentum: float, eps: float,
    ) -> NDArray:  # fmt: skip
        y, mean, inverse_std = ops.batch_norm(x, weight, bias, *running, training, momentum, eps)
        if training:
            for statistic in running:
                if statistic is not None:
                    statistic.changes.note()
        if any(ctx.needs_input_grad):
            # A running mean is saved itself, so that a change of it before backward is noticed.
            ctx.save(x, weight, mean if training else running[0], inverse_std)
            ctx.training = training
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, weight, mean, inverse_std = ctx.saved
        return ops.batch_norm_backward(grad, x, weight, mean, inverse_std, ctx.training, ctx.needs_input_grad)


class NormOfNothing(ArrayFunction):
    """An input without elements: there are no statistics, and the gradients of weight and bias are sums of nothing."""

    @staticmethod
    def forward(ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None) -> NDArray:
        ctx.save(weight, bias)
        return x.clone()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad, *[None if each is None else each.full_like(0) for each in ctx.saved]


def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalize over the last dimensions.

        y = (x − mean) / √(var + eps) · weight + bias

    Args:
        input: (…, *normalized_shape), any floating dtype.
        normalized_shape: the last dimensions of input, or an int for the last one.
        weight, bias: normalized_shape, or None.
        eps: added to the variance.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating. ShapeError: its last dimensions, weight or bias have another shape.
    Grad: input, weight, bias. Saves input, mean and inverse deviation.
    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.

    Example:
        >>> F.layer_norm(genesis.tensor([1.0, 3.0]), (2,), eps=0.0).tolist()
        [-1.0, 1.0]
    """
    normalized_shape = _check_last_dims("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return LayerNorm.apply(input, weight, bias, normalized_ndim=len(normalized_shape), eps=eps)


class LayerNorm(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None, *, normalized_ndim: int, eps: float
    ) -> NDArray:
        y, mean, inverse_std = ops.layer_norm(x, normalized_ndim, weight, bias, eps)
        if any(ctx.needs_input_grad):
            ctx.save(x, weight, mean, inverse_std)
            ctx.normalized_ndim = normalized_ndim
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, weight, mean, inverse_std = ctx.saved
        return ops.layer_norm_backward(grad, x, ctx.normalized_ndim, weight, mean, inverse_std, ctx.needs_input_grad)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalize each sample over groups of channels.

        y = (x − mean) / √(var + eps) · weight + bias

    Args:
        input: (N, C, …), any floating dtype.
        num_groups: divides C.
        weight, bias: (C,) or None.
        eps: added to the variance.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating. ShapeError: num_groups does not divide C; weight or bias is not (C,); a
        single value per group.
    Grad: input, weight, bias. Saves input, mean and inverse deviation.
    Source: Wu & He 2018, arXiv:1803.08494.

    Example:
        >>> F.group_norm(genesis.tensor([[1.0, 3.0, 2.0, 2.0]]), 2, eps=1e-9).tolist()
        [[-1.0, 1.0, 0.0, 0.0]]
    """
    _check_groups("group_norm", input, num_groups, weight, bias)
    return GroupNorm.apply(input, weight, bias, num_groups=num_groups, eps=eps)


class GroupNorm(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None, *, num_groups: int, eps: float,
        running: tuple[NDArray | None, NDArray | None] = (None, None), momentum: float = 0.0,
    ) -> NDArray:  # fmt: skip
        y, mean, inverse_std = ops.group_norm(x, num_groups, weight, bias, eps)
        if running[0] is not None:
            _update_running(running, momentum, mean, inverse_std, eps, shapes.numel(x.shape[2:]))
        if any(ctx.needs_input_grad):
            ctx.save(x, weight, mean, inverse_std)
            ctx.num_groups = num_groups
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, weight, mean, inverse_std = ctx.saved
        saved = SavedGroupNorm(x, weight, None, mean, inverse_std)
        return ops.group_norm_backward(grad, saved, ctx.num_groups, ctx.needs_input_grad)


def group_norm_act(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    activation: str | None = "silu",
) -> Tensor:  # fmt: skip
    """activation(group_norm(input)) in one op, which keeps nothing between the two.

    Args:
        input, num_groups, weight, bias, eps: as in `F.group_norm`.
        activation: a name of `genesis.activations.NUMBERS`, such as "relu", "silu" or "leaky_relu(0.1)"; or None.
    Returns: the shape and dtype of input.
    Raises: TypeError, ValueError: as group_norm; it is no activation.
    Grad: input, weight, bias. Saves input, parameters, mean and inverse deviation.
    Source: Wu & He 2018, arXiv:1803.08494.

    Example:
        >>> F.group_norm_act(genesis.tensor([[1.0, 3.0, 2.0, 2.0]]), 2, eps=1e-9, activation="relu").tolist()
        [[0.0, 1.0, 0.0, 0.0]]
    """
    activation = activations.checked("group_norm_act", activation)
    _check_groups("group_norm_act", input, num_groups, weight, bias)
    if activation is None:
        return GroupNorm.apply(input, weight, bias, num_groups=num_groups, eps=eps)
    return GroupNormAct.apply(input, weight, bias, num_groups=num_groups, eps=eps, activation=activation)


class GroupNormAct(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, bias: NDArray | None, *, num_groups: int, eps: float,
        activation: str,
    ) -> NDArray:  # fmt: skip
        y, mean, inverse_std = ops.group_norm(x, num_groups, weight, bias, eps, activation)
        if any(ctx.needs_input_grad):
            ctx.save(x, weight, bias, mean, inverse_std)
            ctx.options = num_groups, activation
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        saved, (num_groups, activation) = SavedGroupNorm(*ctx.saved), ctx.options
        return ops.group_norm_backward(grad, saved, num_groups, ctx.needs_input_grad, activation)


def _check_groups(op: str, input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> None:
    _check_channels(op, input)
    n, channels, *plane = input.array.shape
    if isinstance(num_groups, bool) or not hasattr(num_groups, "__index__"):
        raise DTypeError(describe(op, "num_groups", "an int", type(num_groups).__name__))
    if num_groups < 1 or channels % num_groups:
        raise ShapeError(describe(op, "num_groups", f"a divisor of the {channels} channels", num_groups))
    weight_shape, bias_shape = shapes_of(op, ("weight", "bias"), (weight, bias), required=0)
    _check_sizes(op, channels, weight=weight_shape, bias=bias_shape)
    if n * channels // num_groups * shapes.numel(plane) == 1:
        raise ShapeError(describe(op, "input", "more than 1 value per group", f"shape {input.array.shape}"))


def _update_running(
    running: Sequence[NDArray | None], momentum: float, mean: NDArray, inverse_std: NDArray, eps: float, count: int
) -> None:
    """Running statistics of instance norm: those of the instances, averaged over the batch; var without bias."""
    var = inverse_std.mul(inverse_std).reciprocal().sub(eps).mul(count / (count - 1))
    for statistic, each in zip(running, (mean, var), strict=True):
        assert statistic is not None  # both are given, or none
        channels = statistic.shape[0]
        latest = ops.mean(each.reshape((each.numel // channels, channels)), (0,)).to(statistic.dtype)
        statistic.copy_into(statistic.mul(1 - momentum).add(latest.mul(momentum)))


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalize each channel of each sample over its plane.

    Args:
        input: (N, C, …), any floating dtype.
        running_mean, running_var: (C,). With use_input_stats they are updated in place, and may be None.
        weight, bias: (C,) or None.
        use_input_stats: mean and var are those of each plane, else the running ones.
        momentum: the share of this batch in the running statistics.
        eps: added to the variance.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating. ValueError: running statistics are missing. ShapeError: a size is not C;
        a single value per plane.
    Grad: input, weight, bias. Saves input, mean and inverse deviation.
    Source: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.

    Example:
        >>> F.instance_norm(genesis.tensor([[[1.0, 3.0]]]), eps=1e-9).tolist()
        [[[-1.0, 1.0]]]
    """
    op = "instance_norm"
    _check_channels(op, input)
    _, channels, *plane = input.array.shape
    of_channels = shapes_of(op, _OF_CHANNELS, (running_mean, running_var, weight, bias), required=0)
    check_statistics(op, channels, use_input_stats, *of_channels)
    if not input.array.numel:
        return NormOfNothing.apply(input, weight, bias)
    running = tuple(None if statistic is None else statistic.array for statistic in (running_mean, running_var))
    if not use_input_stats:
        return BatchNorm.apply(input, weight, bias, running=running, training=False, momentum=momentum, eps=eps)
    if shapes.numel(plane) == 1:
        raise ShapeError(describe(op, "input", "more than 1 value per plane", f"shape {input.array.shape}"))
    return GroupNorm.apply(input, weight, bias, num_groups=channels, eps=eps, running=running, momentum=momentum)


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root mean square of the last dimensions.

        y = x / √(mean(x²) + eps) · weight

    Args:
        input: (…, *normalized_shape), any floating dtype.
        normalized_shape: the last dimensions of input, or an int for the last one.
        weight: normalized_shape, or None.
        eps: None for the distance from 1 to the next number of input's dtype.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating. ShapeError: its last dimensions or weight have another shape.
    Grad: input, weight. Saves input and the inverse root mean square.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467.

    Example:
        >>> F.rms_norm(genesis.tensor([3.0, 3.0]), (2,), eps=0.0).tolist()
        [1.0, 1.0]
    """
    normalized_shape = _check_last_dims("rms_norm", input, normalized_shape, weight=weight)
    return RMSNorm.apply(input, weight, normalized_ndim=len(normalized_shape), eps=eps)


EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class RMSNorm(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, weight: NDArray | None, *, normalized_ndim: int, eps: float | None
    ) -> NDArray:
        y, inverse_rms = ops.rms_norm(x, normalized_ndim, weight, EPSILON[x.dtype.name] if eps is None else eps)
        if any(ctx.needs_input_grad):
            ctx.save(x, weight, inverse_rms)
            ctx.normalized_ndim = normalized_ndim
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, weight, inverse_rms = ctx.saved
        return ops.rms_norm_backward(grad, x, ctx.normalized_ndim, weight, inverse_rms, ctx.needs_input_grad)


# --- checks ---------------------------------------------------------------------------------------------------------


_OF_CHANNELS = ("running_mean", "running_var", "weight", "bias")


def check_statistics(
    op: str, channels: int, training: bool, running_mean: Shape | None, running_var: Shape | None,
    weight: Shape | None, bias: Shape | None, *, names: tuple[str, str] = ("weight", "bias"),
) -> None:  # fmt: skip
    """Everything that has one value for each channel has that shape; eval mode needs the running statistics."""
    if not training and (running_mean is None or running_var is None):
        argument = "running_mean" if running_mean is None else "running_var"
        raise ValueError(describe(op, argument, "a Tensor, as the running statistics are used", None))
    if (running_mean is None) != (running_var is None):
        raise ValueError(describe(op, "running_var", "to be given or None, as running_mean is", running_var))
    given = {"running_mean": running_mean, "running_var": running_var, names[0]: weight, names[1]: bias}
    _check_sizes(op, channels, **given)


def check_several_values(op: str, shape: Shape) -> None:
    """A single value per channel has no variance to train on."""
    if shapes.numel(shape) == shape[1]:
        raise ShapeError(describe(op, "input", "more than 1 value per channel in training", f"shape {shape}"))


def _check_floating(op: str, input: Tensor) -> None:
    require_tensor(op, "input", input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))


def _check_channels(op: str, input: Tensor) -> None:
    _check_floating(op, input)
    if input.array.ndim < 2:
        raise ShapeError(describe(op, "input", "at least 2 dimensions", f"shape {input.array.shape}"))


def _check_sizes(op: str, channels: int, **given: Shape | None) -> None:
    for argument, shape in given.items():
        if shape is not None and shape != (channels,):
            raise ShapeError(describe(op, argument, f"shape {(channels,)}, one for each channel", shape))


def _check_last_dims(op: str, input: Tensor, normalized_shape: int | Sequence[int], **tensors: Tensor | None) -> Shape:
    _check_floating(op, input)
    normalized = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if not normalized:
        raise ShapeError(describe(op, "normalized_shape", "at least 1 dimension", normalized))
    if input.array.shape[-len(normalized) :] != normalized:
        expected = f"the last dimensions of input {input.array.shape}"
        raise ShapeError(describe(op, "normalized_shape", expected, normalized))
    for argument, tensor in tensors.items():
        if tensor is not None:
            require_tensor(op, argument, tensor)
            if tensor.array.shape != normalized:
                raise ShapeError(describe(op, argument, f"shape {normalized}", tensor.array.shape))
    return normalized
