"""torch.ops: libraries of PyTorch's operators don't load, which packages that bring one are prepared for.

The operators of torchvision, though, are there without its library; see ops_torchvision.py.
"""

from __future__ import annotations

from pathlib import Path

from genesis.port.stand_ins.ops_torchvision import OPERATORS as torchvision  # noqa: N811 the namespace's name

__all__ = ["load_library", "torchvision"]


def load_library(path: str) -> None:
    """Refuse, as for a library that doesn't fit this PyTorch, all but the one whose operators are there already."""
    library = Path(path)
    if library.parent.name == "torchvision" and library.name.startswith("_C."):
        return
    raise OSError(f"{path}: operators of PyTorch, which run on PyTorch's tensors; Genesis loads none")
