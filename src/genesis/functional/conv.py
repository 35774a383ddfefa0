"""Convolution and transposed convolution in one and two dimensions. One dimension is a plane of height 1."""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, Gradients, Tensor, Unrecorded
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.windows import Size, as_planes, from_planes, per_dimension, planar, remembered, shapes_of
from genesis.ndarray import NDArray, ops
from genesis.precision import follows_forward, get_float32_precision
from genesis.records import ConvGeometry, Pair
from genesis.shapes import Shape, channels_last_strides

__all__ = ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"]


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve signals with weight (cross-correlation).

        y[n, k, q] = Σ_{c,s} x[n, c, q·stride + s·dilation − padding] · w[k, c, s] + b[k]

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        weight: (K, C / groups, S), dtype of input.
        bias: (K,), dtype of input.
        stride, padding, dilation, groups: as in `F.conv2d`.
    Returns: (N, K, Q) or (K, Q), Q = ⌊(L + 2·padding − dilation·(S − 1) − 1) / stride⌋ + 1, dtype of input.
    Raises: as F.conv2d.
    Grad: input, weight, bias.

    Example:
        >>> F.conv1d(genesis.ones(1, 1, 4), genesis.ones(1, 1, 3)).tolist()
        [[[3.0, 3.0]]]
    """
    geometry, extra, strides = check_conv("conv1d", 1, (input, weight, bias), stride, padding, dilation, groups)
    return Conv2d.apply(input, weight, bias, geometry=geometry, extra=extra, strides=strides)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
    dilation: Size = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve planes with weight (cross-correlation).

        y[n, k, p, q] = Σ_{c,r,s} x[n, c, p·stride + r·dilation − padding, …] · w[k, c, r, s] + b[k]

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype; any strides.
        weight: (K, C / groups, R, S), dtype of input.
        bias: (K,), dtype of input.
        stride: distance between the windows, (vertical, horizontal) or one number for both.
        padding: zeros on each side, or "valid" (none), or "same" (the output has the input's size; stride 1 only).
        dilation: distance between the taps of the kernel.
        groups: number of groups; each is convolved independently.
    Returns: (N, K, P, Q) or (K, P, Q), dtype of input; 16-bit floats are accumulated in float32.
    Raises: ValueError: channels don't fit; stride < 1; padding < 0; dilation < 1; the output would be empty.
        TypeError: the dtypes differ.
    Grad: input, weight, bias. Saves input and weight.
    Source: Dumoulin & Visin 2016, arXiv:1603.07285 (shapes).

    Example:
        >>> F.conv2d(genesis.ones(1, 1, 3, 3), genesis.ones(1, 1, 3, 3)).item()
        9.0
    """
    geometry, extra, strides = check_conv("conv2d", 2, (input, weight, bias), stride, padding, dilation, groups)
    return Conv2d.apply(input, weight, bias, geometry=geometry, extra=extra, strides=strides)


class Conv2d(ArrayFunction):
    """extra is what "same" pads below and on the right beyond padding, where the kernel has an even size.

    strides: those of an input that can be convolved as it lies in memory; None if it is no (N, C, H, W), or padded.
    """

    autocast = "lower"
    unrecorded = Unrecorded(3)

    @staticmethod
    def forward(
        ctx: Context, input: NDArray, weight: NDArray, bias: NDArray | None, *, geometry: ConvGeometry, extra: Pair,
        strides: Shape | None,
    ) -> NDArray:  # fmt: skip
        check_dtypes("conv2d", input, weight, bias)
        as_it_is = input.strides == strides
        if as_it_is and True not in ctx.needs_input_grad:
            return ops.conv_forward(input, weight, bias, geometry)
        spatial = weight.ndim - 2
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        planes = input
        if not as_it_is:
            planes = _pad_after(as_planes(input, spatial), extra).contiguous(channels_last=True)
        if needs_input or needs_weight or needs_bias:
            ctx.save(planes if needs_weight else None, weight if needs_input else None)
            ctx.input_shape, ctx.weight_shape, ctx.geometry, ctx.extra = input.shape, weight.shape, geometry, extra
            ctx.precision = get_float32_precision()
        y = ops.conv_forward(planes, as_planes(weight, spatial), bias, geometry)
        return from_planes(y, spatial, input.ndim)

    @staticmethod
    @follows_forward
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        planes, weight = ctx.saved
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        spatial = len(ctx.weight_shape) - 2
        grad = as_planes(grad, spatial).contiguous(channels_last=True)
        grad_input = grad_weight = None
        if needs_input:
            shape = planes_shape(ctx.input_shape, spatial)
            padded = (*shape[:2], shape[2] + ctx.extra[0], shape[3] + ctx.extra[1])
            grad_input = ops.conv_input_grad(grad, as_planes(weight, spatial), padded, ctx.geometry)
            grad_input = _cut(grad_input, shape[2], shape[3])
            grad_input = from_planes(grad_input, spatial, len(ctx.input_shape))
        if needs_weight:
            grad_weight = ops.conv_weight_grad(grad, planes, planes_shape(ctx.weight_shape, spatial), ctx.geometry)
            grad_weight = from_planes(grad_weight, spatial, len(ctx.weight_shape))
        return grad_input, grad_weight, ops.sum(grad, (0, 2, 3)) if needs_bias else None


def _pad_after(planes: NDArray, extra: Pair) -> NDArray:
    return ops.pad(planes, ((0, 0), (0, 0), (0, extra[0]), (0, extra[1])), "constant", 0) if any(extra) else planes


def _cut(planes: NDArray, height: int, width: int) -> NDArray:
    """Without what _pad_after() added."""
    return planes if planes.shape[2:] == (height, width) else planes.narrow(2, 0, height).narrow(3, 0, width)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
    output_padding: Size = 0, groups: int = 1, dilation: Size = 1,
) -> Tensor:  # fmt: skip
    """The transpose of conv1d as a linear map.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        weight: (C, K / groups, S), dtype of input.
        bias: (K,), dtype of input.
        stride, padding, output_padding, groups, dilation: as in `F.conv_transpose2d`.
    Returns: (N, K, Q) or (K, Q), Q = (L − 1)·stride − 2·padding + dilation·(S − 1) + output_padding + 1.
    Raises: as F.conv_transpose2d.
    Grad: input, weight, bias. Saves input and weight.
    Example: >>> F.conv_transpose1d(genesis.ones(1, 1, 2), genesis.ones(1, 1, 2), stride=2).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    options = (stride, padding, output_padding, groups, dilation)
    return convolve_transposed("conv_transpose1d", 1, (input, weight, bias), *options)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
    output_padding: Size = 0, groups: int = 1, dilation: Size = 1,
) -> Tensor:  # fmt: skip
    """The transpose of conv2d as a linear map: what conv2d's input gradient computes.

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype; any strides.
        weight: (C, K / groups, R, S), dtype of input.
        bias: (K,), dtype of input.
        stride: distance between the windows that input's elements write to.
        padding: rows and columns that are taken away from each side of the result.
        output_padding: rows and columns added on one side of the result; less than stride or dilation.
        groups: number of groups; each is convolved independently.
        dilation: distance between the taps of the kernel.
    Returns: (N, K, P, Q) or (K, P, Q), P = (H − 1)·stride − 2·padding + dilation·(R − 1) + output_padding + 1.
    Raises: ValueError: channels don't fit; stride < 1; padding < 0; output_padding too large; an empty output.
        TypeError: the dtypes differ.
    Grad: input, weight, bias. Saves input and weight.
    Source: Dumoulin & Visin 2016, arXiv:1603.07285 (shapes).

    Example:
        >>> F.conv_transpose2d(genesis.ones(1, 1, 1, 1), genesis.ones(1, 1, 2, 2), stride=2).tolist()
        [[[[1.0, 1.0], [1.0, 1.0]]]]
    """
    options = (stride, padding, output_padding, groups, dilation)
    return convolve_transposed("conv_transpose2d", 2, (input, weight, bias), *options)


def convolve_transposed(
    op: str, spatial: int, operands: Operands, stride: Size, padding: Size, output_padding: Size, groups: int,
    dilation: Size,
) -> Tensor:  # fmt: skip
    """The transposed convolution in so many dimensions, under the name that its errors speak of."""
    shapes = shapes_of(op, OPERANDS, operands, required=2)
    options = (stride, padding, output_padding, groups, dilation)
    geometry, size, extra = _check_transposed(op, spatial, shapes, *options)
    return ConvTranspose2d.apply(*operands, geometry=geometry, size=size, extra=extra)


@remembered
def transpose_geometry(
    op: str,
    x_shape: Shape,
    w_shape: Shape,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> tuple[ConvGeometry, Pair, Pair]:
    """The geometry of the planes, the size of the result's, and what is padded to the input."""
    spatial = len(w_shape) - 2
    stride = per_dimension(op, "stride", stride, spatial, least=1)
    padding = per_dimension(op, "padding", padding, spatial, least=0)
    output_padding = per_dimension(op, "output_padding", output_padding, spatial, least=0)
    dilation = per_dimension(op, "dilation", dilation, spatial, least=1)
    (groups,) = per_dimension(op, "groups", groups, 1, least=1)
    channels = x_shape[-spatial - 1]
    if channels != w_shape[0] or channels % groups:
        expected = f"{w_shape[0]} channels, as many as weight {w_shape} takes, divisible by {groups} groups"
        raise ShapeError(describe(op, "input", expected, f"{channels} in {x_shape}"))
    sizes = []
    for size, kernel, s, p, extra, d in zip(
        x_shape[-spatial:], w_shape[2:], stride, padding, output_padding, dilation, strict=True
    ):
        if extra >= max(s, d):
            raise ShapeError(describe(op, "output_padding", f"less than stride {s} or dilation {d}", extra))
        sizes.append((size - 1) * s - 2 * p + d * (kernel - 1) + extra + 1)
    if min(sizes) < 1:
        raise ShapeError(describe(op, "input", f"an output of sizes >= 1, not {tuple(sizes)}", f"shape {x_shape}"))
    dilation = _effective(dilation, w_shape[2:])
    geometry = ConvGeometry(planar(stride, 1), planar(padding, 0), planar(dilation, 1), groups)
    # Where output_padding reaches a whole stride, no convolution maps the result to the input: it gets rows of zeros.
    extra = planar(tuple(o // s for o, s in zip(output_padding, stride, strict=True)), 0)
    return geometry, planar(tuple(sizes), 1), extra


class ConvTranspose2d(ArrayFunction):
    """size is that of the result's planes; extra is what is padded below and on the right of the input."""

    autocast = "lower"

    @staticmethod
    def forward(
        ctx: Context,
        input: NDArray,
        weight: NDArray,
        bias: NDArray | None,
        *,
        geometry: ConvGeometry,
        size: Pair,
        extra: Pair,
    ) -> NDArray:
        check_dtypes("conv_transpose2d", input, weight, bias)
        spatial = weight.ndim - 2
        needs_input, needs_weight, _ = ctx.needs_input_grad
        planes = _pad_after(as_planes(input, spatial), extra).contiguous(channels_last=True)
        ctx.save(planes if needs_weight else None, weight if needs_input else None)
        ctx.input_shape, ctx.weight_shape, ctx.geometry = input.shape, weight.shape, geometry
        ctx.precision = get_float32_precision()
        channels = weight.shape[1] * geometry.groups
        shape = (planes.shape[0], channels, *size)
        y = ops.conv_input_grad(planes, as_planes(weight, spatial), shape, geometry, bias)
        return from_planes(y, spatial, input.ndim)

    @staticmethod
    @follows_forward
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        planes, weight = ctx.saved
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        spatial = len(ctx.weight_shape) - 2
        grad = as_planes(grad, spatial).contiguous(channels_last=True)
        grad_input = grad_weight = None
        if needs_input:
            height, width = planes_shape(ctx.input_shape, spatial)[2:]
            grad_input = ops.conv_forward(grad, as_planes(weight, spatial), None, ctx.geometry)
            grad_input = _cut(grad_input, height, width)
            grad_input = from_planes(grad_input, spatial, len(ctx.input_shape))
        if needs_weight:
            grad_weight = ops.conv_weight_grad(planes, grad, planes_shape(ctx.weight_shape, spatial), ctx.geometry)
            grad_weight = from_planes(grad_weight, spatial, len(ctx.weight_shape))
        return grad_input, grad_weight, ops.sum(grad, (0, 2, 3)) if needs_bias else None


# --- checks: one message per case, before anything is computed; remembered by shapes and settings ----------------


OPERANDS = ("input", "weight", "bias")
Operands = tuple[Tensor, Tensor, Tensor | None]
Shapes = tuple[Shape, Shape, Shape | None]  # of the operands


def check_conv(
    op: str, spatial: int, operands: Operands, stride: Size, padding: Size | str, dilation: Size, groups: int
) -> tuple[ConvGeometry, Pair, Shape | None]:
    """All that is checked before a convolution in so many dimensions; and what Conv2d wants: see check_shapes()."""
    input, weight, bias = operands
    if bias is None and isinstance(input, Tensor) and isinstance(weight, Tensor):  # the fast path of most calls
        shapes = input.array.shape, weight.array.shape, None
        return check_shapes(op, spatial, shapes, stride, padding, dilation, groups)
    given = shapes_of(op, OPERANDS, operands, required=2)
    return check_shapes(op, spatial, given, stride, padding, dilation, groups)


@remembered
def check_shapes(
    op: str, spatial: int, shapes: Shapes, stride: Size, padding: Size | str, dilation: Size, groups: int
) -> tuple[ConvGeometry, Pair, Shape | None]:
    """Return conv_geometry()'s result, and the strides of an input that can be convolved unchanged, if any."""
    x_shape, w_shape, bias_shape = shapes
    _check_ranks(op, spatial, x_shape, w_shape)
    geometry, extra = conv_geometry(op, x_shape, w_shape, stride, padding, dilation, groups)
    check_bias(op, bias_shape, w_shape[0])
    is_planes = spatial == 2 and len(x_shape) == 4 and not any(extra)
    return geometry, extra, channels_last_strides(x_shape) if is_planes else None


@remembered
def _check_transposed(
    op: str, spatial: int, shapes: Shapes, stride: Size, padding: Size, output_padding: Size, groups: int,
    dilation: Size,
) -> tuple[ConvGeometry, Pair, Pair]:  # fmt: skip
    x_shape, w_shape, bias_shape = shapes
    _check_ranks(op, spatial, x_shape, w_shape)
    options = (stride, padding, output_padding, groups, dilation)
    geometry, size, extra = transpose_geometry(op, x_shape, w_shape, *options)
    check_bias(op, bias_shape, w_shape[1] * geometry.groups)
    return geometry, size, extra


def _check_ranks(op: str, spatial: int, x_shape: Shape, w_shape: Shape) -> None:
    if len(w_shape) != spatial + 2:
        raise ShapeError(describe(op, "weight", f"{spatial + 2} dimensions", f"shape {w_shape}"))
    if len(x_shape) not in (spatial + 1, spatial + 2):
        expected = f"{spatial + 2} dimensions, or {spatial + 1} without a batch"
        raise ShapeError(describe(op, "input", expected, f"shape {x_shape}"))
    if 0 in x_shape[-spatial - 1 :]:
        raise ShapeError(describe(op, "input", "sizes >= 1 but for the batch", f"shape {x_shape}"))
    if 0 in w_shape:
        raise ShapeError(describe(op, "weight", "sizes >= 1", f"shape {w_shape}"))


def check_bias(op: str, shape: Shape | None, channels: int) -> None:
    if shape is not None and shape != (channels,):
        raise ShapeError(describe(op, "bias", f"shape {(channels,)}, one for each output channel", shape))


def check_dtypes(op: str, input: NDArray, weight: NDArray, bias: NDArray | None) -> None:
    """Called when autocast has chosen the dtypes."""
    dtype = input.dtype
    if not dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", dtype))
    if weight.dtype is not dtype:
        raise DTypeError(describe(op, "weight", f"the dtype of input, {dtype}", weight.dtype))
    if bias is not None and bias.dtype is not dtype:
        raise DTypeError(describe(op, "bias", f"the dtype of input, {dtype}", bias.dtype))


@remembered
def conv_geometry(
    op: str, x_shape: Shape, w_shape: Shape, stride: Size, padding: Size | str, dilation: Size, groups: int
) -> tuple[ConvGeometry, Pair]:
    """The geometry of the convolution of planes, and the extra that "same" pads at the end."""
    spatial = len(w_shape) - 2
    stride = per_dimension(op, "stride", stride, spatial, least=1)
    dilation = per_dimension(op, "dilation", dilation, spatial, least=1)
    (groups,) = per_dimension(op, "groups", groups, 1, least=1)
    channels, kernel, sizes = x_shape[-spatial - 1], w_shape[2:], x_shape[-spatial:]
    if channels != w_shape[1] * groups:
        expected = f"{w_shape[1] * groups} channels, as weight {w_shape} takes in {groups} group(s)"
        raise ShapeError(describe(op, "input", expected, f"{channels} in {x_shape}"))
    if w_shape[0] % groups:
        raise ShapeError(describe(op, "weight", f"output channels divisible by {groups} groups", w_shape[0]))
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    before, after = _paddings(op, padding, reach, stride)
    for size, b, a, r in zip(sizes, before, after, reach, strict=True):
        if size + b + a < r + 1:
            padded = tuple(s + b + a for s, b, a in zip(sizes, before, after, strict=True))
            expected = f"a padded size of at least the dilated kernel's, {tuple(r + 1 for r in reach)}"
            raise ShapeError(describe(op, "input", expected, padded))
    extra = tuple(a - b for a, b in zip(after, before, strict=True))
    dilation = _effective(dilation, kernel)
    return ConvGeometry(planar(stride, 1), planar(before, 0), planar(dilation, 1), groups), planar(extra, 0)


def _effective(dilation: Shape, kernel: Shape) -> Shape:
    """The dilation, but 1 where the kernel has one element: with another one there, oneDNN reads memory astray."""
    return tuple(d if size > 1 else 1 for d, size in zip(dilation, kernel, strict=True))


def _paddings(op: str, padding: Size | str, reach: Shape, stride: Shape) -> tuple[Shape, Shape]:
    """Padding before and after each spatial dimension; reach is the dilated kernel's size less one."""
    if padding == "valid":
        return (0,) * len(reach), (0,) * len(reach)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ShapeError(describe(op, "stride", '1, as padding is "same"', stride))
        return tuple(r // 2 for r in reach), tuple(r - r // 2 for r in reach)
    if isinstance(padding, str):
        raise ValueError(describe(op, "padding", '"same", "valid" or numbers', repr(padding)))
    both = per_dimension(op, "padding", padding, len(reach), least=0)
    return both, both


def planes_shape(shape: Shape, spatial: int) -> Shape:
    """The shape that as_planes gives."""
    shape = (1, *shape) if len(shape) == spatial + 1 else shape
    return (*shape[:2], 1, *shape[2:]) if spatial == 1 else shape
