"""torch.ops: libraries of PyTorch's operators don't load, which packages that bring one are prepared for."""

from __future__ import annotations

from typing import NoReturn


def load_library(path: str) -> NoReturn:
    """Refuse, as for a library that doesn't fit this PyTorch."""
    raise OSError(f"{path}: operators of PyTorch, which run on PyTorch's tensors; Genesis loads none")
