"""as_strided: memory seen through any shape and strides."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import dtypes
from genesis.autograd import Context, Function, Tensor
from genesis.dtypes import DType
from genesis.errors import GraphError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.complex_numbers import require_device
from genesis.functional.selection import index_add
from genesis.functional.shape import reshape
from genesis.ndarray import NDArray

__all__ = ["as_strided", "view_dtype"]


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:  # fmt: skip
    """A view of input's memory through another shape and other strides. Elements may appear several times.

    Where gradients are recorded, the view can't change in place.

    Args:
        input: any shape and dtype.
        size: the shape.
        stride: the steps between neighbours along each dimension, in elements, none negative.
        storage_offset: the first element's place in the memory that input shares with its base; input's by default.
    Returns: a view; of input's dtype.
    Raises: ShapeError: size and stride differ in length, negative numbers, or the view leaves input's memory.
        GraphError: a gradient of an input that repeats elements, or of places that input does not show.
    Grad: input; elements that appear several times add up.
    Example: >>> F.as_strided(genesis.arange(4), (3, 2), (1, 1)).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    require_tensors("as_strided", input=input)
    shape, strides = tuple(map(int, size)), tuple(map(int, stride))
    if len(shape) != len(strides):
        raise ShapeError(describe("as_strided", "stride", f"{len(shape)} numbers, as size", f"{len(strides)}"))
    for name, numbers in (("size", shape), ("stride", strides)):
        if any(number < 0 for number in numbers):
            raise ShapeError(describe("as_strided", name, "no negative numbers", numbers))
    offset = input.array.offset if storage_offset is None else int(storage_offset)
    whole = (input if input._base is None else input._base).array
    first, end = whole.offset, whole.offset + _extent(whole.shape, whole.strides)
    if not first <= offset <= offset + _extent(shape, strides) <= end:
        expected = f"places {first} … {end - 1} of memory"
        got = f"{offset} … {offset + _extent(shape, strides) - 1}"
        raise ShapeError(describe("as_strided", "size", expected, got))
    return StridedView.apply(input, shape, strides, offset)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one in memory."""
    steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return 0 if 0 in shape else 1 + steps


def view_dtype(input: Tensor, dtype: DType) -> Tensor:
    """The same memory, its bits read as another dtype; x.view(dtype).

    Args:
        input: any shape and dtype. If dtype is of another size, the last dimension is dense and changes its length.
        dtype: what the bits are read as.
    Returns: a view outside the graph: changes of bits have no gradient.
    Raises: ShapeError: the last dimension is not dense or is none, or it or the place in memory is no whole number of
        new elements. NotImplementedError: as complex numbers on a CUDA device.
    Example: >>> F.view_dtype(genesis.tensor([1.0]), genesis.int32).tolist()
    [1065353216]
    """
    require_tensors("view", input=input)
    if dtype.is_complex:
        require_device("view", input)
    array, old, new = input.array, input.array.dtype.itemsize, dtype.itemsize
    shape, strides, offset = array.shape, array.strides, array.offset
    if old != new:
        if not shape or strides[-1] != 1:
            got = f"shape {shape} with strides {strides}"
            raise ShapeError(describe("view", "input", f"a dense last dimension, to see {array.dtype} as {dtype}", got))
        if any(number * old % new for number in (shape[-1], offset, *strides[:-1])):
            got = f"shape {shape} with strides {strides} at {offset}"
            raise ShapeError(describe("view", "input", f"whole elements of {dtype} in the last dimension", got))
        shape = (*shape[:-1], shape[-1] * old // new)
        strides = (*(step * old // new for step in strides[:-1]), 1)
        offset = offset * old // new
    return input._like(array.view_dtype(dtype, shape, strides, offset))


class StridedView(Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        ctx.of_x = x.shape, x.array.strides
        ctx.places = shape, strides, offset - x.array.offset
        return x._like(x.array.view(shape, strides, offset))

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x_shape, x_strides), (shape, strides, offset) = ctx.of_x, ctx.places
        extent = _extent(x_shape, x_strides)
        inside = offset >= 0 and offset + _extent(shape, strides) <= extent
        repeats = any(size > 1 and not step for size, step in zip(x_shape, x_strides, strict=True))
        if repeats or not inside:
            raise GraphError("as_strided: argument 'input': expected to show each element of the view's memory once")
        index = NDArray.arange(0, 1, 1, dtypes.int64, grad.device).add(offset)
        for size, stride in zip(shape, strides, strict=True):
            steps = NDArray.arange(0, 1, size, dtypes.int64, grad.device).mul(stride)
            index = index.unsqueeze(index.ndim).add(steps)
        flat = reshape(grad.new_zeros(extent), (-1,))
        flat = index_add(flat, 0, grad._like(index.reshape((-1,))), reshape(grad, (-1,)))
        return as_strided(flat, x_shape, x_strides, 0), None, None, None
