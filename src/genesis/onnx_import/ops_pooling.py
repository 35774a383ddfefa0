"""Pooling."""

from __future__ import annotations

import math

import genesis
from genesis import functional as F
from genesis.onnx_import.ops_dense import Sizes, numbers, padded, spatial_pads
from genesis.onnx_import.registry import Node, computes
from genesis.tensor import Tensor


@computes("MaxPool")
def max_pool(node: Node, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    kernel, strides, (before, after), ceil = _geometry(node, x)
    dilations = numbers(node, "dilations", len(kernel))
    with_indices = any(node.outputs[1:])
    if with_indices and before != after:
        raise node.refuse("Indices beside padding that differs between the two sides")
    if with_indices:
        pool = F.max_pool1d if len(kernel) == 1 else F.max_pool2d
        y, indices = pool(x, kernel, strides, before, dilations, ceil, return_indices=True)
        return y, _of_the_tensor(indices, x)
    if any(2 * amount > extent for amount, extent in zip(before, kernel, strict=True)) or before != after:
        x, before = padded(x, before, after, -math.inf), (0,) * len(kernel)
    if len(kernel) == 1:
        return F.max_pool1d(x, kernel[0], strides[0], before[0], dilations[0], ceil)
    return F.max_pool2d(x, kernel, strides, before, dilations, ceil)


def _of_the_tensor(indices: Tensor, x: Tensor) -> Tensor:
    """Indices into planes as ONNX counts them: into all of x."""
    planes = genesis.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    return indices + planes * math.prod(x.shape[2:])


@computes("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    kernel, strides, (before, after), ceil = _geometry(node, x)
    if any(d != 1 for d in numbers(node, "dilations", len(kernel))):
        raise node.refuse("dilations")
    counted = bool(node.integer("count_include_pad", 0))
    if before == after and all(2 * amount <= extent for amount, extent in zip(before, kernel, strict=True)):
        return _mean(x, kernel, strides, before, ceil, counted)
    y = _mean(padded(x, before, after), kernel, strides, (0,) * len(kernel), ceil, True)
    if counted:
        return y
    one = padded(genesis.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device), before, after)
    return y / _mean(one, kernel, strides, (0,) * len(kernel), ceil, True)


def _mean(x: Tensor, kernel: Sizes, strides: Sizes, pads: Sizes, ceil: bool, counted: bool) -> Tensor:
    if len(kernel) == 1:
        return F.avg_pool1d(x, kernel[0], strides[0], pads[0], ceil, counted)
    return F.avg_pool2d(x, kernel, strides, pads, ceil, counted)


def _geometry(node: Node, x: Tensor) -> tuple[Sizes, Sizes, tuple[Sizes, Sizes], bool]:
    kernel = node.integers("kernel_shape")
    if kernel is None or len(kernel) not in (1, 2) or x.ndim != len(kernel) + 2:
        raise node.refuse(f"kernel_shape={kernel} of {x.ndim} dimensions")
    if node.integer("storage_order", 0):
        raise node.refuse("storage_order=1")
    pads = spatial_pads(node, x.shape[2:], kernel)
    return kernel, numbers(node, "strides", len(kernel)), pads, bool(node.integer("ceil_mode", 0))


@computes("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1) if x.ndim == 4 else x.mean(tuple(range(2, x.ndim)), keepdim=True)


@computes("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)
