"""Joining tensors and splitting them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.dtypes import INTEGER, promote
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import int_tuple, require_ints
from genesis.functional.keywords import also
from genesis.functional.shape import unsqueeze
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["cat", "chunk", "narrow", "split", "stack", "unbind"]


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Concatenate tensors along dim.

    Args:
        tensors: equal sizes but in dim; dtypes are promoted. Empty vectors fit anywhere.
        dim: counts from the end if negative.
        axis: NumPy's name of dim.
    Returns: a copy, in the promoted dtype.
    Raises: ShapeError: no tensors; 0-d ones; other sizes differ. TypeError: not a list or tuple of tensors.
    Grad: each tensor. Saves nothing.
    Example: >>> F.cat([genesis.zeros(1), genesis.ones(2)]).tolist()
    [0.0, 1.0, 1.0]
    """
    dim = dim if axis is None else axis
    listed = _tensors("cat", tensors)
    parts = [x for x in listed if x.array.shape != (0,)]  # PyTorch lets empty vectors take part anywhere
    first = (parts or listed)[0].array
    if not first.ndim:
        raise ShapeError(describe("cat", "tensors", "at least one dimension each; use stack", "a 0-d tensor"))
    dim = shapes.normalize_dim("cat", dim, first.ndim)
    for number, part in enumerate(parts):
        shape = part.array.shape
        if len(shape) != first.ndim or any(
            a != b for i, (a, b) in enumerate(zip(shape, first.shape, strict=False)) if i != dim
        ):
            raise ShapeError(describe("cat", f"tensors[{number}]", f"{first.shape} except in dimension {dim}", shape))
    return Cat.apply(*listed, dim=dim, shape=first.shape)


class Cat(ArrayFunction):
    autocast = "widest"

    @staticmethod
    def forward(ctx: Context, *arrays: NDArray, dim: int, shape: Shape) -> NDArray:
        dtype = arrays[0].dtype
        for array in arrays[1:]:
            dtype = promote(dtype, array.dtype)
        ctx.dim, ctx.shapes = dim, [array.shape for array in arrays]
        empty = (*shape[:dim], 0, *shape[dim + 1 :])
        parts = [array.reshape(empty) if array.shape == (0,) else array for array in arrays]
        return ops.cat([part.to(dtype) for part in parts], dim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        grads, start = [], 0
        for shape, needed in zip(ctx.shapes, ctx.needs_input_grad, strict=True):
            length = 0 if shape == (0,) else shape[ctx.dim]
            part = grad.narrow(ctx.dim, start, length) if needed else None
            grads.append(part if part is None or part.shape == shape else part.reshape(shape))
            start += length
        return tuple(grads)


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join tensors along a new dimension.

    Args:
        tensors: of one shape; dtypes are promoted.
        dim: where the new dimension goes, from 0 to ndim.
        axis: NumPy's name of dim.
    Returns: a copy, in the promoted dtype.
    Raises: ShapeError: no tensors, or shapes that differ. TypeError: not a list or tuple of tensors.
    Grad: each tensor. Saves nothing.
    Example: >>> F.stack([genesis.zeros(2), genesis.ones(2)], dim=1).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    dim = dim if axis is None else axis
    listed = _tensors("stack", tensors)
    shape = listed[0].array.shape
    for number, tensor in enumerate(listed):
        if tensor.array.shape != shape:
            raise ShapeError(
                describe("stack", f"tensors[{number}]", f"shape {shape}, as tensors[0]", tensor.array.shape)
            )
    dim = shapes.normalize_dim("stack", dim, len(shape) + 1)
    return cat([unsqueeze(tensor, dim) for tensor in listed], dim)


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into parts along dim.

    Args:
        tensor: at least 1 dimension, any dtype.
        split_size_or_sections: the size of each part (the last may be smaller), or a list of all sizes.
        dim: the dimension to cut.
    Returns: a tuple of views.
    Raises: ShapeError: sizes that don't add up, or a size below 1.
    Grad: tensor. Saves nothing.
    Example: >>> [part.tolist() for part in F.split(genesis.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    dim, size = _split_dim("split", tensor, dim)
    if isinstance(split_size_or_sections, int):
        length = split_size_or_sections
        if length < 0 or (length == 0 and size > 0):
            raise ShapeError(describe("split", "split_size_or_sections", "a size of at least 1", length))
        starts = range(0, size, length) if size else [0]
        sections = [min(length, size - start) for start in starts]
    else:
        sections = list(int_tuple("split", split_size_or_sections, "split_size_or_sections"))
        if sum(sections) != size or any(section < 0 for section in sections):
            raise ShapeError(describe("split", "split_size_or_sections", f"sizes that add up to {size}", sections))
    return Split.apply(tensor, dim=dim, sections=tuple(sections))


def chunk(input: Tensor, chunks: int, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Cut into at most that many parts of equal size along dim; the last may be smaller.

    Args:
        input: at least 1 dimension, any dtype.
        chunks: the number of parts, at least 1.
        dim: the dimension to cut.
        axis: NumPy's name of dim.
    Returns: a tuple of views.
    Raises: ShapeError: chunks < 1, or a 0-d input. DTypeError: chunks is no int.
    Grad: input. Saves nothing.
    Example: >>> [part.tolist() for part in F.chunk(genesis.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    require_ints("chunk", chunks=chunks)
    if chunks < 1:
        raise ShapeError(describe("chunk", "chunks", "at least 1", chunks))
    dim, size = _split_dim("chunk", input, dim if axis is None else axis)
    return split(input, max(1, math.ceil(size / chunks)) if size else [0] * chunks, dim)


class Split(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, sections: Shape) -> tuple[NDArray, ...]:
        ctx.dim = dim
        starts = [sum(sections[:i]) for i in range(len(sections))]
        return tuple([x.narrow(dim, start, length) for start, length in zip(starts, sections, strict=True)])

    @staticmethod
    def backward(ctx: Context, *grads: NDArray) -> NDArray:
        return ops.cat(grads, ctx.dim)


def unbind(input: Tensor, dim: int = 0, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """The slices along dim, without that dimension.

    Args:
        input: at least 1 dimension, any dtype.
        dim: the dimension to take apart.
        axis: NumPy's name of dim.
    Returns: a tuple of views.
    Raises: ShapeError: a 0-d input.
    Grad: input. Saves nothing.
    Example: >>> [row.tolist() for row in F.unbind(genesis.arange(4).reshape(2, 2))]
    [[0, 1], [2, 3]]
    """
    dim, size = _split_dim("unbind", input, dim if axis is None else axis)
    return Unbind.apply(input, dim=dim) if size else ()


class Unbind(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int) -> tuple[NDArray, ...]:
        ctx.dim = dim
        return tuple([x.select(dim, index) for index in range(x.shape[dim])])

    @staticmethod
    def backward(ctx: Context, *grads: NDArray) -> NDArray:
        return ops.cat([grad.unsqueeze(ctx.dim) for grad in grads], ctx.dim)


@also(axis="dim")
def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The view of input[start : start + length] along dim.

    Args:
        input: at least 1 dimension, any dtype.
        dim: the dimension to cut.
        start: an int, from −size to size, or a 0-d tensor of integers.
        length: how many elements.
    Returns: a view.
    Raises: IndexError: start is out of range. ShapeError: too long, or a 0-d input. DTypeError: no ints.
    Grad: input. Saves nothing.
    Example: >>> F.narrow(genesis.arange(5), 0, 1, 3).tolist()
    [1, 2, 3]
    """
    dim, size = _split_dim("narrow", input, dim)
    if isinstance(start, Tensor):
        if start.array.ndim or start.array.dtype.category != INTEGER:
            raise DTypeError(describe("narrow", "start", "an integer, or a 0-d tensor of integers", start.array.dtype))
        start = int(start.array.item())
    require_ints("narrow", start=start, length=length)
    if not -size <= start <= size:
        raise IndexError(describe("narrow", "start", f"a position in [{-size}, {size}]", start))
    start = start + size if start < 0 else start
    if length < 0 or start + length > size:
        raise ShapeError(describe("narrow", "length", f"at most {size - start} elements from {start} on", length))
    return Narrow.apply(input, dim=dim, start=start, length=length)


class Narrow(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, start: int, length: int) -> NDArray:
        ctx.shape, ctx.cut = x.shape, (dim, start, length)
        return x.narrow(dim, start, length)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        whole = grad.full_like(0, ctx.shape)
        whole.narrow(*ctx.cut).copy_into(grad)
        return whole


def _tensors(op: str, tensors: object) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise DTypeError(describe(op, "tensors", "a list or tuple of tensors", type(tensors).__name__))
    if not tensors:
        raise ShapeError(describe(op, "tensors", "at least one tensor", "none"))
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise DTypeError(describe(op, f"tensors[{number}]", "a tensor", type(tensor).__name__))
    return list(tensors)


def _split_dim(op: str, input: Tensor, dim: int) -> tuple[int, int]:
    """dim counted from the front, and its size."""
    shape = input.array.shape
    if not shape:
        raise ShapeError(describe(op, "input", "at least one dimension", "a 0-d tensor"))
    dim = shapes.normalize_dim(op, dim, len(shape))
    return dim, shape[dim]
