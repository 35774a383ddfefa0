"""The kernels of a network's first convolution: what can be seen without a GPU, and on one their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.candidate import Parts
from genesis.backends.cuda.ops.conv.candidates.stem import candidate as stem
from genesis.backends.cuda.ops.conv.candidates.stem.candidate import StemFamily, StemForward, StemWeightGrad
from genesis.backends.cuda.ops.conv.candidates.stem.units import Units
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import check, run_within_margins

RESNET = ConvProblem(FORWARD, (2, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3), dtype=dtypes.bfloat16)
CASES = [  # (input, weight, stride, padding)
    ((2, 3, 32, 48), (64, 3, 7, 7), (2, 2), (3, 3)),
    ((2, 3, 33, 47), (32, 3, 3, 3), (2, 2), (1, 1)),
    ((2, 3, 34, 46), (24, 3, 3, 3), (2, 2), (0, 0)),
    ((2, 3, 20, 19), (64, 3, 3, 3), (1, 1), (1, 1)),
    ((2, 3, 21, 34), (72, 3, 5, 5), (2, 2), (2, 2)),
    ((2, 1, 28, 28), (16, 1, 5, 5), (1, 1), (2, 2)),
    ((1, 2, 17, 22), (8, 2, 4, 4), (2, 2), (1, 1)),
    ((2, 4, 15, 31), (40, 4, 7, 3), (1, 2), (3, 0)),
    ((2, 3, 29, 40), (136, 3, 7, 7), (4, 4), (2, 3)),
    ((1, 6, 18, 23), (64, 6, 3, 3), (1, 1), (1, 1)),
    ((1, 5, 19, 24), (64, 5, 3, 5), (2, 2), (1, 2)),
    ((1, 8, 17, 26), (64, 8, 3, 4), (3, 4), (1, 1)),
    ((1, 3, 9, 64), (64, 3, 11, 11), (4, 4), (5, 5)),
]


def _problem(case: Any, direction: str = FORWARD, dtype: Any = dtypes.bfloat16, **options: Any) -> ConvProblem:
    return ConvProblem(direction, *case, dtype=dtype, **options)


# --- windows in shared memory -----------------------------------------------------------------------------------------
def _patch(problem: ConvProblem, units: Units, rows: int, images: np.ndarray, row: int, column: int) -> np.ndarray:
    """copy_rows() and make_units() for the last image: (units, 8 elements); images: NHWC."""
    number, height, width, channels = images.shape
    top = row * problem.stride[0] - problem.padding[0]
    left = column * problem.stride[1] - problem.padding[1] - units.lead
    values, row_size = images.reshape(-1), width * channels
    pieces = units.raw_bytes(rows) // 4 // units.patch_rows(rows) // 16
    found = np.zeros((units.patch_rows(rows), units.pitch, 8))
    for y in range(units.patch_rows(rows)):
        start = ((number - 1) * height + top + y) * row_size + left * channels
        raw = np.full(pieces * 8, np.nan)  # what is beside the row's pixels is not looked at
        for place in range(start // 8 * 8, start // 8 * 8 + pieces * 8):
            if 0 <= top + y < height and 0 <= place < values.size:
                raw[place - start // 8 * 8] = values[place]
        for at in range(units.pitch):
            offset = at % units.plane_units * units.stride[1] + at // units.plane_units * units.pixels
            from_, is_there = start % 8 + offset * channels, 0 <= top + y < height
            inside = [is_there and 0 <= left + offset + pixel < width for pixel in range(units.pixels)]
            for j in range(units.pixels * channels):
                word = j // 2 * 2 if units.granule == 4 else j  # one has elements of both pixels, by its first one's
                found[y, at, j] = raw[from_ + j] if inside[word // channels] else 0
            assert units.granule == 2 or from_ % 2 == 0
    return found.reshape(-1, 8)


def _windows(patch: np.ndarray, units: Units, rows: int) -> np.ndarray:
    """(rows, 8 columns, rows of taps, chunks, 8 terms): what the descriptors point to."""
    found = np.empty((rows, 8, units.taps[0], units.row_chunks, 8))
    for i, j, tap, chunk in np.ndindex(*found.shape[:-1]):
        found[i, j, tap, chunk] = patch[(i * units.stride[0] + tap) * units.pitch + units.place(chunk) + j]
    return found


def _terms(units: Units, weight: np.ndarray) -> np.ndarray:
    """load_weight(): (outputs, rows of taps, chunks, 8 terms); weight: KRSC."""
    outputs, taps_y, taps_x, channels = weight.shape
    found = np.zeros((outputs, taps_y, units.row_chunks, 8))
    for chunk, e in np.ndindex(units.row_chunks, units.pixels * channels):
        pixel = chunk * units.pixels - units.lead + e // channels
        if 0 <= pixel < taps_x:
            found[:, :, chunk, e] = weight[:, :, pixel, e % channels]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_hold_the_pixels_of_all_taps(simulated: Backend, case: Any) -> None:
    """The forward's sums, and the weight's gradient from the same windows; the last tile of the second row of them."""
    problem, rows, row, column = _problem(case), 2, 2, 8
    units = Units.of(problem)
    assert units is not None
    torch.manual_seed(0)
    x, weight = torch.randn(problem.input_shape).double(), torch.randn(problem.weight_shape).double()
    expected = F.conv2d(x, weight, None, problem.stride, problem.padding)
    patch = _patch(problem, units, rows, x.permute(0, 2, 3, 1).contiguous().numpy(), row, column)
    windows = _windows(patch, units, rows)
    found = np.einsum("ijrct,krct->kij", windows, _terms(units, weight.permute(0, 2, 3, 1).numpy()))
    there = expected[-1, :, row : row + rows, column : column + 8].numpy()
    np.testing.assert_allclose(found[:, : there.shape[1], : there.shape[2]], there, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("shape", "taps", "stride", "padding", "expected"),
    [
        ((3, 224), 7, 2, 3, (1, 4)), ((3, 224), 3, 2, 1, (1, 4)), ((3, 224), 3, 2, 0, (0, 4)),
        ((3, 225), 7, 2, 3, (0, 2)), ((3, 224), 4, 2, 1, (0, 2)), ((3, 224), 3, 1, 1, (0, 2)),
        ((4, 225), 3, 1, 1, (0, 4)), ((1, 28), 5, 1, 2, (0, 2)),
    ],
)  # fmt: skip
def test_pixels_are_loaded_as_words_where_they_can_be(
    shape: tuple[int, int], taps: int, stride: int, padding: int, expected: tuple[int, int]
) -> None:
    """(lead, granule). A pixel ahead of the first tap makes windows begin at even ones, if it costs no chunk."""
    channels, width = shape
    problem = ConvProblem(
        FORWARD,
        (1, channels, 32, width),
        (8, channels, taps, taps),
        (stride,) * 2,
        (padding,) * 2,
        dtype=dtypes.float16,
    )
    units = Units.of(problem)
    assert units is not None
    assert (units.lead, units.granule) == expected
    one = Units.of(dataclasses.replace(problem, alignment=2))
    assert one is not None
    assert one.granule == 2


# --- compiling --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [StemForward, StemWeightGrad])
@pytest.mark.parametrize("rows", stem._ROWS)
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[10]], ids=str)
def test_kernel_compiles(simulated: Backend, kind: Any, rows: int, case: Any) -> None:
    units = Units.of(_problem(case))
    assert units is not None
    assert kind(rows).cubin(units, dtypes.bfloat16 if rows > 24 else dtypes.float16)[:4] == b"\x7fELF"


@pytest.mark.parametrize("case", [CASES[7], CASES[8], CASES[9], CASES[11], CASES[12]], ids=str)
@pytest.mark.parametrize("statistics", [False, True])
def test_other_windows_compile(simulated: Backend, case: Any, statistics: bool) -> None:
    units = Units.of(_problem(case))
    assert units is not None
    assert StemForward(16).cubin(units, dtypes.bfloat16, statistics)[:4] == b"\x7fELF"
    if StemWeightGrad(16).fits(units):
        assert StemWeightGrad(16).cubin(units, dtypes.float16)[:4] == b"\x7fELF"


def test_kernels_are_given_their_members() -> None:
    for candidate, problem in (
        (StemForward(28), RESNET), (StemWeightGrad(28), dataclasses.replace(RESNET, direction=WEIGHT_GRAD)),
    ):  # fmt: skip
        geometry = hopper.geometry(candidate.source)
        assert len(geometry.pack(**candidate.geometry(problem))) == geometry.num_bytes


# --- the choice -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("direction", [FORWARD, WEIGHT_GRAD])
@pytest.mark.parametrize(
    "change",
    [
        {"direction": INPUT_GRAD},
        {"dtype": dtypes.float32},
        {"dtype": dtypes.float64},
        {"input_shape": (2, 9, 224, 224), "weight_shape": (64, 9, 7, 7)},
        {"input_shape": (2, 6, 224, 224), "weight_shape": (64, 3, 7, 7), "groups": 2},
        {"weight_shape": (60, 3, 7, 7)},
        {"weight_shape": (64, 3, 1, 1)},
        {"weight_shape": (5 * 64, 3, 7, 7)},  # more than there are multiprocessors
        {"weight_shape": (64, 3, 31, 31)},  # more than shared memory holds, and registers
        {"input_shape": (0, 3, 224, 224)},
        {"input_shape": (1, 3, 8, 1 << 23)},  # rows of 50 MB
        {"stride": (2, 3)},
        {"dilation": (1, 2)},
        {"alignment": 8},
        {"residual": True},
    ],
    ids=str,
)
def test_what_is_left_to_others(hopper_there: None, direction: str, change: dict[str, Any]) -> None:
    taken = dataclasses.replace(RESNET, direction=direction)
    assert list(StemFamily().variants(taken))
    assert list(StemFamily().variants(dataclasses.replace(taken, **change))) == []


def test_statistics_are_found_of_whole_tiles(hopper_there: None) -> None:
    """28 rows by 8 columns of a result of 112 by 112; of four programs. Not with a ReLU."""
    asked = dataclasses.replace(RESNET, statistics=True)
    found = list(StemFamily().variants(asked))
    assert [candidate.name for candidate in found] == ["stem/28x8", "stem/16x8"]
    assert found[0].parts(asked) == Parts(4, 28 * 8)
    assert found[0].workspace(asked) == Parts(4, 28 * 8).num_bytes(64)
    for change in ({"activation": "relu"}, {"input_shape": (2, 3, 226, 224)}, {"input_shape": (2, 3, 224, 226)}):
        assert list(StemFamily().variants(dataclasses.replace(asked, **change))) == []


def test_chains_of_sums_are_short(hopper_there: None) -> None:
    """Four multiprocessors have a program each; more where two warpgroups of each would add up too many terms."""
    few = dataclasses.replace(RESNET, direction=WEIGHT_GRAD)
    many = dataclasses.replace(few, input_shape=(256, 3, 224, 224))
    candidate = StemWeightGrad(28)
    assert candidate.programs(few) == 4
    assert candidate.programs(many) == -(-256 * 112 * 112 // (1 << 17)) == 25
    assert candidate.workspace(many) == 25 * 4 * 64 * 3 * 7 * 7


@pytest.mark.parametrize("direction", [FORWARD, WEIGHT_GRAD])
def test_the_first_guess(hopper_there: None, direction: str) -> None:
    problem = dataclasses.replace(RESNET, direction=direction)
    assert next(CONV.candidates(problem)).name == "stem/28x8"
    assert CONV.named(problem, "stem/28x8") is not None
    assert CONV.named(problem, "stem/27x8") is None
    assert CONV.named(problem, "stem/28x16") is None


def test_not_without_a_gpu(simulated: Backend) -> None:
    assert list(StemFamily().variants(RESNET)) == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------
_ON_GPU = pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)


@_ON_GPU
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_small_integers_are_exact(
    on_hopper: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, case: Any
) -> None:
    """Sums of products that hold every bit: one wrong term would show."""
    torch.manual_seed(0)
    kind, images = getattr(torch, dtype.name), (40, *case[0][1:])
    problem = _problem((images, *case[1:]), FORWARD, dtype, bias=True, activation="relu")
    x = torch.randint(-2, 3, problem.input_shape).to(kind).contiguous(memory_format=torch.channels_last)
    weight = torch.randint(-1, 2, problem.weight_shape).to(kind).contiguous(memory_format=torch.channels_last)
    bias = torch.randint(-9, 10, problem.weight_shape[:1]).to(kind)
    exact = F.conv2d(x.double(), weight.double(), bias.double(), problem.stride, problem.padding)
    assert exact.abs().max() <= (2048 if dtype is dtypes.float16 else 256)
    found = list(StemFamily().variants(problem))
    assert found
    for candidate in found:
        result = run_within_margins(problem, candidate, put, get, put(x), put(weight), put(bias))
        assert torch.equal(result, exact.relu()), candidate.name
    sparse = torch.rand(problem.output_shape) < 128 / problem.num_terms / 100
    gradient_of = dataclasses.replace(problem, direction=WEIGHT_GRAD, bias=False, activation=None)
    grad = (torch.randint(-1, 2, problem.output_shape) * sparse).to(kind).contiguous(memory_format=torch.channels_last)
    exact = torch.nn.grad.conv2d_weight(
        x.double(), problem.weight_shape, grad.double(), problem.stride, problem.padding
    )
    assert exact.abs().max() <= 256
    for candidate in StemFamily().variants(gradient_of):
        result = run_within_margins(gradient_of, candidate, put, get, put(grad), put(x), None)
        assert torch.equal(result, exact), candidate.name


@_ON_GPU
@pytest.mark.parametrize("direction", [FORWARD, WEIGHT_GRAD])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_random_numbers(on_hopper: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, direction: str) -> None:
    """More tiles than multiprocessors take at a time."""
    for case in (((24, 3, 224, 224), *CASES[0][1:]), ((30, 3, 101, 99), *CASES[1][1:])):
        problem = _problem(case, direction, dtype)
        for candidate in StemFamily().variants(problem):
            check(put, get, problem, candidate)
