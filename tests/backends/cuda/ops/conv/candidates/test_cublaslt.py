"""Convolutions that are products of matrices, by cuBLASLt: on a stand-in that computes, and on a GPU."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import cublaslt
from genesis.backends.cuda.engine import plan as plan_module
from genesis.backends.cuda.engine import planner as plans
from genesis.backends.cuda.engine import platform, stored, tuner
from genesis.backends.cuda.engine.candidate import FULL, TF32, Candidate, admissible
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.candidates.cublaslt import CublasltFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import allocate
from genesis.backends.engine.store import Entry, Store
from genesis.settings import override
from tests.backends.cuda.ops.conv.candidates.fake_cublaslt import COMPUTE_FAST_TF32, REDUCTION, WORKSPACE, FakeLibrary
from tests.backends.cuda.ops.conv.fuzz import _norm, expected, operand, run, ways

DIRECTIONS = [FORWARD, INPUT_GRAD, WEIGHT_GRAD]
PROBLEM = ConvProblem(FORWARD, (2, 24, 3, 5), (40, 24, 1, 1), dtype=dtypes.float16)
LARGE = dataclasses.replace(PROBLEM, input_shape=(2, 24, 99, 199))  # the device is busy until the next call
ROUNDED = dataclasses.replace(PROBLEM, dtype=dtypes.float32, precision="high")
ALGORITHMS = [
    {0: 66, 1: 418, 6: 36, 8: 3, 2: 1, 3: 0, 4: 0, 5: 0, 7: 0},
    {0: 66, 1: 418, 6: 36, 8: 3, 2: 4, 3: 2, 4: 1, 5: 7, 7: 2},
    {0: 21, 1: 20, 6: 35, 2: 1, 3: 0},  # as of a library without clusters
]
NAMES = [
    "cublaslt/algorithm 66 tile 418 stages 36 cluster 3 splits 1",
    "cublaslt/algorithm 66 tile 418 stages 36 cluster 3 inner 2 swizzle 1 option 7 splits 4 reduction 2",
    "cublaslt/algorithm 21 tile 20 stages 35 splits 1",
]


@pytest.fixture
def library(simulated: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    """As if cuBLASLt were there for the simulated device."""
    fake, here = FakeLibrary(ALGORITHMS), driver.get()
    monkeypatch.setattr(cublaslt, "is_available", lambda: True)
    monkeypatch.setattr(cublaslt, "_library", lambda: fake)
    monkeypatch.setattr(cublaslt, "_context", lambda device: 1)
    for name, value in {
        "activate": lambda device: None, "recorder": lambda device: lambda name: None, "watch_launches": False,
    }.items():  # fmt: skip
        monkeypatch.setattr(here, name, value, raising=False)
    with override(cache_dir=tmp_path):
        plans.forget()
        yield fake
        plans.forget()
    plan_module._used.clear()


def variants(problem: ConvProblem) -> list[Candidate]:
    return CublasltFamily().variants(problem)


def names(problem: ConvProblem) -> list[str]:
    return [candidate.name for candidate in CONV.candidates(problem) if candidate.name.startswith("cublaslt/")]


def operands(problem: ConvProblem) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    second = operand(problem.second_shape, problem)
    return [
        operand(problem.first_shape, problem),
        second if problem.direction == WEIGHT_GRAD else second / problem.num_terms**0.5,
        operand((problem.result_shape[1],), problem) if problem.bias else None,
        operand(problem.result_shape, problem) if problem.residual else None,
    ]


def error(cuda: Backend, problem: ConvProblem, candidate: Candidate) -> float:
    """Relative L2 distance of its result from float64."""
    put, get = ways(cuda)
    host = operands(problem)
    given: list[DeviceArray | None] = [None if each is None else put(each) for each in host]
    exact = expected(problem, host)
    return _norm(get(run(cuda, candidate, problem, given)).double().numpy() - exact) / _norm(exact)


def epilogues(direction: str) -> list[dict[str, Any]]:
    if direction == WEIGHT_GRAD:
        return [{}]
    if direction == INPUT_GRAD:
        return [{}, {"bias": True}, {"residual": True}, {"bias": True, "residual": True}]
    choice = itertools.product((False, True), (False, True), (None, "relu"))
    return [dict(zip(("bias", "residual", "activation"), each, strict=True)) for each in choice]


@pytest.mark.parametrize("like", [PROBLEM, ROUNDED], ids=["float16", "float32"])
@pytest.mark.parametrize(
    ("direction", "epilogue"), [(each, epilogue) for each in DIRECTIONS for epilogue in epilogues(each)]
)
def test_operands_and_epilogue(
    library: FakeLibrary, simulated: Backend, direction: str, epilogue: dict[str, Any], like: ConvProblem
) -> None:
    problem = dataclasses.replace(like, direction=direction, **epilogue)
    for candidate in variants(problem):
        assert error(simulated, problem, candidate) <= accuracy.error_bound(problem)
    assert len(library.launches) == len(ALGORITHMS)


def in_parts(problem: ConvProblem) -> list[Candidate[ConvProblem]]:
    return [each for each in CublasltFamily().trials(problem) if each.name.startswith("cublaslt/parts ")]


@pytest.mark.parametrize("like", [PROBLEM, ROUNDED], ids=["float16", "float32"])
def test_a_weights_gradient_in_parts(library: FakeLibrary, simulated: Backend, like: ConvProblem) -> None:
    """Each a product of its own, with sums in float32, which are added up."""
    problem = dataclasses.replace(like, direction=WEIGHT_GRAD, input_shape=(6, 24, 8, 32))
    found = in_parts(problem)
    numbers = {int(each.name.split()[1]) for each in found}
    assert len(numbers) >= 1
    assert all(1536 % number == 0 and 1536 // number >= 128 for number in numbers)
    for candidate in found:
        number = int(candidate.name.split()[1])
        assert candidate.workspace(problem) >= number * 40 * 24 * 4
        assert error(simulated, problem, candidate) <= accuracy.error_bound(problem)
        restored = CONV.named(problem, candidate.name)
        assert restored is not None
        assert restored.name == candidate.name


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "change",
    [
        {"direction": FORWARD},
        {"direction": INPUT_GRAD},
        {"input_shape": (1, 24, 5, 51)},  # a part of 255 pixels would have fewer than 128
        {"input_shape": (1, 24, 1, 1009)},  # a prime number
    ],
    ids=str,
)
def test_no_parts(change: dict[str, Any]) -> None:
    problem = dataclasses.replace(PROBLEM, direction=WEIGHT_GRAD)
    assert in_parts(dataclasses.replace(problem, **change)) == []


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("input_shape", "outputs"), [((1, 4, 3, 3), 8), ((2, 8, 1, 2), 4), ((1, 16, 1, 1), 4), ((1, 4, 1, 1), 4)], ids=str
)
def test_matrices_of_one_row_or_column(
    library: FakeLibrary, simulated: Backend, direction: str, input_shape: tuple[int, ...], outputs: int
) -> None:
    shapes = {"input_shape": input_shape, "weight_shape": (outputs, input_shape[1], 1, 1)}
    problem = dataclasses.replace(ROUNDED, direction=direction, **shapes)
    assert error(simulated, problem, variants(problem)[0]) <= accuracy.error_bound(problem)


def test_each_call_brings_its_bias(library: FakeLibrary, simulated: Backend) -> None:
    """The bias is an attribute of a descriptor that all algorithms share."""
    problem = dataclasses.replace(PROBLEM, bias=True)
    put, get = ways(simulated)
    first, second, bias, _ = operands(problem)
    found = [candidate.prepare(problem) for candidate in variants(problem)[:2]]
    for launch, scale in ((found[0], 1.0), (found[1], 2.0), (found[0], 2.0), (found[0], 1.0)):
        host = [first, second, bias * scale, None]
        out = put(torch.empty(problem.result_shape, dtype=torch.float16).to(memory_format=torch.channels_last))
        given = [put(each) for each in host[:3]]
        launch(0, out.data_pointer, *[each.data_pointer for each in given], 0, 0)
        exact = expected(problem, host)
        assert _norm(get(out).double().numpy() - exact) <= accuracy.error_bound(problem) * _norm(exact)


@pytest.mark.usefixtures("library")
def test_names_tell_the_algorithm() -> None:
    assert names(PROBLEM) == NAMES
    assert [each.arithmetic for each in variants(PROBLEM)] == [FULL] * 3


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_is_rounded_to_11_bits(library: FakeLibrary, precision: str) -> None:
    problem = dataclasses.replace(ROUNDED, precision=precision)
    found = variants(problem)
    assert {each.arithmetic for each in found} == {TF32}
    assert all(admissible(each, problem) for each in found)
    assert COMPUTE_FAST_TF32 in [each.get("compute") for each in library.alive.values()]


def test_an_algorithm_is_found_again_by_its_name(library: FakeLibrary) -> None:
    library.algorithms = ALGORITHMS[::-1]
    for name in NAMES:
        candidate = CONV.named(PROBLEM, name)
        assert candidate is not None
        assert candidate.name == name
    assert CONV.named(PROBLEM, "cublaslt/algorithm 1") is None


def test_algorithms_of_one_name_are_one_candidate(library: FakeLibrary) -> None:
    library.algorithms = [ALGORITHMS[0], ALGORITHMS[0]]
    assert names(PROBLEM) == NAMES[:1]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "change",
    [
        {"stride": (2, 1)},
        {"padding": (0, 1)},
        {"weight_shape": (40, 24, 1, 3)},
        {"weight_shape": (40, 12, 1, 1), "groups": 2},
        {"dtype": dtypes.float64},
        {"dtype": dtypes.float32},  # in full precision it is slower than others, and less accurate
        {"input_shape": (2, 24, 1 << 13, 1 << 13)},
        {"input_shape": (2, 20, 3, 5), "weight_shape": (40, 20, 1, 1)},  # rows of 40 bytes
        {"weight_shape": (41, 24, 1, 1)},
        {"alignment": 8},
    ],
    ids=str,
)
def test_others_are_no_products(change: dict[str, Any]) -> None:
    assert variants(dataclasses.replace(PROBLEM, **change)) == []


def test_what_the_library_refuses_is_not_offered(library: FakeLibrary) -> None:
    library.refused = {0}
    assert names(PROBLEM) == NAMES[1:]
    library.has_no_algorithm = True
    assert names(PROBLEM) == []
    library.has_no_algorithm, library.refuses_layouts = False, True
    assert names(PROBLEM) == []


def test_without_the_library(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert variants(PROBLEM) == []  # a simulated device
    monkeypatch.setattr(driver.get(), "name", "cuda")
    monkeypatch.setattr(cublaslt, "_library", lambda: None)
    assert variants(PROBLEM) == []


def test_partial_sums_are_added_in_one_order(library: FakeLibrary) -> None:
    """Only what adds them in float32, by a kernel of its own: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE."""
    problem = dataclasses.replace(PROBLEM, deterministic=True)
    assert names(problem) == NAMES
    (preference,) = library.preferences
    assert preference[REDUCTION] == 2
    assert preference[WORKSPACE] == 32 << 20


def test_the_workspace_is_capped(library: FakeLibrary) -> None:
    library.workspace = 3 << 20
    with override(workspace=2):
        candidate = plans.plan(CONV, LARGE).candidate
    assert candidate is not None
    assert candidate.name == NAMES[1]


def test_nothing_is_left_of_what_was_asked(library: FakeLibrary) -> None:
    kept = variants(PROBLEM)[0]
    variants(dataclasses.replace(PROBLEM, bias=True))
    gc.collect()
    assert len(library.alive) == 4  # kept's descriptor and layouts
    del kept
    gc.collect()
    assert not library.alive


@pytest.mark.usefixtures("library")
def test_the_first_guess() -> None:
    for like in (PROBLEM, ROUNDED, dataclasses.replace(PROBLEM, bias=True, activation="relu")):
        problem = dataclasses.replace(like, input_shape=LARGE.input_shape)
        assert next(CONV.candidates(problem)).name == NAMES[0]


@pytest.mark.usefixtures("library")
def test_small_problems_are_launched_at_less_cost() -> None:
    prefixes = [candidate.name.partition("/")[0] for candidate in CONV.candidates(PROBLEM)]
    assert "cublaslt" in prefixes[1:]
    assert not prefixes[0].startswith(("cublaslt", "cudnn"))


@pytest.mark.usefixtures("library")
def test_the_store_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    platform.store(0).put(PROBLEM.key, Entry(NAMES[1], 1.0, 1e-4, 0))
    monkeypatch.setattr(tuner.Contest, "visit", None)  # nothing is measured
    plan = plans.plan(CONV, PROBLEM)
    assert plan.candidate is not None
    assert (plan.candidate.name, plan.origin) == (NAMES[1], plans.STORED)


def test_the_store_is_of_a_version(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.get(), "name", "cuda")
    versions = {"nvidia-cublas": "13.1.0.3"}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)
    cublaslt.installed.cache_clear()
    try:
        assert platform.describe(0).endswith(", nvidia-cublas 13.1.0.3")
    finally:
        cublaslt.installed.cache_clear()


@pytest.mark.parametrize("store_of", [platform.store, platform.guesses])
def test_the_library_is_loaded_ahead(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, store_of: Callable[[int], Store]
) -> None:
    store_of(0).put(PROBLEM.key, Entry(f"with_statistics_pass/{NAMES[1]}", 1.0, 1e-4, 0))
    warm: list[int] = []
    monkeypatch.setattr(cublaslt, "warm_up", warm.append)
    stored._load_libraries([platform.store(0), platform.guesses(0)], 0)
    assert warm == [0]


# --- on a GPU ---------------------------------------------------------------------------------------------------------
SHAPES = [
    ((4, 64, 16, 9), 96),
    ((2, 64, 17, 9), 96),
    ((3, 24, 5, 7), 40),
    ((1, 32, 9, 9), 16),
    ((2, 256, 8, 8), 1024),
    ((1, 320, 7, 9), 8),
]
KINDS = [
    (dtypes.float16, "highest"), (dtypes.bfloat16, "highest"), (dtypes.float32, "high"), (dtypes.float32, "medium"),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "precision"), KINDS, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("input_shape", "outputs"), SHAPES, ids=str)
def test_every_algorithm_on_a_gpu(
    gpu: Backend, input_shape: tuple[int, ...], outputs: int, direction: str, dtype: dtypes.DType, precision: str
) -> None:
    if not cublaslt.is_available():
        pytest.skip("cuBLASLt is not installed")
    for epilogue in epilogues(direction):
        problem = ConvProblem(
            direction, input_shape, (outputs, input_shape[1], 1, 1), dtype=dtype, precision=precision, **epilogue
        )  # fmt: skip
        found = list(CublasltFamily().trials(problem))
        assert found
        bound = accuracy.error_bound(problem)
        for candidate in found:
            assert error(gpu, problem, candidate) <= bound, f"{problem} {epilogue}: {candidate.name}"


@pytest.mark.gpu
def test_in_a_graph(gpu: Backend) -> None:
    """A replay takes the operands, the bias among them, from where they lay at the capture, whatever came later."""
    if not torch.cuda.is_available():
        pytest.skip("captures by PyTorch")
    problem = dataclasses.replace(PROBLEM, bias=True, residual=True, activation="relu")
    host = operands(problem)
    put, get = ways(gpu)
    arrays, others = ([put(each) for each in host] for _ in range(2))
    out, elsewhere = (put(torch.zeros_like(host[3])) for _ in range(2))
    for candidate in variants(problem):
        launch, num_bytes = candidate.prepare(problem), candidate.workspace(problem)
        scratch = allocate(num_bytes, 0, 0) if num_bytes else None
        workspace = 0 if scratch is None else scratch.pointer
        addresses = [each.data_pointer for each in arrays]
        gpu.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            launch(stream.cuda_stream, out.data_pointer, *addresses, workspace)
            graph.capture_begin(capture_error_mode="relaxed")
            launch(stream.cuda_stream, out.data_pointer, *addresses, workspace)
            graph.capture_end()
        launch(0, elsewhere.data_pointer, *[each.data_pointer for each in others], workspace)
        torch.cuda.synchronize()
        driver.get().fill_bytes(0, out.data_pointer, 0xFF, out.size * out.dtype.itemsize, 0)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(get(out), get(elsewhere))
