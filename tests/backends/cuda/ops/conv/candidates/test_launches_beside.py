"""A strided input gradient: launches for its residues, which run beside one another, and none ahead of others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

import genesis
from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.candidate import Candidate, Family, admissible
from genesis.backends.cuda.ops.conv.candidates.grouped.candidate import GroupedFamily
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily, launch_axes
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.settings import override
from genesis.shapes import channels_last_strides
from tests.backends.cuda.ops.conv.fuzz import ways

FAMILIES: dict[str, tuple[Family[ConvProblem], int]] = {  # and the groups
    "implicit_gemm": (ImplicitGemmFamily(), 1), "wgmma": (WgmmaFamily(), 1), "grouped": (GroupedFamily(), 4),
}  # fmt: skip
ROUNDS = 20


@pytest.mark.parametrize(
    ("stride", "taps"), [((1, 1), [9]), ((2, 2), [4, 2, 2, 1]), ((1, 2), [6, 3]), ((4, 1), [3, 3, 3, 0])]
)
def test_the_longest_launch_comes_first(stride: tuple[int, int], taps: list[int]) -> None:
    problem = ConvProblem(INPUT_GRAD, (2, 16, 12, 12), (16, 16, 3, 3), stride, (1, 1), dtype=dtypes.float32)
    assert [row.taps * column.taps for row, column in launch_axes(problem)] == taps


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(2, 7), (8, 56)], ids=["idle", "full"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_chain_of_them_is_as_one_after_the_other(
    gpu: Backend, name: str, dtype: dtypes.DType, size: tuple[int, int]
) -> None:
    """Down and up again: each launch reads what the one before wrote, and writes what the one before read."""
    family, groups = FAMILIES[name]
    images, length = size
    sizes = (images, 128, length, length), (128, 128 // groups, 3, 3), (2, 2), (1, 1)
    down, up = (ConvProblem(direction, *sizes, groups=groups, dtype=dtype) for direction in (FORWARD, INPUT_GRAD))
    put, get = ways(gpu)
    torch.manual_seed(0)
    start, weight = torch.randn(down.input_shape), torch.randn(down.weight_shape) / math.sqrt(up.num_terms / 2)
    operands = [
        put(each.to(getattr(torch, dtype.name)).contiguous(memory_format=torch.channels_last))
        for each in (start, weight)
    ]
    for pair in zip(_first(family, down), _first(family, up), strict=False):
        found = []
        for overlap, is_captured in itertools.product((False, True), (False, True)):
            with override(overlap=overlap):
                found.append(get(_chained(pair, (down, up), operands, is_captured)))
        assert found[0].isfinite().all()
        assert found[0].abs().max() > 0
        assert all(torch.equal(found[0], each) for each in found[1:]), [each.name for each in pair]


def _first(family: Family[ConvProblem], problem: ConvProblem) -> list[Candidate[ConvProblem]]:
    return list(itertools.islice((each for each in family.variants(problem) if admissible(each, problem)), 3))


def _chained(
    pair: Sequence[Candidate[ConvProblem]], problems: Sequence[ConvProblem], operands: Sequence[DeviceArray],
    is_captured: bool,
) -> DeviceArray:  # fmt: skip
    """The image after so many rounds of both."""
    down, up = (candidate.prepare(problem) for candidate, problem in zip(pair, problems, strict=True))
    small, large = (array.empty(p.result_shape, p.dtype, 0, channels_last_strides(p.result_shape)) for p in problems)
    needed = max(candidate.workspace(problem) for candidate, problem in zip(pair, problems, strict=True))
    workspace = array.empty((max(needed, 1),), dtypes.uint8)
    image, weight = operands

    def run() -> None:
        stream, source = streams.current_handle(0), image.data_pointer
        for _ in range(ROUNDS):
            down(stream, small.data_pointer, source, weight.data_pointer, 0, 0, workspace.data_pointer)
            up(stream, large.data_pointer, small.data_pointer, weight.data_pointer, 0, 0, workspace.data_pointer)
            source = large.data_pointer

    run()
    if is_captured:
        recording = genesis.cuda.Graph()
        with genesis.cuda.graph(recording):
            run()
        recording.replay()
    return large
