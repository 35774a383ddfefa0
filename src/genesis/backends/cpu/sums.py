"""Float32 convolutions whose long sums are added up in parts: what "highest" precision asks for.

oneDNN's channels-last kernels add up all C·R·S products in one register: an error that grows with the square root of
their number, 1.1e-6 of 512 channels and 3×3 taps. Its kernels for NCHW under AVX-512 add up 16 channels at a time and
then these sums, which leaves 2.3e-7; they are as fast, but for bringing operands and result from one order into the
other. Elsewhere, and for weights that were packed before, a channels-last kernel is called for 16 channels after the
other (256 of 1×1 taps) and adds to what is there; without AVX2, the results are added by PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.precision import get_float32_precision
from genesis.records import ConvGeometry

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn

_SHORT = 256  # summands that may be added up one by one
_LEAST_CHANNELS = 16  # of a part


def are_long(dtype: torch.dtype, channels: int, kernel: Shape, stride: Pair, is_packed: bool = False) -> bool:
    """Whether sums over this many channels of a group must be accumulated in parts.

    Those of a 1×1 kernel without a stride are, but not with a packed weight, nor without AVX2.
    """
    area = math.prod(kernel)
    if dtype is not torch.float32 or channels * area <= _SHORT:
        return False
    if get_float32_precision() != "highest":
        return False
    return area > 1 or stride != (1, 1) or is_packed or not _adds_whole_sums()


def forward(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Tensor:
    """The convolution of an input that is channels-last; the result is so too."""
    stride, padding, dilation, groups = geometry
    if _kernels_have_parts():
        return _last(torch.conv2d(input.contiguous(), weight.contiguous(), bias, *geometry))
    if math.prod(weight.shape[2:]) == 1 and padding == (0, 0) and _adds_whole_sums():
        return torch.conv2d(_last(input[:, :, :: stride[0], :: stride[1]]), weight, bias, 1, 0, 1, groups)
    first, *others = split(weight)
    first_input, *other_inputs = _split_input(input, groups, first.shape[1])
    y = torch.conv2d(first_input, first, bias, *geometry)
    for part, its_weight in zip(other_inputs, others, strict=True):
        _add(y, part, its_weight, (padding, stride, dilation, groups))
    return y


def input_grad(grad: Tensor, weight: Tensor, input_shape: Shape, geometry: ConvGeometry) -> Tensor:
    """Its kernels for NCHW have short sums on every processor."""
    stride, padding, dilation, groups = geometry
    input = torch.empty(input_shape, dtype=grad.dtype)  # its values don't count
    options = (None, stride, padding, dilation, False, (0, 0), groups, (True, False, False))
    return _last(aten.convolution_backward(grad.contiguous(), input, weight.contiguous(), *options)[0])


def packed(
    input: Tensor, weights: Sequence[Tensor], bias: Tensor | None, geometry: tuple[Pair, Pair, Pair, int]
) -> Tensor:
    """With the parts of a weight, each reordered for oneDNN; geometry is padding, stride, dilation, groups."""
    first, *others = _split_input(input, geometry[-1], weights[0].shape[1])
    y = mkldnn._convolution_pointwise(first, weights[0], bias, *geometry, "none", [], "")
    for part, its_weight in zip(others, weights[1:], strict=True):
        _add(y, part, its_weight, geometry)
    return y


def split(weight: Tensor) -> list[Tensor]:
    """By the input channels of each group."""
    most = _SHORT // math.prod(weight.shape[2:])
    channels = max(most - most % _LEAST_CHANNELS, _LEAST_CHANNELS)
    return [_last(part) for part in weight.split(channels, 1)]


def _split_input(input: Tensor, groups: int, channels: int) -> list[Tensor]:
    """channels: of a group and part."""
    if groups == 1:
        return [_last(part) for part in input.split(channels, 1)]
    parts = input.unflatten(1, (groups, -1)).split(channels, 2)
    return [_last(part.flatten(1, 2)) for part in parts]


def _add(y: Tensor, input: Tensor, weight: Tensor, geometry: tuple[Pair, Pair, Pair, int]) -> None:
    """y += convolution."""
    if _adds_whole_sums():
        mkldnn._convolution_pointwise_.binary(y, input, weight, None, *geometry, "add", 1.0, None, [], "")
    else:
        y += mkldnn._convolution_pointwise(input, weight, None, *geometry, "none", [], "")


@functools.cache
def _kernels_have_parts() -> bool:
    """Whether oneDNN's kernels for NCHW add up 16 channels at a time; found by trial: 2²⁴ + 1 is 2²⁴ in float32."""
    input = torch.ones(2, 64, 16, 16, dtype=torch.float32, device="cpu")
    input[:, 0] = 2**24
    weight = torch.zeros(64, 64, 3, 3, dtype=torch.float32, device="cpu")
    weight[:, :, 1, 1] = 1
    return bool(torch.conv2d(input, weight, None, 1, 1).min() == 2**24 + 48)


@functools.cache
def _adds_whole_sums() -> bool:
    """Whether oneDNN adds a convolution's sums to what is there; found by trial: 2²⁴ + 1 is 2²⁴ in float32.

    Without AVX2, its kernels begin with what is there, and add one product after the other to that; sums of 1×1 kernels
    are one chain there too.
    """
    if not torch.backends.mkldnn.is_available():
        return True
    y = _last(torch.full((1, 64, 8, 8), 2.0**24, dtype=torch.float32, device="cpu"))
    input = _last(torch.ones(1, 16, 8, 8, dtype=torch.float32, device="cpu"))
    weight = torch.zeros(64, 16, 3, 3, dtype=torch.float32, device="cpu")
    weight[:, :, 1, 1] = 1
    geometry = (1, 1), (1, 1), (1, 1), 1
    mkldnn._convolution_pointwise_.binary(y, input, _last(weight), None, *geometry, "add", 1.0, None, [], "")
    return bool(y.min() == 2**24 + 16)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
