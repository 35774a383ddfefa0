"""The Hopper kernels: what of them can be seen without a GPU, and on a GPU each against float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.engine.candidate import ALLOWED, FULL
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import launch_axes
from genesis.backends.cuda.ops.conv.candidates.small_c.candidate import SmallCFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma import forward as wgmma
from genesis.backends.cuda.ops.conv.candidates.wgmma import weight_grad as wgmma_weight_grad
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import Wgmma, WgmmaFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import run

PROBLEMS = [
    ConvProblem(direction, input, weight, stride, padding, dilation, dtype=dtypes.float32)
    for direction in (FORWARD, INPUT_GRAD)
    for input, weight, stride, padding, dilation in [
        ((2, 16, 7, 6), (20, 16, 3, 3), (1, 1), (1, 1), (1, 1)),
        ((2, 16, 7, 6), (20, 16, 1, 1), (1, 1), (0, 0), (1, 1)),
        ((2, 16, 9, 8), (20, 16, 3, 3), (2, 2), (1, 1), (1, 1)),
        ((2, 16, 8, 9), (20, 16, 1, 1), (2, 2), (0, 0), (1, 1)),
        ((2, 16, 11, 9), (24, 16, 3, 2), (2, 1), (1, 0), (1, 2)),
        ((1, 16, 9, 12), (16, 16, 2, 3), (3, 2), (0, 2), (2, 2)),
    ]
]
_SHAPE = wgmma._SPLIT_SHAPES[1]


def _computed(problem: ConvProblem, first: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What the kernel makes of its structures, pixel by pixel; first: NHWC, weight: (outputs, taps, inputs)."""
    out = np.full(problem.result_shape, np.nan).transpose(0, 2, 3, 1).reshape(-1)
    first = first.reshape(-1)
    for pair in launch_axes(problem):
        pixels, geometry = wgmma._geometry(problem, Wgmma(_SHAPE, 1, FULL), *pair)
        g = SimpleNamespace(**geometry)  # as the kernel calls it
        assert (g.num_splits, g.relu, pixels.step) == (1, 0, (g.step_y, g.step_x))
        images, height, width, _ = pixels.shape
        assert (g.num_pixels, g.in_height) == (images * g.out_height * g.out_width, height)
        view = first.reshape(images, height, width, g.num_inputs)
        for size, low, high, step, count in zip(
            (height, width), pixels.low, pixels.high, pixels.step, (g.out_height, g.out_width), strict=True
        ):
            assert (size - 1 + high - low) // step + 1 == count
        for n, i, j in np.ndindex(images, g.out_height, g.out_width):
            total = np.zeros(g.num_outputs)
            for ty, tx in np.ndindex(g.taps_y, g.taps_x):
                y = g.low_y + i * g.step_y + ty * g.spread_y
                x = g.low_x + j * g.step_x + tx * g.spread_x
                tap = (g.tap_first_y + ty * g.tap_step_y) * g.weight_width + g.tap_first_x + tx * g.tap_step_x
                if 0 <= y < height and 0 <= x < width:
                    total += weight[:, tap] @ view[n, y, x]
            place = g.out_start + n * g.out_image + i * g.out_row + j * g.out_column
            out[place : place + g.num_outputs] = total
    n, c, h, w = problem.result_shape
    return out.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _expected(problem: ConvProblem, first: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    p = problem
    if p.direction == FORWARD:
        return F.conv2d(first, weight, None, p.stride, p.padding, p.dilation)
    return torch.nn.grad.conv2d_input(p.input_shape, weight, first, p.stride, p.padding, p.dilation)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_launches_cover_the_result(problem: ConvProblem) -> None:
    torch.manual_seed(0)
    first, weight = torch.randn(problem.first_shape).double(), torch.randn(problem.weight_shape).double()
    rows = weight if problem.direction == FORWARD else weight.transpose(0, 1)
    taps_inside = rows.permute(0, 2, 3, 1).flatten(1, 2)
    result = _computed(problem, first.permute(0, 2, 3, 1).contiguous().numpy(), taps_inside.numpy())
    np.testing.assert_allclose(result, _expected(problem, first, weight).numpy(), rtol=1e-12, atol=1e-12)


def _positions(pixels: Any, values: np.ndarray, right: int = 0, down: int = 0) -> np.ndarray:
    """What the copy engine finds at a map's positions, in its order; values: NHWC."""
    images, height, width, channels = pixels.shape
    values = values.reshape(pixels.shape)
    rows, columns = (
        range(low, size + high, step)
        for size, low, high, step in zip((height, width), pixels.low, pixels.high, pixels.step, strict=True)
    )
    found = np.zeros((images, len(rows), len(columns), channels))
    for i, y in enumerate(rows):
        for j, x in enumerate(columns):
            if 0 <= y + down < height and 0 <= x + right < width:
                found[:, i, j] = values[:, y + down, x + right]
    return found.reshape(-1, channels)


def _weight_gradient(problem: ConvProblem, shape: Any, grad: np.ndarray, input: np.ndarray) -> np.ndarray:
    """What the kernel makes of its structures, tap by tap; grad, input: NHWC."""
    grads, inputs, geometry = wgmma_weight_grad._geometry(problem, shape, 1)
    g = SimpleNamespace(**geometry)  # as the kernel calls it
    assert (inputs.step, inputs.low) == ((g.step_y, g.step_x), (g.low_y, g.low_x))
    assert (inputs.num_pixels, g.true_width) == (64 if shape.taps == 1 else 72, problem.output_shape[3])
    terms = grad.reshape(-1, grad.shape[-1]) if shape.taps == 1 else _positions(grads, grad)
    assert len(terms) == g.num_pixels
    assert shape.grouped == (g.num_groups > 1)
    columns = np.arange(g.num_pixels) % g.out_width
    assert shape.taps == 1 or not terms[columns >= g.true_width].any()
    out = np.full((g.num_groups * g.num_outputs, g.taps_y, g.taps_x, g.num_inputs), np.nan)
    for group, y, x in np.ndindex(g.num_groups, g.taps_y, g.taps_x):
        outputs, channels = (slice(group * number, (group + 1) * number) for number in (g.num_outputs, g.num_inputs))
        right, on = x * g.spread_x, 0
        if shape.taps == 3:
            window = shape.windows == 2 and x == 1
            right, on = g.spread_x if window else 0, 0 if window else (x // shape.windows) * g.shift
        assert on <= 8
        found = _positions(inputs, input, right, y * g.spread_y)
        assert len(found) == g.num_pixels
        found = np.concatenate([found[on:], np.zeros((on, found.shape[1]))])
        out[outputs, y, x] = terms[:, outputs].T @ found[:, channels]
    return out.transpose(0, 3, 1, 2)


WEIGHT_PROBLEMS = [
    ConvProblem(WEIGHT_GRAD, input, weight, stride, padding, dilation, input[1] // weight[1], dtype=dtypes.float32)
    for input, weight, stride, padding, dilation in [
        ((2, 16, 7, 6), (20, 16, 3, 3), (1, 1), (1, 1), (1, 1)),
        ((2, 16, 7, 6), (20, 16, 1, 1), (1, 1), (0, 0), (1, 1)),
        ((2, 16, 9, 8), (20, 16, 3, 3), (2, 2), (1, 1), (1, 1)),
        ((2, 16, 9, 9), (20, 16, 2, 3), (1, 2), (0, 1), (1, 2)),
        ((2, 16, 9, 12), (20, 16, 1, 3), (3, 2), (0, 3), (1, 3)),
        ((2, 16, 11, 9), (24, 16, 3, 3), (2, 1), (1, 0), (1, 4)),
        ((1, 16, 9, 12), (16, 16, 2, 3), (3, 3), (0, 2), (2, 2)),
        ((2, 24, 7, 6), (30, 8, 3, 3), (1, 1), (1, 1), (1, 1)),
        ((2, 16, 9, 8), (20, 8, 3, 3), (2, 2), (1, 1), (1, 1)),
    ]
]


@pytest.mark.parametrize("problem", WEIGHT_PROBLEMS, ids=str)
def test_windows_hold_the_pixels_of_all_taps(problem: ConvProblem) -> None:
    torch.manual_seed(0)
    grad, input = (
        torch.randn(shape).double().contiguous(memory_format=torch.channels_last)
        for shape in (problem.first_shape, problem.second_shape)
    )
    expected = torch.nn.grad.conv2d_weight(
        input, problem.weight_shape, grad, problem.stride, problem.padding, problem.dilation, problem.groups
    )
    found = wgmma_weight_grad.shapes(problem)
    assert any(shape.taps == 3 for shape in found) == (problem.weight_shape[3] == 3 and problem.stride[1] < 3)
    for shape in found:
        result = _weight_gradient(problem, shape, *(each.permute(0, 2, 3, 1).numpy() for each in (grad, input)))
        np.testing.assert_allclose(result, expected.numpy(), rtol=1e-6, atol=1e-6, err_msg=str(shape))


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("parts", [2, 1])
def test_weights_in_parts(cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str, parts: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 20, 2, 3) * torch.logspace(-30, 30, 24)[:, None, None, None]
    weight[3] = 0
    weight[5, 2, 0, 0], weight[6, 1, 1, 1], weight[7, 0, 0, 0] = torch.inf, -torch.inf, torch.nan
    weight[8] = 1e-41
    problem = ConvProblem(direction, (1, 20, 8, 8), (24, 20, 2, 3), dtype=dtypes.float32)
    space = wgmma._Workspace(problem, 1)
    given = put(weight.contiguous(memory_format=torch.channels_last))
    rows, taps, padded = space.weight
    memory = put(torch.zeros(space.size // 4, dtype=torch.int32))
    wgmma._weight_splitter(problem, space, parts)(0, given.data_pointer, memory.data_pointer)
    raw = get(memory)
    high = raw.view(torch.float16)[: rows * taps * padded].view(rows, taps, padded // 16, 16).double()
    low = raw.view(torch.float16)[space.low // 2 :][: rows * taps * padded].view(rows, taps, padded // 16, 16).double()
    inverse = raw.view(torch.float32)[space.inverse // 4 :][:rows].double()
    place = [2 * (c // 4) + c % 2 + 8 * (c % 4 // 2) for c in range(16)]
    expected = (weight if direction == FORWARD else weight.transpose(0, 1)).double().flatten(2).transpose(1, 2)
    restored = (high + low)[..., place].flatten(2) * inverse[:, None, None] * 2.0**16
    assert not restored[..., expected.shape[2] :].any()
    restored = restored[..., : expected.shape[2]]
    finite = expected.isfinite()
    assert torch.equal(restored.isnan(), expected.isnan())
    assert torch.equal(restored[expected.isinf()], expected[expected.isinf()])
    largest = torch.where(finite, expected, 0).abs().amax((1, 2), keepdim=True)
    relative = 2.0**-22 if parts == 2 else 2.0**-11
    assert ((restored - expected).abs() <= relative * expected.abs() + 2.0**-38 * largest)[finite].all()
    assert high[high.isfinite()].abs().max() <= 2**15


_COMPILED = [
    *[(shape, dtypes.float32, ()) for shape in (*wgmma._SPLIT_SHAPES, *wgmma._ROUNDED_SHAPES)],
    *[
        (shape, dtype, (transposed,))
        for shape in (wgmma._PLAIN_SHAPES[1], wgmma._PLAIN_SHAPES[-1])
        for dtype, transposed in [(dtypes.bfloat16, False), (dtypes.float16, True)]
    ],
    (wgmma._PLAIN_SHAPES[4], dtypes.bfloat16, (True,)),
    *[(shape, dtypes.bfloat16, (False, True)) for shape in wgmma._PLAIN_SHAPES],
    (wgmma._PLAIN_SHAPES[0], dtypes.float16, (False, True)),
    *[(shape, dtypes.float32, ()) for shape in (*wgmma_weight_grad._SPLIT_SHAPES, *wgmma_weight_grad._ROUNDED_SHAPES)],
    (wgmma_weight_grad._PLAIN_SHAPES[0], dtypes.bfloat16, ()),
    (wgmma_weight_grad._PLAIN_SHAPES[1], dtypes.float16, ()),
    *[
        (dataclasses.replace(shape, grouped=True), dtype, ())
        for shapes, dtype in (
            (wgmma_weight_grad._SPLIT_SHAPES, dtypes.float32),
            (wgmma_weight_grad._PLAIN_SHAPES, dtypes.float16),
        )
        for shape in shapes
    ],
]


@pytest.mark.parametrize(("shape", "dtype", "how"), _COMPILED, ids=str)
def test_kernel_compiles(shape: Any, dtype: Any, how: Any) -> None:
    assert shape.cubin(dtype, *how)[:4] == b"\x7fELF"


def test_tiles_fit_into_shared_memory() -> None:
    for module in (wgmma, wgmma_weight_grad):
        for shape in (*module._SPLIT_SHAPES, *module._ROUNDED_SHAPES):
            assert shape.shared_memory(dtypes.float32) <= 227 << 10
        assert all(shape.shared_memory(dtypes.float16) <= 227 << 10 for shape in module._PLAIN_SHAPES)
    assert all(shape.shared_memory(dtypes.float16, statistics=True) <= 227 << 10 for shape in wgmma._PLAIN_SHAPES)


def test_splits_keep_sums_short(simulated: Backend) -> None:
    """Four multiprocessors: splits fill them, and no split of a long sum has more than 128 steps of 64 terms."""
    shapes = ((64, 64, 32, 32), (64, 64, 3, 3))
    problem = ConvProblem(WEIGHT_GRAD, *shapes, (1, 1), (1, 1), dtype=dtypes.float32)
    assert wgmma_weight_grad._worthwhile_splits(problem, wgmma_weight_grad._SPLIT_SHAPES[1]) == [8, 9]
    problem = ConvProblem(WEIGHT_GRAD, (1, 64, 32, 32), (64, 64, 1, 1), dtype=dtypes.float32)
    assert wgmma_weight_grad._worthwhile_splits(problem, wgmma_weight_grad._SPLIT_SHAPES[1]) == [1, 2]
    # In 16 bits a split is one chain of up to 1024 steps, even where the tiles of one fill the device.
    problem = ConvProblem(WEIGHT_GRAD, (64, 512, 56, 56), (512, 512, 1, 1), dtype=dtypes.float16)
    for dtype in (dtypes.float16, dtypes.bfloat16):
        problem = dataclasses.replace(problem, dtype=dtype)
        assert wgmma_weight_grad._worthwhile_splits(problem, wgmma_weight_grad._PLAIN_SHAPES[0]) == [4, 5]
    problem = dataclasses.replace(problem, dtype=dtypes.float32, precision="high")  # chains of 64 terms, added outside
    assert 1 in wgmma_weight_grad._worthwhile_splits(problem, wgmma_weight_grad._ROUNDED_SHAPES[0])
    problem = ConvProblem(FORWARD, (1, 2048, 14, 14), (64, 2048, 3, 3), (1, 1), (1, 1), dtype=dtypes.float32)
    assert wgmma._worthwhile_splits(problem, _SHAPE) == [1, 2, 3, 4, 6]
    problem = dataclasses.replace(problem, dtype=dtypes.bfloat16)
    assert wgmma._worthwhile_splits(problem, _SHAPE) == [1, 2, 4, 6]  # its sums may be as long as they are
    assert wgmma._worthwhile_splits(problem, wgmma._PLAIN_SHAPES[0]) == [1, 2, 4, 6]


@pytest.mark.parametrize(("precision", "products"), [("highest", 3), ("high", 1), ("medium", 1)])
def test_products_follow_the_precision(precision: str, products: int) -> None:
    asked = dataclasses.replace(PROBLEMS[0], precision=precision)
    assert hopper.arithmetic(asked) in ALLOWED[precision]
    for module in (wgmma, wgmma_weight_grad):
        assert {shape.products for shape in module.shapes(asked)} == {products}


def test_short_sums_of_float32_are_left_to_others(simulated: Backend) -> None:
    """Full precision from 64 terms on; an input's gradient with a stride has fewer at some positions."""
    short, rounded = (
        ConvProblem(FORWARD, (1, 32, 8, 8), (32, 32, 1, 1), dtype=dtypes.float32, precision=precision)
        for precision in ("highest", "high")
    )
    assert not hopper.is_accurate(short, wgmma._least_terms(short))
    assert hopper.is_accurate(rounded, wgmma._least_terms(rounded))
    strided = ConvProblem(INPUT_GRAD, (1, 16, 8, 8), (24, 16, 3, 3), (2, 2), (1, 1), dtype=dtypes.float32)
    assert (strided.num_terms, wgmma._least_terms(strided)) == (216, 24)


def test_not_without_a_gpu(simulated: Backend) -> None:
    assert driver.get().name == "simulated"
    assert list(WgmmaFamily().variants(PROBLEMS[0])) == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------
_ON_GPU = pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)
GPU_CASES = [
    ((32, 64, 7, 7), (64, 64, 3, 3), (1, 1), (0, 0), (1, 1)),
    ((32, 64, 7, 7), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((8, 64, 14, 14), (64, 64, 3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 256, 14, 14), (64, 256, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((8, 64, 14, 14), (64, 64, 1, 1), (2, 2), (0, 0), (1, 1)),
    ((4, 64, 30, 30), (64, 64, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((4, 3, 30, 30), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((3, 1, 21, 18), (24, 1, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 5, 20, 17), (136, 5, 3, 4), (2, 3), (1, 2), (2, 1)),
    ((3, 40, 11, 9), (24, 40, 3, 2), (2, 1), (1, 0), (1, 2)),
    ((5, 72, 7, 10), (136, 72, 2, 3), (1, 2), (1, 1), (2, 1)),
    ((4, 136, 12, 20), (72, 136, 3, 3), (1, 1), (4, 4), (4, 4)),
    ((5, 72, 9, 17), (200, 72, 1, 3), (1, 2), (0, 3), (1, 3)),
    # Rows of taps that meet only padding: of some tiles, of all, and of tiles that lie in two images.
    ((1, 64, 40, 40), (64, 64, 3, 3), (1, 1), (24, 24), (24, 24)),
    ((2, 64, 40, 24), (64, 64, 3, 3), (2, 1), (18, 9), (18, 9)),
    ((3, 64, 6, 9), (64, 64, 3, 3), (1, 1), (20, 2), (20, 2)),
]
GROUPED_CASES = [  # of which the kernel has the weight's gradient; RegNet's, ResNeSt's
    ((8, 224, 14, 14), (224, 56, 3, 3), (1, 1), (1, 1), (1, 1), 4),
    ((8, 112, 13, 14), (224, 56, 3, 3), (2, 2), (1, 1), (1, 1), 2),
    ((3, 144, 9, 11), (120, 48, 3, 3), (1, 1), (1, 2), (1, 2), 3),
    ((4, 128, 14, 14), (192, 64, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    ((4, 256, 7, 9), (288, 128, 2, 3), (2, 1), (0, 1), (1, 1), 2),
    ((4, 128, 12, 10), (128, 16, 3, 3), (1, 1), (1, 1), (1, 1), 8),
    ((4, 120, 11, 13), (160, 24, 3, 3), (2, 2), (1, 1), (1, 1), 5),
]
TOLERANCE = {
    (dtypes.float32, "highest"): 3e-7, (dtypes.float32, "high"): 5e-4, (dtypes.float16, "highest"): 5e-4,
    (dtypes.bfloat16, "highest"): 4e-3,
}  # fmt: skip


def _gradient(problem: ConvProblem, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    p = problem
    if p.direction == WEIGHT_GRAD:
        return torch.nn.grad.conv2d_weight(second, p.weight_shape, first, p.stride, p.padding, p.dilation, p.groups)
    return _expected(p, first, second)


@_ON_GPU
@pytest.mark.parametrize(
    ("direction", "case"),
    [
        *[(direction, case) for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD) for case in GPU_CASES],
        *[(WEIGHT_GRAD, case) for case in GROUPED_CASES],
    ],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "precision"), TOLERANCE, ids=str)
def test_every_candidate(
    cuda: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, precision: str, direction: str, case: Any
) -> None:
    torch.manual_seed(0)
    forward = direction == FORWARD
    problem = ConvProblem(
        direction, *case, dtype=dtype, bias=direction != WEIGHT_GRAD, residual=forward,
        activation="relu" if forward else None, precision=precision,
    )  # fmt: skip
    torch_dtype = getattr(torch, dtype.name)
    shapes = (problem.first_shape, problem.second_shape, problem.result_shape)
    first, second, residual = (
        torch.randn(shape).to(torch_dtype).contiguous(memory_format=torch.channels_last) for shape in shapes
    )
    bias = torch.randn(problem.result_shape[1]).to(torch_dtype)
    expected = _gradient(problem, first.double(), second.double())
    if problem.bias:
        expected = expected + bias.double()[:, None, None]
    if forward:
        expected = (expected + residual.double()).relu()
    operands = (put(first), put(second), put(bias) if problem.bias else None, put(residual) if forward else None)
    families = [WgmmaFamily(), SmallCFamily()]
    candidates = [each for family in families for each in family.variants(problem)]
    assert candidates or problem.groups == 1
    for candidate in candidates:
        result = get(run(problem, candidate, operands)).double()
        assert (result - expected).norm() <= TOLERANCE[dtype, precision] * expected.norm(), candidate.name


# Of both operands: denormal numbers, the greatest ones, and products that are hardly normal.
MAGNITUDES = [
    (1e-40, 1.0), (1.0, 1e-40), (1e30, 1e-40), (1e-40, 1e30), (1e-30, 1.0), (1e-30, 1e-7), (1e-20, 1e-15), (1e-10, 1.0),
    (1e10, 1.0), (1e30, 1.0), (1e17, 1e17), (3e37, 1e-3), (1e-3, 3e37),
]  # fmt: skip


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("magnitudes", MAGNITUDES, ids=str)
def test_float32_of_any_magnitude(
    cuda: Backend, put: Callable[[Any], Any], get: Any, magnitudes: tuple[float, float], precision: str, direction: str
) -> None:
    """What a result may lose beside its own share: half a denormal step; the same for each sum of a split."""
    torch.manual_seed(0)
    problem = ConvProblem(direction, *GPU_CASES[1], dtype=dtypes.float32, precision=precision)
    first, second = (
        (torch.randn(shape) * magnitude).contiguous(memory_format=torch.channels_last)
        for shape, magnitude in zip((problem.first_shape, problem.second_shape), magnitudes, strict=True)
    )
    expected = _gradient(problem, first.double(), second.double())
    for candidate in WgmmaFamily().variants(problem):
        sums = candidate.num_sums  # type: ignore[attr-defined]
        result = get(run(problem, candidate, [put(first), put(second), None, None])).double()
        steps = 0.5 * (1 + (sums if sums > 1 else 0)) * 2.0**-149 * math.sqrt(expected.numel())
        relative = TOLERANCE[dtypes.float32, precision]
        error = (result - expected).norm()
        assert error <= relative * expected.norm() + steps, f"{candidate.name}: {error / expected.norm():.2e}"


@_ON_GPU
@pytest.mark.usefixtures("cuda")
def test_long_sums_in_16_bits() -> None:
    """One chain of all 200,704 pixels is 3.1e-4 off."""
    problem = ConvProblem(WEIGHT_GRAD, (64, 64, 56, 56), (256, 64, 1, 1), dtype=dtypes.float16)
    bench = ConvBench(problem)
    for candidate in WgmmaFamily().variants(problem):
        built = build(candidate, problem, 256 << 20)
        assert built is not None
        assert bench.error(built) <= accuracy.error_bound(problem), candidate.name


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_large_numbers_beside_small_ones(cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str) -> None:
    """Pixels and outputs that meet none of the large numbers are as if there were none; sums are lowered on the way."""
    torch.manual_seed(0)
    problem = ConvProblem(direction, *GPU_CASES[1], dtype=dtypes.float32)
    first, second = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last)
        for shape in (problem.first_shape, problem.second_shape)
    )
    first[:, 5] *= 1e-12  # of the gradient's outputs, and terms of a pixel that begin small
    first[7, 3, 2, 2] = 2e38
    second *= 0.1
    expected = _gradient(problem, first.double(), second.double())
    calm = expected.abs() < 1e30
    assert 0 < int(calm.sum()) < calm.numel()
    for candidate in WgmmaFamily().variants(problem):
        result = get(run(problem, candidate, [put(first), put(second), None, None])).double()
        for part in (calm, ~calm):
            assert (result - expected)[part].norm() <= 3e-7 * expected[part].norm(), candidate.name


@_ON_GPU
@pytest.mark.parametrize("case", GROUPED_CASES, ids=str)
def test_groups_do_not_see_each_other(cuda: Backend, put: Callable[[Any], Any], get: Any, case: Any) -> None:
    """Whatever the last group has: large numbers, infinities, NaN."""
    torch.manual_seed(0)
    problem = ConvProblem(WEIGHT_GRAD, *case, dtype=dtypes.float32)
    grad, input = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last)
        for shape in (problem.first_shape, problem.second_shape)
    )
    groups = problem.groups - 1
    others = groups * problem.weight_shape[0] // problem.groups
    grad[:, others:] *= 1e18
    input[:, groups * problem.weight_shape[1] :] *= 1e18
    grad[1, others, 2, 2], input[1, groups * problem.weight_shape[1], 3, 3] = torch.inf, torch.nan
    expected = _gradient(problem, grad.double(), input.double())[:others]
    for candidate in WgmmaFamily().variants(problem):
        result = get(run(problem, candidate, [put(grad), put(input), None, None])).double()[:others]
        assert (result - expected).norm() <= 3e-7 * expected.norm(), candidate.name


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_infinities_and_nan(cuda: Backend, put: Callable[[Any], Any], get: Any, precision: str, direction: str) -> None:
    torch.manual_seed(0)
    problem = ConvProblem(direction, *GPU_CASES[1], dtype=dtypes.float32, precision=precision)
    first = torch.randn(problem.first_shape).contiguous(memory_format=torch.channels_last)
    second = torch.randn(problem.second_shape).contiguous(memory_format=torch.channels_last)
    first[0, 3, 2, 2], first[1, 7, 5, 5], first[2, 9, 1, 1] = torch.inf, torch.nan, -torch.inf
    second[5, 4, 1, 1] = torch.inf
    expected = _gradient(problem, first.double(), second.double())
    finite = expected.isfinite()
    for candidate in WgmmaFamily().variants(problem):
        result = get(run(problem, candidate, [put(first), put(second), None, None])).double()
        assert torch.equal(result.isnan(), expected.isnan()), candidate.name
        assert torch.equal(result[result.isinf()], expected[expected.isinf()]), candidate.name
        tolerance = TOLERANCE[dtypes.float32, precision]
        assert (result - expected)[finite].norm() <= tolerance * expected[finite].norm(), candidate.name


@_ON_GPU
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("stride", [1, 2])
def test_infinities_at_the_borders(
    cuda: Backend, put: Callable[[Any], Any], get: Any, precision: str, stride: int
) -> None:
    """A tap that does not meet an infinite pixel knows nothing of it."""
    torch.manual_seed(0)
    problem = ConvProblem(
        WEIGHT_GRAD, (32, 64, 7, 9), (64, 64, 3, 3), (stride, stride), (1, 1), dtype=dtypes.float32, precision=precision
    )
    first = torch.randn(problem.first_shape).contiguous(memory_format=torch.channels_last)
    second = torch.randn(problem.second_shape).contiguous(memory_format=torch.channels_last)
    second[1, 3, 0, 0], second[0, 5, -1, -1], second[1, 7, 0, -1] = torch.inf, torch.nan, -torch.inf
    expected = _gradient(problem, first.double(), second.double())
    finite = expected.isfinite()
    assert all(finite[:, channel].any() for channel in (3, 5, 7))
    for candidate in WgmmaFamily().variants(problem):
        result = get(run(problem, candidate, [put(first), put(second), None, None])).double()
        assert torch.equal(result.isnan(), expected.isnan()), candidate.name
        assert torch.equal(result[result.isinf()], expected[expected.isinf()]), candidate.name
        tolerance = TOLERANCE[dtypes.float32, precision]
        assert (result - expected)[finite].norm() <= tolerance * expected[finite].norm(), candidate.name
