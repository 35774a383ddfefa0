"""Convertible: what moves a module to other devices and casts it to other dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Self

from genesis import dtypes
from genesis.autograd import no_grad
from genesis.creation import DeviceLike
from genesis.creation_like import empty_like
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.ndarray import Device
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor


class Convertible:
    """Base of Module, which gives parameters and buffers."""

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        raise NotImplementedError

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        raise NotImplementedError

    def _named_parts(self) -> Mapping[str, object]:
        raise NotImplementedError

    def to(
        self, *args: DeviceLike | DType | Tensor | bool, device: DeviceLike = None, dtype: DType | None = None,
        non_blocking: bool = False, memory_format: str | None = None,
    ) -> Self:  # fmt: skip
        """Move or cast parameters and buffers in place: to(device), to(dtype), to(device, dtype), to(tensor).

        Gradients move along. Parameters stay the same objects: tied weights stay tied, an optimizer keeps its own.

        Args:
            args: a device, a dtype, or a tensor whose dtype and device to take.
            device: "cpu", "cuda", "cuda:1" or a genesis.device.
            dtype: a floating dtype; integer and bool tensors keep theirs.
            non_blocking: accepted for PyTorch's signature.
            memory_format: "channels_last" | "contiguous", for 4-d tensors.
        Returns: the module itself.
        Raises: DTypeError: dtype is not floating.

        Example:
            >>> nn.Linear(2, 1).to(genesis.float64).weight.dtype
            genesis.float64
        """
        for arg in args:
            if isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str | Device):
                device = arg
            elif not isinstance(arg, bool) and arg is not None:
                raise DTypeError(describe("to", "args", "a device, a dtype or a tensor", type(arg).__name__))
        if dtype is not None and not dtype.is_floating_point:
            raise DTypeError(describe("to", "dtype", "a floating dtype", dtype))
        target = None if device is None else Device(device)

        def moved(tensor: Tensor) -> Tensor:
            array = tensor.array
            if dtype is not None and array.dtype.is_floating_point:
                array = array.to(dtype)
            if target is not None:
                array = array.to_device(target)
            if memory_format is not None and array.ndim == 4:
                array = array.contiguous(memory_format == "channels_last")
            return Tensor(array)

        return self._apply(moved)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the values of each parameter, buffer and gradient by what fn makes of them, in the module and below.

        A subclass that keeps other tensors overrides it, and is moved with the rest then. The objects stay the same.
        """
        if recurse:
            for module in self._named_parts().values():
                if isinstance(module, Convertible):
                    module._apply(fn)
        with no_grad():
            for tensor in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
                tensor.array = fn(tensor).array
                if tensor.grad is not None:
                    tensor.grad.array = fn(tensor.grad).array
        return self

    def type(self, dst_type: DType) -> Self:
        """Cast all parameters and buffers, integers too.

        Args:
            dst_type: a dtype.
        Returns: the module itself.

        Example:
            >>> nn.Linear(2, 1).type(genesis.float64).weight.dtype
            genesis.float64
        """
        return self._apply(lambda tensor: tensor.to(dst_type))

    def to_empty(self, *, device: DeviceLike, recurse: bool = True) -> Self:
        """Move to a device without copying: the values are whatever memory held.

        Args:
            device: "cpu", "cuda" or a genesis.device.
            recurse: whether to move submodules too.
        Returns: the module itself.

        Example:
            >>> nn.Linear(2, 1).to_empty(device="cpu").weight.shape
            (1, 2)
        """
        target = Device(device) if device is not None else None
        return self._apply(lambda tensor: empty_like(tensor, device=target), recurse)

    def cpu(self) -> Self:
        """Move parameters and buffers to the CPU. See `nn.Module.to`."""
        return self.to("cpu")

    def cuda(self, device: int | str | Device | None = None) -> Self:
        """Move parameters and buffers to a CUDA device.

        Args:
            device: an index, "cuda:1" or a genesis.device; the current device by default.

        Example:
            >>> from genesis.settings import override
            >>> with override(cuda="simulated"):
            ...     nn.Linear(2, 1).cuda().weight.device
            device(type='cuda', index=0)
        """
        return self.to(Device("cuda", device) if isinstance(device, int) or device is None else Device(device))

    def float(self) -> Self:
        """Cast floating parameters and buffers to float32. See `nn.Module.to`."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Cast floating parameters and buffers to float64. See `nn.Module.to`."""
        return self.to(dtypes.float64)

    def share_memory(self) -> Self:
        """Share parameters and buffers with other processes. See `genesis.Tensor.share_memory_`."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def half(self) -> Self:
        """Cast floating parameters and buffers to float16. See `nn.Module.to`."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast floating parameters and buffers to bfloat16. See `nn.Module.to`."""
        return self.to(dtypes.bfloat16)
