"""Convolutions and transposed convolutions.

The weights of image layers lie channels-last in memory, in the order that oneDNN and cuDNN want.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from genesis import functional as F
from genesis.creation import DeviceLike, empty
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.functional.windows import per_dimension
from genesis.nn import init
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.shapes import Shape
from genesis.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]

Size = int | tuple[int, ...]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Geometry(NamedTuple):
    """The geometry as users give it: a number holds for every dimension. A ConvGeometry has it checked."""

    stride: Size
    padding: Size | str
    output_padding: Size
    dilation: Size
    groups: int


class AnyConv(Module):
    """The settings and parameters that all convolutions have."""

    spatial: int
    transposed: bool = False
    weight: Parameter
    bias: Parameter | None
    padding: Shape | str

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, geometry: _Geometry, bias: bool,
        padding_mode: str, device: DeviceLike, dtype: DType | None,
    ) -> None:  # fmt: skip
        super().__init__()
        op = type(self).__name__
        stride, padding, output_padding, dilation, groups = geometry
        for argument, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if groups < 1 or channels % groups:
                raise ShapeError(describe(op, argument, f"a multiple of groups ({groups})", channels))
        if padding_mode not in _PADDING_MODES[: 1 if self.transposed else None]:
            raise ValueError(describe(op, "padding_mode", f"one of {_PADDING_MODES}", repr(padding_mode)))
        if isinstance(padding, str):
            _check_named_padding(op, padding, stride)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_dimension(op, "kernel_size", kernel_size, self.spatial, least=1)
        self.stride = per_dimension(op, "stride", stride, self.spatial, least=1)
        self.padding = (
            padding if isinstance(padding, str) else per_dimension(op, "padding", padding, self.spatial, least=0)
        )
        self.dilation = per_dimension(op, "dilation", dilation, self.spatial, least=1)
        self.output_padding = per_dimension(op, "output_padding", output_padding, self.spatial, least=0)
        self.groups = groups
        self.padding_mode = padding_mode
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        order = "channels_last" if self.spatial == 2 else "contiguous"
        shape = (first, second // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype, memory_format=order))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in ±1/√fan_in.

        Example:
            >>> layer = nn.Conv2d(1, 2, 2)
            >>> layer.reset_parameters()
            >>> bool(layer.weight.abs().max() <= 0.5)  # 1/√(1·2·2)
            True
        """
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init.calculate_fans("reset_parameters", self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def _pad(self, input: Tensor) -> Tensor:
        """input with the border that padding_mode asks for."""
        pads: list[int] = []
        for i in reversed(range(self.spatial)):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                pads += [total // 2, total - total // 2]
            else:
                pads += [0, 0] if isinstance(self.padding, str) else [self.padding[i]] * 2
        return F.pad(input, pads, mode=self.padding_mode)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self.spatial, (1,) * self.spatial
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}" if self.padding != zeros else ""
        text += f", dilation={self.dilation}" if self.dilation != ones else ""
        text += f", output_padding={self.output_padding}" if self.output_padding != zeros else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        return text + (f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else "")


class _Conv(AnyConv):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
        dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        geometry = _Geometry(stride, padding, 0, dilation, groups)
        super().__init__(in_channels, out_channels, kernel_size, geometry, bias, padding_mode, device, dtype)


class Conv1d(_Conv):
    """1-d convolution (cross-correlation) of signals.

    Args:
        in_channels: C, number of channels of the input; a multiple of groups.
        out_channels: K, number of channels of the output; a multiple of groups.
        kernel_size: size of the kernel.
        stride: step of the kernel between outputs.
        padding: width of the border on each side, "valid" (none) or "same" (the output has the input's size; stride 1).
        dilation: spacing between the elements of the kernel.
        groups: number of groups; each is convolved independently.
        bias: whether to learn an additive bias per output channel.
        padding_mode: contents of the border: "zeros" | "reflect" | "replicate" | "circular".
        device, dtype: of the parameters.
    Shape: (N, C, L) → (N, K, P), or (C, L) → (K, P), with P = ⌊(L + 2·padding − dilation·(S − 1) − 1) / stride⌋ + 1.
    Parameters: weight (K, C / groups, S), bias (K,); both uniform in ±1/√fan_in at first.
    Raises: ShapeError: groups does not divide both numbers of channels.
        ValueError: a size is out of range, or a name is unknown.

    Example:
        >>> nn.Conv1d(3, 8, 5, padding="same")(genesis.ones(2, 3, 16)).shape
        (2, 8, 16)
    """

    spatial = 1

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_mode == "zeros":
            return F.conv1d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return F.conv1d(self._pad(input), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Conv2d(_Conv):
    """2-d convolution (cross-correlation) of images. An int for a size stands for both spatial dimensions.

    Args:
        in_channels: C, number of channels of the input; a multiple of groups.
        out_channels: K, number of channels of the output; a multiple of groups.
        kernel_size: size of the kernel, (R, S).
        stride: step of the kernel between outputs.
        padding: width of the border on each side, "valid" (none) or "same" (the output has the input's size; stride 1).
        dilation: spacing between the elements of the kernel.
        groups: number of groups; each is convolved independently.
        bias: whether to learn an additive bias per output channel.
        padding_mode: contents of the border: "zeros" | "reflect" | "replicate" | "circular".
        device, dtype: of the parameters.
    Shape: (N, C, H, W) → (N, K, P, Q), or without N, with P = ⌊(H + 2·padding − dilation·(R − 1) − 1) / stride⌋ + 1.
    Parameters: weight (K, C / groups, R, S), bias (K,); both uniform in ±1/√fan_in at first.
    Raises: ShapeError: groups does not divide both numbers of channels.
        ValueError: a size is out of range, or a name is unknown.

    Example:
        >>> nn.Conv2d(3, 8, 3, stride=2, padding=1)(genesis.ones(1, 3, 32, 32)).shape
        (1, 8, 16, 16)
    """

    spatial = 2

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_mode == "zeros":
            return F.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return F.conv2d(self._pad(input), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class _ConvTranspose(AnyConv):
    transposed = True
    padding: Shape

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
        output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros",
        device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        geometry = _Geometry(stride, padding, output_padding, dilation, groups)
        super().__init__(in_channels, out_channels, kernel_size, geometry, bias, padding_mode, device, dtype)

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> Shape:
        """The output_padding that gives output_size; strides above 1 leave several sizes to choose from."""
        if output_size is None:
            return self.output_padding
        wanted = tuple(output_size)[-self.spatial :]
        least = tuple(
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for size, stride, padding, dilation, kernel in zip(
                input.shape[-self.spatial :], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
            )
        )
        most = tuple(size + stride - 1 for size, stride in zip(least, self.stride, strict=True))
        if len(wanted) != self.spatial or any(
            not low <= size <= high for low, size, high in zip(least, wanted, most, strict=True)
        ):
            raise ShapeError(describe(type(self).__name__, "output_size", f"sizes from {least} to {most}", wanted))
        return tuple(size - low for size, low in zip(wanted, least, strict=True))


class ConvTranspose1d(_ConvTranspose):
    """1-d transposed convolution of signals: computes the gradient of Conv1d with respect to its input.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, output_padding: as in `nn.ConvTranspose2d`.
        groups, bias, dilation, padding_mode, device, dtype: as in `nn.ConvTranspose2d`.
    Shape: (N, C, L) → (N, K, P), or without N, with
        P = (L − 1)·stride − 2·padding + dilation·(S − 1) + output_padding + 1.

    Example:
        >>> nn.ConvTranspose1d(8, 3, 4, stride=2, padding=1)(genesis.ones(1, 8, 16)).shape
        (1, 3, 32)
    """

    spatial = 1

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        output_padding = self._output_padding(input, output_size)
        return F.conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


class ConvTranspose2d(_ConvTranspose):
    """2-d transposed convolution of images: computes the gradient of Conv2d with respect to its input.

    An int for a size stands for both spatial dimensions.

    Args:
        in_channels: C, number of channels of the input; a multiple of groups.
        out_channels: K, number of channels of the output; a multiple of groups.
        kernel_size: size of the kernel, (R, S).
        stride: step of the kernel between inputs: the factor of upsampling.
        padding: width of the border that is cut off the output.
        output_padding: rows and columns added at the end, below stride; calling with output_size computes it.
        groups: number of groups; each is convolved independently.
        bias: whether to learn an additive bias per output channel.
        dilation: spacing between the elements of the kernel.
        padding_mode: "zeros".
        device, dtype: of the parameters.
    Shape: (N, C, H, W) → (N, K, P, Q), or without N, with
        P = (H − 1)·stride − 2·padding + dilation·(R − 1) + output_padding + 1.
    Parameters: weight (C, K / groups, R, S), bias (K,).
    Raises: ShapeError: groups does not divide both numbers of channels, or output_size is out of reach;
        ValueError: a size is out of range.

    Example:
        >>> up = nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1)
        >>> up(genesis.ones(1, 8, 16, 16)).shape, up(genesis.ones(1, 8, 16, 16), output_size=(32, 32)).shape
        ((1, 3, 31, 31), (1, 3, 32, 32))
    """

    spatial = 2

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        output_padding = self._output_padding(input, output_size)
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


def _check_named_padding(op: str, padding: str, stride: Size) -> None:
    if padding not in ("same", "valid"):
        raise ValueError(describe(op, "padding", 'a number, "same" or "valid"', repr(padding)))
    if padding == "same" and any(s != 1 for s in (stride if isinstance(stride, Sequence) else (stride,))):
        raise ValueError(describe(op, "stride", '1 with padding="same"', stride))
