"""The pooling of regions in Mask R-CNN: sums over pixels, found anew for some regions at a time, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import genesis
from genesis.autograd import Context, Function
from genesis.tensor import Tensor

_MOST_VALUES = 1 << 22  # that are gathered at a time


class RoIGeometry(NamedTuple):
    """How regions are divided; see roi_align in ops_torchvision.py."""

    scale: float
    bins: tuple[int, int]
    sampling_ratio: int
    aligned: bool


class Samples(NamedTuple):
    """The samples of one direction: pixels (K, bins, 2 · samples), and with which weight each counts."""

    pixels: Tensor
    weights: Tensor


class RoIAlign(Function):
    """Each bin of a region is a weighted sum of pixels; the gradient goes back by the same weights."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, rois: Tensor, geometry: RoIGeometry) -> Tensor:
        num_images, channels, height, width = input.shape
        table = input.permute(0, 2, 3, 1).reshape(-1, channels)
        bins = geometry.bins[0] * geometry.bins[1]
        out = genesis.zeros(rois.shape[0], bins, channels, dtype=input.dtype, device=input.device)
        for first, last, pixels, weights in _chunks(rois, (height, width), channels, geometry):
            out[first:last] = weights.unsqueeze(-2).matmul(table[pixels]).squeeze(-2).to(input.dtype)
        ctx.save_for_backward(rois)
        ctx.shape, ctx.geometry = (num_images, channels, height, width), geometry
        return out.transpose(1, 2).reshape(rois.shape[0], channels, *geometry.bins)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (rois,) = ctx.saved_tensors
        num_images, channels, height, width = ctx.shape
        bins = ctx.geometry.bins[0] * ctx.geometry.bins[1]
        grad = grad.reshape(rois.shape[0], channels, bins).transpose(1, 2)
        total = genesis.zeros(num_images * height * width, channels, dtype=grad.dtype, device=grad.device)
        for first, last, pixels, weights in _chunks(rois, (height, width), channels, ctx.geometry):
            values = weights.unsqueeze(-1) * grad[first:last].unsqueeze(-2)
            total.index_add_(0, pixels.reshape(-1), values.reshape(-1, channels))
        return total.reshape(num_images, height, width, channels).permute(0, 3, 1, 2), None, None


def _chunks(
    rois: Tensor, sides: tuple[int, int], channels: int, geometry: RoIGeometry
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Regions [first, last), the pixels of their bins, and how much each weighs: (last − first, bins, pixels)."""
    if not rois.shape[0]:
        return
    rows, columns = (_samples(rois, dim, sides[dim], geometry) for dim in (0, 1))
    images = rois[:, 0].long().reshape(-1, 1, 1) * sides[0]
    bins = geometry.bins[0] * geometry.bins[1]
    each = bins * rows.pixels.shape[2] * columns.pixels.shape[2] * channels
    step = max(1, _MOST_VALUES // max(each, 1))
    for first in range(0, rois.shape[0], step):
        last = min(first + step, rois.shape[0])
        row = (images[first:last] + rows.pixels[first:last])[:, :, None, :, None] * sides[1]
        pixels = row + columns.pixels[first:last][:, None, :, None, :]
        weights = rows.weights[first:last][:, :, None, :, None] * columns.weights[first:last][:, None, :, None, :]
        yield first, last, pixels.reshape(last - first, bins, -1), weights.reshape(last - first, bins, -1)


def _samples(rois: Tensor, dim: int, side: int, geometry: RoIGeometry) -> Samples:
    """The samples of rows (dim 0) or of columns."""
    shift = 0.5 if geometry.aligned else 0.0
    start, end = (rois[:, column - dim] * geometry.scale - shift for column in (2, 4))
    size = end - start if geometry.aligned else (end - start).clamp(min=1.0)
    size = size / geometry.bins[dim]
    ratio = geometry.sampling_ratio
    counts = genesis.full_like(size, ratio) if ratio > 0 else size.ceil()
    most = ratio if ratio > 0 else int(counts.max().item())
    at = genesis.arange(most, dtype=rois.dtype, device=rois.device)
    bins = genesis.arange(geometry.bins[dim], dtype=rois.dtype, device=rois.device)
    start, size, counts = (each.reshape(-1, 1, 1) for each in (start, size, counts))
    points = start + bins.reshape(1, -1, 1) * size + (at + 0.5) * (size / counts.clamp(min=1.0))
    counted = (at < counts) & (points >= -1.0) & (points <= side)
    points = points.clamp(0.0, side - 1.0)
    low = points.floor()
    share = genesis.where(counted, 1 / counts.clamp(min=1.0), 0.0)
    high = (low + 1).clamp(max=side - 1.0)
    weights = genesis.cat([(1 - (points - low)) * share, (points - low) * share], 2)
    return Samples(genesis.cat([low, high], 2).long(), weights)
