"""Pooling against the CPU backend: windows, paddings, ceil mode, layouts, dtypes, NaN, ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.records import Windows

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]

TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LAYOUTS = ["contiguous", "channels last", "steps"]
CHANNELS = [(torch.float64, 21), (torch.float32, 2), (torch.float32, 150), (torch.float16, 64), (torch.bfloat16, 21)]
WINDOWS = [
    Windows((2, 2), (2, 2), (0, 0), (1, 1), False),
    Windows((3, 3), (2, 2), (1, 1), (1, 1), False),
    Windows((3, 2), (2, 3), (1, 1), (1, 1), True),
    Windows((2, 3), (1, 2), (0, 1), (2, 3), False),
    Windows((1, 1), (3, 2), (0, 0), (1, 1), True),
    Windows((5, 4), (5, 4), (2, 2), (1, 1), True),
]


@pytest.fixture
def cpu() -> Backend:
    return backends.get("cpu")


def sample(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    if layout == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "steps":
        wide = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype).transpose(-1, -2).contiguous().transpose(-1, -2)
        return wide[..., ::2].copy_(x)
    return x


def close(result: Tensor, expected: Tensor) -> None:
    assert result.dtype == expected.dtype
    relative = TOLERANCE.get(expected.dtype, 0.0)
    torch.testing.assert_close(result, expected, rtol=relative, atol=relative, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max_pool2d(cuda: Backend, cpu: Backend, put: Put, get: Get, window: Windows, layout: str) -> None:
    x = sample(2, 3, 9, 8, layout=layout)
    y, indices = cuda.max_pool2d(put(x), window)
    expected, expected_indices = cpu.max_pool2d(x, window)
    assert torch.equal(get(y), expected)
    assert torch.equal(get(indices), expected_indices)
    values, none = cuda.max_pool2d(put(x), window, find=None)
    assert torch.equal(get(values), expected)
    assert none is None
    values, places = cuda.max_pool2d(put(x), window, find="places")
    assert torch.equal(get(values), expected)
    assert get(places).dtype is torch.uint8
    grad = sample(*expected.shape, layout=layout)
    for found in (indices, places):
        close(
            get(cuda.max_pool2d_backward(put(grad), x.shape, found, window)),
            cpu.max_pool2d_backward(grad, x.shape, expected_indices, window),
        )


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int64, torch.uint8], ids=str)
def test_max_pool2d_dtypes(cuda: Backend, cpu: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x = sample(2, 3, 7, 7, dtype=torch.float64).mul(10).to(dtype)
    window = WINDOWS[1]
    y, indices = cuda.max_pool2d(put(x), window)
    expected, expected_indices = cpu.max_pool2d(x, window)
    assert get(y).dtype == dtype
    assert torch.equal(get(y), expected)
    assert torch.equal(get(indices), expected_indices)
    if dtype.is_floating_point:
        grad = sample(*expected.shape, dtype=dtype)
        result = get(cuda.max_pool2d_backward(put(grad), x.shape, indices, window))
        assert result.dtype == dtype
        wide = cpu.max_pool2d_backward(grad.double(), x.shape, expected_indices, window)
        torch.testing.assert_close(result.double(), wide, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("channels", [2, 21, 64, 150])
def test_max_pool2d_of_channels_side_by_side(
    cuda: Backend, cpu: Backend, put: Put, get: Get, channels: int, dtype: torch.dtype
) -> None:
    """Without indices, these are computed together, some at a time; and so is their gradient from places."""
    x = sample(2, channels + 3, 9, 8, dtype=torch.float64, layout="channels last").mul(10).to(dtype)
    if dtype.is_floating_point:
        x[0, 3, 4, 4] = torch.nan
        x[1, 2:4, 2:7, 2:7] = -torch.inf
    x = x[:, 2:-1]
    window = WINDOWS[1]
    expected, indices = cpu.max_pool2d(x, window)
    y, _ = cuda.max_pool2d(put(x), window, find=None)
    close(get(y), expected)
    y, places = cuda.max_pool2d(put(x), window, find="places")
    close(get(y), expected)
    if dtype.is_floating_point:
        grad = sample(*expected.shape, dtype=torch.float64, layout="channels last")
        result = get(cuda.max_pool2d_backward(put(grad.to(dtype)), x.shape, places, window))
        wide = cpu.max_pool2d_backward(grad.to(dtype).double(), x.shape, indices, window)
        torch.testing.assert_close(result, wide.to(dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize(
    ("window", "form"),
    [
        (Windows((3, 3), (2, 2), (1, 1), (1, 1), False), torch.uint8),
        (Windows((2, 2), (1, 1), (1, 1), (2, 2), False), torch.uint8),
        (Windows((6, 6), (3, 2), (3, 3), (1, 1), True), torch.uint8),  # too large for unrolled code
        (Windows((3, 3), (1, 1), (1, 1), (3, 3), False), torch.uint8),  # too many windows for it
        (Windows((16, 16), (5, 4), (8, 8), (1, 1), True), torch.uint8),
        (Windows((17, 16), (5, 4), (8, 8), (1, 1), True), torch.int64),  # more places than a byte tells apart
    ],
    ids=str,
)
def test_places_are_those_of_the_indices(
    cuda: Backend, cpu: Backend, put: Put, get: Get, window: Windows, form: torch.dtype, layout: str
) -> None:
    """Among equals, infinities and NaN: the gradient of a window goes where PyTorch has its index."""
    x = sample(2, 4, 11, 10, layout=layout).mul(2).round()
    x[0, 0, 2:4, 3], x[0, 1] = torch.nan, -torch.inf
    expected, indices = cpu.max_pool2d(x, window)
    y, places = cuda.max_pool2d(put(x), window, find="places")
    close(get(y), expected)
    assert get(places).dtype is form
    batch, channels, *size = expected.shape
    for grad in (sample(*expected.shape), sample(batch, 2 * channels, *size)[:, 1 : 1 + channels]):
        result = cuda.max_pool2d_backward(put(grad), x.shape, places, window)
        close(get(result), cpu.max_pool2d_backward(grad, x.shape, indices, window))
        assert cuda.strides(result) == x.stride()


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("find", ["indices", "places"])
def test_a_window_in_the_padding_altogether_finds_nothing(
    cuda: Backend, put: Put, get: Get, find: str, layout: str
) -> None:
    """Its elements lie on both sides of the plane. (PyTorch's gradient goes to an address outside of it.)"""
    x = sample(2, 4, 1, 6, layout=layout)
    window = Windows((2, 2), (1, 1), (1, 1), (2, 2), False)
    y, found = cuda.max_pool2d(put(x), window, find=find)
    assert torch.equal(get(y), torch.full((2, 4, 1, 6), -torch.inf))
    grad = cuda.max_pool2d_backward(y, x.shape, found, window)
    assert torch.equal(get(grad), torch.zeros_like(x))


def test_max_pool2d_of_nan_ties_and_infinities(cuda: Backend, cpu: Backend, put: Put, get: Get) -> None:
    x = torch.tensor(
        [[1.0, 1, 5, 5], [1, 1, torch.nan, 5], [-torch.inf, -torch.inf, 2, 3], [-torch.inf, -torch.inf, 3, 3]]
    )
    y, indices = cuda.max_pool2d(put(x[None]), WINDOWS[0])
    expected, expected_indices = cpu.max_pool2d(x[None], WINDOWS[0])
    close(get(y), expected)
    assert torch.equal(get(indices), expected_indices)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("window", [w for w in WINDOWS if w[3] == (1, 1)], ids=str)
def test_avg_pool2d(
    cuda: Backend, cpu: Backend, put: Put, get: Get,
    window: Windows, count_include_pad: bool, divisor: int | None, layout: str,
) -> None:  # fmt: skip
    half = (window.kernel_size[0] // 2, window.kernel_size[1] // 2)
    options = (window._replace(padding=min(window.padding, half)), count_include_pad, divisor)
    x = sample(2, 3, 9, 8, layout=layout)
    expected = cpu.avg_pool2d(x, *options)
    close(get(cuda.avg_pool2d(put(x), *options)), expected)
    grad = sample(*expected.shape, layout=layout)
    close(get(cuda.avg_pool2d_backward(put(grad), put(x), *options)), cpu.avg_pool2d_backward(grad, x, *options))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_avg_pool2d_dtypes(cuda: Backend, cpu: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x = sample(2, 3, 7, 7, dtype=dtype)
    options = (WINDOWS[1], True, None)
    result = get(cuda.avg_pool2d(put(x), *options))
    assert result.dtype == dtype
    expected = cpu.avg_pool2d(x.double(), *options)
    torch.testing.assert_close(result.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    result = get(cuda.avg_pool2d_backward(put(expected.to(dtype)), put(x), *options))
    expected = cpu.avg_pool2d_backward(expected.to(dtype).double(), x.double(), *options)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_size", [(1, 1), (3, 5), (9, 8), (13, 20), (2, 8)], ids=str)
def test_adaptive_pools(
    cuda: Backend, cpu: Backend, put: Put, get: Get, out_size: tuple[int, int], layout: str
) -> None:
    x = sample(2, 3, 9, 8, layout=layout)
    expected = cpu.adaptive_avg_pool2d(x, out_size)
    close(get(cuda.adaptive_avg_pool2d(put(x), out_size)), expected)
    grad = sample(*expected.shape, layout=layout)
    close(get(cuda.adaptive_avg_pool2d_backward(put(grad), put(x))), cpu.adaptive_avg_pool2d_backward(grad, x))
    y, indices = cuda.adaptive_max_pool2d(put(x), out_size)
    expected, expected_indices = cpu.adaptive_max_pool2d(x, out_size)
    assert torch.equal(get(y), expected)
    assert torch.equal(get(indices), expected_indices)
    close(
        get(cuda.adaptive_max_pool2d_backward(put(grad), put(x), indices)),
        cpu.adaptive_max_pool2d_backward(grad, x, expected_indices),
    )


@pytest.mark.parametrize(("dtype", "channels"), CHANNELS, ids=str)
@pytest.mark.parametrize("plane", [(1, 5), (5, 7)], ids=str)
def test_the_mean_of_planes_that_fill_the_device(
    cuda: Backend, cpu: Backend, put: Put, get: Get, plane: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    """Then a program sums up a few channels of a plane; those of another image can lie anywhere."""
    images = max(2, -(-driver.get().properties(0).multiprocessor_count // -(-channels * dtype.itemsize // 512)))
    x = sample(images, channels + 3, *plane, dtype=dtype, layout="channels last")
    x[0, 3, 0, 0] = torch.nan
    x[1, 2, 0, 0] = -torch.inf
    x = x[:, 2:-1]
    y = cuda.adaptive_avg_pool2d(put(x), (1, 1))
    assert cuda.strides(y) == (channels, 1, channels, channels)
    exact = cpu.adaptive_avg_pool2d(x.double(), (1, 1))
    assert torch.isnan(exact).sum() == torch.isinf(exact).sum() == 1
    torch.testing.assert_close(get(y).double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


@pytest.mark.parametrize(("dtype", "channels"), CHANNELS, ids=str)
@pytest.mark.parametrize("out_size", [(1, 1), (2, 6), (3, 3)], ids=str)
def test_adaptive_gradients_of_channels_side_by_side(
    cuda: Backend, cpu: Backend, put: Put, get: Get, out_size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    """A row is longer than what one program takes; NaN and infinities stay in their windows."""
    x = sample(2, channels, 2, 67, dtype=dtype, layout="channels last")
    grad = sample(2, channels + 2, *out_size, dtype=dtype, layout="channels last")[:, 1:-1]
    grad[0, 1, 0, 0] = torch.nan
    grad[1, 0, 0, 0] = torch.inf
    exact = cpu.adaptive_avg_pool2d_backward(grad.double(), x.double())
    for given in (grad, grad.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)):
        result = cuda.adaptive_avg_pool2d_backward(put(given), put(x))
        assert cuda.strides(result) == (134 * channels, 1, 67 * channels, channels)
        assert get(result).dtype == dtype
        torch.testing.assert_close(
            get(result).double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True
        )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_size", [(0, 2), (2, 0)], ids=str)
def test_the_gradient_of_no_window_is_zero(
    cuda: Backend, put: Put, get: Get, out_size: tuple[int, int], layout: str
) -> None:
    x = sample(2, 3, 9, 8, layout=layout)
    grad = torch.zeros(2, 3, *out_size)
    assert torch.equal(get(cuda.adaptive_avg_pool2d_backward(put(grad), put(x))), torch.zeros_like(x))


@pytest.mark.parametrize("shape", [(3, 6, 7), (0, 3, 6, 7)], ids=str)
def test_pools_without_and_of_no_batch(cuda: Backend, cpu: Backend, put: Put, get: Get, shape: tuple[int, ...]) -> None:
    x = sample(*shape)
    window = WINDOWS[0]
    y, indices = cuda.max_pool2d(put(x), window)
    expected, expected_indices = cpu.max_pool2d(x, window)
    assert torch.equal(get(y), expected)
    close(
        get(cuda.max_pool2d_backward(y, x.shape, indices, window)),
        cpu.max_pool2d_backward(expected, x.shape, expected_indices, window),
    )
    close(get(cuda.adaptive_avg_pool2d(put(x), (2, 2))), cpu.adaptive_avg_pool2d(x, (2, 2)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [(None,), (5,)], ids=["mean", "divisor"])
def test_a_window_of_the_whole_plane(
    cuda: Backend, cpu: Backend, put: Put, get: Get, options: tuple[Any, ...], layout: str
) -> None:
    x = sample(2, 3, 9, 8, layout=layout)
    how = (Windows((9, 8), (1, 1), (0, 0), (1, 1), False), True, *options)
    close(get(cuda.avg_pool2d(put(x), *how)), cpu.avg_pool2d(x, *how))
    grad = sample(2, 3, 1, 1)
    close(get(cuda.avg_pool2d_backward(put(grad), put(x), *how)), cpu.avg_pool2d_backward(grad, x, *how))


def test_pools_keep_channels_last(cuda: Backend, put: Put) -> None:
    x = put(sample(2, 4, 6, 6, layout="channels last"))
    y, indices = cuda.max_pool2d(x, WINDOWS[0])
    assert cuda.strides(y) == cuda.strides(indices) == (36, 1, 12, 4)
    assert cuda.strides(cuda.max_pool2d_backward(y, x.shape, indices, WINDOWS[0])) == (144, 1, 24, 4)
    assert cuda.strides(cuda.adaptive_avg_pool2d(x, (1, 1))) == (4, 1, 4, 4)


def test_avg_pool2d_refuses_integers(cuda: Backend, put: Put) -> None:
    x = put(torch.ones(1, 1, 4, 4, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="avg_pool2d has no cuda implementation for int64"):
        cuda.avg_pool2d(x, WINDOWS[0], True, None)
