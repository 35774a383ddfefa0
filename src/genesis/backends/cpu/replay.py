"""What a replay can prepare: convolutions whose weights no longer change get them packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu.conv import conv_prepack, conv_prepacked, open_sizes

mkldnn = torch.ops.mkldnn


def prepare(op: str, args: Sequence[Any]) -> Callable[[Tensor], Tensor] | None:
    if op not in _PREPARED or args[0].dtype is not torch.float32:
        return None
    return _PREPARED[op](*args)


def _conv_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any
) -> Callable[[Tensor], Tensor] | None:
    packed = conv_prepack(weight, bias, tuple(input.shape), *geometry)
    return lambda x: conv_prepacked(x, packed, None, None)


def _conv_input_grad(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    bias: Tensor | None = None,
) -> Callable[[Tensor], Tensor] | None:  # fmt: skip
    if groups != 1:
        return None
    extra = open_sizes(grad.shape, weight.shape, input_shape, stride, padding, dilation)
    packed = mkldnn._reorder_convolution_transpose_weight(
        weight.contiguous(memory_format=torch.channels_last), padding, extra, stride, dilation, groups, grad.shape
    )
    options: tuple[Any, ...] = (padding, extra, stride, dilation, groups, "none", [], "")

    def run(x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        return mkldnn._convolution_transpose_pointwise(x, packed, bias, *options)

    return run


_PREPARED: dict[str, Callable[..., Callable[[Tensor], Tensor] | None]] = {
    "conv_forward": _conv_forward,
    "conv_input_grad": _conv_input_grad,
}
