"""Sums and ReLU of a forward convolution by a pass: where it loses nothing, and taken where it is faster."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.candidate import Candidate, Family
from genesis.backends.cuda.engine.passes import PassFamily
from genesis.backends.cuda.ops.conv import accuracy, families
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.with_epilogue_pass import EpiloguePass
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.settings import override
from tests.backends.cuda.ops.conv.fuzz import expected, operand, run, ways

SHAPES = ((2, 5, 6, 7), (9, 5, 3, 3))
OPTIONS: Sequence[dict[str, Any]] = (
    {"activation": "relu"},
    {"bias": True, "activation": "relu"},
    {"residual": True},
    {"bias": True, "residual": True, "activation": "relu"},
)


def _problem(dtype: dtypes.DType, **options: Any) -> ConvProblem:
    return ConvProblem(FORWARD, *SHAPES, padding=(1, 1), dtype=dtype, **options)


def _operands(problem: ConvProblem) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    return [
        operand(problem.first_shape, problem),
        operand(problem.second_shape, problem) / math.sqrt(problem.num_terms),
        operand((problem.result_shape[1],), problem) if problem.bias else None,
        operand(problem.result_shape, problem) if problem.residual else None,
    ]


def _passed(problem: ConvProblem) -> Candidate[ConvProblem]:
    return next(iter(PassFamily(EpiloguePass(), ImplicitGemmFamily()).variants(problem)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float32], ids=str)
def test_as_exact_as_fused(cuda: Backend, dtype: dtypes.DType, options: Any) -> None:
    put, get = ways(cuda)
    problem = _problem(dtype, **options)
    host = _operands(problem)
    exact = torch.from_numpy(expected(problem, host).astype(float))
    result = get(run(cuda, _passed(problem), problem, [None if each is None else put(each) for each in host]))
    assert (result.double() - exact).norm() <= accuracy.error_bound(problem) * exact.norm()


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_relu_of_16_bits_gives_the_same_bits(cuda: Backend, dtype: dtypes.DType, options: Any) -> None:
    put, get = ways(cuda)
    problem = _problem(dtype, **options)
    given = [None if each is None else put(each) for each in _operands(problem)]
    fused = run(cuda, ImplicitGemmFamily().variants(problem)[0], problem, given)
    assert torch.equal(get(run(cuda, _passed(problem), problem, given)), get(fused))


def test_what_it_leaves_to_fused_kernels(simulated: Backend) -> None:
    appended = EpiloguePass()
    assert not appended.is_wanted(_problem(dtypes.bfloat16, residual=True))  # would be rounded twice
    assert not appended.is_wanted(_problem(dtypes.float32, bias=True))  # all kernels do that
    assert not appended.is_wanted(_problem(dtypes.float32, statistics=True))
    assert not appended.is_wanted(ConvProblem(INPUT_GRAD, *SHAPES, dtype=dtypes.float32, residual=True))
    found = [family.prefix for family in families.in_order(_problem(dtypes.float32, residual=True))]
    assert found[-2:] == ["with_epilogue_pass/cublaslt", "with_epilogue_pass/cudnn"]
    of_ours = [family.prefix for family in families.FAMILIES]
    assert sorted(found[:-2]) == sorted(of_ours)


class _Slowed(Candidate[ConvProblem]):
    """As the plain kernels, but so many seconds later."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.name = seconds, "cudnn/slowed"

    def supports(self, problem: ConvProblem) -> bool:
        return True

    def prepare(self, problem: ConvProblem) -> Any:
        launch = ImplicitGemmFamily().variants(problem)[0].prepare(problem)

        def run(*args: int) -> None:
            time.sleep(self._seconds)
            launch(*args)

        return run


class _Library(Family[ConvProblem]):
    """Fused kernels, and plain ones, that take so long."""

    prefix = "cudnn"

    def __init__(self, fused: float, plain: float) -> None:
        self._fused, self._plain = fused, plain

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        return [_Slowed(self._fused if problem.activation else self._plain)]


@pytest.mark.parametrize(("fused", "plain"), [(0.1, 0.0), (0.0, 0.1)])
def test_tuning_takes_what_is_faster(
    simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: float, plain: float
) -> None:
    monkeypatch.setattr(families, "FAMILIES", (_Library(fused, plain),))
    problem = _problem(dtypes.float32, activation="relu")
    with override(cache_dir=tmp_path):
        planner.forget()
        assert planner.plan(CONV, problem).candidate.name == "cudnn/slowed"  # the guess
        session = planner.Session(60.0)
        planner.begin(session)
        try:
            found = planner.plan(CONV, problem).candidate
        finally:
            planner.end(session)
            planner.forget()
        assert found is not None
        assert found.name == ("with_epilogue_pass/cudnn/slowed" if fused > plain else "cudnn/slowed")
        (outcome,) = session.outcomes
        assert (outcome.complete, outcome.num_measured) == (True, 2)
