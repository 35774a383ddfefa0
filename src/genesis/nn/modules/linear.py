"""Linear, Identity, and the layers that only change the shape."""

from __future__ import annotations

import math

from genesis import functional as F
from genesis.creation import DeviceLike, empty
from genesis.dtypes import DType
from genesis.errors import describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = ["Bilinear", "Flatten", "Identity", "Linear", "Unflatten"]


class Linear(Module):
    """Linear (fully connected) layer over the last dimension: y = x · weightᵀ + bias.

    Args:
        in_features: size of the input's last dimension.
        out_features: size of the output's last dimension.
        bias: whether to learn an additive bias.
        device, dtype: of the parameters.
    Shape: (…, in_features) → (…, out_features), of the parameters' dtype.
    Parameters: weight (out_features, in_features), bias (out_features,); both uniform in ±1/√in_features at first.

    Example:
        >>> nn.Linear(3, 2)(genesis.ones(5, 3)).shape
        (5, 2)
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in ±1/√in_features.

        Example:
            >>> layer = nn.Linear(4, 2)
            >>> layer.reset_parameters()
            >>> bool(layer.weight.abs().max() <= 0.5)
            True
        """
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """A bilinear map: y_o = x1ᵀ · W_o · x2 + b_o.

    Args:
        in1_features, in2_features: sizes of the inputs' last dimensions.
        out_features: size of the output's last dimension.
        bias: whether to add a learned bias.
        device, dtype: of the parameters.
    Shape: (…, in1_features) and (…, in2_features) → (…, out_features).
    Raises: ValueError: in1_features < 1.

    Example:
        >>> nn.Bilinear(2, 3, 4)(genesis.ones(5, 2), genesis.ones(5, 3)).shape
        (5, 4)
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features < 1:
            raise ValueError(describe("Bilinear", "in1_features", "an int >= 1", in1_features))
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(empty(*shape, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from the uniform distribution within ±1 / √in1_features.

        Example:
            >>> layer = nn.Bilinear(4, 1, 1)
            >>> layer.reset_parameters()
            >>> bool((layer.weight.abs() <= 0.5).all())
            True
        """
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Identity(Module):
    """Return the input. The constructor ignores its arguments, so that it can replace any layer.

    Args:
        args, kwargs: ignored.
    Shape: any → the same.

    Example:
        >>> nn.Identity()(genesis.ones(2)).tolist()
        [1.0, 1.0]
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Flatten(Module):
    """Merge the dimensions start_dim … end_dim into one.

    Args:
        start_dim, end_dim: first and last dimension to merge; negative ones count from the end.
    Shape: any; by default (N, …) → (N, product of the others).

    Example:
        >>> nn.Flatten()(genesis.ones(2, 3, 4)).shape
        (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split one dimension into several: the inverse of Flatten.

    Args:
        dim: the dimension to split.
        unflattened_size: its new sizes, whose product is the old one; one may be −1.

    Example:
        >>> nn.Unflatten(1, (3, 4))(genesis.ones(2, 12)).shape
        (2, 3, 4)
    """

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        dim = self.dim % input.ndim
        return F.reshape(input, (*input.shape[:dim], *self.unflattened_size, *input.shape[dim + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
