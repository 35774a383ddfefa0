"""The order of the families: what computes where nothing was measured."""

from __future__ import annotations

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import problem_of

# What is the first family, with 3×3 taps unless it says otherwise: forward, input's gradient, weight's.
GUESSES = [
    # dtype, precision, (inputs, outputs) of a group, images × size, options of the geometry
    (dtypes.bfloat16, "highest", (2, 2), (64, 28), {}, ("grouped", "grouped", "grouped")),
    (dtypes.bfloat16, "highest", (4, 4), (64, 56), {}, ("", "grouped", "grouped")),
    (dtypes.bfloat16, "highest", (8, 8), (64, 56), {}, ("", "grouped", "")),
    (dtypes.bfloat16, "highest", (8, 8), (64, 56), {"taps": 5}, ("grouped", "grouped", "")),
    (dtypes.bfloat16, "highest", (16, 16), (16, 14), {}, ("grouped", "grouped", "")),
    (dtypes.bfloat16, "highest", (24, 24), (64, 28), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.bfloat16, "highest", (24, 24), (64, 28), {"taps": 5}, ("grouped", "grouped", "grouped")),
    (dtypes.bfloat16, "highest", (24, 48), (64, 28), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.bfloat16, "highest", (56, 56), (64, 28), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.bfloat16, "highest", (64, 64), (64, 56), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.bfloat16, "highest", (144, 144), (64, 28), {}, ("", "", "wgmma")),
    (dtypes.float32, "high", (2, 2), (64, 56), {}, ("grouped", "grouped", "grouped")),
    (dtypes.float32, "high", (4, 4), (16, 7), {}, ("grouped", "grouped", "grouped")),
    (dtypes.float32, "high", (16, 16), (64, 56), {}, ("", "", "grouped")),
    (dtypes.float32, "high", (16, 16), (64, 56), {"stride": 2}, ("", "grouped", "grouped")),
    (dtypes.float32, "high", (16, 16), (64, 56), {"taps": 5}, ("grouped", "grouped", "grouped")),
    (dtypes.float32, "high", (32, 32), (16, 14), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.float32, "high", (56, 56), (64, 56), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.float32, "high", (64, 64), (16, 14), {}, ("", "", "wgmma")),
    (dtypes.float32, "highest", (8, 8), (64, 28), {}, ("grouped", "grouped", "grouped")),
    (dtypes.float32, "highest", (16, 16), (64, 28), {}, ("grouped", "grouped", "wgmma")),
    (dtypes.float32, "highest", (64, 64), (64, 28), {}, ("grouped", "grouped", "wgmma")),
]


@pytest.mark.parametrize(("dtype", "precision", "channels", "sizes", "options", "expected"), GUESSES)
def test_groups(
    simulated: Backend, dtype: dtypes.DType, precision: str, channels: tuple[int, int], sizes: tuple[int, int],
    options: dict[str, int], expected: tuple[str, str, str],
) -> None:  # fmt: skip
    """On Hopper. "": cuDNN's."""
    (images, size), taps, stride = sizes, options.get("taps", 3), options.get("stride", 1)
    case = (16, channels, images, (size, size), (taps, taps), (stride, stride), (taps // 2, taps // 2), (1, 1))
    for direction, family in zip((FORWARD, INPUT_GRAD, WEIGHT_GRAD), expected, strict=True):
        problem = problem_of(direction, case, dtype, precision=precision)
        takes_groups = {"grouped", "cudnn"}
        if direction == WEIGHT_GRAD and min(channels) >= 16:
            takes_groups.add("wgmma")
        first = next(each.prefix for each in families.in_order(problem) if each.prefix in takes_groups)
        assert first == (family or "cudnn"), direction
        if family == "grouped":
            assert next(iter(CONV.candidates(problem))).family == family


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize(("dilation", "expected"), [(1, "cudnn"), (12, "cudnn"), (24, "wgmma"), (36, "wgmma")])
def test_rows_of_taps_in_padding(dilation: int, expected: str, direction: str) -> None:
    """Hopper's kernels leave them out, libraries' don't."""
    pairs = ((1, 1), (dilation, dilation), (dilation, dilation))
    problem = ConvProblem(direction, (4, 2048, 64, 64), (256, 2048, 3, 3), *pairs, dtype=dtypes.bfloat16)
    order = [family.prefix for family in families.in_order(problem)]
    assert min("wgmma", "cudnn", key=order.index) == expected
