"""Patches of images as columns, and back: unfold and fold. See also channel_shuffle, which exchanges channels."""

from __future__ import annotations

import math
from typing import NamedTuple

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.shape import reshape, transpose
from genesis.functional.windows import Size, per_dimension, require_tensor
from genesis.ndarray import NDArray, ops
from genesis.ndarray.device import Device
from genesis.shapes import Shape

__all__ = ["channel_shuffle", "fold", "unfold"]


class Patches(NamedTuple):
    """The geometry of patches in a plane."""

    size: Shape  # (H, W)
    kernel_size: Shape
    dilation: Shape
    padding: Shape
    stride: Shape

    @property
    def framed(self) -> Shape:
        """The plane with its padding."""
        return tuple(size + 2 * pad for size, pad in zip(self.size, self.padding, strict=True))

    @property
    def counts(self) -> Shape:
        """How many patches there are in each dimension."""
        return tuple(
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, dilation, stride in zip(
                self.framed, self.kernel_size, self.dilation, self.stride, strict=True
            )
        )

    def positions(self, device: Device) -> NDArray:
        """(kernel elements · patches,): where in the padded plane each element of each patch lies."""
        rows, columns = (
            NDArray.arange(0, self.dilation[dim], self.kernel_size[dim], int64, device)
            .unsqueeze(1)
            .add(NDArray.arange(0, self.stride[dim], self.counts[dim], int64, device))
            for dim in (0, 1)
        )  # (R, P) and (S, Q)
        (r, p), (s, q) = rows.shape, columns.shape
        every = rows.mul(self.framed[1]).reshape((r, 1, p, 1)).add(columns.reshape((1, s, 1, q)))
        return every.reshape((r * s * p * q,))


def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """Each patch of an image as a column, im2col: a convolution is then a product of matrices.

    Args:
        input: (N, C, H, W) or (C, H, W), any dtype.
        kernel_size: of the patches, one number or (R, S); so are the others.
        dilation: distance of the elements of a patch.
        padding: zeros around the image.
        stride: distance of the patches.
    Returns: (N, C·R·S, L) or (C·R·S, L), with L patches in row-major order.
    Raises: ShapeError: another rank; no patch fits. DTypeError: settings that are no ints.
    Grad: input: fold of the gradient.

    Example:
        >>> F.unfold(genesis.arange(6.0).reshape(1, 2, 3), (2, 2)).tolist()
        [[0.0, 1.0], [1.0, 2.0], [3.0, 4.0], [4.0, 5.0]]
    """
    require_tensor("unfold", "input", input)
    shape = input.array.shape
    if len(shape) not in (3, 4) or 0 in shape[-3:]:
        expected = "3 or 4 dimensions, of which only the batch may be empty"
        raise ShapeError(describe("unfold", "input", expected, f"shape {shape}"))
    patches = _patches("unfold", shape[-2:], kernel_size, dilation, padding, stride)
    return Unfold.apply(input, patches=patches)


def fold(
    input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """Sum columns into an image, col2im: where patches overlap, their elements add up.

    Args:
        input: (N, C·R·S, L) or (C·R·S, L), a floating dtype: the patches that unfold makes of such an image.
        output_size: (H, W), or one number for both.
        kernel_size, dilation, padding, stride: as in `F.unfold`.
    Returns: (N, C, H, W) or (C, H, W).
    Raises: ShapeError: another rank; rows that R·S does not divide; another number of patches.
    Grad: input: unfold of the gradient.

    Example:
        >>> F.fold(genesis.ones(1, 4, 2), (2, 3), (2, 2)).tolist()
        [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
    op = "fold"
    require_tensor(op, "input", input)
    shape = input.array.shape
    if len(shape) not in (2, 3) or 0 in shape[-2:]:
        expected = "2 or 3 dimensions, of which only the batch may be empty"
        raise ShapeError(describe(op, "input", expected, f"shape {shape}"))
    size = per_dimension(op, "output_size", output_size, 2, least=1)
    patches = _patches(op, size, kernel_size, dilation, padding, stride)
    elements, count = math.prod(patches.kernel_size), math.prod(patches.counts)
    if shape[-2] % elements:
        raise ShapeError(describe(op, "input", f"rows divisible by {elements}, the size of a patch", shape[-2]))
    if shape[-1] != count:
        raise ShapeError(describe(op, "input", f"{count} columns, as {size} has patches", shape[-1]))
    return Fold.apply(input, patches=patches)


class Unfold(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, patches: Patches) -> NDArray:
        ctx.patches = patches
        return _unfolded(x, patches)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return _folded(grad, ctx.patches)


class Fold(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, patches: Patches) -> NDArray:
        ctx.patches = patches
        return _folded(x, patches)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return _unfolded(grad, ctx.patches)


def _unfolded(x: NDArray, patches: Patches) -> NDArray:
    *batch, channels, _, _ = x.shape
    (above, left), (height, width) = patches.padding, patches.framed
    if above or left:
        x = ops.pad(x, ((0, 0),) * (x.ndim - 2) + ((above, above), (left, left)), "constant", 0)
    columns = ops.index_select(x.reshape((*batch, channels, height * width)), x.ndim - 2, patches.positions(x.device))
    return columns.reshape((*batch, channels * math.prod(patches.kernel_size), math.prod(patches.counts)))


def _folded(columns: NDArray, patches: Patches) -> NDArray:
    *batch, rows, count = columns.shape
    elements = math.prod(patches.kernel_size)
    (above, left), (height, width) = patches.padding, patches.framed
    plane = columns.full_like(0, (*batch, rows // elements, height * width))
    source = columns.reshape((*batch, rows // elements, elements * count))
    plane = ops.index_add(plane, plane.ndim - 1, patches.positions(columns.device), source)
    image = plane.reshape((*batch, rows // elements, height, width))
    image = image.narrow(image.ndim - 2, above, patches.size[0]).narrow(image.ndim - 1, left, patches.size[1])
    return image.contiguous() if above or left else image


def _patches(op: str, size: Shape, kernel_size: Size, dilation: Size, padding: Size, stride: Size) -> Patches:
    given = (("kernel_size", kernel_size, 1), ("dilation", dilation, 1), ("padding", padding, 0), ("stride", stride, 1))
    patches = Patches(size, *(per_dimension(op, name, value, 2, least=least) for name, value, least in given))
    if min(patches.counts) < 1:
        expected = f"patches that fit into {patches.framed}, the padded image"
        raise ShapeError(describe(op, "kernel_size", expected, patches.kernel_size))
    return patches


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Deal out the channels of groups in turn: the first of each group, then the second of each, and so on.

    Args:
        input: (N, C, …), at least 3 dimensions, any dtype.
        groups: number of groups, which divides C.
    Returns: the shape and dtype of input.
    Raises: ShapeError: fewer dimensions; groups does not divide C. DTypeError: groups is no int.
    Grad: input.
    Source: Zhang et al. 2018, arXiv:1707.01083.

    Example:
        >>> F.channel_shuffle(genesis.arange(4.0).reshape(1, 4, 1), 2).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0]
    """
    require_tensor("channel_shuffle", "input", input)
    shape = input.array.shape
    if len(shape) < 3:
        raise ShapeError(describe("channel_shuffle", "input", "at least 3 dimensions", f"shape {shape}"))
    if isinstance(groups, bool) or not isinstance(groups, int):
        raise DTypeError(describe("channel_shuffle", "groups", "an int", repr(groups)))
    if groups < 1 or shape[1] % groups:
        raise ShapeError(describe("channel_shuffle", "groups", f"a divisor of the {shape[1]} channels", groups))
    parts = transpose(reshape(input, (shape[0], groups, shape[1] // groups, *shape[2:])), 1, 2)
    return reshape(parts, shape) if 1 < groups < shape[1] else reshape(parts, shape).clone()  # which may be a view
