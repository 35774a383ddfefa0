"""Norms over a sample's own values: layer, group, instance and root-mean-square norm."""

from __future__ import annotations

from genesis import activations
from genesis import functional as F
from genesis.creation import DeviceLike, ones, zeros
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import _BatchNorm
from genesis.nn.parameter import Parameter
from genesis.shapes import Shape
from genesis.tensor import Tensor

__all__ = [
    "CrossMapLRN2d",
    "GroupNorm",
    "GroupNormAct",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


class _AffineNorm(Module):
    """A norm with a learned weight and bias, ones and zeros at first."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_affine(self, shape: Shape, weight: bool, bias: bool, device: DeviceLike, dtype: DType | None) -> None:
        self.register_parameter("weight", Parameter(ones(shape, device=device, dtype=dtype)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(shape, device=device, dtype=dtype)) if bias else None)

    def reset_parameters(self) -> None:
        """Set weight to 1 and bias to 0.

        Example:
            >>> norm = nn.LayerNorm(2)
            >>> norm.reset_parameters()
            >>> norm.weight.tolist(), norm.bias.tolist()
            ([1.0, 1.0], [0.0, 0.0])
        """
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if weight is not None:
            init.ones_(weight)
        if bias is not None:
            init.zeros_(bias)


class LayerNorm(_AffineNorm):
    """Layer normalization over the last dimensions: y = (x − mean) / √(var + eps) · weight + bias.

    Args:
        normalized_shape: sizes of the dimensions to normalize over; an int stands for the last dimension alone.
        eps: added to the variance, for numerical stability.
        elementwise_affine: whether to learn weight and (with bias) bias, one of each per element.
        bias: whether to learn a bias.
        device, dtype: of the parameters.
    Shape: (…, *normalized_shape) → the same.
    Source: Ba et al. 2016, arXiv:1607.06450.

    Example:
        >>> nn.LayerNorm(4)(genesis.ones(2, 4)).tolist()[0]
        [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._register_affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(_AffineNorm):
    """Root-mean-square normalization over the last dimensions: y = x / √(mean(x²) + eps) · weight.

    Args:
        normalized_shape: sizes of the dimensions to normalize over; an int stands for the last dimension alone.
        eps: added to the mean square; None for the machine epsilon of the input's dtype.
        elementwise_affine: whether to learn a weight per element.
        device, dtype: of the parameter.
    Shape: (…, *normalized_shape) → the same.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467.

    Example:
        >>> nn.RMSNorm(2)(genesis.tensor([3.0, 3.0])).tolist()
        [1.0, 1.0]
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None = None, elementwise_affine: bool = True,
        device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = Parameter(ones(self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_AffineNorm):
    """Group normalization: mean and variance are those of each sample and group of channels.

        y = (x − mean) / √(var + eps) · weight + bias

    Args:
        num_groups: number of groups, a divisor of num_channels; consecutive channels form a group.
        num_channels: C.
        eps: added to the variance, for numerical stability.
        affine: whether to learn weight and (with bias) bias, one of each per channel.
        device, dtype: of the parameters.
        bias: whether to learn a bias.
    Shape: (N, C, …) → the same.
    Raises: ShapeError: num_groups does not divide num_channels.
    Source: Wu & He 2018, arXiv:1803.08494.

    Example:
        >>> nn.GroupNorm(2, 4)(genesis.ones(1, 4, 3, 3)).shape
        (1, 4, 3, 3)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: DeviceLike = None,
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

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class GroupNormAct(GroupNorm):
    """Group normalization and an activation as one op: y = activation(group_norm(x)). See `F.group_norm_act`.

    Args:
        num_groups, num_channels, eps, affine, device, dtype, bias: as in `nn.GroupNorm`, whose parameters it has.
        activation: a name of `genesis.activations.NUMBERS`, such as "relu", "silu" or "leaky_relu(0.1)"; or None.
    Shape: (N, C, …) → the same.
    Raises: ShapeError: num_groups does not divide num_channels. ValueError: it is no activation.

    Example:
        >>> nn.GroupNormAct(2, 4, activation="relu")(genesis.ones(1, 4, 3, 3)).shape
        (1, 4, 3, 3)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        activation: str | None = "silu", device: DeviceLike = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, bias=bias)
        self.activation = activations.checked("GroupNormAct", activation)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm_act(input, self.num_groups, self.weight, self.bias, self.eps, self.activation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class _InstanceNorm(_BatchNorm):
    """Batch norm's settings and state, with other defaults, over each sample by itself."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: DeviceLike = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
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
    """Instance normalization of signals: mean and variance are those of each sample and channel.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as in `nn.InstanceNorm2d`.
    Shape: (N, C, L) or (C, L) → the same.

    Example:
        >>> [round(y, 3) for y in nn.InstanceNorm1d(1)(genesis.tensor([[[1.0, 3.0]]])).flatten().tolist()]
        [-1.0, 1.0]
    """

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalization of images: mean and variance are those of each sample and channel.

        y = (x − mean) / √(var + eps) · weight + bias

    Args:
        num_features: C, number of channels.
        eps: added to the variance, for numerical stability.
        momentum: weight of the new batch in the running statistics.
        affine: whether to learn weight and (with bias) bias, one of each per channel.
        track_running_stats: whether to keep running statistics and to use them in eval mode.
        device, dtype: of parameters and buffers.
        bias: whether to learn a bias.
    Shape: (N, C, H, W) or (C, H, W) → the same.
    Raises: ShapeError: the input has another rank.
    Source: Ulyanov et al. 2016, arXiv:1607.08022.

    Example:
        >>> nn.InstanceNorm2d(1)(genesis.ones(1, 1, 2, 2)).flatten().tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    ranks = (3, 4)


def _as_shape(shape: int | tuple[int, ...]) -> Shape:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LocalResponseNorm(Module):
    """Divide by a power of the mean of squares over neighbouring channels.

    Args:
        size, alpha, beta, k: as in `F.local_response_norm`.
    Shape: (N, C, …); the output has the same.
    Source: Krizhevsky, Sutskever & Hinton 2012.

    Example:
        >>> nn.LocalResponseNorm(1, alpha=3.0, beta=0.5)(genesis.ones(1, 1, 1)).item()
        0.5
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """LocalResponseNorm of images under an old name. See `nn.LocalResponseNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise ShapeError(describe("CrossMapLRN2d", "input", "4 dimensions", f"shape {input.shape}"))
        return super().forward(input)
