"""Genesis' dtypes and backends, by PyTorch's names for them."""

from __future__ import annotations

import torch

from genesis import backends, dtypes

TYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.ALL}


def dtype_of(tensor: torch.Tensor) -> dtypes.DType:
    return TYPES[tensor.dtype]


def backend_of(device_type: str) -> backends.Backend:
    """The backend of a device, with the tools around it that are switched on."""
    if device_type not in backends.active:
        backends.get(device_type)
    return backends.active[device_type]
