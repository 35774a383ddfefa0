"""The same values elsewhere: another dtype, another device, a copy, another order in memory."""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.callsite import no_complex
from genesis.dtypes import DType
from genesis.errors import DeviceError, ShapeError, describe
from genesis.ndarray import Device, NDArray

__all__ = ["cast", "clone", "contiguous", "pin_memory", "to_device"]


def cast(input: Tensor, dtype: DType) -> Tensor:
    """Convert to dtype; the same tensor if it has that dtype.

    Args:
        input: any shape and dtype.
        dtype: the new dtype.
    Returns: the shape of input, in dtype.
    Raises: DTypeError: from complex numbers to real ones.
    Grad: input, converted back. Saves nothing.
    Example: >>> F.cast(genesis.tensor([1.5, 0.0]), genesis.bool).tolist()
    [True, False]
    """
    if input.array.dtype is dtype:
        return input
    if input.array.dtype.is_complex and not dtype.is_complex and dtype.name != "bool":
        raise no_complex(input.array.dtype)
    if input._base is not None and not dtype.is_differentiable:  # no gradient, so its place in the graph does not count
        input = input.detach()
    return Cast.apply(input, dtype=dtype)


class Cast(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dtype: DType, made: NDArray | None = None) -> NDArray:
        """made: the result, where one launch has cast several arrays."""
        return x.to(dtype) if made is None else made

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad  # the walk casts it to the input's dtype


def to_device(input: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
    """Copy to device; the same tensor if it is there.

    Args:
        input: any shape and dtype.
        device: where the copy lies.
        non_blocking: the host does not wait while pinned memory is copied to a CUDA device.
    Returns: shape and dtype of input.
    Raises: DeviceError: there is no such device.
    Grad: input, on its own device. Saves nothing.
    Example: >>> F.to_device(genesis.ones(2), genesis.Device("cpu")).device.type
    'cpu'
    """
    if input.array.device is device:
        return input
    return ToDevice.apply(input, device=device, non_blocking=non_blocking)


class ToDevice(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, device: Device, non_blocking: bool) -> NDArray:
        ctx.device = x.device
        return x.to_device(device, non_blocking)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.to_device(ctx.device)


def pin_memory(input: Tensor) -> Tensor:
    """Copy to page-locked memory, from which CUDA devices copy by themselves; the same tensor if it is there.

    Args:
        input: any shape and dtype, on the CPU.
    Returns: shape and dtype of input.
    Raises: DeviceError: input is not on the CPU, or there is no CUDA device.
    Grad: input. Saves nothing.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.ones(2).pin_memory().is_pinned()
        True
    """
    if input.array.device.type != "cpu":
        raise DeviceError(describe("pin_memory", "self", "a tensor on the CPU", f"one on {input.array.device}"))
    return input if input.array.is_pinned() else PinMemory.apply(input)


class PinMemory(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.pin_memory()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad


def clone(input: Tensor, *, memory_format: str = "preserve") -> Tensor:
    """Copy to memory of its own.

    Args:
        input: any shape and dtype.
        memory_format: "preserve" the order of memory, "contiguous" or "channels_last".
    Returns: shape and dtype of input.
    Raises: ShapeError: channels_last of another rank than 4.
    Grad: input. Saves nothing.
    Example: >>> x = genesis.ones(2)
    >>> F.clone(x).add_(1).tolist(), x.tolist()
    ([2.0, 2.0], [1.0, 1.0])
    """
    copied = Clone.apply(input)
    return copied if memory_format == "preserve" else contiguous(copied, memory_format)


class Clone(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.clone()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad


def contiguous(input: Tensor, memory_format: str = "contiguous") -> Tensor:
    """The same elements, dense in row-major or NHWC order; the same tensor if they are.

    Args:
        input: any shape and dtype.
        memory_format: "contiguous", or "channels_last" for NHWC.
    Returns: shape and dtype of input.
    Raises: ShapeError: channels_last of another rank than 4.
    Grad: input. Saves nothing.
    Example: >>> F.contiguous(genesis.zeros(2, 3).T).stride()
    (2, 1)
    """
    channels_last = memory_format == "channels_last"
    if channels_last and input.array.ndim != 4:
        raise ShapeError(describe("contiguous", "self", "4 dimensions for channels_last", input.array.ndim))
    array = input.array.contiguous(channels_last)
    return input if array is input.array else Contiguous.apply(input, channels_last=channels_last)


class Contiguous(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, channels_last: bool) -> NDArray:
        return x.contiguous(channels_last)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad
