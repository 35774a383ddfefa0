"""Power-mean pooling, the inverse of max pooling, and adaptive maxima of signals: composed of pooling and indexing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import relu
from genesis.functional.dimensions import squeeze
from genesis.functional.elementwise import mul, pow
from genesis.functional.pooling import OutputSize, adaptive_max_pool2d, avg_pool1d, avg_pool2d
from genesis.functional.scattering import scatter
from genesis.functional.shape import reshape, unsqueeze
from genesis.functional.unary import abs, sign
from genesis.functional.windows import Size, per_dimension, require_tensor
from genesis.shapes import Shape

__all__ = ["adaptive_max_pool1d", "lp_pool1d", "lp_pool2d", "max_unpool1d", "max_unpool2d"]


def adaptive_max_pool1d(
    input: Tensor, output_size: OutputSize, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each of the windows of adaptive_avg_pool1d.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        output_size: Q.
        return_indices: give as well where each value was found.
    Returns: (N, C, Q) or (C, Q); with return_indices a pair.
    Raises: DTypeError: input is not floating. ShapeError: its rank, an empty signal, or several sizes.
    Grad: input.

    Example:
        >>> F.adaptive_max_pool1d(genesis.arange(4.0).reshape(1, 4), 2).tolist()
        [[1.0, 3.0]]
    """
    op = "adaptive_max_pool1d"
    require_tensor(op, "input", input)
    if input.array.ndim not in (2, 3):
        raise ShapeError(describe(op, "input", "3 dimensions, or 2 without a batch", f"shape {input.array.shape}"))
    sizes = tuple(output_size) if isinstance(output_size, list | tuple) else (output_size,)
    if len(sizes) != 1:
        raise ShapeError(describe(op, "output_size", "one number", output_size))
    values, indices = adaptive_max_pool2d(unsqueeze(input, -2), (1, sizes[0]), return_indices=True)
    values, indices = squeeze(values, -2), squeeze(indices, -2)
    return (values, indices) if return_indices else values


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: int, stride: Size | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)^(1/p) of each window of a signal.

    Args:
        input: (N, C, L) or (C, L), any floating dtype.
        norm_type: p; 1 sums, ∞ would be the maximum.
        kernel_size, stride, ceil_mode: as in `F.max_pool2d`.
    Returns: (N, C, Q) or (C, Q).
    Raises: as F.avg_pool1d.
    Grad: input.

    Example:
        >>> F.lp_pool1d(genesis.tensor([[3.0, 4.0]]), 2, 2).tolist()
        [[5.0]]
    """
    (size,) = per_dimension("lp_pool1d", "kernel_size", kernel_size, 1, least=1)
    means = avg_pool1d(pow(input, norm_type), size, stride, 0, ceil_mode)
    return _root(means, size, norm_type)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ xᵖ)^(1/p) of each window.

    Args:
        input: (N, C, H, W) or (C, H, W), any floating dtype.
        norm_type: p; 1 sums, ∞ would be the maximum.
        kernel_size, stride, ceil_mode: as in `F.max_pool2d`.
    Returns: (N, C, P, Q) or (C, P, Q).
    Raises: as F.avg_pool2d.
    Grad: input.

    Example:
        >>> F.lp_pool2d(genesis.tensor([[[3.0, 4.0]]]), 2, (1, 2)).tolist()
        [[[5.0]]]
    """
    sizes = per_dimension("lp_pool2d", "kernel_size", kernel_size, 2, least=1)
    means = avg_pool2d(pow(input, norm_type), sizes, stride, 0, ceil_mode)
    return _root(means, math.prod(sizes), norm_type)


def _root(means: Tensor, count: int, norm_type: float) -> Tensor:
    """The root of sums; where they are 0, a gradient of 0 comes from relu, as in PyTorch."""
    return pow(mul(mul(sign(means), relu(abs(means))), count), 1.0 / norm_type)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Put the values of max_pool1d back to where they were found, among zeros.

    Args:
        input: (N, C, Q) or (C, Q): values.
        indices: the shape of input, int64: what max_pool1d gave with return_indices.
        kernel_size, stride, padding, output_size: as in `F.max_unpool2d`.
    Returns: (N, C, L) or (C, L).
    Raises: ShapeError: shapes that do not fit. DTypeError: indices are not int64. IndexError: one is out of range.
    Grad: input.

    Example:
        >>> F.max_unpool1d(genesis.tensor([[5.0]]), genesis.tensor([[1]]), 2).tolist()
        [[0.0, 5.0]]
    """
    return _unpooled("max_unpool1d", 1, input, indices, (kernel_size, stride, padding), output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Put the values of max_pool2d back to where they were found, among zeros.

    Args:
        input: (N, C, P, Q) or (C, P, Q): values.
        indices: the shape of input, int64: what max_pool2d gave with return_indices.
        kernel_size, stride, padding: those of max_pool2d.
        output_size: (H, W), or a whole shape that ends so; the smallest image with such windows if None.
    Returns: (N, C, H, W) or (C, H, W).
    Raises: ShapeError: shapes that do not fit. DTypeError: indices are not int64. IndexError: one is out of range.
    Grad: input.

    Example:
        >>> F.max_unpool2d(genesis.tensor([[[5.0]]]), genesis.tensor([[[3]]]), 2).tolist()
        [[[0.0, 0.0], [0.0, 5.0]]]
    """
    return _unpooled("max_unpool2d", 2, input, indices, (kernel_size, stride, padding), output_size)


def _unpooled(
    op: str, spatial: int, input: Tensor, indices: Tensor, windows: tuple[Size, Size | None, Size],
    output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    require_tensor(op, "input", input)
    require_tensor(op, "indices", indices)
    shape = input.array.shape
    if len(shape) not in (spatial + 1, spatial + 2):
        expected = f"{spatial + 2} dimensions, or {spatial + 1} without a batch"
        raise ShapeError(describe(op, "input", expected, f"shape {shape}"))
    if indices.array.shape != shape:
        raise ShapeError(describe(op, "indices", f"the shape of input, {shape}", indices.array.shape))
    if indices.array.dtype.name != "int64":
        raise DTypeError(describe(op, "indices", "int64", indices.array.dtype))
    *leading, planes = (*shape[:-spatial], shape[-spatial:])
    sizes = _sizes(op, planes, windows, output_size)
    flat = input._like(input.array.full_like(0, (*leading, math.prod(sizes))))
    index, values = (reshape(x, (*leading, math.prod(planes))) for x in (indices, input))
    return reshape(scatter(flat, len(leading), index, values), (*leading, *sizes))


def _sizes(
    op: str, planes: Shape, windows: tuple[Size, Size | None, Size], output_size: Sequence[int] | None
) -> Shape:  # fmt: skip
    """The spatial sizes of what was pooled: those that are given, if they differ by less than a stride from usual."""
    spatial, (kernel_size, stride, padding) = len(planes), windows
    kernel = per_dimension(op, "kernel_size", kernel_size, spatial, least=1)
    steps = kernel if stride is None or stride in ((), []) else per_dimension(op, "stride", stride, spatial, least=1)
    pads = per_dimension(op, "padding", padding, spatial, least=0)
    usual = tuple((n - 1) * s - 2 * p + k for n, s, p, k in zip(planes, steps, pads, kernel, strict=True))
    if output_size is None:
        return usual
    given = tuple(output_size)[-spatial:]
    if len(given) != spatial or any(
        not size - step < one < size + step for one, size, step in zip(given, usual, steps, strict=True)
    ):
        raise ShapeError(describe(op, "output_size", f"sizes less than a stride from {usual}", tuple(output_size)))
    return given
