"""To and from other libraries, without copies: DLPack and PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genesis.errors import DeviceError, DTypeError, describe
from genesis.ndarray import Device, NDArray
from genesis.tensor import Tensor

if TYPE_CHECKING:
    import torch

_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu"}  # DLDeviceType: CPU, CUDA, pinned host memory


def from_dlpack(ext_tensor: Any, /) -> Tensor:
    """A tensor on the memory of anything that has `__dlpack__`: numpy, PyTorch, JAX, CuPy …

    Example:
        >>> import numpy
        >>> genesis.from_dlpack(numpy.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(describe("from_dlpack", "ext_tensor", "an object with __dlpack__", type(ext_tensor).__name__))
    kind, index = ext_tensor.__dlpack_device__()
    if kind not in _DLPACK_DEVICES:
        raise DeviceError(
            describe("from_dlpack", "ext_tensor", "memory of the CPU or a CUDA device", f"device type {kind}")
        )
    device = Device(_DLPACK_DEVICES[kind], index if kind == 2 else None)
    return Tensor(NDArray.from_dlpack(ext_tensor, device))


def from_torch(tensor: torch.Tensor) -> Tensor:
    """A tensor on the memory of a PyTorch tensor, outside its graph.

    Example:
        >>> import torch
        >>> genesis.from_torch(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    return from_dlpack(tensor.detach())
