"""torch.ops.torchvision as redirected code has it, against its definitions written out, pixel by pixel."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import genesis
from genesis.autograd import gradcheck
from genesis.errors import MissingNameError, ShapeError
from genesis.port.facade import facade

OPS: Any = facade("torch").ops.torchvision
DEVICES = ["cpu", "cuda"] if genesis.cuda.is_available() else ["cpu"]
RNG = np.random.default_rng(0)


def pixel(plane: np.ndarray, y: float, x: float, border: float) -> float:
    """Bilinear sample of a plane; zero further than border beyond it, in between the nearest pixel (border 1) or 0."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    if border:
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    total = 0.0
    for row, column in itertools.product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
        if 0 <= row < height and 0 <= column < width:
            total += (1 - abs(y - row)) * (1 - abs(x - column)) * plane[row, column]
    return total


def roi_align(x: np.ndarray, rois: np.ndarray, scale: float, bins: tuple[int, int], ratio: int, aligned: bool) -> Any:
    out = np.zeros((len(rois), x.shape[1], *bins))
    for k, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (corner * scale - 0.5 * aligned for corner in corners)
        height, width = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1), max(x2 - x1, 1))
        height, width = height / bins[0], width / bins[1]
        counts = (ratio, ratio) if ratio > 0 else (math.ceil(height), math.ceil(width))
        for c, p, q in np.ndindex(*out.shape[1:]):
            out[k, c, p, q] = sum(
                pixel(x[int(image), c], y1 + (p + (i + 0.5) / counts[0]) * height,
                      x1 + (q + (j + 0.5) / counts[1]) * width, 1)
                for i, j in np.ndindex(*counts)
            ) / max(counts[0] * counts[1], 1)  # fmt: skip
    return out


def deform_conv2d(x: np.ndarray, weight: np.ndarray, offset: np.ndarray, mask: np.ndarray, *geometry: int) -> Any:
    stride, padding, dilation = geometry[0:2], geometry[2:4], geometry[4:6]
    groups, offset_groups, use_mask = geometry[6:]
    (num_out, own, *kernel), (num_images, channels) = weight.shape, x.shape[:2]
    out = np.zeros((num_images, num_out, *offset.shape[2:]))
    for n, k, p, q in np.ndindex(*out.shape):
        for c, r, s in np.ndindex(own, *kernel):
            channel = k // (num_out // groups) * own + c
            tap = channel // (channels // offset_groups) * kernel[0] * kernel[1] + r * kernel[1] + s
            y = p * stride[0] - padding[0] + r * dilation[0] + offset[n, 2 * tap, p, q]
            at = q * stride[1] - padding[1] + s * dilation[1] + offset[n, 2 * tap + 1, p, q]
            value = pixel(x[n, channel], y, at, 0) * weight[k, c, r, s]
            out[n, k, p, q] += value * (mask[n, tap, p, q] if use_mask else 1)
    return out


@pytest.mark.parametrize("device", DEVICES)
def test_nms(device: str) -> None:
    def call(boxes: list[list[float]], scores: list[float], threshold: float) -> list[int]:
        given = genesis.tensor(boxes, device=device).reshape(-1, 4)
        found = OPS.nms(given, genesis.tensor(scores, device=device), threshold)
        assert found.dtype is genesis.int64
        assert found.device == given.device
        return found.tolist()

    boxes = [[0.0, 0, 2, 2], [0, 0, 2, 1], [1, 1, 3, 3], [0, 0, 2, 2]]  # IoU of 0 with 1: 1/2, with 2: 1/7
    assert call(boxes, [0.5, 0.9, 0.8, 0.7], 0.4) == [1, 2]
    assert call(boxes, [0.5, 0.9, 0.8, 0.7], 0.5) == [1, 2, 3]  # what is not above the threshold stays
    assert call(boxes, [1.0, 1.0, 1.0, 1.0], 0.1) == [0]  # equal scores keep their order
    assert call([], [], 0.5) == []
    assert call([[1.0, 1, 1, 1]] * 2, [1.0, 2.0], 0.5) == [1, 0]  # empty boxes have no IoU


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("ratio", "aligned"), [(2, True), (-1, True), (3, False), (0, False)])
def test_roi_align(ratio: int, aligned: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genesis.port.stand_ins.roi_align._MOST_VALUES", 300)  # several chunks
    x = RNG.standard_normal((2, 3, 6, 5))
    rois = np.array([[0, -4, 1, 3, 9.2], [1, 1, 1, 1.2, 1.1], [1, 0, 0, 8, 20], [0, 3.3, 2.5, 3.3, 2.5]])
    image = genesis.from_numpy(x).to(device).requires_grad_()
    boxes = genesis.from_numpy(rois).to(device)
    found = OPS.roi_align(image, boxes, 0.7, 2, 3, ratio, aligned)
    assert np.abs(found.detach().cpu().numpy() - roi_align(x, rois, 0.7, (2, 3), ratio, aligned)).max() < 1e-12
    weights = genesis.from_numpy(RNG.standard_normal(found.shape)).to(device)
    (found * weights).sum().backward()
    assert image.grad is not None
    direction = genesis.from_numpy(RNG.standard_normal(x.shape)).to(device)  # it is linear
    ahead = OPS.roi_align(direction, boxes, 0.7, 2, 3, ratio, aligned)
    assert abs((image.grad * direction).sum().item() - (ahead * weights).sum().item()) < 1e-12
    image.grad = None
    nothing = OPS.roi_align(image, boxes[:0], 0.7, 2, 3, ratio, aligned)
    assert nothing.shape == (0, 3, 2, 3)
    nothing.sum().backward()
    assert not image.grad.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("geometry", [(2, 1, 1, 2, 1, 2, 2, 1, True), (1, 1, 0, 1, 1, 1, 1, 2, False)])
def test_deform_conv2d(geometry: tuple[int, ...], device: str) -> None:
    groups, offset_groups = geometry[6:8]
    x, weight = RNG.standard_normal((2, 4, 5, 4)), RNG.standard_normal((2, 4 // groups, 3, 2))
    sides = [
        (x.shape[2 + i] + 2 * geometry[2 + i] - geometry[4 + i] * (weight.shape[2 + i] - 1) - 1) // geometry[i] + 1
        for i in range(2)
    ]
    offset = RNG.uniform(-2, 2, (2, 2 * offset_groups * 6, *sides))
    mask = RNG.random((2, offset_groups * 6, *sides))
    given = [genesis.from_numpy(each).to(device) for each in (x, weight, offset, mask, np.array([1.0, -2.0]))]
    expected = deform_conv2d(x, weight, offset, mask, *geometry) + np.array([1.0, -2.0]).reshape(-1, 1, 1)
    assert np.abs(OPS.deform_conv2d(*given, *geometry).cpu().numpy() - expected).max() < 1e-12


def test_gradients_of_deform_conv2d() -> None:
    shapes = (1, 2, 3, 3), (1, 2, 2, 2), (1, 8, 2, 2), (1, 4, 2, 2), (1,)
    given = [genesis.from_numpy(RNG.uniform(0.1, 0.9, shape)).requires_grad_() for shape in shapes]
    assert gradcheck(lambda *xs: OPS.deform_conv2d(*xs, 1, 1, 0, 0, 1, 1, 1, 1, True), given)


def test_16_bit_boxes_are_compared_in_float32() -> None:
    boxes = genesis.tensor([[0.0, 0, 3, 3], [0, 0, 3, 2]], dtype=genesis.bfloat16)  # IoU 2/3
    scores = genesis.tensor([1.0, 0.5], dtype=genesis.bfloat16)
    assert OPS.nms(boxes, scores, 0.667).tolist() == [0, 1]
    assert OPS.nms(boxes, scores, 0.666).tolist() == [0]


def test_what_is_refused() -> None:
    x = genesis.ones(2, 4)
    with pytest.raises(ShapeError, match=r"nms: argument 'dets': expected shape \(N, 4\), got \(2, 3\)"):
        OPS.nms(genesis.ones(2, 3), genesis.ones(2), 0.5)
    with pytest.raises(ShapeError, match=r"nms: argument 'scores': expected shape \(2,\), got \(3,\)"):
        OPS.nms(x, genesis.ones(3), 0.5)
    with pytest.raises(ShapeError, match=r"roi_align: argument 'input': expected shape \(N, C, H, W\), got \(2, 4\)"):
        OPS.roi_align(x, x, 1.0, 2, 2, 2, False)
    with pytest.raises(ShapeError, match=r"roi_align: argument 'rois': expected shape \(K, 5\), got \(2, 4\)"):
        OPS.roi_align(genesis.ones(1, 1, 2, 2), x, 1.0, 2, 2, 2, False)
    image, weight = genesis.ones(1, 1, 3, 3), genesis.ones(1, 1, 2, 2)
    with pytest.raises(ShapeError, match=r"deform_conv2d: argument 'offset': expected shape \(1, 8, 2, 2\), got \(1,"):
        OPS.deform_conv2d(image, weight, image, image, x[0, :1], 1, 1, 0, 0, 1, 1, 1, 1, False)
    with pytest.raises(MissingNameError, match=r"no torchvision.ops.roi_pool; .* it has nms, roi_align and deform"):
        OPS.roi_pool(image)
    assert not hasattr(OPS, "nns")


def test_only_torchvisions_library_loads() -> None:
    ops: Any = facade("torch").ops
    ops.load_library("/site/torchvision/_C.so")
    for path in ("/site/torchvision/image.so", "/site/torchaudio/_C.so"):
        with pytest.raises(OSError, match="operators of PyTorch, which run on PyTorch's tensors"):
            ops.load_library(path)
    assert OPS.nms.default is OPS.nms
    assert repr(OPS.nms) == "<torchvision::nms>"
    assert OPS._cuda_version() == -1
