"""Input gradients that are added to something: in a candidate's epilogue, or by a pass that follows it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine.candidate import Candidate, Family
from genesis.backends.cuda.engine.passes import PassFamily, WithPass
from genesis.backends.cuda.ops.conv import accuracy, families
from genesis.backends.cuda.ops.conv import launch as conv
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.small_c_dgrad.candidate import SmallCDgradFamily
from genesis.backends.cuda.ops.conv.candidates.small_k.candidate import SmallKFamily
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.candidate import SubPixelDgradFamily
from genesis.backends.cuda.ops.conv.candidates.with_residual_pass import ResidualPass
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.records import ConvGeometry
from genesis.settings import override
from tests.backends.cuda.ops.conv import fuzz
from tests.backends.cuda.ops.conv.fuzz import expected, operand, run, ways

CASES = [  # input, weight, stride, padding, dilation, groups
    ((2, 5, 6, 7), (8, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 5, 7, 6), (8, 5, 1, 1), (2, 2), (0, 0), (1, 1), 1),  # most positions meet no tap: what is added is all
    ((2, 6, 9, 8), (4, 6, 3, 2), (2, 3), (1, 1), (1, 1), 1),
    ((1, 4, 8, 9), (6, 4, 3, 3), (1, 1), (2, 2), (2, 2), 1),
    ((2, 6, 7, 7), (9, 2, 3, 3), (2, 1), (1, 0), (1, 1), 3),
    ((2, 6, 7, 7), (6, 1, 3, 3), (2, 2), (1, 1), (1, 1), 6),
]
KINDS = [dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16]
FEW = ConvProblem(INPUT_GRAD, (2, 20, 6, 5), (3, 20, 3, 3), padding=(1, 1), dtype=dtypes.bfloat16, residual=True)


def operands(problem: ConvProblem) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    weight = operand(problem.second_shape, problem) / math.sqrt(problem.num_terms)
    bias = operand((problem.result_shape[1],), problem) if problem.bias else None
    addend = operand(problem.result_shape, problem) if problem.residual else None
    return [operand(problem.first_shape, problem), weight, bias, addend]


def distance(backend: Backend, candidate: Candidate, problem: ConvProblem) -> float:
    put, get = ways(backend)
    host = operands(problem)
    exact = torch.from_numpy(expected(problem, host).astype(float))
    result = get(run(backend, candidate, problem, [None if each is None else put(each) for each in host]))
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", KINDS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bias", [False, True])
def test_the_plain_kernels(simulated: Backend, case: Any, dtype: dtypes.DType, bias: bool) -> None:
    problem = ConvProblem(INPUT_GRAD, *case, dtype=dtype, bias=bias, residual=True)
    candidate = ImplicitGemmFamily().variants(problem)[0]
    # The sum is rounded once: the bound is that of a result which nothing is added to.
    bound = accuracy.error_bound(dataclasses.replace(problem, residual=False))
    assert distance(simulated, candidate, problem) <= bound


def test_a_pass_rounds_as_an_addition_does(simulated: Backend) -> None:
    put, get = ways(simulated)
    host = operands(FEW)
    given = [None if each is None else put(each) for each in host]
    alone = dataclasses.replace(FEW, residual=False)
    candidate = SmallKFamily().variants(alone)[0]
    gradient = run(simulated, candidate, alone, [*given[:3], None])
    (added,) = PassFamily(ResidualPass(), SmallKFamily()).variants(FEW)
    assert (added.name, added.workspace(FEW)) == (f"with_residual_pass/{candidate.name}", candidate.workspace(alone))
    assert torch.equal(get(run(simulated, added, FEW, given)), get(simulated.add(gradient, given[3])))


def test_two_roundings_are_within_the_bound(simulated: Backend) -> None:
    """Of parts that are as large as each other, which the tuner's operands are; and one rounding has to spare."""
    for dtype in (dtypes.float16, dtypes.bfloat16):
        problem = dataclasses.replace(FEW, dtype=dtype, input_shape=(4, 20, 16, 16))
        alone = dataclasses.replace(problem, residual=False)
        (added,) = PassFamily(ResidualPass(), SmallKFamily()).variants(problem)
        once = distance(simulated, ImplicitGemmFamily().variants(problem)[0], problem)
        assert (
            once <= accuracy.error_bound(alone) < distance(simulated, added, problem) <= accuracy.error_bound(problem)
        )


class Named(Candidate):
    """Supports whatever its family says; computes as the plain kernels do."""

    def __init__(self, name: str, slow: bool = False) -> None:
        self.name, self.builds_slowly = name, slow

    def supports(self, problem: ConvProblem) -> bool:
        return True

    def prepare(self, problem: ConvProblem) -> Any:
        return ImplicitGemmFamily().variants(problem)[0].prepare(problem)


class NamedFamily(Family):
    """Candidates by what the problem asks for."""

    def __init__(self, prefix: str, plain: str = "", summed: str = "", slow: bool = False) -> None:
        self.prefix, self.per_turn = prefix, 2
        self._plain, self._summed, self._slow = plain, summed, slow

    def variants(self, problem: ConvProblem) -> Iterable[Candidate]:
        names, slow = (self._summed, self._slow) if problem.residual else (self._plain, False)
        return [Named(f"{self.prefix}/{name}", slow) for name in names]


@pytest.fixture
def three(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A family that has no sum, one that builds such kernels slowly, and one that has them ready."""
    chosen = (NamedFamily("without", "ab"), NamedFamily("slow", "cd", "ef", slow=True), NamedFamily("with", "gh", "ij"))
    monkeypatch.setattr(families, "FAMILIES", chosen)
    with override(cache_dir=tmp_path):
        plans.forget()
        yield
        plans.forget()


def names(choice: Iterable[Candidate]) -> list[str]:
    return [candidate.name for candidate in choice]


@pytest.mark.usefixtures("three")
def test_the_order_of_guesses() -> None:
    problem = dataclasses.replace(FEW, input_shape=(64, 20, 60, 50))
    adding = [
        "with_residual_pass/without/a",
        "with_residual_pass/without/b",
        "with_residual_pass/slow/c",
        "with_residual_pass/slow/d",
    ]
    assert names(CONV.candidates(problem)) == [*adding, "slow/e", "slow/f", "with/i", "with/j"]
    assert names(CONV.in_turns(problem)) == [*adding, "with/i", "with/j", "slow/e", "slow/f"]
    alone = dataclasses.replace(problem, residual=False)
    forward = dataclasses.replace(problem, direction=FORWARD)
    for other in (alone, forward):
        assert not any(isinstance(candidate, WithPass) for candidate in CONV.candidates(other))


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("name", ["with_residual_pass/without/b", "slow/e", "with/j"])
def test_the_fastest_is_taken_and_found_in_the_store(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(ConvBench, "milliseconds", lambda bench, built, best: 1.0 + (built.candidate.name != name))
    with override(tune=60):
        assert plans.plan(CONV, FEW).candidate.name == name  # type: ignore[union-attr]
    plans.forget()
    plan = plans.plan(CONV, FEW)
    assert plan.candidate is not None
    assert (plan.candidate.name, plan.origin) == (name, plans.STORED)


@pytest.mark.usefixtures("simulated")
def test_names_that_are_none() -> None:
    assert CONV.named(FEW, "with_residual_pass/small_k/of another kind") is None
    assert CONV.named(FEW, SmallKFamily().variants(dataclasses.replace(FEW, residual=False))[0].name) is None


@pytest.mark.usefixtures("simulated")
def test_kernels_that_do_not_add_are_left_out() -> None:
    image = ConvProblem(INPUT_GRAD, (2, 3, 12, 12), (16, 3, 3, 3), dtype=dtypes.float16, residual=True)
    assert list(SubPixelDgradFamily().variants(image)) == list(SmallKFamily().variants(FEW)) == []
    exact = dataclasses.replace(image, dtype=dtypes.float32)
    assert SmallCDgradFamily().variants(exact) == []
    assert next(CONV.candidates(exact)).name.startswith("with_residual_pass/small_c_dgrad/")
    assert next(CONV.candidates(FEW)).name.startswith("with_residual_pass/small_k/")


@pytest.mark.parametrize("order", ["rows", "channels", "gaps", "expanded"])
def test_the_op_takes_any_order_of_memory(cuda: Backend, put: Callable[[Any], Any], get: Any, order: str) -> None:
    torch.manual_seed(0)
    grad, weight = torch.randn(2, 8, 5, 6), torch.randn(8, 16, 3, 3)
    plain = torch.randn(2, 16, 5, 6)
    addend = {
        "rows": plain, "channels": plain.contiguous(memory_format=torch.channels_last),
        "gaps": torch.randn(2, 16, 5, 12)[..., ::2], "expanded": torch.randn(2, 16, 1, 1).expand(2, 16, 5, 6),
    }[order]  # fmt: skip
    geometry = ((2, 16, 5, 6), ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    result = conv.conv_input_grad_added(put(grad), put(weight), put(addend), *geometry)
    exact = torch.nn.grad.conv2d_input((2, 16, 5, 6), weight.double(), grad.double(), 1, 1) + addend
    torch.testing.assert_close(get(result).double(), exact, rtol=0, atol=1e-5 * exact.abs().max().item())
    alone = conv.conv_input_grad_added(put(grad), put(weight), None, *geometry)
    assert torch.equal(get(alone), get(cuda.conv_input_grad(put(grad), put(weight), *geometry)))


# --- on a GPU ---------------------------------------------------------------------------------------------------------
GPU_CASES = [
    ((4, 256, 14, 14), (64, 256, 1, 1), (1, 1), (0, 0), (1, 1), 1),  # a bottleneck's first convolution
    ((3, 64, 15, 13), (128, 64, 1, 1), (2, 2), (0, 0), (1, 1), 1),  # and its downsampling one
    ((4, 64, 28, 28), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 64, 17, 14), (128, 64, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((2, 40, 11, 9), (24, 40, 3, 2), (2, 1), (1, 0), (1, 2), 1),
    ((2, 256, 4, 4), (512, 256, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # few tiles: sums in parts
    ((2, 64, 9, 9), (2, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 48, 9, 9), (48, 1, 3, 3), (1, 1), (1, 1), (1, 1), 48),
]
GPU_KINDS = [
    (dtypes.float16, "highest"), (dtypes.bfloat16, "highest"), (dtypes.float32, "highest"), (dtypes.float32, "high"),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=str)
@pytest.mark.parametrize(("dtype", "precision"), GPU_KINDS, ids=str)
def test_every_candidate(gpu: Backend, case: Any, dtype: dtypes.DType, precision: str) -> None:
    problem = ConvProblem(INPUT_GRAD, *case, dtype=dtype, precision=precision, residual=True)
    bound, from_cudnn, checked = accuracy.error_bound(problem), 0, []
    for candidate in CONV.candidates(problem):
        if "cudnn/" in candidate.name:
            from_cudnn += 1
            if from_cudnn > 6:
                continue
        allowed = bound
        if "cudnn/" in candidate.name and dtype is dtypes.float32:  # what the tuner would refuse, no guess of ours is
            allowed = max(bound, accuracy.chain_bound(problem))
        try:
            error = distance(gpu, candidate, problem)
        except KernelError:  # cuDNN lists plans that it then can't build
            assert "cudnn/" in candidate.name
            continue
        assert error <= allowed, f"{candidate.name}: {error:.2e}, at most {allowed:.2e}"
        checked.append(candidate.name)
    print(*checked, sep="\n")
    assert checked


@pytest.mark.gpu
def test_random_problems(gpu: Backend) -> None:
    put, get = ways(gpu)
    seeds = [seed for seed in range(400) if fuzz.adds(fuzz.draw(seed, 16))][:20]
    assert len(seeds) == 20
    for seed in seeds:
        fuzz.check(gpu, put, get, seed, largest=16)
