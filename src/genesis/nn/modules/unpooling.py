"""Power-mean pooling, the inverse of max pooling, and adaptive pooling of signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, overload

from genesis import functional as F
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.pooling import Output, WithIndices, _single
from genesis.nn.modules.utils import _pair
from genesis.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveMaxPool1d", "FractionalMaxPool2d", "LPPool1d", "LPPool2d", "MaxUnpool1d",
    "MaxUnpool2d",
]  # fmt: skip

Size = int | tuple[int, ...]


class AdaptiveAvgPool1d(Module):
    """Mean over windows whose number is given, whatever the length of the signal.

    Args:
        output_size: Q.
    Shape: (N, C, L) → (N, C, Q), or without N.

    Example:
        >>> nn.AdaptiveAvgPool1d(2)(genesis.ones(1, 3, 7)).shape
        (1, 3, 2)
    """

    def __init__(self, output_size: int | tuple[int | None, ...]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(Module, Generic[Output]):
    """Maximum over windows whose number is given, whatever the length of the signal.

    Args:
        output_size: Q.
        return_indices: also return the position of each maximum, int64.
    Shape: (N, C, L) → (N, C, Q), or without N; with return_indices a pair of these.

    Example:
        >>> nn.AdaptiveMaxPool1d(1)(genesis.arange(4.0).reshape(1, 4)).item()
        3.0
    """

    @overload
    def __init__(
        self: AdaptiveMaxPool1d[Tensor], output_size: int | tuple[int | None, ...],
        return_indices: Literal[False] = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: AdaptiveMaxPool1d[WithIndices], output_size: int | tuple[int | None, ...], return_indices: Literal[True]
    ) -> None: ...
    def __init__(self, output_size: int | tuple[int | None, ...], return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Output:
        output = F.adaptive_max_pool1d(input, self.output_size, self.return_indices)
        return output  # type: ignore[return-value, unused-ignore]  # Output says what return_indices does

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _LPPool(Module):
    def __init__(
        self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """Power-mean pooling of signals: (Σ xᵖ)^(1/p) of each window.

    Args:
        norm_type: p.
        kernel_size, stride, ceil_mode: as in `nn.MaxPool2d`.
    Shape: (N, C, L) → (N, C, Q), or without N.

    Example:
        >>> nn.LPPool1d(2, 2)(genesis.tensor([[3.0, 4.0]])).tolist()
        [[5.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        size = self.kernel_size if isinstance(self.kernel_size, int) else self.kernel_size[0]
        return F.lp_pool1d(input, float(self.norm_type), size, self.stride, self.ceil_mode)


class LPPool2d(_LPPool):
    """Power-mean pooling of images: (Σ xᵖ)^(1/p) of each window.

    Args:
        norm_type: p.
        kernel_size, stride, ceil_mode: as in `nn.MaxPool2d`.
    Shape: (N, C, H, W) → (N, C, P, Q), or without N.

    Example:
        >>> nn.LPPool2d(2, (1, 2))(genesis.tensor([[[3.0, 4.0]]])).tolist()
        [[[5.0]]]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.lp_pool2d(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class _MaxUnpool(Module):
    spatial: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        chosen = (kernel_size, kernel_size if stride is None else stride, padding)
        self.kernel_size, self.stride, self.padding = (
            _single(value) * self.spatial if isinstance(value, int) else tuple(value) for value in chosen
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Put the values of MaxPool1d back to where they were found, among zeros.

    Args:
        kernel_size, stride, padding: as in `F.max_unpool1d`.
    Shape: (N, C, Q) and its indices → (N, C, L), or without N.

    Example:
        >>> nn.MaxUnpool1d(2)(genesis.tensor([[5.0]]), genesis.tensor([[1]])).tolist()
        [[0.0, 5.0]]
    """

    spatial = 1

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool1d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(_MaxUnpool):
    """Put the values of MaxPool2d back to where they were found, among zeros.

    Args:
        kernel_size, stride, padding: as in `F.max_unpool2d`.
    Shape: (N, C, P, Q) and its indices → (N, C, H, W), or without N.

    Example:
        >>> nn.MaxUnpool2d(2)(genesis.tensor([[[5.0]]]), genesis.tensor([[[3]]])).tolist()
        [[[0.0, 0.0], [0.0, 5.0]]]
    """

    spatial = 2

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool2d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class FractionalMaxPool2d(Module):
    """Maxima over windows at random steps, whose number is given.

    Args:
        kernel_size: of the windows.
        output_size: (P, Q), how many windows; or one number for both; or instead
        output_ratio: P / H and Q / W, in (0, 1).
        return_indices: give as well where each value was found.
        _random_samples: as in `F.fractional_max_pool2d`.
    Shape: (N, C, H, W) or (C, H, W) → (N, C, P, Q) or (C, P, Q).
    Raises: ValueError: not exactly one of output_size and output_ratio; a ratio out of range.
    Source: Graham 2014, arXiv:1412.6071.

    Example:
        >>> nn.FractionalMaxPool2d(2, output_ratio=0.7)(genesis.ones(1, 3, 10, 20)).shape
        (1, 3, 7, 14)
    """

    _random_samples: Tensor | None

    def __init__(
        self, kernel_size: Size, output_size: Size | None = None,
        output_ratio: float | tuple[float, float] | None = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            expected, given = "either it or output_ratio", f"{output_size} and {output_ratio}"
            raise ValueError(describe("FractionalMaxPool2d", "output_size", expected, given))
        self.kernel_size, self.return_indices = _pair(kernel_size), return_indices
        self.output_size = None if output_size is None else _pair(output_size)
        self.output_ratio = None if output_ratio is None else _pair(output_ratio)
        if self.output_ratio is not None and not all(0 < ratio < 1 for ratio in self.output_ratio):
            raise ValueError(describe("FractionalMaxPool2d", "output_ratio", "numbers in (0, 1)", output_ratio))
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return F.fractional_max_pool2d(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )
