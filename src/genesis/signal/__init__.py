"""PyTorch's torch.signal: window functions."""

from genesis.signal import windows as windows

__all__ = ["windows"]
