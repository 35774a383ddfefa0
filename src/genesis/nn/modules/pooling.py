"""Pooling: maxima and means over windows, or over a grid of fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, overload

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "MaxPool1d", "MaxPool2d"]

Size = int | tuple[int, ...]
OutputSize = int | tuple[int | None, int | None]
WithIndices = tuple[Tensor, Tensor]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Output = TypeVar("Output", default=Tensor)  # WithIndices with return_indices=True
else:
    from typing import TypeVar

    Output = TypeVar("Output")


class _MaxPool(Module, Generic[Output]):
    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool[Output]):
    """Maximum over sliding windows of signals.

    Args:
        kernel_size, stride, padding, dilation, return_indices, ceil_mode: as in `nn.MaxPool2d`.
    Shape: (N, C, L) → (N, C, P), or without N.

    Example:
        >>> nn.MaxPool1d(2)(genesis.tensor([[1.0, 2.0, 4.0, 3.0]])).tolist()
        [[2.0, 4.0]]
    """

    @overload
    def __init__(
        self: MaxPool1d[Tensor], kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
        return_indices: Literal[False] = False, ceil_mode: bool = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MaxPool1d[WithIndices], kernel_size: Size, stride: Size | None = None, padding: Size = 0,
        dilation: Size = 1, return_indices: Literal[True] = ..., ceil_mode: bool = False,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, input: Tensor) -> Output:
        return F.max_pool1d(  # type: ignore[return-value, unused-ignore]  # Output says what return_indices does
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool2d(_MaxPool[Output]):
    """Maximum over sliding windows of images.

    Args:
        kernel_size: size of the window.
        stride: step between windows; kernel_size by default.
        padding: width of the border of −∞ on each side; at most half of kernel_size.
        dilation: spacing between the elements of a window.
        return_indices: also return the position of each maximum in its flattened H·W plane, int64.
        ceil_mode: also use the windows at the end that reach beyond the border.
    Shape: (N, C, H, W) → (N, C, P, Q), or without N; with return_indices a pair of these.

    Example:
        >>> nn.MaxPool2d(2)(genesis.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
        4.0
    """

    @overload
    def __init__(
        self: MaxPool2d[Tensor], kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
        return_indices: Literal[False] = False, ceil_mode: bool = False,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MaxPool2d[WithIndices], kernel_size: Size, stride: Size | None = None, padding: Size = 0,
        dilation: Size = 1, return_indices: Literal[True] = ..., ceil_mode: bool = False,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, input: Tensor) -> Output:
        return F.max_pool2d(  # type: ignore[return-value, unused-ignore]  # Output says what return_indices does
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class AvgPool1d(Module):
    """Mean over sliding windows of signals.

    Args:
        kernel_size, stride, padding, ceil_mode, count_include_pad: as in `nn.AvgPool2d`.
    Shape: (N, C, L) → (N, C, P), or without N.

    Example:
        >>> nn.AvgPool1d(2)(genesis.tensor([[1.0, 3.0, 4.0, 2.0]])).tolist()
        [[2.0, 3.0]]
    """

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = self.kernel_size if stride is None else _single(stride)
        self.padding = _single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """Mean over sliding windows of images.

    Args:
        kernel_size: size of the window.
        stride: step between windows; kernel_size by default.
        padding: width of the border of zeros on each side; at most half of kernel_size.
        ceil_mode: also use the windows at the end that reach beyond the border.
        count_include_pad: count the border's zeros in the mean.
        divisor_override: divide the window's sum by this instead of by the number of its elements.
    Shape: (N, C, H, W) → (N, C, P, Q), or without N.

    Example:
        >>> nn.AvgPool2d(2)(genesis.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
        2.5
    """

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """Mean over a grid of windows whose number is given, whatever the size of the image.

    Args:
        output_size: (P, Q), or one number for both; None keeps the input's size.
    Shape: (N, C, H, W) → (N, C, P, Q), or without N.

    Example:
        >>> nn.AdaptiveAvgPool2d(1)(genesis.ones(2, 3, 7, 5)).shape
        (2, 3, 1, 1)
    """

    def __init__(self, output_size: OutputSize) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(Module, Generic[Output]):
    """Maximum over a grid of windows whose number is given, whatever the size of the image.

    Args:
        output_size: (P, Q), or one number for both; None keeps the input's size.
        return_indices: also return the position of each maximum in its flattened H·W plane, int64.
    Shape: (N, C, H, W) → (N, C, P, Q), or without N; with return_indices a pair of these.

    Example:
        >>> nn.AdaptiveMaxPool2d(1)(genesis.arange(4.0).reshape(1, 2, 2)).item()
        3.0
    """

    @overload
    def __init__(
        self: AdaptiveMaxPool2d[Tensor], output_size: OutputSize, return_indices: Literal[False] = False
    ) -> None: ...
    @overload
    def __init__(
        self: AdaptiveMaxPool2d[WithIndices], output_size: OutputSize, return_indices: Literal[True]
    ) -> None: ...
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Output:
        output = F.adaptive_max_pool2d(input, self.output_size, self.return_indices)
        return output  # type: ignore[return-value, unused-ignore]  # Output says what return_indices does

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


def _single(value: Size) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
