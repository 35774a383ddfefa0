"""torch.utils.dlpack: capsules, beside the objects with __dlpack__ that genesis.from_dlpack takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.utils.dlpack

from genesis import Tensor, interop

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


def to_dlpack(tensor: Tensor) -> CapsuleType:
    """The capsule of DLPack on a tensor's memory."""
    return tensor.__dlpack__()


def from_dlpack(ext_tensor: interop.SupportsDLPack | CapsuleType) -> Tensor:
    """A tensor on the memory of an object with __dlpack__, or of a capsule. See genesis.from_dlpack."""
    if hasattr(ext_tensor, "__dlpack__"):
        return interop.from_dlpack(ext_tensor)
    return interop.from_torch(torch.utils.dlpack.from_dlpack(ext_tensor))
