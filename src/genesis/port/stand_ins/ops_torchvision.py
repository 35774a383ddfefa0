"""torch.ops.torchvision: what torchvision compiles for PyTorch's tensors, of Genesis' functions, on every device.

Detection models call nms and roi_align, deformable networks deform_conv2d. The others raise when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NoReturn, ParamSpec, TypeVar

import numpy as np

import genesis
from genesis.dtypes import HostArray
from genesis.errors import MissingNameError, ShapeError, describe
from genesis.nn import functional as F
from genesis.port.stand_ins.roi_align import RoIAlign, RoIGeometry
from genesis.tensor import Tensor

_LACKING = frozenset(
    {"_roi_align_backward", "_deform_conv2d_backward", "box_iou_rotated", "qnms", "qroi_align"}
    | {f"{sign}{name}{end}" for name in ("roi_pool", "ps_roi_align", "ps_roi_pool")
       for sign, end in (("", ""), ("_", "_backward"))}
)  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """An operator; its only overload is itself."""

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.__name__, self.__doc__ = name, function.__doc__
        self._function = function

    @property
    def default(self) -> Operator[P, R]:
        """The operator itself."""
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<torchvision::{self.__name__}>"


class Operators:
    """The namespace torch.ops.torchvision."""

    def __init__(self) -> None:
        self.nms = Operator("nms", nms)
        self.roi_align = Operator("roi_align", roi_align)
        self.deform_conv2d = Operator("deform_conv2d", deform_conv2d)
        self._cuda_version = Operator("_cuda_version", _cuda_version)

    def __getattr__(self, name: str) -> object:
        if name not in _LACKING:
            raise AttributeError(f"torch.ops.torchvision has no {name!r}")

        def refuse(*_: object, **__: object) -> NoReturn:
            raise MissingNameError(
                f"Genesis has no torchvision.ops.{name}; of torchvision's compiled operators it has "
                "nms, roi_align and deform_conv2d"
            )

        return Operator(name, refuse)


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression: the boxes that overlap none of a higher score by more than a threshold.

    The boxes of a GPU are copied to the host, and the call waits for them.

    Args:
        dets: (N, 4), corners (x1, y1, x2, y2).
        scores: (N,).
        iou_threshold: intersection over union from which on, exclusively, the lower score goes.
    Returns: the indices of the boxes that stay, by falling scores; int64.
    Raises: ShapeError: other shapes.
    """
    if dets.ndim != 2 or dets.shape[1] != 4:
        raise ShapeError(describe("nms", "dets", "shape (N, 4)", tuple(dets.shape)))
    if tuple(scores.shape) != (dets.shape[0],):
        raise ShapeError(describe("nms", "scores", f"shape ({dets.shape[0]},)", tuple(scores.shape)))
    boxes = _on_host(dets)
    order = np.argsort(np.negative(_on_host(scores)), kind="stable")
    x1, y1, x2, y2 = boxes[order].T
    areas = (x2 - x1) * (y2 - y1)
    suppressed, kept = np.zeros(len(order), dtype=bool), []
    for index in range(len(order)):
        if suppressed[index]:
            continue
        kept.append(index)
        below = slice(index + 1, None)
        width = np.minimum(x2[index], x2[below]) - np.maximum(x1[index], x1[below])
        height = np.minimum(y2[index], y2[below]) - np.maximum(y1[index], y1[below])
        intersection = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(invalid="ignore"):  # two empty boxes: NaN, which suppresses nothing
            suppressed[below] |= intersection / (areas[index] + areas[below] - intersection) > iou_threshold
    return genesis.tensor(order[kept].astype(np.int64), device=dets.device)


def roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Tensor:  # fmt: skip
    """Means of bilinear samples in the bins of regions.

    Args:
        input: (N, C, H, W).
        rois: (K, 5), the index of the image and the corners (x1, y1, x2, y2); dtype of input.
        spatial_scale: of the corners to pixels.
        pooled_height, pooled_width: bins of a region.
        sampling_ratio: samples of a bin in each direction; 0 or less: one for each begun pixel.
        aligned: whether the centre of a pixel is at 0.5, and regions may be smaller than a pixel.
    Returns: (K, C, pooled_height, pooled_width).
    Raises: ShapeError: other shapes.
    Grad: input.
    Source: He et al. 2017, arXiv:1703.06870.
    """
    if input.ndim != 4:
        raise ShapeError(describe("roi_align", "input", "shape (N, C, H, W)", tuple(input.shape)))
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise ShapeError(describe("roi_align", "rois", "shape (K, 5)", tuple(rois.shape)))
    geometry = RoIGeometry(spatial_scale, (pooled_height, pooled_width), sampling_ratio, aligned)
    return RoIAlign.apply(input, rois, geometry)


def deform_conv2d(  # the signature of torchvision's operator
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *geometry: int
) -> Tensor:
    """Convolution whose kernel reads each of its pixels at an offset of its own, and times a mask.

    Args:
        input: (N, C, H, W).
        weight: (K, C / groups, R, S).
        offset: (N, 2 · offset_groups · R · S, P, Q), rows before columns.
        mask: (N, offset_groups · R · S, P, Q), unless use_mask is False.
        bias: (K,).
        geometry: stride, padding and dilation, each of rows and columns; groups; offset_groups; use_mask.
    Returns: (N, K, P, Q).
    Raises: ShapeError: an offset of another shape.
    Grad: input, weight, offset, mask, bias.
    Source: Zhu et al. 2018, arXiv:1811.11168.
    """
    *windows, groups, offset_groups, use_mask = geometry
    stride, padding, dilation = windows[0:2], windows[2:4], windows[4:6]
    num_images, channels, *sides = input.shape
    kernel = weight.shape[2:]
    outs = [
        (side + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i, side in enumerate(sides)
    ]
    taps, own = kernel[0] * kernel[1], channels // offset_groups
    expected = (num_images, 2 * offset_groups * taps, *outs)
    if tuple(offset.shape) != expected:
        raise ShapeError(describe("deform_conv2d", "offset", f"shape {expected}", tuple(offset.shape)))
    shifts = offset.reshape(num_images, offset_groups, *kernel, 2, *outs)
    points = [
        _base(input, i, kernel[i], outs[i], (stride[i], padding[i], dilation[i])) + shifts[:, :, :, :, i]
        for i in range(2)
    ]
    pixels = input.reshape(num_images * offset_groups, own, -1).transpose(1, 2).reshape(-1, own)
    values = _bilinear(pixels, points[0], points[1], sides)
    if use_mask:
        values = values * mask.reshape(num_images, offset_groups, *kernel, *outs, 1)
    columns = values.permute(0, 1, 6, 2, 3, 4, 5).reshape(num_images, groups, -1, outs[0] * outs[1])
    filters = weight.reshape(groups, weight.shape[0] // groups, -1)
    return filters.matmul(columns).reshape(num_images, -1, *outs) + bias.reshape(-1, 1, 1)


def _base(input: Tensor, dim: int, kernel: int, outs: int, window: tuple[int, int, int]) -> Tensor:
    """Rows or columns that an undeformed kernel reads, to be broadcast to (N, groups, R, S, P, Q)."""
    stride, padding, dilation = window
    taps = genesis.arange(kernel, dtype=input.dtype, device=input.device) * dilation
    places = genesis.arange(outs, dtype=input.dtype, device=input.device) * stride - padding
    return taps.reshape([-1, 1][:: 1 - 2 * dim] + [1, 1]) + places.reshape([-1, 1][:: 1 - 2 * dim])


def _bilinear(pixels: Tensor, y: Tensor, x: Tensor, sides: list[int]) -> Tensor:
    """The pixels of N · groups images between which the points lie, weighted; beyond the image they are zero.

    Args:
        pixels: (N · groups · H · W, C).
        y, x: (N, groups, …).
    Returns: (N, groups, …, C).
    """
    height, width = sides
    images = genesis.arange(y.shape[0] * y.shape[1], device=y.device).reshape(*y.shape[:2], *[1] * (y.ndim - 2))
    lowest = [each.detach().floor() for each in (y, x)]
    rests = [y - lowest[0], x - lowest[1]]
    total: Tensor | None = None
    for down in (0, 1):
        for right in (0, 1):
            row, column = lowest[0] + down, lowest[1] + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            share = (rests[0] if down else 1 - rests[0]) * (rests[1] if right else 1 - rests[1])
            place = (images * height + row.clamp(0, height - 1).long()) * width + column.clamp(0, width - 1).long()
            value = F.embedding(place, pixels) * genesis.where(inside, share, 0.0).unsqueeze(-1)
            total = value if total is None else total + value
    assert total is not None
    return total


def _cuda_version() -> int:
    """Say that nothing was compiled for CUDA."""
    return -1


def _on_host(x: Tensor) -> HostArray:
    """The values; 16-bit ones as float32, in which PyTorch compares them too."""
    x = x.detach().cpu()
    return x.float().numpy() if x.dtype.itemsize < 4 else x.numpy()


OPERATORS = Operators()
