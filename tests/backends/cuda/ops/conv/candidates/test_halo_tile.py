"""The Hopper kernel that loads a pixel once for all taps: what can be seen without a GPU, and on one its results."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.candidate import FULL, TF32, Parts
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma import halo_tile as patch
from genesis.backends.cuda.ops.conv.candidates.wgmma.halo_tile import HaloTile, HaloTileFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import run_within_margins

PROBLEM = ConvProblem(FORWARD, (2, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), dtype=dtypes.bfloat16)
HIGH = ConvProblem(FORWARD, (2, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), dtype=dtypes.float32, precision="high")
KINDS = [(dtypes.float16, 64), (dtypes.bfloat16, 128), (dtypes.float32, 32), (dtypes.float32, 64)]  # (dtype, channels)
CASES = [  # (input, output channels, padding): whole tiles; cut off; smaller than one; more columns of taps than pixels
    ((2, 64, 56, 56), 64, (1, 1)),
    ((3, 64, 33, 21), 128, (1, 1)),
    ((2, 64, 7, 5), 64, (0, 0)),
    ((1, 64, 30, 9), 64, (2, 0)),
    ((2, 64, 1, 2), 192, (3, 2)),
    ((5, 64, 64, 40), 64, (1, 1)),
]


def _problem(direction: str, case: Any, dtype: Any = dtypes.float16, channels: int = 64, **options: Any) -> ConvProblem:
    """The forward of a case, or the input's gradient of the convolution that has its channels the other way round."""
    (images, _, *sizes), outputs, padding = case
    inputs = channels
    if direction == INPUT_GRAD:
        inputs, outputs = outputs, channels
    precision = "high" if dtype is dtypes.float32 else "highest"
    return ConvProblem(
        direction, (images, inputs, *sizes), (outputs, inputs, 3, 3), (1, 1), padding, dtype=dtype,
        precision=precision, **options,
    )  # fmt: skip


def _variants(problem: ConvProblem) -> list[HaloTile]:
    """All that support it; hopper.is_available() decides whether there is a GPU for it."""
    choice = [HaloTile(shape, hopper.arithmetic(problem)) for shape in patch._SHAPES]
    return [candidate for candidate in choice if candidate.supports(problem)]


def _expected(problem: ConvProblem, first: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if problem.direction == FORWARD:
        return F.conv2d(first, weight, None, problem.stride, problem.padding)
    return torch.nn.grad.conv2d_input(problem.input_shape, weight, first, problem.stride, problem.padding)


def _box(values: np.ndarray, box: tuple[int, ...], start: tuple[int, ...]) -> np.ndarray:
    """What the copy engine puts into shared memory: zeros where there is nothing."""
    found = np.zeros(box)
    for index in np.ndindex(*box[:-1]):
        place = tuple(first + i for first, i in zip(start, index, strict=False))
        if all(0 <= at < size for at, size in zip(place, values.shape, strict=False)):
            line = values[place][start[-1] : start[-1] + box[-1]]
            found[index][: len(line)] = line
    return found


def _computed(problem: ConvProblem, candidate: HaloTile, first: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What the kernel makes of its maps and its structure, line by line; first: NHWC, weight: KRSC."""
    (pixels_map, weight_map, *_), geometry = candidate._geometry(problem)
    row_tiles, column_tiles, num_outputs, low_y, low_x = (
        geometry[name] for name in ("row_tiles", "column_tiles", "num_outputs", "low_y", "low_x")
    )
    assert geometry["relu"] == 0
    rows, slabs = candidate.shape.rows, candidate.shape.slabs
    first, weight = first.reshape(pixels_map.shape), weight.reshape(weight_map.shape)
    out = np.full((problem.result_shape[0], geometry["height"], geometry["width"], num_outputs), np.nan)
    (*_, pitch, channels), is_transposed = pixels_map.box, problem.direction == INPUT_GRAD
    for block in range(num_outputs // 64):
        for k in range(geometry["num_tiles"]):
            column, row = k % column_tiles * 8, k // column_tiles % row_tiles * rows
            image = k // (column_tiles * row_tiles)
            total = np.zeros((64, rows * 8))
            for slab, tap in itertools.product(range(slabs), range(9)):
                start = (image, row + low_y, column + low_x, channels * slab)
                lines = _box(first, pixels_map.box, start).reshape(-1, channels)
                begin = tap // 3 * pitch + tap % 3
                pixels = np.concatenate([lines[begin + i * pitch : begin + i * pitch + 8] for i in range(rows)])
                if is_transposed and problem.dtype is dtypes.float32:  # without the copy engine
                    taken = weight[channels * slab : channels * (slab + 1), 8 - tap, 64 * block : 64 * block + 64].T
                elif is_transposed:
                    taken = _box(weight, weight_map.box, (channels * slab, 8 - tap, 64 * block)).reshape(64, 64).T
                else:
                    taken = _box(weight, weight_map.box, (64 * block, tap, channels * slab)).reshape(64, channels)
                total += taken @ pixels.T
            inside = out[image, row : row + rows, column : column + 8, 64 * block : 64 * block + 64]
            inside[...] = total.T.reshape(rows, 8, 64)[: inside.shape[0], : inside.shape[1]]
    return out.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize(("dtype", "channels"), KINDS, ids=str)
@pytest.mark.parametrize("case", CASES[2:5], ids=str)
def test_tiles_cover_the_result(hopper_there: None, direction: str, dtype: Any, channels: int, case: Any) -> None:
    problem = _problem(direction, case, dtype, channels)
    torch.manual_seed(0)
    first, weight = torch.randn(problem.first_shape).double(), torch.randn(problem.weight_shape).double()
    operands = (each.permute(0, 2, 3, 1).contiguous().numpy() for each in (first, weight))
    result = _computed(problem, _variants(problem)[-1], *operands)
    np.testing.assert_allclose(result, _expected(problem, first, weight).numpy(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", patch._SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "transposed", "statistics"),
    [
        (dtypes.bfloat16, False, False),
        (dtypes.float16, True, False),
        (dtypes.bfloat16, False, True),
        (dtypes.float16, False, True),
        (dtypes.float32, False, False),
        (dtypes.float32, True, False),
    ],
    ids=str,
)
def test_kernel_compiles(shape: patch.Shape, dtype: Any, transposed: bool, statistics: bool) -> None:
    assert shape.cubin(dtype, transposed, statistics)[:4] == b"\x7fELF"


def test_tiles_fit_into_shared_memory() -> None:
    """Beside the barriers, and the sums of a program's statistics."""
    assert all(shape.shared_memory + 2048 <= 227 << 10 for shape in patch._SHAPES)


def test_not_without_a_gpu(simulated: Backend) -> None:
    assert HaloTileFamily().variants(PROBLEM) == []


@pytest.mark.parametrize(
    "change",
    [
        {"direction": WEIGHT_GRAD},
        {"dtype": dtypes.float32, "precision": "highest"},
        {"dtype": dtypes.float32, "precision": "high", "statistics": True},
        {"dtype": dtypes.float64},
        {"weight_shape": (64, 64, 3, 1)},
        {"weight_shape": (72, 64, 3, 3)},
        {"weight_shape": (64, 32, 3, 3), "groups": 2},
        {"weight_shape": (5 * 64, 64, 3, 3)},  # more than there are multiprocessors
        {"input_shape": (2, 192, 56, 56), "weight_shape": (64, 192, 3, 3)},
        {"input_shape": (2, 32, 56, 56), "weight_shape": (64, 32, 3, 3)},
        {"input_shape": (0, 64, 56, 56)},
        {"stride": (1, 2)},
        {"dilation": (2, 1)},
        {"alignment": 8},
        {"residual": True},
        {"statistics": True, "activation": "relu"},
        {"statistics": True, "input_shape": (2, 64, 56, 57)},  # tiles that are cut off
    ],
    ids=str,
)
def test_what_is_left_to_others(hopper_there: None, change: dict[str, Any]) -> None:
    assert len(list(HaloTileFamily().variants(PROBLEM))) == 3
    assert list(HaloTileFamily().variants(dataclasses.replace(PROBLEM, **change))) == []


@pytest.mark.parametrize(("dtype", "channels"), KINDS, ids=str)
def test_what_is_taken(hopper_there: None, dtype: Any, channels: int) -> None:
    """A pixel has one slab of 128 bytes, or two. Float32 is rounded, where that is allowed."""
    problem = _problem(FORWARD, CASES[0], dtype, channels)
    found = list(HaloTileFamily().variants(problem))
    assert {candidate.shape.slabs for candidate in found} == {channels * dtype.itemsize // 128}
    assert {candidate.arithmetic for candidate in found} == {TF32 if dtype is dtypes.float32 else FULL}


def test_the_best_guess_has_the_fewest_rounds(hopper_there: None) -> None:
    """28 rows fit twice into 56, 32 rows sixteen times into 512. A little tile is written soon, where there are few."""
    assert next(iter(HaloTileFamily().variants(PROBLEM))).name == "halo_tile/28x8 stages 4"
    large = dataclasses.replace(PROBLEM, input_shape=(1, 64, 512, 512))
    assert next(iter(HaloTileFamily().variants(large))).name == "halo_tile/32x8 stages 3"
    few = dataclasses.replace(PROBLEM, input_shape=(1, 64, 32, 32))
    assert next(iter(HaloTileFamily().variants(few))).name == "halo_tile/16x8 stages 6"
    assert CONV.named(PROBLEM, "halo_tile/28x8 stages 4") is not None


def test_the_first_guess_of_all(hopper_there: None) -> None:
    """Measured: cuDNN takes 1.5 times as long, and the statistics cost less than a pass."""
    for statistics in (False, True):
        problem = dataclasses.replace(PROBLEM, statistics=statistics)
        assert next(CONV.candidates(problem)).name == "halo_tile/28x8 stages 4"


def test_parts_of_the_statistics(hopper_there: None) -> None:
    """Only of whole tiles: 28 rows by 8 columns of an image of 56 by 56."""
    asked = dataclasses.replace(PROBLEM, statistics=True)
    (candidate,) = HaloTileFamily().variants(asked)
    assert candidate.parts(asked) == Parts(4, 28 * 8)
    assert candidate.workspace(asked) == Parts(4, 28 * 8).num_bytes(64)
    asked = dataclasses.replace(asked, weight_shape=(128, 64, 3, 3))  # two programs for each half of the outputs
    assert candidate.parts(asked).number == 2


# --- on a GPU ---------------------------------------------------------------------------------------------------------
_ON_GPU = pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "channels"), [*KINDS, (dtypes.bfloat16, 64)], ids=str)
def test_small_integers_are_exact(
    on_hopper: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, channels: int, case: Any, direction: str
) -> None:
    """Sums of products that hold every bit: one wrong term would show."""
    torch.manual_seed(0)
    problem = _problem(direction, case, dtype, channels, bias=True, activation="relu" if direction == FORWARD else None)
    kind = getattr(torch, dtype.name)
    first = torch.randint(-1, 2, problem.first_shape).to(kind).contiguous(memory_format=torch.channels_last)
    # One of eight weights, or fewer: sums stay below 256.
    weight = (torch.randint(-1, 2, problem.weight_shape) * (torch.rand(problem.weight_shape) < 8 / channels)).to(kind)
    weight = weight.contiguous(memory_format=torch.channels_last)
    bias = torch.randint(-9, 10, problem.result_shape[1:2]).to(kind)
    expected = _expected(problem, first.double(), weight.double()) + bias.double()[:, None, None]
    assert expected.abs().max() <= 256
    if problem.activation:
        expected = expected.relu()
    for candidate in _variants(problem):
        result = run_within_margins(problem, candidate, put, get, put(first), put(weight), put(bias))
        assert torch.equal(result, expected), candidate.name


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize(("dtype", "channels"), KINDS, ids=str)
def test_random_numbers(
    on_hopper: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, channels: int, direction: str
) -> None:
    """More tiles than multiprocessors take at a time; infinities and NaN reach the pixels around them, no other."""
    torch.manual_seed(0)
    problem = _problem(direction, ((40, 64, 56, 60), 64, (1, 1)), dtype, channels)
    kind = getattr(torch, dtype.name)
    first = torch.randn(problem.first_shape).to(kind).contiguous(memory_format=torch.channels_last)
    weight = (
        (torch.randn(problem.weight_shape) / math.sqrt(9 * channels))
        .to(kind)
        .contiguous(memory_format=torch.channels_last)
    )
    expected = _expected(problem, first.double(), weight.double())
    first[0, 3, 27, 7], first[1, 5, 55, 59] = torch.inf, torch.nan
    hit = torch.zeros(problem.result_shape, dtype=torch.bool)
    hit[0, :, 26:29, 6:9] = hit[1, :, 54:, 58:] = True
    for candidate in _variants(problem):
        result = run_within_margins(problem, candidate, put, get, put(first), put(weight), None)
        assert torch.equal(result.isfinite(), ~hit), candidate.name
        error = (result - expected)[~hit].norm() / expected[~hit].norm()
        assert error <= accuracy.error_bound(problem), f"{candidate.name}: {error:.2e}"
