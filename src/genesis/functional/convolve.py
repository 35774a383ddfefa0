"""conv and transposed_conv: convolution of images, stacks of planes and batches by one name, also into a given result.

A 2-dimensional input is a plane (H, W), a 3-dimensional one an image (C, H, W), a 4-dimensional one a batch
(N, C, H, W). What has no batch gives (K, P, Q), a batch (N, K, P, Q).
"""

from __future__ import annotations

from genesis.autograd import Tensor
from genesis.autograd.modes import state
from genesis.errors import DeviceError, DTypeError, GraphError, ShapeError, describe
from genesis.functional.conv import Conv2d, check_conv, conv_geometry, convolve_transposed, transpose_geometry
from genesis.functional.shape import unsqueeze
from genesis.functional.windows import Size, per_dimension, require_tensor
from genesis.ndarray import NDArray
from genesis.precision import float32_precision
from genesis.shapes import Shape


def conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1, *, precision: str | None = None,
) -> Tensor:  # fmt: skip
    """Convolve a plane, an image or a batch with weight (cross-correlation), as conv2d does.

    Args:
        input: (H, W), (C, H, W) or (N, C, H, W), any floating dtype; any strides; with at least one element.
        weight: (K, C / groups, R, S), dtype and device of input.
        bias: (K,), dtype and device of input.
        stride: distance between the windows, (vertical, horizontal) or one number for both.
        padding: zeros on each side, or "valid" (none), or "same" (the output has the input's size; stride 1 only).
        dilation: distance between the taps of the kernel.
        groups: number of groups; each is convolved independently.
        precision: of float32, here and in the gradients: "highest" | "high" | "medium"; by default what is in force.
    Returns: (K, P, Q), or (N, K, P, Q) for a batch.
    Raises: DeviceError: operands on different devices. DTypeError: a dtype that is not floating, or not input's.
        ShapeError: input's or weight's rank; nothing in input; channels that don't fit; stride < 1; padding < 0; an
        output without elements. ValueError: another precision.
    Grad: input, weight, bias.

    Example:
        >>> genesis.conv(genesis.ones(3, 3), genesis.ones(1, 1, 2, 2)).tolist()
        [[[4.0, 4.0], [4.0, 4.0]]]
    """
    _check("conv", input, weight, bias)
    with float32_precision(precision):
        operands = (_with_channels(input), weight, bias)
        geometry, extra, strides = check_conv("conv", 2, operands, stride, padding, dilation, groups)
        return Conv2d.apply(*operands, geometry=geometry, extra=extra, strides=strides)


def conv_into(
    out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Write the result of conv into out, in the float32 precision in force. Gradients are not recorded.

    Args:
        out: of the shape that conv_output_shape() gives, dtype and device of input; shares no memory with an operand.
        input, weight, bias, stride, padding, dilation, groups: as in `genesis.conv`.
    Returns: out.
    Raises: as conv(); ShapeError, DTypeError, DeviceError: out is not as it should be; ValueError: out shares memory
        with an operand; GraphError: an operand requires grad.

    Example:
        >>> out = genesis.empty(1, 2, 2)
        >>> genesis.conv_into(out, genesis.ones(3, 3), genesis.ones(1, 1, 2, 2)) is out
        True
    """
    _check("conv_into", input, weight, bias)
    shape = conv_output_shape(input.array.shape, weight.array.shape, stride, padding, dilation, groups)
    _check_out("conv_into", out, shape, input, weight, bias)
    out.array.copy_into(conv(input, weight, bias, stride, padding, dilation, groups).array)
    return out


def transposed_conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
    output_padding: Size = 0, groups: int = 1, dilation: Size = 1, *, precision: str | None = None,
) -> Tensor:  # fmt: skip
    """The transpose of conv as a linear map, as conv_transpose2d computes it.

    Args:
        input: (H, W), (C, H, W) or (N, C, H, W), any floating dtype; any strides; with at least one element.
        weight: (C, K / groups, R, S), dtype and device of input.
        bias: (K,), dtype and device of input.
        stride: distance between the windows that input's elements write to.
        padding: rows and columns that are cut off each side of the result.
        output_padding: rows and columns added at the end; less than stride or dilation.
        groups: number of groups; each is convolved independently.
        dilation: distance between the taps of the kernel.
        precision: of float32, here and in the gradients: "highest" | "high" | "medium"; by default what is in force.
    Returns: (K, P, Q), or (N, K, P, Q) for a batch.
    Raises: as conv().
    Grad: input, weight, bias.

    Example:
        >>> genesis.transposed_conv(genesis.ones(1, 2), genesis.ones(1, 1, 1, 2), stride=2).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
    """
    _check("transposed_conv", input, weight, bias)
    with float32_precision(precision):
        options = (stride, padding, output_padding, groups, dilation)
        return convolve_transposed("transposed_conv", 2, (_with_channels(input), weight, bias), *options)


def transposed_conv_into(
    out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0, *,
    groups: int = 1, dilation: Size = 1,
) -> Tensor:  # fmt: skip
    """Write the result of transposed_conv into out, in the float32 precision in force. Gradients are not recorded.

    Args:
        out: dtype and device of input; shares no memory with an operand. Its shape is one that
            transposed_conv_output_shape() gives, and determines the output_padding.
        input, weight, bias, stride, padding, groups, dilation: as in `genesis.transposed_conv`.
    Returns: out.
    Raises: as conv_into().

    Example:
        >>> out = genesis.empty(1, 1, 5)  # output_padding=(0, 1)
        >>> genesis.transposed_conv_into(out, genesis.ones(1, 2), genesis.ones(1, 1, 1, 2), stride=2).tolist()
        [[[1.0, 1.0, 1.0, 1.0, 0.0]]]
    """
    op = "transposed_conv_into"
    _check(op, input, weight, bias)
    require_tensor(op, "out", out)
    output_padding = _output_padding(op, (out, input, weight), stride, padding, dilation)
    options = (stride, padding, output_padding, groups, dilation)
    shape = transposed_conv_output_shape(input.array.shape, weight.array.shape, *options)
    _check_out(op, out, shape, input, weight, bias)
    out.array.copy_into(transposed_conv(input, weight, bias, *options).array)
    return out


def conv_output_shape(
    input_shape: Shape, weight_shape: Shape, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1,
    groups: int = 1,
) -> Shape:  # fmt: skip
    """The shape of conv()'s result for operands of these shapes.

    Args:
        input_shape: (H, W), (C, H, W) or (N, C, H, W).
        weight_shape: (K, C / groups, R, S).
        stride, padding, dilation, groups: as in `genesis.conv`.
    Returns: (K, P, Q) or (N, K, P, Q).
    Raises: ShapeError: as conv().

    Example:
        >>> genesis.conv_output_shape((8, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3)
        (8, 64, 112, 112)
    """
    op, full = "conv_output_shape", _full_shape("conv_output_shape", tuple(input_shape), tuple(weight_shape))
    geometry, extra = conv_geometry(op, full, tuple(weight_shape), stride, padding, dilation, groups)
    strides, paddings, dilations, _ = geometry
    sizes = (
        (size + 2 * p + e - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d, e in zip(full[-2:], weight_shape[2:], strides, paddings, dilations, extra, strict=True)
    )
    return (*full[:-3], weight_shape[0], *sizes)


def transposed_conv_output_shape(
    input_shape: Shape, weight_shape: Shape, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
    groups: int = 1, dilation: Size = 1,
) -> Shape:  # fmt: skip
    """The shape of transposed_conv()'s result for operands of these shapes.

    Args:
        input_shape: (H, W), (C, H, W) or (N, C, H, W).
        weight_shape: (C, K / groups, R, S).
        stride, padding, output_padding, groups, dilation: as in `genesis.transposed_conv`.
    Returns: (K, P, Q) or (N, K, P, Q).
    Raises: ShapeError: as transposed_conv().

    Example:
        >>> genesis.transposed_conv_output_shape((8, 64, 14, 14), (64, 32, 2, 2), stride=2)
        (8, 32, 28, 28)
    """
    op, weight_shape = "transposed_conv_output_shape", tuple(weight_shape)
    full = _full_shape(op, tuple(input_shape), weight_shape)
    geometry, sizes, _ = transpose_geometry(
        op, full, weight_shape, stride, padding, output_padding, groups, dilation
    )  # fmt: skip
    return (*full[:-3], weight_shape[1] * geometry.groups, *sizes)


# --- checks: one message per case, before anything is computed --------------------------------------------------------


def _check(op: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    given: dict[str, Tensor] = {"input": input, "weight": weight, **({} if bias is None else {"bias": bias})}
    for argument, value in given.items():
        require_tensor(op, argument, value)
    for argument, value in given.items():
        if value.array.device is not input.array.device:
            expected = f"the device of input, {input.array.device}"
            raise DeviceError(describe(op, argument, expected, value.array.device))
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    _full_shape(op, input.array.shape, weight.array.shape)
    for argument, value in given.items():
        if 0 in value.array.shape:
            raise ShapeError(describe(op, argument, "storage with elements", f"none in shape {value.array.shape}"))


def _full_shape(op: str, input_shape: Shape, weight_shape: Shape) -> Shape:
    """input_shape with its channels; the ranks are checked."""
    if not 2 <= len(input_shape) <= 4:
        raise ShapeError(describe(op, "input", "2, 3 or 4 dimensions", f"shape {input_shape}"))
    if len(weight_shape) != 4:
        raise ShapeError(describe(op, "weight", "4 dimensions", f"shape {weight_shape}"))
    return (1, *input_shape) if len(input_shape) == 2 else input_shape


def _with_channels(input: Tensor) -> Tensor:
    return unsqueeze(input, 0) if input.array.ndim == 2 else input


def _check_out(op: str, out: Tensor, shape: Shape, input: Tensor, *others: Tensor | None) -> None:
    require_tensor(op, "out", out)
    operands, result = (input, *others), out.array
    if result.shape != shape:
        raise ShapeError(describe(op, "out", f"shape {shape}", result.shape))
    if result.dtype is not input.array.dtype:
        raise DTypeError(describe(op, "out", f"the dtype of input, {input.array.dtype}", result.dtype))
    if result.device is not input.array.device:
        raise DeviceError(describe(op, "out", f"the device of input, {input.array.device}", result.device))
    if result.is_expanded:
        raise ShapeError(describe(op, "out", "memory of its own for each element", f"strides {result.strides}"))
    for argument, operand in zip(("input", "weight", "bias"), operands, strict=True):
        if operand is not None and _overlap(result, operand.array):
            raise ValueError(describe(op, "out", f"memory apart from {argument}", "an overlap"))
    if state.recording and any(each is not None and each.requires_grad for each in (out, *operands)):
        raise GraphError(f"{op}: has no gradients; call it under no_grad(), or use {op.removesuffix('_into')}()")


def _output_padding(
    op: str, tensors: tuple[Tensor, Tensor, Tensor], stride: Size, padding: Size, dilation: Size
) -> Shape:
    """The output_padding that gives out's planes, or if there is none, the nearest planes that there are."""
    out, input, weight = (tensor.array.shape for tensor in tensors)
    strides, dilations = per_dimension(op, "stride", stride, 2, least=1), per_dimension(op, "dilation", dilation, 2, 1)
    paddings = per_dimension(op, "padding", padding, 2, least=0)
    planes = out[-2:] if len(out) >= 2 else (0, 0)
    least = (
        (size - 1) * s - 2 * p + d * (kernel - 1) + 1
        for size, kernel, s, p, d in zip(input[-2:], weight[2:], strides, paddings, dilations, strict=True)
    )
    most = (max(s, d) - 1 for s, d in zip(strides, dilations, strict=True))
    return tuple(min(max(size - low, 0), high) for size, low, high in zip(planes, least, most, strict=True))


def _overlap(x: NDArray, y: NDArray) -> bool:
    """Do the spans of memory from first to last element meet? (They may, between rows, without a shared element.)"""
    (x_first, x_last), (y_first, y_last) = _span(x), _span(y)
    return x_first <= y_last and y_first <= x_last


def _span(x: NDArray) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    return x.data_pointer, x.data_pointer + (reach + 1) * x.dtype.itemsize - 1
