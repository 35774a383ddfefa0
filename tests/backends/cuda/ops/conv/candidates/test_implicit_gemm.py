"""The plain kernels with channels that 16 does not divide, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm import candidate as module
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm import shape
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemm, ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import DIRECTIONS, TORCH, check, problem_of

# groups, (inputs, outputs) of each, images, (height, width), taps, stride, padding, dilation
CASES = [
    (1, (18, 18), 2, (6, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, (36, 20), 1, (7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, (24, 40), 1, (5, 6), (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, (64, 18), 1, (5, 4), (1, 3), (1, 2), (0, 1), (1, 1)),
    (1, (58, 58), 2, (5, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, (12, 300), 1, (4, 4), (2, 2), (1, 1), (0, 1), (1, 1)),
    (1, (7, 33), 1, (6, 6), (3, 3), (2, 1), (1, 1), (1, 1)),
    (2, (6, 10), 1, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_tiles(cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str, case: Any) -> None:
    problem = problem_of(direction, case, dtypes.bfloat16)
    choice = ImplicitGemmFamily().variants(problem)
    assert len({candidate.name for candidate in choice}) == len(choice)
    for candidate in choice:
        check(put, get, problem, candidate)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dtypes(cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str) -> None:
    """Float32 and its parts load several channels at once as well."""
    for dtype in TORCH:
        for case in CASES[:3]:
            problem = problem_of(direction, case, dtype)
            check(put, get, problem, ImplicitGemmFamily().variants(problem)[0])


@pytest.mark.parametrize("options", [{"bias": True}, {"residual": True}, {"bias": True, "residual": True}], ids=str)
def test_epilogue(cuda: Backend, put: Callable[[Any], Any], get: Any, options: Any) -> None:
    for direction, activation in ((FORWARD, None), (FORWARD, "relu"), (INPUT_GRAD, None)):
        problem = problem_of(direction, CASES[0], dtypes.bfloat16, activation=activation, **options)
        check(put, get, problem, ImplicitGemmFamily().variants(problem)[0])


@pytest.mark.parametrize("flat", [False, True])
def test_splits_of_a_weight_gradient(
    cuda: Backend, put: Callable[[Any], Any], get: Any, monkeypatch: pytest.MonkeyPatch, flat: bool
) -> None:
    monkeypatch.setattr(module, "_num_splits", lambda *ignored: 3)
    problem = problem_of(WEIGHT_GRAD, CASES[0], dtypes.bfloat16)
    tile = next(tile for tile, is_flat in shape.choices(problem) if is_flat == flat)
    check(put, get, problem, ImplicitGemm(tile, flat))


@pytest.mark.parametrize(
    ("channels", "taps", "directions"),
    [
        ((18, 18), 3, DIRECTIONS),
        ((36, 72), 3, DIRECTIONS),
        ((64, 18), 3, (FORWARD, INPUT_GRAD)),  # a library's weight gradient is faster
        ((18, 18), 1, ()),
        ((24, 40), 3, ()),  # which nothing has to pad
        ((32, 64), 3, ()),
    ],
)
def test_where_libraries_copy_they_are_no_guess(
    simulated: Backend, channels: tuple[int, int], taps: int, directions: tuple[str, ...]
) -> None:
    inputs, outputs = channels
    for direction in DIRECTIONS:
        problem = ConvProblem(
            direction, (8, inputs, 56, 56), (outputs, inputs, taps, taps), padding=(taps // 2,) * 2,
            dtype=dtypes.bfloat16,
        )  # fmt: skip
        order = [family.prefix for family in families.in_order(problem)]
        assert (order.index("implicit_gemm") < order.index("cudnn")) == (direction in directions)
