"""The same values elsewhere: another dtype, another device, a copy, another order in memory."""

from __future__ import annotations

from typing import Any

from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.dtypes import DType
from genesis.errors import DeviceError, ShapeError, describe
from genesis.ndarray import Device, NDArray

__all__ = ["cast", "clone", "contiguous", "pin_memory", "to_device"]


def cast(input: Tensor, dtype: DType) -> Any:
    """input in dtype; the gradient comes back in input's dtype. The same tensor if nothing changes."""
    return input if input.array.dtype is dtype else Cast.apply(input, dtype=dtype)


class Cast(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dtype: DType) -> NDArray:
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad  # the walk casts it to the input's dtype


def to_device(input: Tensor, device: Device, non_blocking: bool = False) -> Any:
    """input on device; the gradient comes back on input's device. The same tensor if it is there already.

    non_blocking: while pinned memory travels to a CUDA device, the host goes on.
    """
    if input.array.device is device:
        return input
    return ToDevice.apply(input, device=device, non_blocking=non_blocking)


class ToDevice(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, device: Device, non_blocking: bool) -> NDArray:
        ctx.device = x.device
        return x.to_device(device, non_blocking)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad.to_device(ctx.device)


def pin_memory(input: Tensor) -> Any:
    """A copy of a CPU tensor in page-locked memory, from which CUDA devices copy by themselves; input, if it is there.

    Raises: DeviceError: input is not on the CPU, or there is no CUDA device.
    """
    if input.array.device.type != "cpu":
        raise DeviceError(describe("pin_memory", "self", "a tensor on the CPU", f"one on {input.array.device}"))
    return input if input.array.is_pinned() else PinMemory.apply(input)


class PinMemory(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.pin_memory()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad


def clone(input: Tensor, *, memory_format: str = "preserve") -> Any:
    """A copy with its own memory, in the order of input's unless memory_format says another."""
    copied = Clone.apply(input)
    return copied if memory_format == "preserve" else contiguous(copied, memory_format)


class Clone(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad


def contiguous(input: Tensor, memory_format: str = "contiguous") -> Any:
    """input with its elements in row-major order in memory, or in NHWC order for genesis.channels_last."""
    channels_last = memory_format == "channels_last"
    if channels_last and input.array.ndim != 4:
        raise ShapeError(describe("contiguous", "self", "4 dimensions for channels_last", input.array.ndim))
    array = input.array.contiguous(channels_last)
    return input if array is input.array else Contiguous.apply(input, channels_last=channels_last)


class Contiguous(ArrayFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, channels_last: bool) -> NDArray:
        return x.contiguous(channels_last)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad
