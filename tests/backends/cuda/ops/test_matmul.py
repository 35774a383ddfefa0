"""Matrix products against torch in float64: layouts, batches, dtypes, edges of tiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import cublaslt
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.ops.matmul import operation
from genesis.backends.cuda.ops.matmul.bench import MatmulBench
from genesis.backends.cuda.ops.matmul.candidates import TILES, CublasltFamily, Tiled, TiledFamily, reference
from genesis.backends.cuda.ops.matmul.launch import problem_of
from genesis.backends.cuda.ops.matmul.operation import MATMUL
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.runtime import memory
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.settings import override

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]

# Relative to the largest result: what rounding the result to the dtype costs, and a little for sums in float32.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    assert result.shape == expected.shape
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[dtype] * max(scale, 1e-30))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 17, 70), (1, 5, 3), (300, 2, 1), (7, 130, 129)], ids=str)
def test_matmul(cuda: Backend, put: Put, get: Get, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, y = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    close(get(cuda.matmul(put(x), put(y))), x.double() @ y.double(), dtype)


@pytest.mark.parametrize("x_layout", ["rows", "columns", "steps", "repeated"])
@pytest.mark.parametrize("y_layout", ["rows", "columns", "steps", "repeated"])
def test_matmul_of_any_strides(cuda: Backend, put: Put, get: Get, x_layout: str, y_layout: str) -> None:
    def laid_out(layout: str, height: int, width: int) -> torch.Tensor:
        if layout == "columns":
            return random(width, height).T
        if layout == "steps":
            return random(2 * height, 3 * width)[::2, 1::3]
        return random(height, width) if layout == "rows" else random(1, width).expand(height, width)

    x, y = laid_out(x_layout, 20, 33), laid_out(y_layout, 33, 18)
    close(get(cuda.matmul(put(x), put(y))), x.double() @ y.double(), torch.float32)


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [
        ((3, 5, 7), (3, 7, 4)),
        ((3, 5, 7), (7, 4)),
        ((5, 7), (3, 7, 4)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((2, 1, 3, 5, 7), (4, 1, 7, 2)),
        ((1, 1, 5, 7), (1, 7, 4)),
    ],
    ids=str,
)
def test_matmul_of_batches(
    cuda: Backend, put: Put, get: Get, x_shape: tuple[int, ...], y_shape: tuple[int, ...]
) -> None:
    x, y = random(*x_shape), random(*y_shape)
    close(get(cuda.matmul(put(x), put(y))), x.double() @ y.double(), torch.float32)


def test_matmul_of_permuted_batches(cuda: Backend, put: Put, get: Get) -> None:
    x, y = random(5, 2, 6, 3).permute(1, 3, 0, 2), random(2, 4, 3, 6).permute(0, 2, 3, 1)
    close(get(cuda.matmul(put(x), put(y))), x.double() @ y.double(), torch.float32)


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 3, 0)], ids=str)
def test_matmul_of_nothing(cuda: Backend, put: Put, get: Get, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, y = random(2, m, k), random(k, n)
    close(get(cuda.matmul(put(x), put(y))), x.double() @ y.double(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_matmul_of_integers_wraps(cuda: Backend, put: Put, get: Get, dtype: torch.dtype) -> None:
    x, y = torch.randint(0, 100, (6, 20), dtype=dtype), torch.randint(0, 100, (20, 5), dtype=dtype)
    assert torch.equal(get(cuda.matmul(put(x), put(y))), x @ y)


def test_matmul_refuses_bool(cuda: Backend, put: Put) -> None:
    x = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="matmul has no cuda implementation for bool"):
        cuda.matmul(put(x), put(x))


def test_matmul_hands_on_infinities_and_nan(cuda: Backend, put: Put, get: Get) -> None:
    x, y = torch.ones(4, 3), torch.ones(3, 5)
    x[1, 2], x[2, 0] = torch.inf, torch.nan
    torch.testing.assert_close(get(cuda.matmul(put(x), put(y))), x @ y, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(cuda: Backend, put: Put, get: Get, dtype: torch.dtype, lead: tuple[int, ...], with_bias: bool) -> None:
    x, weight = random(*lead, 20, dtype=dtype), random(33, 20, dtype=dtype)
    bias = random(33, dtype=dtype) if with_bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    close(get(cuda.linear(put(x), put(weight), put(bias))), expected, dtype)


def test_linear_of_strided_operands(cuda: Backend, put: Put, get: Get) -> None:
    x, weight, bias = random(4, 3, 10).permute(1, 0, 2), random(10, 7).T, random(14)[::2]
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    close(get(cuda.linear(put(x), put(weight), put(bias))), expected, torch.float32)


def test_linear_without_terms_is_the_bias(cuda: Backend, put: Put, get: Get) -> None:
    bias = random(3)
    result = get(cuda.linear(put(torch.empty(2, 0)), put(torch.empty(3, 0)), put(bias)))
    assert torch.equal(result, bias.expand(2, 3))


def run(candidate: Candidate, problem: MatmulProblem, out: DeviceArray, x: DeviceArray, y: DeviceArray) -> None:
    space = memory.allocate(candidate.workspace(problem) or 1, 0, 0)
    candidate.prepare(problem)(0, out.data_pointer, x.data_pointer, y.data_pointer, 0, 0, space.pointer)


def test_every_tile_gives_the_same(cuda: Backend, put: Put, get: Get) -> None:
    x, y = random(130, 70), random(70, 140)
    arrays = put(x), put(y)
    problem = problem_of(*arrays, False, 16, "highest", ())
    for tile in TILES[4]:
        out = put(torch.empty(130, 140))
        run(Tiled(tile), problem, out, *arrays)
        close(get(out), x.double() @ y.double(), torch.float32)


@pytest.mark.gpu
def test_cublaslt_gives_the_same(gpu: Backend) -> None:
    x = gpu.from_cpu(random(4, 40, 24).numpy(), dtypes.float32)
    problem = problem_of(x, gpu.view(x, (4, 24, 40), (960, 1, 24), 0), False, 16, "highest", (4,))
    found = CublasltFamily().variants(problem)
    if not found:
        pytest.skip("cuBLASLt is not installed")
    host = torch.from_numpy(gpu.to_cpu(x)).double()
    for candidate in found:
        out = gpu.empty((4, 40, 40), (1600, 40, 1), dtypes.float32)
        run(candidate, problem, out, x, x)
        assert driver.get()._devices[0].recent[-1] == "cublasLtMatmul"
        close(torch.from_numpy(gpu.to_cpu(out)), host @ host.mT, torch.float32)


def test_leading_dimension_of_degenerate_matrices() -> None:
    assert cublaslt.leading_dimension(1, 8, (0, 1)) == (8, False)
    assert cublaslt.leading_dimension(8, 1, (1, 0)) == (1, False)
    assert cublaslt.leading_dimension(8, 3, (0, 1)) is None  # rows lie on one another
    assert cublaslt.leading_dimension(8, 3, (3, 2)) is None


def test_tiles_fit_the_problem() -> None:
    choice = TILES[2]
    assert choice[0].fitted(20, 300, 8).constants == {
        "BLOCK_M": 32, "BLOCK_N": 256, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    assert tiles.power_of_2(129) == 256


# --- which implementation is chosen -----------------------------------------------------------------------------------
PROBLEMS = [
    MatmulProblem(0, dtypes.float32, 5, 7, 33, (33, 1), (1, 33), (1,), (0,), (0,), True, 16, "highest"),
    MatmulProblem(0, dtypes.bfloat16, 20, 16, 8, (1, 20), (16, 1), (3,), (160,), (0,), False, 4, "highest", True),
    MatmulProblem(0, dtypes.float64, 2, 3, 4, (-4, 1), (3, 1), (2, 3), (8, 16), (0, 12), False, 8, "highest"),
    MatmulProblem(0, dtypes.uint8, 6, 6, 5, (5, 1), (6, 1), (1,), (0,), (0,), False, 1, "highest"),
    MatmulProblem(0, dtypes.float32, 4, 4, 0, (0, 1), (4, 1), (1,), (0,), (0,), False, 16, "high"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_keys(problem: MatmulProblem) -> None:
    assert MatmulProblem.from_key(problem.key) == problem
    for wrong in ("", "[]", "{}", problem.key[:-1], problem.key.replace('"rows":', '"rows":-'), "7" + problem.key):
        with pytest.raises(ValueError, match="no key of a matrix product"):
            MatmulProblem.from_key(wrong)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_bench_knows_right_from_wrong(simulated: Backend, problem: MatmulProblem) -> None:
    bench = MatmulBench(problem)
    for candidate in TiledFamily().variants(problem):
        built = build(candidate, problem, 0)
        assert built is not None
        assert bench.error(built) <= MATMUL.error_bound(problem)
        if problem.terms:
            assert bench.error(built._replace(launch=lambda *_: None)) > MATMUL.error_bound(problem)
    assert reference(problem).workspace(problem) == 0


def test_nothing_is_timed_until_it_is_asked_for(
    simulated: Backend, put: Put, get: Get, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benches: list[MatmulProblem] = []

    def bench(problem: MatmulProblem) -> MatmulBench:
        benches.append(problem)
        return MatmulBench(problem)

    monkeypatch.setattr(MATMUL, "bench", bench)
    x, y = random(9, 20), random(20, 11)
    operands = put(x), put(y)
    with override(cache_dir=tmp_path):
        planner.forget()
        simulated.matmul(*operands)
        assert not benches
        (plan,) = planner.all_plans(MATMUL)
        assert plan.origin == planner.HEURISTIC
        session = planner.Session(60)
        planner.begin(session)
        close(get(simulated.matmul(*operands)), x.double() @ y.double(), torch.float32)
        planner.end(session)
        assert set(benches) == {plan.problem}  # made anew at each visit of the problem
        num_visits = len(benches)
        assert plan.origin == planner.TUNED
        planner.forget()
        simulated.matmul(*operands)
        assert [each.origin for each in planner.all_plans(MATMUL)] == [planner.STORED]
        with override(deterministic=True):
            simulated.matmul(*operands)
            (plan,) = planner.all_plans(MATMUL)
            assert (plan.problem.deterministic, plan.origin) == (True, planner.HEURISTIC)
    planner.forget()
    assert len(benches) == num_visits


def test_a_library_is_the_best_guess_but_for_few_rows() -> None:
    assert [family.prefix for family in operation._FAMILIES] == ["skinny_gemm", "cublaslt", "tiled"]
