"""Interpolation against the CPU backend: modes, sizes, scales, layouts, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.interpolation import launch as interpolation

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]

TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LAYOUTS = ["contiguous", "channels last", "steps"]
# mode, input's spatial shape, output's
MODES = [
    *((mode, (5,), (size,)) for mode in ("nearest", "nearest-exact", "linear") for size in (3, 5, 10)),
    *(
        (mode, (5, 6), size)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        for size in ((3, 11), (5, 13))
    ),
    *((mode, (3, 4, 5), (5, 2, 7)) for mode in ("nearest", "nearest-exact", "trilinear")),
    ("bicubic", (1, 2), (3, 1)),
    ("bilinear", (1, 7), (4, 1)),
    ("bilinear", (2, 1), (14, 13)),  # so many outputs for an input that the gradient goes along one axis after another
    ("nearest", (1, 1), (13, 12)),
    ("trilinear", (1, 2, 1), (6, 9, 5)),
]


def with_corners(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each case, and again with aligned corners where its mode knows them."""
    pairs = [(case, align) for case in cases for align in (False, True)]
    return [(*case, align) for case, align in pairs if not (align and {"nearest", "nearest-exact"} & {*case})]


@pytest.fixture
def cpu() -> Backend:
    return backends.get("cpu")


def sample(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    if layout == "channels last" and x.ndim > 3:
        return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    if layout == "steps":
        return torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2].copy_(x)
    return x


def close(result: Tensor, expected: Tensor, tolerance: float) -> None:
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def as_close(result: Tensor, expected: Tensor, exact: Tensor) -> None:
    """No farther from the exact result than what is expected, but for one more rounding."""
    assert result.dtype == expected.dtype
    rounding = torch.finfo(result.dtype).eps * exact.norm()
    assert (result - exact).norm() <= (expected - exact).norm() + rounding


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "size", "out_size", "align_corners"), with_corners(MODES))
def test_interpolate(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    mode: str, size: tuple[int, ...], out_size: tuple[int, ...], align_corners: bool, layout: str,
) -> None:  # fmt: skip
    x = sample(2, 3, *size, layout=layout)
    options = (mode, align_corners, (None,) * len(size))
    result = get(cuda.interpolate(put(x), out_size, *options))
    as_close(result, *(cpu.interpolate(x, out_size, *options) for x in (x, x.double())))
    grad = sample(*result.shape, layout=layout)
    result = get(cuda.interpolate_backward(put(grad), tuple(x.shape), *options))
    as_close(result, *(cpu.interpolate_backward(grad, tuple(x.shape), *options) for grad in (grad, grad.double())))


@pytest.mark.parametrize("scale", [0.4, 0.6, 1.3, 1.5, 2.0, 3.7])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolate_with_scales(cuda: Backend, cpu: Backend, put: Put, get: Get, mode: str, scale: float) -> None:
    x = sample(1, 1, 7, 6)
    out_size = (int(7 * scale), int(6 * scale))
    options = (mode, False, (scale, scale))
    result = get(cuda.interpolate(put(x), out_size, *options))
    as_close(result, *(cpu.interpolate(x, out_size, *options) for x in (x, x.double())))
    grad = sample(*result.shape)
    result = get(cuda.interpolate_backward(put(grad), tuple(x.shape), *options))
    as_close(result, *(cpu.interpolate_backward(grad, tuple(x.shape), *options) for grad in (grad, grad.double())))


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolate_dtypes(
    cuda: Backend, cpu: Backend, put: Put, get: Get, mode: str, dtype: torch.dtype, layout: str
) -> None:
    x = sample(1, 2, 5, 4, dtype=dtype, layout=layout)
    options = (mode, False, (None, None))
    result = get(cuda.interpolate(put(x), (8, 9), *options))
    assert result.dtype == dtype
    expected = cpu.interpolate(x.double(), (8, 9), *options)
    close(result.double(), expected, TOLERANCE[dtype] * 4)
    grad = sample(1, 2, 8, 9, dtype=dtype, layout=layout)
    result = get(cuda.interpolate_backward(put(grad), (1, 2, 5, 4), *options))
    assert result.dtype == dtype
    close(result.double(), cpu.interpolate_backward(grad.double(), (1, 2, 5, 4), *options), TOLERANCE[dtype] * 16)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gradients_along_one_axis_after_the_other(
    cuda: Backend, cpu: Backend, put: Put, get: Get, dtype: torch.dtype, layout: str
) -> None:
    """They are rounded as if only once."""
    grad = sample(2, 5, 24, 40, dtype=dtype, layout=layout)
    result = get(cuda.interpolate_backward(put(grad), (2, 5, 2, 3), "bilinear", False, (None, None)))
    exact = cpu.interpolate_backward(grad.double(), (2, 5, 2, 3), "bilinear", False, (None, None))
    rounded = exact.to(dtype)
    assert result.dtype == dtype
    assert (result.double() - exact).norm() <= 1.1 * (rounded.double() - exact).norm() + 1e-6 * exact.norm()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_interpolate_of_bytes(cuda: Backend, cpu: Backend, put: Put, get: Get, layout: torch.memory_format) -> None:
    x = torch.arange(40, dtype=torch.uint8).reshape(1, 2, 4, 5).contiguous(memory_format=layout)
    options = ("nearest", False, (None, None))
    assert torch.equal(get(cuda.interpolate(put(x), (7, 3), *options)), cpu.interpolate(x, (7, 3), *options))
    with pytest.raises(NotImplementedError, match="no cuda implementation for mode 'bilinear' and uint8"):
        cuda.interpolate(put(x), (7, 3), "bilinear", False, (None, None))


def test_interpolate_keeps_channels_last(cuda: Backend, put: Put) -> None:
    x = put(sample(2, 4, 3, 3, layout="channels last"))
    y = cuda.interpolate(x, (6, 6), "bilinear", False, (None, None))
    assert cuda.strides(y) == (144, 1, 24, 4)
    assert cuda.strides(cuda.interpolate_backward(y, (2, 4, 3, 3), "bilinear", False, (None, None))) == (36, 1, 12, 4)


# channels, mode, input's spatial shape, output's
SIDE_BY_SIDE = [
    (21, "bilinear", (3, 4), (7, 5)),
    (130, "bicubic", (3, 4), (7, 5)),
    (200, "nearest", (3, 4), (7, 5)),
    (21, "bilinear", (5, 4), (41, 26)),  # many rows a program, and more than one program a row
    (3, "bicubic", (5, 4), (41, 3)),
    (3, "nearest-exact", (5, 4), (41, 3)),
    (5, "bilinear", (41, 9), (37, 2)),
    (256, "bilinear", (1, 1), (9, 8)),
    (256, "bilinear", (9, 8), (1, 1)),
    (21, "bicubic", (2, 3), (20, 17)),
]


@pytest.mark.parametrize(("channels", "mode", "size", "out_size", "align_corners"), with_corners(SIDE_BY_SIDE))
def test_interpolate_channels_side_by_side(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    channels: int, mode: str, size: tuple[int, ...], out_size: tuple[int, ...], align_corners: bool,
) -> None:  # fmt: skip
    x = sample(2, channels, *size, layout="channels last")
    options = (mode, align_corners, (None, None))
    result = get(cuda.interpolate(put(x), out_size, *options))
    as_close(result, *(cpu.interpolate(x, out_size, *options) for x in (x, x.double())))
    assert torch.equal(get(cuda.interpolate(put(x[:1]), out_size, *options)), result[:1])  # however rows are shared out
    grad = sample(*result.shape, layout="channels last")
    result = get(cuda.interpolate_backward(put(grad), tuple(x.shape), *options))
    as_close(result, *(cpu.interpolate_backward(grad, tuple(x.shape), *options) for grad in (grad, grad.double())))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("scale", [0.6, 3.7])
def test_interpolate_parts_of_pixels_with_scales(
    cuda: Backend, cpu: Backend, put: Put, get: Get, mode: str, scale: float
) -> None:
    """Channels lie side by side, but not all of a pixel's are there, nor all pixels."""
    x = sample(2, 9, 14, 6, layout="channels last")[:, 2:7, ::2]
    out_size = (int(7 * scale), int(6 * scale))
    options = (mode, False, (scale, scale))
    result = get(cuda.interpolate(put(x), out_size, *options))
    as_close(result, *(cpu.interpolate(x, out_size, *options) for x in (x, x.double())))


def test_interpolate_of_no_batch(cuda: Backend, put: Put) -> None:
    x = put(torch.empty(0, 2, 3, 3))
    assert cuda.interpolate(x, (6, 6), "nearest", False, (None, None)).shape == (0, 2, 6, 6)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tables_take_what_torch_takes(cpu: Backend, mode: str, dtype: torch.dtype) -> None:
    """Every pair of sizes up to 40, and scales that round badly."""
    number = dtypes.BY_NAME[str(dtype).removeprefix("torch.")]
    for size in range(1, 41):
        ramp = torch.arange(size, dtype=dtype)[None, None]
        for out_size in range(1, 41):
            for scale in (None, out_size / size, (out_size + 0.5) / size):
                indices, weights = interpolation.table(
                    interpolation.Axis(size, out_size, mode, False, scale, number, 0)
                )
                mine = indices[:, 0] if weights is None else (indices * weights).sum(1)
                theirs = cpu.interpolate(ramp, (out_size,), mode, False, (scale,))[0, 0].numpy()
                exact = mode != "linear"
                assert np.allclose(mine, theirs, rtol=0, atol=0 if exact else 1e-5), (size, out_size, scale)
