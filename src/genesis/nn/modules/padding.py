"""Paddings: each is F.pad with a mode as a module, for signals, images and volumes."""

from __future__ import annotations

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip

Padding = int | tuple[int, ...]


class _Pad(Module):
    """A border around the last `spatial` dimensions: one width, or (before, after) of each, the last one first."""

    mode: str
    spatial: int
    value: float | None = None

    def __init__(self, padding: Padding) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.spatial) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: Padding, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_Pad):
    mode = "constant"
    value = 0.0


class ConstantPad1d(_ConstantPad):
    """Pad signals with a constant.

    Args:
        padding: width of the border, or (left, right).
        value: what the border is filled with.
    Shape: (…, L) → (…, L + left + right), any dtype.

    Example:
        >>> nn.ConstantPad1d((1, 0), 5.0)(genesis.ones(1, 1)).flatten().tolist()
        [5.0, 1.0]
    """

    spatial = 1


class ZeroPad1d(_ZeroPad):
    """Pad signals with zeros.

    Args:
        padding: width of the border, or (left, right).
    Shape: (…, L) → (…, L + left + right), any dtype.

    Example:
        >>> nn.ZeroPad1d((1, 0))(genesis.ones(1, 1)).flatten().tolist()
        [0.0, 1.0]
    """

    spatial = 1


class ReflectionPad1d(_Pad):
    """Pad signals with their reflection at the edge; the edge itself is not repeated.

    Args:
        padding: width of the border, or (left, right); below the input's sizes.
    Shape: (…, L) → (…, L + left + right).

    Example:
        >>> nn.ReflectionPad1d((2, 0))(genesis.tensor([[1.0, 2.0, 3.0]])).flatten().tolist()
        [3.0, 2.0, 1.0, 2.0, 3.0]
    """

    mode = "reflect"
    spatial = 1


class ReplicationPad1d(_Pad):
    """Pad signals by repeating their edge.

    Args:
        padding: width of the border, or (left, right).
    Shape: (…, L) → (…, L + left + right).

    Example:
        >>> nn.ReplicationPad1d((2, 0))(genesis.tensor([[1.0, 2.0, 3.0]])).flatten().tolist()
        [1.0, 1.0, 1.0, 2.0, 3.0]
    """

    mode = "replicate"
    spatial = 1


class CircularPad1d(_Pad):
    """Pad signals with their opposite edge, as if they were repeated.

    Args:
        padding: width of the border, or (left, right); at most the input's sizes.
    Shape: (…, L) → (…, L + left + right).

    Example:
        >>> nn.CircularPad1d((2, 0))(genesis.tensor([[1.0, 2.0, 3.0]])).flatten().tolist()
        [2.0, 3.0, 1.0, 2.0, 3.0]
    """

    mode = "circular"
    spatial = 1


class ConstantPad2d(_ConstantPad):
    """Pad images with a constant.

    Args:
        padding: width of the border, or (left, right, top, bottom).
        value: what the border is filled with.
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right), any dtype.

    Example:
        >>> nn.ConstantPad2d((1, 0, 0, 0), 5.0)(genesis.ones(1, 1, 1)).flatten().tolist()
        [5.0, 1.0]
    """

    spatial = 2


class ZeroPad2d(_ZeroPad):
    """Pad images with zeros.

    Args:
        padding: width of the border, or (left, right, top, bottom).
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right), any dtype.

    Example:
        >>> nn.ZeroPad2d((1, 0, 0, 0))(genesis.ones(1, 1, 1)).flatten().tolist()
        [0.0, 1.0]
    """

    spatial = 2


class ReflectionPad2d(_Pad):
    """Pad images with their reflection at the edge; the edge itself is not repeated.

    Args:
        padding: width of the border, or (left, right, top, bottom); below the input's sizes.
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right).

    Example:
        >>> nn.ReflectionPad2d((2, 0, 0, 0))(genesis.tensor([[[1.0, 2.0, 3.0]]])).flatten().tolist()
        [3.0, 2.0, 1.0, 2.0, 3.0]
    """

    mode = "reflect"
    spatial = 2


class ReplicationPad2d(_Pad):
    """Pad images by repeating their edge.

    Args:
        padding: width of the border, or (left, right, top, bottom).
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right).

    Example:
        >>> nn.ReplicationPad2d((2, 0, 0, 0))(genesis.tensor([[[1.0, 2.0, 3.0]]])).flatten().tolist()
        [1.0, 1.0, 1.0, 2.0, 3.0]
    """

    mode = "replicate"
    spatial = 2


class CircularPad2d(_Pad):
    """Pad images with their opposite edge, as if they were repeated.

    Args:
        padding: width of the border, or (left, right, top, bottom); at most the input's sizes.
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right).

    Example:
        >>> nn.CircularPad2d((2, 0, 0, 0))(genesis.tensor([[[1.0, 2.0, 3.0]]])).flatten().tolist()
        [2.0, 3.0, 1.0, 2.0, 3.0]
    """

    mode = "circular"
    spatial = 2


class ConstantPad3d(_ConstantPad):
    """Pad volumes with a constant.

    Args:
        padding: width of the border, or (left, right, top, bottom, front, back).
        value: what the border is filled with.
    Shape: (…, D, H, W) → (…, D + front + back, H + top + bottom, W + left + right), any dtype.

    Example:
        >>> nn.ConstantPad3d((1, 0, 0, 0, 0, 0), 5.0)(genesis.ones(1, 1, 1, 1)).flatten().tolist()
        [5.0, 1.0]
    """

    spatial = 3


class ZeroPad3d(_ZeroPad):
    """Pad volumes with zeros.

    Args:
        padding: width of the border, or (left, right, top, bottom, front, back).
    Shape: (…, D, H, W) → (…, D + front + back, H + top + bottom, W + left + right), any dtype.

    Example:
        >>> nn.ZeroPad3d((1, 0, 0, 0, 0, 0))(genesis.ones(1, 1, 1, 1)).flatten().tolist()
        [0.0, 1.0]
    """

    spatial = 3


class ReflectionPad3d(_Pad):
    """Pad volumes with their reflection at the edge; the edge itself is not repeated.

    Args:
        padding: width of the border, or (left, right, top, bottom, front, back); below the input's sizes.
    Shape: (…, D, H, W) → (…, D + front + back, H + top + bottom, W + left + right).

    Example:
        >>> nn.ReflectionPad3d((2, 0, 0, 0, 0, 0))(genesis.tensor([[[[1.0, 2.0, 3.0]]]])).flatten().tolist()
        [3.0, 2.0, 1.0, 2.0, 3.0]
    """

    mode = "reflect"
    spatial = 3


class ReplicationPad3d(_Pad):
    """Pad volumes by repeating their edge.

    Args:
        padding: width of the border, or (left, right, top, bottom, front, back).
    Shape: (…, D, H, W) → (…, D + front + back, H + top + bottom, W + left + right).

    Example:
        >>> nn.ReplicationPad3d((2, 0, 0, 0, 0, 0))(genesis.tensor([[[[1.0, 2.0, 3.0]]]])).flatten().tolist()
        [1.0, 1.0, 1.0, 2.0, 3.0]
    """

    mode = "replicate"
    spatial = 3


class CircularPad3d(_Pad):
    """Pad volumes with their opposite edge, as if they were repeated.

    Args:
        padding: width of the border, or (left, right, top, bottom, front, back); at most the input's sizes.
    Shape: (…, D, H, W) → (…, D + front + back, H + top + bottom, W + left + right).

    Example:
        >>> nn.CircularPad3d((2, 0, 0, 0, 0, 0))(genesis.tensor([[[[1.0, 2.0, 3.0]]]])).flatten().tolist()
        [2.0, 3.0, 1.0, 2.0, 3.0]
    """

    mode = "circular"
    spatial = 3
