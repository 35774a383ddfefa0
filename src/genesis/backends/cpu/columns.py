"""The gradient of a convolution's weight as one matrix product: for few pixels and many channels, or a head's 1×1.

    grad_weight[k, (r, s, c)] = Σ_{n,p,q} grad[(n, p, q), k] · columns[(n, p, q), (r, s, c)]

A column holds what the kernel sees from one pixel of the output. The product comes out in the order that a
channels-last weight has in memory, whereas oneDNN's own kernel gives blocks of it, which are reordered, and that
copied: of a weight that is larger than the columns, this takes as long as the sums themselves. Of a 1×1 kernel the
columns are the input's pixels; for a head's few output channels that kernel goes through them at half of memory's rate.

Source: Chellapilla, Puri & Simard 2006, "High performance convolutional neural networks for document processing".
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.records import ConvGeometry

_FEW_OUTPUTS = 4  # of more, oneDNN's kernel is as fast


def pays(grad_shape: Shape, weight_shape: Shape) -> bool:
    """Whether the columns are expected to be smaller than the weight, or the kernel is 1×1 and has few outputs."""
    num_images, _, height, width = grad_shape
    out_channels, _, *kernel = weight_shape
    if math.prod(kernel) == 1:
        return out_channels <= _FEW_OUTPUTS
    return num_images * height * width <= out_channels


def weight_grad(grad: Tensor, input: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    """grad (N, K, P, Q) and input (N, C, H, W), channels last in memory; the result (K, C, R, S) is so too."""
    out_channels, in_channels, *kernel = weight_shape
    rows = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])
    columns = columns_of(input.permute(0, 2, 3, 1), grad.shape[2:], tuple(kernel), geometry)
    product = rows.t() @ columns.reshape(len(rows), math.prod(weight_shape[1:]))
    return product.view(out_channels, *kernel, in_channels).permute(0, 3, 1, 2)


def columns_of(images: Tensor, output_sizes: Shape, kernel: Shape, geometry: ConvGeometry) -> Tensor:
    """(N, P, Q, R, S, C): a view of the images (N, H, W, C), or of a padded copy."""
    stride, (top, left), dilation, _ = geometry
    if top or left:
        images = torch.nn.functional.pad(images, (0, 0, left, left, top, top))
    image, row, column, channel = images.stride()
    shape = images.shape[0], *output_sizes, *kernel, images.shape[3]
    steps = (image, row * stride[0], column * stride[1], row * dilation[0], column * dilation[1], channel)
    return images.as_strided(shape, steps)
