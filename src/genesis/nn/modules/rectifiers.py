"""Activations with a threshold, and gates: each is its function of genesis.nn.functional as a module.

All take an input of any shape and floating dtype, and but for GLU give a result of the same shape and dtype.
"""

from __future__ import annotations

from genesis import functional as F
from genesis.creation import DeviceLike, empty
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.tensor import Tensor

__all__ = [
    "CELU", "GLU", "SELU", "Hardshrink", "LogSigmoid", "PReLU", "RReLU", "Softmax2d", "Softmin", "Softshrink",
    "Softsign", "Tanhshrink", "Threshold",
]  # fmt: skip


def _listed(inplace: bool) -> str:
    return ", inplace=True" if inplace else ""


class CELU(Module):
    """Continuously differentiable ELU: y = x for x > 0, else alpha · (exp(x / alpha) − 1).

    Args:
        alpha: −alpha is the limit for x → −∞.
        inplace: overwrite the input.
    Source: Barron 2017, arXiv:1704.07483.

    Example:
        >>> [round(y, 4) for y in nn.CELU()(genesis.tensor([-1.0, 2.0])).tolist()]
        [-0.6321, 2.0]
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}{_listed(self.inplace)}"


class SELU(Module):
    """Scaled ELU, whose constants keep mean 0 and variance 1 through a deep network.

    Args:
        inplace: overwrite the input.
    Source: Klambauer et al. 2017, arXiv:1706.02515.

    Example:
        >>> [round(y, 4) for y in nn.SELU()(genesis.tensor([-1.0, 1.0])).tolist()]
        [-1.1113, 1.0507]
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.selu(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class PReLU(Module):
    """ReLU with a learned slope for negative inputs: y = x for x > 0, else weight · x.

    Args:
        num_parameters: 1, or C for a slope per channel (dimension 1).
        init: the first slope.
        device, dtype: of the slopes.
    Source: He et al. 2015, arXiv:1502.01852.

    Example:
        >>> nn.PReLU()(genesis.tensor([-2.0, 3.0])).tolist()
        [-0.5, 3.0]
    """

    weight: Parameter

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: DeviceLike = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all slopes to the first one.

        Example:
            >>> layer = nn.PReLU(2)
            >>> layer.reset_parameters()
            >>> layer.weight.tolist()
            [0.25, 0.25]
        """
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """Leaky ReLU whose slope is drawn for each element in training, and the mean of the limits in eval mode.

    Args:
        lower, upper: limits of the slope.
        inplace: overwrite the input.
    Source: Xu et al. 2015, arXiv:1505.00853.

    Example:
        >>> nn.RReLU(0.25, 0.75).eval()(genesis.tensor([-2.0, 3.0])).tolist()
        [-1.0, 3.0]
    """

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}{_listed(self.inplace)}"


class Threshold(Module):
    """Replace what does not exceed a threshold: y = x for x > threshold, else value.

    Args:
        threshold: the largest input that is replaced.
        value: what replaces it.
        inplace: overwrite the input.

    Example:
        >>> nn.Threshold(1.0, -1.0)(genesis.tensor([0.5, 2.0])).tolist()
        [-1.0, 2.0]
    """

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}{_listed(self.inplace)}"


class Hardshrink(Module):
    """Zero what is small: y = x for |x| > lambd, else 0.

    Args:
        lambd: the largest |x| that becomes 0.

    Example:
        >>> nn.Hardshrink()(genesis.tensor([-1.0, 0.25])).tolist()
        [-1.0, 0.0]
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softshrink(Module):
    """Move towards 0 by lambd: y = x − lambd above lambd, x + lambd below −lambd, else 0.

    Args:
        lambd: at least 0.

    Example:
        >>> nn.Softshrink()(genesis.tensor([-1.0, 0.25])).tolist()
        [-0.5, 0.0]
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class LogSigmoid(Module):
    """Logarithm of the sigmoid: y = −ln(1 + e⁻ˣ), without overflow.

    Example:
        >>> nn.LogSigmoid()(genesis.tensor([-1000.0])).tolist()
        [-1000.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.logsigmoid(input)


class Softsign(Module):
    """Softsign: y = x / (1 + |x|).

    Example:
        >>> nn.Softsign()(genesis.tensor([-1.0, 3.0])).tolist()
        [-0.5, 0.75]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.softsign(input)


class Tanhshrink(Module):
    """Tanhshrink: y = x − tanh(x).

    Example:
        >>> nn.Tanhshrink()(genesis.tensor([0.0, 20.0])).tolist()
        [0.0, 19.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.tanhshrink(input)


class Softmin(Module):
    """Softmin along dim: the softmax of −x.

    Args:
        dim: the dimension that is summed over.

    Example:
        >>> nn.Softmin(dim=0)(genesis.zeros(2)).tolist()
        [0.5, 0.5]
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax2d(Module):
    """Softmax over the channels of images.

    Shape: (N, C, H, W) or (C, H, W); the output has the same.
    Raises: ShapeError: the input has other dimensions.

    Example:
        >>> nn.Softmax2d()(genesis.zeros(2, 1, 1)).flatten().tolist()
        [0.5, 0.5]
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(describe("Softmax2d", "input", "3 or 4 dimensions", f"shape {input.shape}"))
        return F.softmax(input, -3)


class GLU(Module):
    """Gated linear unit: y = a · sigmoid(b), where a and b are the halves of the input along dim.

    Args:
        dim: the dimension that is halved.
    Shape: an even size in dim → half of it.
    Source: Dauphin et al. 2017, arXiv:1612.08083.

    Example:
        >>> nn.GLU()(genesis.tensor([4.0, 0.0])).tolist()
        [2.0]
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
