"""Functions that make a tensor like another: of its shape, dtype and device, and in its order in memory."""

from __future__ import annotations

from typing import TypedDict

from genesis import dtypes
from genesis.creation import DeviceLike, device_of
from genesis.dtypes import DType, Number
from genesis.errors import ShapeError, describe
from genesis.ndarray import Device, NDArray
from genesis.pinning import placed
from genesis.shapes import Shape, channels_last_strides
from genesis.tensor import Tensor


class Options(TypedDict):
    """Options of the functions that make a tensor like another."""

    dtype: DType
    device: Device | str
    requires_grad: bool


@placed
def empty_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """An uninitialised tensor of input's shape. See `genesis.zeros_like`."""
    options = like(input, dtype, device, requires_grad)
    return Tensor(_empty("empty_like", input, options, memory_format), requires_grad)


@placed
def zeros_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """A tensor of zeros in the shape of another.

    Args:
        input: any shape; its memory is not read.
        dtype, device: those of input if None.
        requires_grad: as in `genesis.empty`.
        memory_format: "contiguous" (row-major), "channels_last" (NHWC, 4 dimensions), or "preserve": input's order.
    Returns: the shape of input.
    Raises: ShapeError: channels_last of another rank. ValueError: another memory_format.

    Example:
        >>> genesis.zeros_like(genesis.tensor([[1, 2]])).tolist()
        [[0, 0]]
    """
    return _filled("zeros_like", input, 0, like(input, dtype, device, requires_grad), memory_format)


@placed
def ones_like(
    input: Tensor, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False,
    memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """A tensor of ones in the shape of another. See `genesis.zeros_like`."""
    return _filled("ones_like", input, 1, like(input, dtype, device, requires_grad), memory_format)


@placed
def full_like(
    input: Tensor, fill_value: Number, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False, memory_format: str = "preserve",
) -> Tensor:  # fmt: skip
    """A tensor of fill_value in the shape of another.

    Args:
        input, dtype, device, requires_grad, memory_format: as in `genesis.zeros_like`.
        fill_value: a number that dtype holds, or a 0-d tensor.
    Returns: the shape of input.
    Raises: OverflowError: dtype does not hold it. ShapeError: it has dimensions.

    Example:
        >>> genesis.full_like(genesis.zeros(2), 0.5).tolist()
        [0.5, 0.5]
    """
    if isinstance(fill_value, Tensor):
        if fill_value.ndim:
            raise ShapeError(describe("full_like", "fill_value", "a number or a 0-d tensor", fill_value.shape))
        fill_value = fill_value.item()
    options = like(input, dtype, device, requires_grad)
    value = dtypes.number("full_like", "fill_value", fill_value, options["dtype"])
    return _filled("full_like", input, value, options, memory_format)


def like(input: Tensor, dtype: DType | None, device: DeviceLike, requires_grad: bool) -> Options:
    return {"dtype": dtype or input.dtype, "device": device or input.device, "requires_grad": requires_grad}


def strides_like(op: str, input: Tensor, memory_format: str) -> Shape | None:
    """Strides of a new tensor of input's shape; None if row-major."""
    if memory_format == "preserve":
        return None if input.array.is_contiguous else input.array.dense_strides()
    if memory_format == "contiguous":
        return None
    if memory_format != "channels_last":
        raise ValueError(describe(op, "memory_format", "preserve, contiguous or channels_last", repr(memory_format)))
    if input.ndim != 4:
        raise ShapeError(describe(op, "input", "4 dimensions for channels_last", f"shape {input.shape}"))
    return channels_last_strides(input.shape)


def _empty(op: str, input: Tensor, options: Options, memory_format: str) -> NDArray:
    strides = strides_like(op, input, memory_format)
    return NDArray.empty(input.array.shape, options["dtype"], device_of(options["device"]), strides)


def _filled(op: str, input: Tensor, value: Number, options: Options, memory_format: str) -> Tensor:
    if memory_format == "contiguous" or (memory_format == "preserve" and input.array.is_contiguous):
        array = NDArray.full(input.array.shape, value, options["dtype"], device_of(options["device"]))
    else:
        array = _empty(op, input, options, memory_format)
        array.copy_into(value)
    return Tensor(array, options["requires_grad"])
