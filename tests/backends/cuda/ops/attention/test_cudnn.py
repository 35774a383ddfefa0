"""cuDNN's attention beside ours: how one of both is chosen, and on a GPU what it gives."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.driver.cudnn import Sums
from genesis.backends.cuda.engine import plan as plan_module
from genesis.backends.cuda.engine import planner, platform
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.ops.attention import cudnn as attention_cudnn
from genesis.backends.cuda.ops.attention import problem as problems
from genesis.backends.cuda.ops.attention.bench import AttentionBench
from genesis.backends.cuda.ops.attention.forward import Flash, attend
from genesis.backends.cuda.ops.attention.operation import ATTENTION
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.engine.store import Entry
from genesis.errors import OutOfMemoryError
from genesis.records import SavedAttention
from genesis.settings import override

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]
Run = Callable[..., None]  # of addresses: y, logsumexp, query, key, value; and the problem


@pytest.fixture(autouse=True)
def _whatever_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(problems, "_LEAST_OPERATIONS", 0)
    with override(cache_dir=tmp_path):
        forget()
        yield
        forget()


def forget() -> None:
    """As a new process: what is on the disk stays."""
    planner.forget()
    plan_module._used.clear()
    attention_cudnn._asked.clear()


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(put: Put, *shape: int, dtype: torch.dtype = torch.bfloat16) -> list[DeviceArray]:
    return [put(random(*shape, dtype=dtype, seed=seed)) for seed in range(3)]


def results(*shape: int, dtype: dtypes.DType = dtypes.bfloat16) -> tuple[DeviceArray, DeviceArray]:
    """y and logsumexp, not yet written."""
    return array.empty(shape, dtype), array.empty(shape[:-1], dtypes.float32)


# --- a library that computes as it is told ----------------------------------------------------------------------------
def memory(address: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    return np.ctypeslib.as_array((kind * int(np.prod(shape))).from_address(address)).reshape(shape)


def ours(problem: AttentionProblem, *addresses: int) -> None:
    Flash().prepare(problem)(0, *addresses, 0)


def changed(y: float = 1.0, logsumexp: float = 0.0, rows: slice = slice(None)) -> Run:
    """Ours, with rows of y multiplied and of logsumexp shifted."""

    def run(problem: AttentionProblem, *addresses: int) -> None:
        ours(problem, *addresses)
        bits = torch.from_numpy(memory(addresses[0], problem.result_shape, ctypes.c_int16))
        bits.view(torch.bfloat16)[..., rows, :] *= y
        memory(addresses[1], problem.result_shape[:3], ctypes.c_float)[..., rows] += logsumexp

    return run


def fill(problem: AttentionProblem, *addresses: int) -> None:
    dtype = torch.bfloat16 if problem.dtype is dtypes.bfloat16 else torch.float16
    torch.from_numpy(memory(addresses[0], problem.result_shape, ctypes.c_int16)).view(dtype)[:] = 7
    memory(addresses[1], problem.result_shape[:3], ctypes.c_float)[:] = 3


def refuses(problem: AttentionProblem, *addresses: int) -> None:
    raise KernelError("not here")


def has_no_room(problem: AttentionProblem, *addresses: int) -> None:
    raise OutOfMemoryError("no room")


class Library:
    """Plans a, b and c of any graph, of which the first cannot be built; a plan runs what it is told to."""

    def __init__(self) -> None:
        self.run: Run = fill
        self.asked: list[AttentionProblem] = []  # for the heuristics
        self.named: list[str] = []
        self.knows_names = True

    def graph(self, problem: AttentionProblem) -> Any:
        library = self

        class Graph:
            names: Sequence[str] = ()

            def plan_names(self, sums: Sums) -> list[str]:
                assert sums == Sums(deterministic=True)
                library.asked.append(problem)
                self.names = ["a", "b", "c", "d"]
                return self.names

            def plan_named(self, name: str, sums: Sums) -> bool:
                assert sums == Sums(deterministic=True)
                library.named.append(name)
                self.names = [name]
                return library.knows_names

            def build(self, index: int) -> None:
                if self.names[index] == "a":
                    raise KernelError("deselected")

            def workspace(self, index: int) -> int:
                return 0

            def runner(self, index: int) -> Any:
                return lambda stream, workspace, query, key, value, y, sums: library.run(
                    problem, y, sums, query, key, value
                )

        return Graph()


@pytest.fixture
def library(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> Library:
    """As if cuDNN were there."""
    made = Library()
    monkeypatch.setattr(cudnn, "is_available", lambda: True)
    monkeypatch.setattr(attention_cudnn, "_graph", made.graph)
    return made


def by_cudnn(cuda: Backend, *operands: DeviceArray, is_causal: bool = False, scale: float = 1.0) -> bool:
    """Was it the library that filled the results?"""
    y, saved = cuda.attention(*operands, None, is_causal, scale)
    filled = 7 in storage.to_cpu(storage.cast(y, dtypes.float32))
    assert filled == (3 in storage.to_cpu(saved))
    return filled


def wait_for_builders() -> None:
    for thread in threading.enumerate():
        if thread.name == "genesis plan":
            thread.join(10)


def tuned(cuda: Backend, *operands: DeviceArray) -> Any:
    """The plan that a session of tuning finds for these operands."""
    session = planner.Session(60)
    planner.begin(session)
    cuda.attention(*operands, None, True, 0.25)
    planner.end(session)
    (plan,) = planner.all_plans(ATTENTION)
    return plan


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestGuess:
    def test_ours_computes_while_cudnns_is_built(self, cuda: Backend, put: Put, library: Library) -> None:
        operands = qkv(put, 2, 5, 8)
        by_cudnn(cuda, *operands)
        wait_for_builders()
        assert by_cudnn(cuda, *operands)
        (plan,) = planner.all_plans(ATTENTION)
        assert (plan.candidate.name, plan.origin) == ("cudnn/b", planner.HEURISTIC)  # the first that can be built

    def test_with_the_same_bits_from_the_first_call_on(self, cuda: Backend, put: Put, library: Library) -> None:
        with override(deterministic=True):
            assert by_cudnn(cuda, *qkv(put, 2, 5, 8))

    def test_nothing_is_built_in_a_capture(
        self, cuda: Backend, put: Put, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operands = qkv(put, 2, 5, 8)
        begun = threading.active_count()
        with monkeypatch.context() as capture:
            capture.setattr(driver.get(), "is_capturing", lambda device, stream: True)
            assert not by_cudnn(cuda, *operands)
        assert (threading.active_count(), planner.all_plans(ATTENTION)) == (begun, [])
        by_cudnn(cuda, *operands)
        wait_for_builders()
        with monkeypatch.context() as capture:
            capture.setattr(driver.get(), "is_capturing", lambda device, stream: True)
            assert by_cudnn(cuda, *operands)

    def test_one_problem_in_other_words(self, cuda: Backend, put: Put, library: Library) -> None:
        for shape in ((2, 4, 8), (1, 2, 4, 8), (2, 4, 8)):
            by_cudnn(cuda, *qkv(put, *shape))
        assert len(planner.all_plans(ATTENTION)) == 1

    def test_a_program_whose_lengths_keep_changing(
        self, cuda: Backend, put: Put, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention_cudnn, "_MOST_PROBLEMS", 2)
        with override(deterministic=True):
            assert [by_cudnn(cuda, *qkv(put, 2, length, 8)) for length in (4, 6, 8, 4)] == [True, True, False, True]

    def test_only_in_16_bits_without_a_mask_and_with_a_positive_scale(
        self, cuda: Backend, put: Put, get: Get, library: Library
    ) -> None:
        with override(deterministic=True):
            for dtype in (torch.bfloat16, torch.float16):
                assert by_cudnn(cuda, *qkv(put, 2, 5, 8, dtype=dtype))
            assert not by_cudnn(cuda, *qkv(put, 2, 5, 8, dtype=torch.float32))
            for scale in (0.0, -1.0, float("nan")):
                assert not by_cudnn(cuda, *qkv(put, 2, 5, 8), scale=scale)
            mask = put(torch.ones(2, 5, 5, dtype=torch.bool))
            assert 7 not in get(cuda.attention(*qkv(put, 2, 5, 8), mask, False, 1.0)[0])

    @pytest.mark.parametrize("fails", [refuses, has_no_room])
    def test_what_fails_later_is_ours_from_then_on(
        self, cuda: Backend, put: Put, get: Get, library: Library, fails: Run
    ) -> None:
        calls = []

        def run(*given: Any) -> None:
            calls.append(given)
            fails(*given)

        operands = qkv(put, 2, 5, 8)
        expected = results(2, 5, 8)
        attend(*expected, *operands, None, True, 0.25)
        by_cudnn(cuda, *operands, is_causal=True, scale=0.25)
        wait_for_builders()
        library.run = run
        for _ in range(2):
            for result, wanted in zip(cuda.attention(*operands, None, True, 0.25), expected, strict=True):
                assert torch.equal(get(result), get(wanted))
        assert len(calls) == 1


WRONG = {
    "values": changed(1.03),
    "one row": changed(1.03, rows=slice(4, 5)),
    "natural logarithms": changed(logsumexp=0.001),
    "one logarithm": changed(logsumexp=0.001, rows=slice(4, 5)),
    "nothing": lambda *given: None,
    "refused": refuses,
}


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestTuning:
    @pytest.fixture(autouse=True)
    def _timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ours takes two milliseconds, theirs one, or what a test says."""
        self.theirs = 1.0
        run = AttentionBench.milliseconds

        def milliseconds(bench: AttentionBench, built: Any, best: float) -> float | None:
            took = run(bench, built, best)
            return None if took is None else 2.0 if built.candidate.family == "flash" else self.theirs

        monkeypatch.setattr(AttentionBench, "milliseconds", milliseconds)

    def test_the_fastest(self, cuda: Backend, put: Put, library: Library) -> None:
        library.run = changed(logsumexp=1e-5)
        plan = tuned(cuda, *qkv(put, 2, 5, 8))
        assert (plan.candidate.name, plan.origin) == ("cudnn/b", planner.TUNED)
        planner.forget()
        self.theirs = 3.0
        assert tuned(cuda, *qkv(put, 1, 2, 6, 8)).candidate.name == "flash/triton"

    @pytest.mark.parametrize("wrong", WRONG)
    def test_a_wrong_result_is_not_believed(self, cuda: Backend, put: Put, library: Library, wrong: str) -> None:
        library.run = WRONG[wrong]
        assert tuned(cuda, *qkv(put, 2, 5, 8)).candidate.name == "flash/triton"

    def test_how_far_it_is(self, cuda: Backend, put: Put, library: Library) -> None:
        library.run = changed(1.01)
        plan = tuned(cuda, *qkv(put, 2, 5, 8))
        entry = platform.store(0).get(plan.problem.key)
        assert entry is not None
        assert 0.005 < entry.error < 2.0**-6

    def test_the_next_process_builds_the_plan_at_once(self, cuda: Backend, put: Put, library: Library) -> None:
        tuned(cuda, *qkv(put, 2, 5, 8))
        platform.store(0).put(planner.all_plans(ATTENTION)[0].problem.key, Entry("cudnn/b", 1.0, 0.0, 0))
        forget()
        library.asked.clear()
        library.named.clear()
        library.run = fill
        assert by_cudnn(cuda, *qkv(put, 2, 5, 8), is_causal=True, scale=0.25)
        assert (library.named, library.asked) == (["b"], [])
        forget()
        library.knows_names = False  # its number is another's now: the heuristics still have it by its name
        assert by_cudnn(cuda, *qkv(put, 2, 5, 8), is_causal=True, scale=0.25)
        assert len(library.asked) == 1

    def test_the_next_process_knows_that_ours_is_faster(self, cuda: Backend, put: Put, library: Library) -> None:
        self.theirs = 3.0
        tuned(cuda, *qkv(put, 2, 5, 8))
        forget()
        library.asked.clear()
        assert not by_cudnn(cuda, *qkv(put, 2, 5, 8), is_causal=True, scale=0.25)
        (plan,) = planner.all_plans(ATTENTION)
        assert (plan.origin, library.asked) == (planner.STORED, [])


def test_a_frontend_that_knows_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*ignored: Any) -> Any:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(cudnn, "Graph", make)
    side = ((1, 2, 5, 8), (80, 40, 8, 1))
    with pytest.raises(KernelError, match="cuDNN: unexpected keyword argument"):
        attention_cudnn._graph(AttentionProblem(0, dtypes.bfloat16, side, side, side, True, 0.25))


# --- what it gives ----------------------------------------------------------------------------------------------------
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {  # of query, of key and value
    "whole blocks": ((2, 2, 256, 128), (2, 2, 256, 128)),
    "heads of 64": ((2, 2, 192, 64), (2, 2, 192, 64)),
    "odd lengths": ((1, 3, 261, 128), (1, 3, 261, 128)),
    "more keys": ((2, 2, 67, 64), (2, 2, 301, 64)),
    "more queries": ((2, 2, 301, 128), (2, 2, 67, 128)),
    "small heads": ((2, 2, 130, 72), (2, 2, 130, 72)),
    "grouped heads": ((2, 4, 130, 64), (2, 1, 130, 64)),
}


def needs_cudnn() -> None:
    if not cudnn.is_available():
        pytest.skip("cuDNN is not installed")


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_candidate_gives_the_same(
    cuda: Backend, put: Put, get: Get, layout: str, dtype: torch.dtype, is_causal: bool, side_by_side: bool
) -> None:
    needs_cudnn()
    query_shape, key_shape = LAYOUTS[layout]
    host = []
    for seed, (batch, heads, length, size) in enumerate((query_shape, key_shape, key_shape)):
        x = random(batch, length, heads, size, dtype=dtype, seed=seed).transpose(1, 2)
        x = x if side_by_side else x.contiguous()
        host.append(x.expand(*query_shape[:2], length, size))
    arrays = [put(x) for x in host]
    problem = problems.describe(*arrays, is_causal, 0.2)
    assert problem is not None
    wide = [x.double().contiguous() for x in host]
    cpu = backends.get("cpu")
    expected, probabilities = cpu.attention(*wide, None, is_causal, 0.2)
    grad = random(*expected.shape, dtype=dtype, seed=4)
    gradients = cpu.attention_backward(
        grad.double(), SavedAttention(*wide, None, expected, probabilities), is_causal, 0.2
    )
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-3
    bench = AttentionBench(problem)

    def close(result: DeviceArray, wanted: torch.Tensor) -> None:
        limit = tolerance * max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(get(result).double(), wanted, rtol=0, atol=limit)

    checked = []
    for candidate in ATTENTION.candidates(problem):
        built = build(candidate, problem, 1 << 30)
        if built is None:
            continue
        assert bench.error(built) <= ATTENTION.error_bound(problem)
        y, saved = results(*expected.shape, dtype=arrays[0].dtype)
        space = array.empty((max(built.workspace, 1),), dtypes.uint8)
        addresses = [each.data_pointer for each in (y, saved, *arrays, space)]
        built.launch(streams.current_handle(0), *addresses)
        is_theirs = candidate.family == "cudnn"
        assert (driver.get()._devices[0].recent[-1] == "cudnn") == is_theirs
        close(y, expected)
        backward = cuda.attention_backward(put(grad), SavedAttention(*arrays, None, y, saved), is_causal, 0.2)
        for result, gradient in zip(backward, gradients, strict=True):
            close(result, gradient)
        checked.append(is_theirs)
    assert set(checked) == {True, False}


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
def test_what_was_tuned_is_used_by_the_next_process(cuda: Backend, put: Put, get: Get) -> None:
    needs_cudnn()
    operands = qkv(put, 2, 8, 1024, 128)
    plan = tuned(cuda, *operands)
    y, _ = cuda.attention(*operands, None, True, 0.25)
    forget()
    again, _ = cuda.attention(*operands, None, True, 0.25)
    assert torch.equal(get(again), get(y))
    (stored,) = planner.all_plans(ATTENTION)
    assert (stored.candidate.name, stored.origin) == (plan.candidate.name, planner.STORED)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
def test_a_graph_captures_what_was_decided_before(cuda: Backend, put: Put, get: Get) -> None:
    needs_cudnn()
    operands = qkv(put, 2, 8, 1024, 128)
    wanted, _ = expected = results(2, 8, 1024, 128)
    attend(*expected, *operands, None, True, 0.25)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream), streams.use(streams.Stream(0, handle=stream.cuda_stream)):
        for decided in (False, True):
            if decided:
                tuned(cuda, *operands)
            pooled = [results(2, 8, 1024, 128) for _ in range(3)]
            del pooled  # nothing is taken from the driver meanwhile
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="relaxed")
            y, _ = cuda.attention(*operands, None, True, 0.25)
            graph.capture_end()
            assert len(platform.store(0).all()) == len(planner.all_plans(ATTENTION)) == decided
            storage.copy_into(y, 0)
            graph.replay()
            stream.synchronize()
            assert (get(y).double() - get(wanted).double()).norm() <= 2.0**-6 * get(wanted).double().norm()
