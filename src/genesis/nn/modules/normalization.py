"""Norms over a sample's own values: layer, group, instance and root-mean-square norm."""

from __future__ import annotations

from typing import Any

from genesis import functional as F
from genesis.creation import ones, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import _BatchNorm
from genesis.nn.parameter import Parameter
from genesis.shapes import Shape
from genesis.tensor import Tensor

__all__ = ["GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "LayerNorm", "RMSNorm"]


class _AffineNorm(Module):
    """A norm with a learned scale and shift, ones and zeros at first."""

    def _register_affine(self, shape: Shape, weight: bool, bias: bool, device: Any, dtype: DType | None) -> None:
        self.register_parameter("weight", Parameter(ones(shape, device=device, dtype=dtype)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(shape, device=device, dtype=dtype)) if bias else None)


class LayerNorm(_AffineNorm):
    """Normalise over the last dimensions.

    Args:
        normalized_shape: their sizes; one number is the last dimension alone.
        eps: added to the variance.
        elementwise_affine: learn a scale and (with bias) a shift for each element.

    Example:
        >>> nn.LayerNorm(4)(genesis.ones(2, 4)).tolist()[0]
        [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._register_affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Any:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(_AffineNorm):
    """Divide by the root mean square of the last dimensions; eps=None is the machine precision of the input's dtype.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = Parameter(ones(self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def forward(self, input: Tensor) -> Any:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_AffineNorm):
    """Normalise each sample over groups of channels.

    Args:
        num_groups: divides num_channels.
        num_channels: C of (N, C, …).
        affine: learn a scale and (with bias) a shift for each channel.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ShapeError(describe("GroupNorm", "num_channels", f"a multiple of {num_groups} groups", num_channels))
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._register_affine((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Any:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _InstanceNorm(_BatchNorm):
    """Batch norm's settings and state, with other defaults, over each sample alone."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Any:
        if input.ndim not in self.ranks:
            expected = f"{' or '.join(map(str, self.ranks))} dimensions"
            raise ShapeError(describe(type(self).__name__, "input", expected, f"shape {input.shape}"))
        batched = input if input.ndim == self.ranks[-1] else F.unsqueeze(input, 0)
        momentum = 0.0 if self.momentum is None else self.momentum
        use_input_stats = self.training or not self.track_running_stats
        y = F.instance_norm(
            batched,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_input_stats,
            momentum,
            self.eps,
        )
        return y if batched is input else F.squeeze(y, 0)


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each sample of (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each sample of (N, C, H, W) or (C, H, W).

    Source: Ulyanov et al. 2016, arXiv:1607.08022.
    """

    ranks = (3, 4)


def _as_shape(shape: int | tuple[int, ...]) -> Shape:
    return (shape,) if isinstance(shape, int) else tuple(shape)
