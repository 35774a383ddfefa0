"""Activations: each is its function of genesis.nn.functional as a module.

All take an input of any shape and floating dtype, and give a result of the same shape and dtype.
"""

from __future__ import annotations

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = [
    "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSoftmax", "Mish", "ReLU", "ReLU6", "SiLU",
    "Sigmoid", "Softmax", "Softplus", "Tanh",
]  # fmt: skip


class _InplaceActivation(Module):
    """An activation whose only setting is whether it overwrites its input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_InplaceActivation):
    """Rectified linear unit: y = max(0, x).

    Args:
        inplace: overwrite the input.

    Example:
        >>> nn.ReLU()(genesis.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, self.inplace)


class ReLU6(_InplaceActivation):
    """ReLU clipped at 6: y = min(max(0, x), 6).

    Args:
        inplace: overwrite the input.

    Example:
        >>> nn.ReLU6()(genesis.tensor([-1.0, 2.0, 8.0])).tolist()
        [0.0, 2.0, 6.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.relu6(input, self.inplace)


class SiLU(_InplaceActivation):
    """Sigmoid linear unit, or swish: y = x · sigmoid(x).

    Args:
        inplace: overwrite the input.
    Source: Elfwing et al. 2017, arXiv:1702.03118.

    Example:
        >>> round(nn.SiLU()(genesis.tensor(1.0)).item(), 4)
        0.7311
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input, self.inplace)


class Mish(_InplaceActivation):
    """A smooth, non-monotonic activation: y = x · tanh(softplus(x)).

    Args:
        inplace: overwrite the input.
    Shape: any, of a floating dtype; the output has the same.
    Source: Misra 2019, arXiv:1908.08681.

    Example:
        >>> [round(y, 4) for y in nn.Mish()(genesis.tensor([-1.0, 0.0, 1.0])).tolist()]
        [-0.3034, 0.0, 0.8651]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.mish(input, self.inplace)


class Hardswish(_InplaceActivation):
    """Piecewise-quadratic approximation of swish: y = x · relu6(x + 3) / 6.

    Args:
        inplace: overwrite the input.
    Source: Howard et al. 2019, arXiv:1905.02244.

    Example:
        >>> nn.Hardswish()(genesis.tensor([-3.0, 0.0, 3.0])).tolist()
        [-0.0, 0.0, 3.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input, self.inplace)

    def extra_repr(self) -> str:
        return ""


class Hardsigmoid(_InplaceActivation):
    """Piecewise-linear approximation of sigmoid: y = relu6(x + 3) / 6.

    Args:
        inplace: overwrite the input.

    Example:
        >>> nn.Hardsigmoid()(genesis.tensor([-3.0, 0.0, 3.0])).tolist()
        [0.0, 0.5, 1.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input, self.inplace)

    def extra_repr(self) -> str:
        return ""


class LeakyReLU(Module):
    """ReLU with a slope for negative inputs: y = x for x > 0, else negative_slope · x.

    Args:
        negative_slope: the slope for x ≤ 0.
        inplace: overwrite the input.

    Example:
        >>> nn.LeakyReLU(0.5)(genesis.tensor([-1.0, 2.0])).tolist()
        [-0.5, 2.0]
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class ELU(Module):
    """Exponential linear unit: y = x for x > 0, else alpha · (eˣ − 1).

    Args:
        alpha: −alpha is the limit for x → −∞.
        inplace: overwrite the input.
    Source: Clevert et al. 2015, arXiv:1511.07289.

    Example:
        >>> [round(y, 4) for y in nn.ELU()(genesis.tensor([-1.0, 2.0])).tolist()]
        [-0.6321, 2.0]
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class Hardtanh(Module):
    """Clip to an interval: y = min(max(x, min_val), max_val).

    Args:
        min_val, max_val: bounds of the interval.
        inplace: overwrite the input.

    Example:
        >>> nn.Hardtanh()(genesis.tensor([-2.0, 0.5, 2.0])).tolist()
        [-1.0, 0.5, 1.0]
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}" + (", inplace=True" if self.inplace else "")


class GELU(Module):
    """Gaussian error linear unit: y = x · Φ(x), with the normal distribution function Φ.

    Args:
        approximate: "none" | "tanh", which approximates Φ by tanh.
    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.

    Example:
        >>> round(nn.GELU()(genesis.tensor(1.0)).item(), 4)
        0.8413
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """Smooth approximation of ReLU: y = ln(1 + exp(beta · x)) / beta.

    Args:
        beta: the larger, the closer to ReLU.
        threshold: y = x where beta · x > threshold, for numerical stability.

    Example:
        >>> round(nn.Softplus()(genesis.tensor(0.0)).item(), 4)  # ln 2
        0.6931
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Sigmoid(Module):
    """Logistic function: y = 1 / (1 + e⁻ˣ).

    Example:
        >>> nn.Sigmoid()(genesis.tensor([0.0])).tolist()
        [0.5]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.sigmoid(input)


class Tanh(Module):
    """Hyperbolic tangent: y = (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ).

    Example:
        >>> round(nn.Tanh()(genesis.tensor(1.0)).item(), 4)
        0.7616
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.tanh(input)


class Softmax(Module):
    """Softmax along dim: y = exp(x) / Σ exp(x); the results along dim sum to 1.

    Args:
        dim: the dimension that is summed over; None chooses it by the input's rank, as PyTorch does.

    Example:
        >>> nn.Softmax(dim=-1)(genesis.zeros(2, 4)).tolist()[0]
        [0.25, 0.25, 0.25, 0.25]
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """Logarithm of the softmax along dim: y = x − ln Σ exp(x), computed without overflow.

    Args:
        dim: the dimension that is summed over; None chooses it by the input's rank, as PyTorch does.

    Example:
        >>> round(nn.LogSoftmax(dim=-1)(genesis.zeros(4))[0].item(), 4)  # −ln 4
        -1.3863
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
