"""Convolution against torch in float64: strides, paddings, dilations, groups, layouts, dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm import candidate as implicit_gemm
from genesis.records import ConvGeometry

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

# Relative L2 distance from float64.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 3e-7, torch.float16: 5e-4, torch.bfloat16: 4e-3}


class Case(NamedTuple):
    """N, C, H, W → K channels by R × S taps."""

    input: tuple[int, int, int, int]
    outputs: int
    taps: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def weight(self) -> tuple[int, int, int, int]:
        return (self.outputs, self.input[1] // self.groups, *self.taps)

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.stride, self.padding, self.dilation, self.groups)


CASES = [
    Case((2, 16, 7, 7), 20, (3, 3), padding=(1, 1)),
    Case((2, 16, 7, 7), 20, (3, 3)),
    Case((2, 24, 8, 7), 8, (3, 3), stride=(2, 2), padding=(1, 1)),
    Case((2, 40, 5, 5), 33, (1, 1)),
    Case((2, 16, 6, 5), 8, (1, 1), stride=(2, 2)),
    Case((1, 3, 15, 15), 16, (7, 7), stride=(2, 2), padding=(3, 3)),
    Case((2, 3, 9, 8), 5, (3, 2), stride=(3, 2), padding=(2, 1), dilation=(2, 3)),
    Case((2, 16, 9, 8), 5, (2, 3), stride=(2, 3), padding=(0, 2), dilation=(2, 2)),
    Case((1, 4, 6, 6), 4, (2, 2), stride=(4, 3)),
    Case((2, 6, 7, 7), 9, (3, 3), padding=(1, 1), groups=3),
    Case((2, 32, 5, 5), 32, (3, 3), padding=(1, 1), groups=2),
    Case((2, 10, 7, 7), 10, (3, 3), padding=(1, 1), stride=(2, 2), groups=10),
    Case((2, 6, 7, 5), 12, (3, 5), padding=(1, 2), groups=6),
    Case((0, 16, 5, 5), 8, (3, 3)),
]


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    assert result.dtype == dtype
    assert result.shape == expected.shape
    distance = (result.double() - expected).norm() / expected.norm().clamp_min(1e-300)
    assert distance <= factor * TOLERANCE[dtype] or expected.numel() == 0


def operands(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shapes = (case.input, case.weight, (case.outputs,))
    return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)  # type: ignore[return-value]


def gradients(case: Case, input: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random gradient of the result, in input's dtype, and the float64 gradients of input and weight."""
    x, w = (t.to(torch.float64, copy=True).requires_grad_() for t in (input, weight))
    y = F.conv2d(x, w, None, *case.geometry)
    grad = torch.randn_like(y).to(input.dtype)
    return grad, *torch.autograd.grad(y, (x, w), grad.double())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv(cuda: Backend, put: Put, get: Get, case: Case) -> None:
    input, weight, bias = operands(case, torch.float32)
    result = cuda.conv_forward(put(input), put(weight), put(bias), case.geometry)
    close(get(result), F.conv2d(input.double(), weight.double(), bias.double(), *case.geometry), torch.float32)
    grad, grad_input, grad_weight = gradients(case, input, weight)
    close(get(cuda.conv_input_grad(put(grad), put(weight), case.input, case.geometry)), grad_input, torch.float32)
    close(get(cuda.conv_weight_grad(put(grad), put(input), case.weight, case.geometry)), grad_weight, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [CASES[2], CASES[5], CASES[11]], ids=str)
def test_conv_dtypes(cuda: Backend, put: Put, get: Get, case: Case, dtype: torch.dtype) -> None:
    input, weight, bias = operands(case, dtype)
    result = cuda.conv_forward(put(input), put(weight), put(bias), case.geometry)
    close(get(result), F.conv2d(input.double(), weight.double(), bias.double(), *case.geometry), dtype)
    grad, grad_input, grad_weight = gradients(case, input, weight)
    close(get(cuda.conv_input_grad(put(grad), put(weight), case.input, case.geometry)), grad_input, dtype)
    close(get(cuda.conv_weight_grad(put(grad), put(input), case.weight, case.geometry)), grad_weight, dtype)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    n, c, h, w = x.shape
    return {
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "steps": torch.zeros(n, 2 * c, h, 3 * w, dtype=x.dtype)[:, ::2, :, 1::3].copy_(x),
        "repeated": (4 * x[:, :1]).round().div(4).expand(n, c, h, w),  # sums of one number many times over are exact
        "flipped axes": x.transpose(2, 3).contiguous().transpose(2, 3),
    }


@pytest.mark.parametrize("layout", ["channels last", "steps", "repeated", "flipped axes"])
@pytest.mark.parametrize("case", [CASES[2], CASES[6], CASES[9], CASES[12]], ids=str)
def test_conv_of_any_strides(cuda: Backend, put: Put, get: Get, case: Case, layout: str) -> None:
    input, weight, bias = operands(case, torch.float32)
    input, weight = layouts(input)[layout], layouts(weight)[layout]
    bias = torch.stack([bias, bias], 1)[:, 0]
    result = cuda.conv_forward(put(input), put(weight), put(bias), case.geometry)
    close(get(result), F.conv2d(input.double(), weight.double(), bias.double(), *case.geometry), torch.float32)
    grad, grad_input, grad_weight = gradients(case, input, weight)
    grad = layouts(grad)["steps"]
    close(get(cuda.conv_input_grad(put(grad), put(weight), case.input, case.geometry)), grad_input, torch.float32)
    close(get(cuda.conv_weight_grad(put(grad), put(input), case.weight, case.geometry)), grad_weight, torch.float32)


def test_results_are_channels_last(cuda: Backend, put: Put) -> None:
    input, weight, _ = operands(CASES[0], torch.float32)
    result = cuda.conv_forward(put(input), put(weight), None, CASES[0].geometry)
    assert cuda.strides(result) == (7 * 7 * 20, 1, 7 * 20, 20)
    result = cuda.conv_input_grad(result, put(weight), CASES[0].input, CASES[0].geometry)
    assert cuda.strides(result) == (7 * 7 * 16, 1, 7 * 16, 16)


@pytest.mark.parametrize("groups", [1, 8])
def test_weight_grad_in_splits(cuda: Backend, put: Put, get: Get, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit_gemm, "_num_splits", lambda *ignored: 3)
    plans.forget()
    case = Case((4, 8, 12, 11), 8, (3, 3), padding=(1, 1), groups=groups)
    input, weight, _ = operands(case, torch.float32)
    grad, _, grad_weight = gradients(case, input, weight)
    result = get(cuda.conv_weight_grad(put(grad), put(input), case.weight, case.geometry))
    # The depthwise kernel sums by tl.sum, which the simulated device does one after another, not as a tree.
    close(result, grad_weight, torch.float32, factor=1.0 if groups == 1 else 2.0)


def test_splits_keep_the_multiprocessors_busy(simulated: Backend) -> None:
    assert implicit_gemm._num_splits(1, 10**6, 32, 4096, 0) == 8  # four multiprocessors
    assert implicit_gemm._num_splits(100, 10**6, 32, 4096, 0) == 1
    assert implicit_gemm._num_splits(1, 300, 32, 4096, 0) == 2
    assert implicit_gemm._num_splits(1, 10**6, 32, 32 << 20, 0) == 2


def test_input_grad_is_a_transposed_convolution(cuda: Backend, put: Put, get: Get) -> None:
    torch.manual_seed(0)
    for groups, inner in ((1, 4), (2, 3), (6, 1)):
        x, weight, bias = torch.randn(2, 6, 5, 4), torch.randn(6, inner, 2, 3), torch.randn(2 * inner * groups)[::2]
        wide = (x.double(), weight.double(), bias.double())
        expected = F.conv_transpose2d(*wide, (3, 2), (1, 0), (2, 1), groups)
        geometry = ConvGeometry((3, 2), (1, 0), (1, 1), groups)
        result = cuda.conv_input_grad(put(x), put(weight), tuple(expected.shape), geometry, put(bias))
        close(get(result), expected, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [CASES[0], CASES[10], CASES[11]], ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_conv_prepacked(
    cuda: Backend, put: Put, get: Get, case: Case, dtype: torch.dtype, with_residual: bool, activation: str | None
) -> None:
    input, weight, bias = operands(case, dtype)
    expected = F.conv2d(input.double(), weight.double(), bias.double(), *case.geometry)
    residual = torch.randn_like(expected).to(dtype) if with_residual else None
    expected = expected if residual is None else expected + residual.double()
    packed = cuda.conv_prepack(put(weight), put(bias), case.input, case.geometry)
    result = get(cuda.conv_prepacked(put(input), packed, put(residual), activation))
    close(result, expected.relu() if activation else expected, dtype)


def test_conv_refuses_integers(cuda: Backend, put: Put) -> None:
    x = put(torch.ones(1, 1, 3, 3, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="conv_forward has no cuda implementation for int64"):
        cuda.conv_forward(x, x, None, ConvGeometry((1, 1), (0, 0), (1, 1), 1))


def test_infinities_and_nan_stay_in_their_windows(cuda: Backend, put: Put, get: Get) -> None:
    input, weight, _ = operands(CASES[0], torch.float32)
    input[0, 0, 0, 0], input[1, 3, 6, 6] = torch.inf, torch.nan
    expected = F.conv2d(input.double(), weight.double(), None, *CASES[0].geometry)
    result = get(cuda.conv_forward(put(input), put(weight), None, CASES[0].geometry)).double()
    finite = expected.isfinite()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isfinite(), finite)
    close(result[finite].float(), expected[finite], torch.float32)


def test_operands_that_are_aligned_otherwise_have_another_plan(cuda: Backend, put: Put, get: Get) -> None:
    """Batches of odd images cut from one array: a kernel for one's addresses may load more at once than another's."""
    memory, weight = torch.randn(600).bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    plans.forget()
    for offset in (0, 4, 2, 1, 8):
        x = memory[offset : offset + 576].view(2, 6, 6, 8).permute(0, 3, 1, 2)
        found = get(cuda.conv_forward(put(x), put(weight), None, geometry))
        expected = F.conv2d(x.double(), weight.double(), padding=1)
        assert (found.double() - expected).norm() <= TOLERANCE[torch.bfloat16] * expected.norm()
    assert sorted(plan.problem.alignment for plan in plans.all_plans()) == [2, 4, 8, 16]
