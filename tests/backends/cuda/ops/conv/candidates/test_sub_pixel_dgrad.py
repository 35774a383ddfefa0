"""The input's gradient of few channels as a convolution of the gradient, against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad import candidate as sub_pixel
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.candidate import SubPixelDgradFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import streams
from genesis.shapes import channels_last_strides

# input, weight, stride, padding
CASES = [
    ((2, 3, 14, 13), (16, 3, 7, 7), (2, 2), (3, 3)),
    ((1, 3, 9, 8), (16, 3, 3, 3), (1, 1), (1, 1)),
    ((2, 2, 11, 10), (8, 2, 3, 4), (3, 2), (0, 2)),
    ((1, 1, 8, 9), (8, 1, 2, 1), (3, 2), (0, 0)),  # positions that meet no tap
    ((1, 4, 10, 12), (24, 4, 4, 2), (2, 2), (1, 0)),
    ((1, 3, 6, 5), (8, 3, 2, 3), (1, 2), (4, 5)),  # the first pixel of the gradient is of padding alone
]


def problem_of(case: Any, dtype: dtypes.DType, precision: str = "highest") -> ConvProblem:
    return ConvProblem(INPUT_GRAD, *case, dtype=dtype, precision=precision)


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the place of Hopper's and cuDNN's where those cannot be had."""
    monkeypatch.setattr(sub_pixel, "_INNER", (*sub_pixel._INNER, (ImplicitGemmFamily(), 1)))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [(torch.float32, "high", 1e-3), (torch.float16, "highest", 5e-4), (torch.bfloat16, "highest", 4e-3)], ids=str,
)  # fmt: skip
def test_every_candidate(
    cuda: Backend, put: Callable[[Any], Any], get: Any, case: Any, dtype: torch.dtype, precision: str, tolerance: float
) -> None:
    torch.manual_seed(0)
    problem = problem_of(case, dtypes.BY_NAME[str(dtype).removeprefix("torch.")], precision)
    grad, weight = (
        torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)
        for shape in (problem.output_shape, problem.weight_shape)
    )
    expected = torch.nn.grad.conv2d_input(
        problem.input_shape, weight.double(), grad.double(), problem.stride, problem.padding
    )
    candidates = list(SubPixelDgradFamily().variants(problem))
    assert candidates
    given = [put(grad), put(weight)]
    for candidate in candidates:
        assert CONV.named(problem, candidate.name) is not None
        out = cuda.full(problem.result_shape, float("nan"), problem.dtype)
        out = out.view(problem.result_shape, channels_last_strides(problem.result_shape), 0)
        workspace = cuda.full((candidate.workspace(problem),), 255, dtypes.uint8)
        addresses = [each.data_pointer for each in (out, *given)]
        candidate.prepare(problem)(streams.current_handle(0), *addresses, 0, 0, workspace.data_pointer)
        error = (get(out).double() - expected).norm()
        assert error <= tolerance * expected.norm(), candidate.name


def test_windows_of_the_stem() -> None:
    """Seven taps at stride 2: four for odd positions and three for even ones, of which one more is zero."""
    wide = sub_pixel._as_forward(problem_of(((64, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3)), dtypes.float16))
    assert (wide.weight_shape, wide.padding, wide.output_shape) == ((16, 64, 4, 4), (2, 2), (64, 16, 113, 113))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("case", "changes", "expected"),
    [
        (CASES[0], {}, False),  # zeros in the window, which would meet infinities
        (CASES[0], {"precision": "high"}, True),
        (CASES[0], {"dtype": dtypes.float16}, True),
        (CASES[1], {}, True),  # a window without zeros
        (CASES[0], {"dtype": dtypes.float16, "bias": True}, False),
        (CASES[0], {"dtype": dtypes.float16, "dilation": (2, 1)}, False),
        (((1, 9, 9, 9), (16, 9, 3, 3), (1, 1), (1, 1)), {}, False),  # not few
        (((1, 8, 9, 9), (16, 8, 3, 3), (3, 3), (1, 1)), {"dtype": dtypes.float16}, False),  # 72 of all residues
        (((1, 4, 9, 9), (16, 2, 3, 3), (1, 1), (1, 1)), {"groups": 2}, False),
    ],
)
def test_which_problems(case: Any, changes: dict[str, Any], expected: bool) -> None:
    problem = dataclasses.replace(problem_of(case, dtypes.float32), **changes)
    assert bool(list(SubPixelDgradFamily().variants(problem))) == expected


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    "name", ["sub_pixel_dgrad/other/1", "sub_pixel_dgrad/implicit_gemm/1x1x1 w1", "sub_pixel_dgrad/"]
)
def test_names_of_none(name: str) -> None:
    assert CONV.named(problem_of(CASES[1], dtypes.float16), name) is None
