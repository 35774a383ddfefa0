"""torch.onnx: PyTorch's exporter is never running, and what is declared for it is ignored."""

from __future__ import annotations


def is_in_onnx_export() -> bool:
    """Say that PyTorch's exporter isn't running."""
    return False


def register_custom_op_symbolic(*args: object, **kwargs: object) -> None:
    """Do nothing."""
