"""The first layer's copies, without the kernels: that the convolution of windows is the one asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.small_c import candidate as small_c
from genesis.backends.cuda.ops.conv.candidates.small_c.candidate import SmallCFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.families import in_order
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem


@pytest.mark.parametrize(
    ("case", "stride", "padding", "dilation"),
    [
        (((2, 3, 9, 8), (8, 3, 7, 7)), (2, 2), (3, 3), (1, 1)), (((1, 5, 6, 7), (8, 5, 3, 2)), (1, 1), (0, 2), (2, 1)),
        (((2, 2, 13, 7), (8, 2, 7, 3)), (3, 1), (2, 0), (1, 1)), (((2, 3, 9, 8), (8, 3, 4, 3)), (2, 2), (1, 1), (1, 1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "highest"), (torch.float32, "high"), (torch.bfloat16, "highest")], ids=str,
)  # fmt: skip
def test_windows_of_few_channels(
    cuda: Backend, put: Callable[[Any], Any], get: Any, case: Any, stride: Any, padding: Any, dilation: Any, dtype: Any,
    precision: str,
) -> None:  # fmt: skip
    """The copies, and that the convolution of their windows is the convolution asked for; and the weight's gradient."""
    outputs, inputs, taps_y, taps_x = case[1]
    torch.manual_seed(0)
    x, weight = torch.randn(case[0]).to(dtype), torch.randn(case[1]).to(dtype)
    name = str(dtype).removeprefix("torch.")
    problem = ConvProblem(FORWARD, *case, stride, padding, dilation, dtype=dtypes.BY_NAME[name], precision=precision)
    fold, out_width, windows = small_c._fold(problem), small_c._width(problem), _windows_of(problem)
    pixel = fold * small_c._channels(problem)
    images, terms, rows, columns = windows.input_shape
    copies = []
    for values, shape, widener in (
        (x, (images, rows, out_width, pixel), small_c._input_widener),
        (weight, (outputs, windows.weight_shape[2], terms), small_c._weight_widener),
    ):
        copy = put(torch.full(shape, torch.nan, dtype=dtype))
        given = put(values.contiguous(memory_format=torch.channels_last))
        widener(problem)(0, copy.data_pointer, given.data_pointer)
        copies.append(get(copy).double())
    positions = torch.arange(columns)[:, None] * stride[1] + torch.arange(taps_x)
    seen = copies[0][:, :, positions].flatten(3)
    seen = F.pad(seen, (0, terms - seen.shape[-1])).permute(0, 3, 1, 2)
    taps = copies[1].view(outputs, -1, 1, terms).permute(0, 3, 1, 2)
    result = F.conv2d(seen, taps, None, windows.stride, windows.padding, windows.dilation)
    expected = F.conv2d(x.double(), weight.double(), None, stride, padding, dilation)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(expected)
    wide_grad = torch.nn.grad.conv2d_weight(seen, taps.shape, grad, windows.stride, windows.padding, windows.dilation)
    narrowed = put(torch.full((outputs, taps_y, taps_x, inputs), torch.nan, dtype=dtype))
    of_windows = put(wide_grad.permute(0, 2, 3, 1).contiguous().to(dtype))
    small_c._narrower(problem)(0, narrowed.data_pointer, of_windows.data_pointer)
    expected = torch.nn.grad.conv2d_weight(x.double(), case[1], grad, stride, padding, dilation)
    torch.testing.assert_close(get(narrowed).permute(0, 3, 1, 2), expected.to(dtype))
    assert pixel * stride[1] * dtype.itemsize % 16 == 0
    assert out_width * pixel * dtype.itemsize % 16 == 0


def _windows_of(problem: ConvProblem) -> ConvProblem:
    windows = small_c._as_windows(problem)
    assert windows.output_shape == problem.output_shape
    return windows


@pytest.mark.parametrize(
    ("taps", "stride", "dilation", "dtype", "precision", "expected"),
    [
        ((7, 7), 2, 1, dtypes.float16, "highest", (2, 4)),
        ((7, 7), 2, 1, dtypes.float32, "high", (2, 4)),
        ((7, 7), 2, 1, dtypes.float32, "highest", (1, 7)),  # an eighth row of zeros would meet infinities
        ((4, 4), 2, 1, dtypes.float32, "highest", (2, 2)),
        ((3, 3), 1, 1, dtypes.float16, "highest", (1, 3)),
        ((7, 9), 2, 1, dtypes.float16, "highest", (1, 7)),  # two rows have more than 64 terms
        ((2, 2), 2, 1, dtypes.float16, "highest", (1, 2)),
        ((3, 3), 2, 2, dtypes.float16, "highest", (1, 3)),
    ],
)
def test_rows_that_are_folded(
    taps: Any, stride: int, dilation: int, dtype: Any, precision: str, expected: tuple[int, int]
) -> None:
    geometry = ((stride, stride), (1, 1), (dilation, dilation))
    problem = ConvProblem(FORWARD, (1, 3, 20, 20), (8, 3, *taps), *geometry, dtype=dtype, precision=precision)
    assert (small_c._fold(problem), small_c._as_windows(problem).weight_shape[2]) == expected
    half = dataclasses.replace(problem, dtype=dtypes.float16)
    of_gradient = small_c._fold(dataclasses.replace(problem, direction=WEIGHT_GRAD))
    assert of_gradient == small_c._fold(half)  # zeros meet no result there


@pytest.mark.parametrize(("dtype", "leads"), [(dtypes.bfloat16, True), (dtypes.float32, False)])
def test_more_warpgroups_come_first_in_16_bits(
    simulated: Backend, monkeypatch: pytest.MonkeyPatch, dtype: dtypes.DType, leads: bool
) -> None:
    monkeypatch.setattr(hopper, "is_available", lambda device: True)
    stem = ConvProblem(FORWARD, (64, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3), dtype=dtype, precision="high")
    rows = [int(each.name.partition("/")[2].partition("x")[0]) for each in SmallCFamily().variants(stem)]
    assert (rows[0], rows[-1]) == ((192, 64) if leads else (128, 128))


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize(("taps", "expected"), [(3, "implicit_gemm"), (7, "small_c")])
def test_short_sums_of_16_bits_need_no_windows(
    simulated: Backend, monkeypatch: pytest.MonkeyPatch, dtype: dtypes.DType, taps: int, expected: str
) -> None:
    """The 27 terms of 3×3 taps of an image are one step of the plain kernel."""
    monkeypatch.setattr(hopper, "is_available", lambda device: True)
    for direction in (FORWARD, WEIGHT_GRAD):
        stem = ConvProblem(direction, (64, 3, 224, 224), (64, 3, taps, taps), (2, 2), (taps // 2,) * 2, dtype=dtype)
        families = [family.prefix for family in in_order(stem)]
        assert min(("small_c", "implicit_gemm"), key=families.index) == expected
        assert families.index("cudnn") > families.index(expected) or (direction, taps) == (WEIGHT_GRAD, 7)
