"""Convolutions that are asked for their result's statistics: candidates, plans, and the fused op that uses them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, Parts
from genesis.backends.cuda.engine.passes import WithPass
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv import launch as conv
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import forward as wgmma
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import Wgmma, WgmmaFamily
from genesis.backends.cuda.ops.conv.candidates.with_statistics_pass import StatisticsPass
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.records import ConvGeometry, NormOptions, NormState
from genesis.settings import override
from genesis.shapes import channels_last_strides

PROBLEM = ConvProblem("forward", (3, 4, 9, 8), (10, 4, 3, 3), dtype=dtypes.bfloat16, bias=True, statistics=True)

# A float32 mean is half a unit in its last place off, and so is the sum of deviations that it came from, or a bit more.
GEOMETRY = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
MEAN_BOUND = 2.0**-22


def joined(partial: np.ndarray, parts: Parts, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance in float64 from (3, part, channel), as Parts says."""
    pivots, offsets, squares = partial.astype(np.float64)
    counts = np.zeros((len(pivots), 1))
    for row in range(num_rows):
        block = row // (parts.rows * parts.fold)
        counts[block % (parts.number // parts.fold) * parts.fold + row % parts.fold] += 1
    means = pivots + offsets
    mean = (means * counts).sum(0) / num_rows
    return mean, (squares + counts * (means - mean) ** 2).sum(0) / num_rows


class Native(Candidate):
    """Stands for a kernel that finds the statistics itself: its parts are of other blocks, and wrong by a factor."""

    name = "native/one"

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def supports(self, problem: ConvProblem) -> bool:
        return problem.statistics

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return problem.epilogue.parts

    def parts(self, problem: ConvProblem) -> Parts:
        return Parts(2, 5)

    def workspace(self, problem: ConvProblem) -> int:
        return self.parts(problem).num_bytes(problem.result_shape[1])

    def prepare(self, problem: ConvProblem) -> Launch:
        alone = dataclasses.replace(problem, statistics=False)
        compute = ImplicitGemmFamily().variants(alone)[0].prepare(alone)
        n, c, h, w = problem.result_shape
        result = array.layout_of((n * h * w, c), problem.dtype, problem.device)
        partial = array.layout_of((3, 2, c), dtypes.float32, problem.device)

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            compute(stream, out, first, second, bias, residual, workspace)
            bits = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint16 * result.size).from_address(out))
            y = torch.from_numpy(bits.copy()).view(torch.bfloat16).double().numpy().reshape(result.shape)
            blocks = np.arange(len(y)) // 5 % 2
            found = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * partial.size).from_address(workspace))
            for part, (pivot, offset, squares) in enumerate(found.reshape(3, 2, c).transpose(1, 0, 2)):
                rows = y[blocks == part]
                pivot[:] = rows[0]
                offset[:] = (rows - pivot).mean(0)
                squares[:] = self.factor * ((rows - rows.mean(0)) ** 2).sum(0)

        return run


class NativeFamily(Family):
    prefix = "native"
    finds_statistics = True

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []

    def variants(self, problem: ConvProblem) -> Iterable[Candidate]:
        return self.candidates if problem.statistics else []


@pytest.fixture
def native(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeFamily]:
    """The families of problems with statistics: the plain kernel followed by a pass, and this one."""
    family = NativeFamily()
    monkeypatch.setattr(families, "FAMILIES", (ImplicitGemmFamily(), family))
    with override(cache_dir=tmp_path):
        plans.forget()
        yield family
        plans.forget()


def test_in_the_store_problems_without_statistics_are_called_as_ever() -> None:
    plain = dataclasses.replace(PROBLEM, statistics=False)
    assert "statistics" not in plain.key
    assert ConvProblem.from_key(plain.key) == plain
    assert ConvProblem.from_key(PROBLEM.key) == PROBLEM
    assert (str(PROBLEM), str(plain)) == (f"{plain}, with statistics", str(plain))


def test_a_pass_is_the_guess(native: NativeFamily) -> None:
    native.candidates = [Native()]
    plan = plans.plan(CONV, PROBLEM)
    assert (type(plan.candidate), plan.origin) == (WithPass, plans.HEURISTIC)


def test_the_faster_way_is_taken_and_found_in_the_store(native: NativeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    native.candidates = [Native()]
    times = {"native": 1.0, "with_statistics_pass": 2.0}
    monkeypatch.setattr(
        ConvBench, "milliseconds", lambda bench, built, best: times[built.candidate.name.partition("/")[0]]
    )
    for names in (("native", "with_statistics_pass"), ("with_statistics_pass", "native")):
        times = dict(zip(names, (1.0, 2.0), strict=True))
        problem = dataclasses.replace(PROBLEM, bias=names[0] == "native")
        with override(tune=60):
            found = plans.plan(CONV, problem).candidate
        assert found is not None
        assert found.name.startswith(names[0])
        plans.forget()
        plan = plans.plan(CONV, problem)
        assert plan.candidate is not None
        assert (plan.candidate.name, plan.origin) == (found.name, plans.STORED)


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_wrong_statistics_are_not_believed(
    native: NativeFamily, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    native.candidates = [Native(factor)]
    monkeypatch.setattr(
        ConvBench,
        "milliseconds",
        lambda bench, built, best: 1.0 + built.candidate.name.startswith("with_statistics_pass"),
    )
    with override(tune=60):
        assert type(plans.plan(CONV, PROBLEM).candidate) is WithPass


def test_nobody_else_finds_statistics(simulated: Backend) -> None:
    with pytest.raises(NotImplementedError, match="finds no statistics"):
        ImplicitGemmFamily().variants(PROBLEM)[0].parts(PROBLEM)


@pytest.mark.parametrize("way", ["with_statistics_pass", "native", "not asked for"])
@pytest.mark.parametrize("large", [0.0, 1e4])
def test_the_fused_op(
    native: NativeFamily, simulated: Backend, monkeypatch: pytest.MonkeyPatch, way: str, large: float
) -> None:
    """Statistics are of the convolution's output as it is stored, whoever finds them."""
    if way != "not asked for":
        native.candidates = [Native()]
    if way == "native":
        monkeypatch.setattr(families, "FAMILIES", (native,))
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4, 9, 8), 100 * torch.randn(10, 4, 3, 3), large * (1 + torch.arange(10))
    operands = [
        simulated.from_cpu(value.bfloat16().view(torch.uint16).numpy(), dtypes.bfloat16) for value in (x, weight, bias)
    ]
    running = [simulated.from_cpu(value.numpy(), dtypes.float32) for value in (torch.zeros(10), torch.ones(10))]
    norm, options = NormState(None, None, *running), NormOptions(True, 0.1, 1e-5)
    result = simulated.conv_bn_relu(*operands, norm, None, options, GEOMETRY, "relu")
    y, mean, inverse_std, out, _ = (None if each is None else simulated.to_cpu(each) for each in result)
    stored = torch.from_numpy(np.ascontiguousarray(out)).view(torch.bfloat16).double()
    expected = stored.var((0, 2, 3), correction=0)
    true_mean = stored.mean((0, 2, 3)).numpy()
    assert (np.abs(mean - true_mean) <= MEAN_BOUND * (np.abs(true_mean) + expected.numpy() ** 0.5)).all()
    np.testing.assert_allclose(inverse_std, (expected + 1e-5).rsqrt(), rtol=1e-5)
    unbiased = stored.var((0, 2, 3))
    np.testing.assert_allclose(simulated.to_cpu(running[1]), 0.9 + 0.1 * unbiased, rtol=1e-5)
    normalized = torch.from_numpy(np.ascontiguousarray(y)).view(torch.bfloat16).double()
    truth = F.batch_norm(stored, None, None, training=True, eps=1e-5).relu()
    assert (normalized - truth).norm() <= 4e-3 * truth.norm()
    plan = next(plan for plan in plans.all_plans(CONV) if plan.problem.direction == "forward")
    assert plan.problem.statistics == (way != "not asked for")


def test_an_empty_result_has_none(native: NativeFamily, simulated: Backend) -> None:
    native.candidates = [Native()]
    x, weight = (array.empty(shape, dtypes.bfloat16) for shape in ((0, 4, 9, 8), (10, 4, 3, 3)))
    out, moments = conv.conv_forward_with_moments(x, weight, None, GEOMETRY)
    assert (out.shape, moments) == ((0, 10, 7, 6), None)


@pytest.mark.parametrize("num_outputs", [64, 200])
def test_parts_of_the_hopper_kernel(simulated: Backend, num_outputs: int) -> None:
    """As many programs for each column of tiles, of the four of the simulated device."""
    problem = ConvProblem("forward", (8, 64, 16, 16), (num_outputs, 64, 1, 1), dtype=dtypes.bfloat16, statistics=True)
    for tile in (Wgmma(shape, 1, FULL) for shape in wgmma._PLAIN_SHAPES):
        columns = -(-num_outputs // tile.shape.columns)
        programs = 4 // columns
        assert tile.parts(problem) == Parts(min(2048 // tile.shape.rows + 1, programs), tile.shape.rows)
        assert tile.workspace(problem) >= 12 * tile.parts(problem).number * num_outputs
    assert list(WgmmaFamily().variants(problem)) == []  # not without a GPU


# --- on a GPU ---------------------------------------------------------------------------------------------------------
GPU_CASES = [
    ((32, 64, 7, 7), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((8, 64, 14, 14), (64, 64, 3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 256, 14, 14), (512, 256, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((3, 40, 11, 9), (24, 40, 3, 2), (2, 1), (1, 0), (1, 2)),
    ((5, 72, 7, 10), (136, 72, 2, 3), (1, 2), (1, 1), (2, 1)),
    ((64, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((4, 64, 9, 9), (2056, 64, 3, 3), (1, 1), (2, 2), (2, 2)),
    ((4, 3, 60, 60), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((9, 3, 64, 128), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((3, 3, 56, 48), (104, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 16, 1, 2), (8, 16, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((2, 64, 20, 20), (72, 64, 3, 3), (1, 1), (12, 12), (12, 12)),  # rows of taps that meet nothing but padding
]


@pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("case", GPU_CASES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=str)
@pytest.mark.parametrize("large", [0.0, 1e4])
def test_every_candidate(
    cuda: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, case: Any, large: float
) -> None:
    """The result is that without statistics, to the bit; the statistics are those of the result in float64."""
    torch.manual_seed(0)
    if driver.get().properties(0).compute_capability != 90:
        pytest.skip("no Hopper GPU")
    problem = ConvProblem("forward", *case, dtype=dtype, bias=True, statistics=True)
    alone = dataclasses.replace(problem, statistics=False)
    torch_dtype, shape = getattr(torch, dtype.name), problem.result_shape
    x, weight = (torch.randn(size).to(torch_dtype).contiguous(memory_format=torch.channels_last) for size in case[:2])
    bias = (torch.randn(shape[1]) + large).to(torch_dtype)
    operands = [put(value) for value in (x, weight, bias)]
    candidates = [each for each in CONV.candidates(problem) if type(each) is not WithPass]
    assert candidates
    num_rows = shape[0] * shape[2] * shape[3]
    for candidate in [*candidates, WithPass(StatisticsPass(), next(CONV.candidates(alone)))]:
        results = []
        for asked in (problem, alone) if type(candidate) is not WithPass else (problem,):
            out = array.empty(shape, dtype, 0, channels_last_strides(shape))
            workspace = array.empty((max(candidate.workspace(asked), 1),), dtypes.uint8)
            launch = candidate.prepare(asked)
            addresses = [operand.data_pointer for operand in operands]
            launch(streams.current_handle(0), out.data_pointer, *addresses, 0, workspace.data_pointer)
            results.append(get(out).double())
            if asked is problem:
                parts = candidate.parts(problem)
                layout = array.layout_of((3, parts.number, shape[1]), dtypes.float32)
                mean, var = joined(get(layout.on(workspace.storage)).numpy(), parts, num_rows)
        stored = results[0].permute(1, 0, 2, 3).flatten(1).numpy()
        assert all((result == results[0]).all() for result in results), candidate.name
        expected = stored.var(1)
        bound = MEAN_BOUND * (np.abs(stored.mean(1)) + np.sqrt(expected))
        assert (np.abs(mean - stored.mean(1)) <= bound).all(), candidate.name
        # Squares are of differences from a pivot, which may be as far off as any of the values.
        assert (np.abs(var - expected) <= 2.0**-21 * np.ptp(stored, 1) ** 2).all(), candidate.name
