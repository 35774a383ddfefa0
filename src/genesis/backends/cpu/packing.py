"""Weights in oneDNN's own layouts, of which equal ones exist once: most input sizes want the same layout."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape

mkldnn = torch.ops.mkldnn

# By layout and sum of the values; alive as long as somebody convolves with it.
_packed: weakref.WeakValueDictionary[tuple[object, ...], Tensor] = weakref.WeakValueDictionary()

# In oneDNN's description of a layout: bytes between two fields, which nobody sets.
_PADDING = slice(108, 112)


def pack(weight: Tensor, padding: Pair, stride: Pair, dilation: Pair, groups: int, input_shape: Shape) -> Tensor:
    """weight in the layout that a convolution of such an input wants."""
    return shared(mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, input_shape))


def pack_transposed(
    weight: Tensor, padding: Pair, output_padding: Sequence[int], stride: Pair, dilation: Pair, groups: int,
    input_shape: Sequence[int],
) -> Tensor:  # fmt: skip
    """weight in the layout that a transposed convolution of such an input wants."""
    return shared(
        mkldnn._reorder_convolution_transpose_weight(
            weight.contiguous(memory_format=torch.channels_last),
            padding, output_padding, stride, dilation, groups, input_shape,
        )
    )  # fmt: skip


def shared(packed: Tensor) -> Tensor:
    """packed, or what is the same bit for bit and has been packed before."""
    layout = bytearray(mkldnn._get_mkldnn_serialized_md(packed).numpy())
    layout[_PADDING] = bytes(4)
    values = packed.to_dense()
    key = (tuple(values.shape), bytes(layout), values.sum(dtype=torch.float64).item())
    known = _packed.get(key)
    if known is not None and torch.equal(known.to_dense().view(torch.int32), values.view(torch.int32)):
        return known
    _packed[key] = packed
    return packed
