"""torch.accelerator: CUDA where there is a GPU."""

from __future__ import annotations

import genesis
from genesis.cuda import current_device as current_device_index
from genesis.cuda import device_count as device_count
from genesis.cuda import is_available as is_available
from genesis.cuda import synchronize as synchronize

__all__ = ["current_accelerator", "current_device_index", "device_count", "is_available", "synchronize"]


def current_accelerator(check_available: bool = False) -> genesis.device | None:
    """The kind of device beside the CPU; None if there is none."""
    return genesis.device("cuda") if is_available() else None
