"""PyTorch's tensors as arguments of kernels, on PyTorch's current stream; and genesis.cuda.op on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from genesis.cuda.frameworks.interface import Operand

Op: TypeAlias = Callable[..., Any]  # of tensors and other values

_increment_version = torch._C._increment_version  # what torch.autograd.graph.increment_version calls, in half the time


def _current_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


class TorchTensors:
    # Asked as PyTorch's own launches do; torch.cuda.current_stream() makes an object each time. (Not in CPU builds.)
    current_stream = staticmethod(getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream))

    @staticmethod
    def read(tensor: torch.Tensor) -> tuple[object, int]:
        pointer = tensor.data_ptr()
        return (tensor.dtype, tensor.get_device(), tensor.numel(), tensor.is_contiguous(), pointer & 15), pointer

    def describe(self, tensor: torch.Tensor) -> Operand:
        dtype = str(tensor.dtype).removeprefix("torch.")
        device = self.device_of(tensor)
        strides = tuple(tensor.stride())
        return Operand(self, dtype, device, tensor.is_contiguous(), strides, tensor.numel(), tensor.data_ptr())

    def device_of(self, tensor: torch.Tensor) -> int | None:
        return tensor.get_device() if tensor.is_cuda else None

    def use_on(self, tensor: torch.Tensor, stream: int) -> None:
        device = tensor.get_device()
        if stream != self.current_stream(device):
            default = torch.cuda.default_stream(device)
            tensor.record_stream(torch.cuda.ExternalStream(stream, device) if stream else default)

    @staticmethod
    def note_write(tensor: torch.Tensor) -> None:
        _increment_version((tensor,))


TORCH = TorchTensors()


def make_function(name: str, forward: Op, backward: Op | None) -> Op:
    """apply() of a torch.autograd.Function of these.

    The gradient is computed by kernels too: differentiating it again raises.
    """
    methods = {"forward": staticmethod(forward)}
    if backward is not None:
        methods["backward"] = staticmethod(once_differentiable(backward))
    return type(name, (torch.autograd.Function,), methods).apply  # type: ignore[attr-defined]
