"""cuDNN's attention beside ours: what it is asked, how one of both is chosen, and on a GPU what it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis import backends, dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.engine import platform, timing
from genesis.backends.cuda.engine.store import Entry
from genesis.backends.cuda.ops.attention import cudnn as attention_cudnn
from genesis.backends.cuda.ops.attention import launch as attention
from genesis.backends.cuda.ops.attention.cudnn import Problem, Run, Way
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.errors import OutOfMemoryError
from genesis.settings import override

Put = Callable[[Any], Any]
Get = Callable[[Any], torch.Tensor]


@pytest.fixture(autouse=True)
def _whatever_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(attention_cudnn, "_LEAST_OPERATIONS", 0)
    forget(monkeypatch)
    with override(cache_dir=tmp_path):
        yield


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process: what is on the disk stays."""
    for cache in ("_decided", "_calls"):
        monkeypatch.setattr(attention_cudnn, cache, {})


@pytest.fixture
def present(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN were there."""
    monkeypatch.setattr(cudnn, "is_available", lambda: True)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(put: Put, *shape: int, dtype: torch.dtype = torch.bfloat16) -> list[DeviceArray]:
    return [put(random(*shape, dtype=dtype, seed=seed)) for seed in range(3)]


def described(*arrays: DeviceArray) -> Problem | None:
    return attention_cudnn.describe(*arrays, True, 0.25)


# --- what cuDNN is asked ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestDescription:
    def test_heads_side_by_side(self, cuda: Backend, present: None, put: Put) -> None:
        x = put(random(2, 5, 3, 8).transpose(1, 2))
        problem = described(x, x, x)
        assert problem is not None
        assert problem.query == problem.key == problem.value == ((2, 3, 5, 8), (120, 8, 24, 1))
        assert (problem.is_causal, problem.scale) == (True, 0.25)
        assert problem.num_operations == 2 * 2 * 3 * 5 * 5 * 16 // 2

    @pytest.mark.parametrize(
        ("lead", "whole"), [((), (1, 1)), ((3,), (1, 3)), ((2, 3), (2, 3)), ((2, 1, 3), (1, 6))], ids=str
    )
    def test_leading_dimensions(
        self, cuda: Backend, present: None, put: Put, lead: tuple[int, ...], whole: tuple[int, ...]
    ) -> None:
        x = put(random(*lead, 4, 8))
        problem = described(x, x, x)
        assert problem is not None
        assert problem.query == ((*whole, 4, 8), (whole[1] * 32, 32, 8, 1))

    def test_a_head_that_all_share(self, cuda: Backend, present: None, put: Put) -> None:
        query, shared = put(random(2, 3, 5, 8)), put(random(2, 1, 7, 8).expand(2, 3, 7, 8))
        problem = described(query, shared, put(random(2, 3, 7, 16)))
        assert problem is not None
        assert problem.key == ((2, 1, 7, 8), (56, 56, 8, 1))
        assert problem.value == ((2, 3, 7, 16), (336, 112, 16, 1))

    def test_groups_of_heads(self, cuda: Backend, present: None, put: Put) -> None:
        x = put(random(2, 3, 1, 6, 16).expand(2, 3, 4, 6, 16))
        problem = described(put(random(2, 3, 4, 6, 16)), x, x)
        assert problem is not None
        assert problem.query == ((6, 4, 6, 16), (384, 96, 16, 1))
        assert problem.key == problem.value == ((6, 1, 6, 16), (96, 96, 16, 1))

    def test_one_query(self, cuda: Backend, present: None, put: Put) -> None:
        many = put(random(2, 3, 7, 8))
        one = put(random(2, 3, 7, 8)[:, :, 3:4])
        problem = described(one, many, many)
        assert problem is not None
        assert problem.query == ((2, 3, 1, 8), (168, 56, 8, 1))

    def test_what_it_cannot_be_asked(self, cuda: Backend, present: None, put: Put) -> None:
        fine = random(2, 3, 6, 16)
        for refused in (
            fine[..., ::2],
            fine[..., 4:12],
            fine[..., :12],
            fine[..., :12].contiguous(),
            fine.transpose(2, 3)[..., :8],
            fine[:1].expand(2, 3, 6, 16),
            random(2, 3, 1, 16).expand(2, 3, 6, 16),
            fine[:, :, :0],
        ):
            x = put(refused)
            assert described(x, x, x) is None
        x = put(random(4, 3, 2, 6, 16).permute(2, 1, 0, 3, 4))  # three steps
        assert described(x, x, x) is None
        x = put(random(2, 1, 6, 16).expand(2, 3, 6, 16))  # query's heads must each be there
        assert described(x, x, x) is None

    def test_only_where_it_is_installed(self, cuda: Backend, put: Put) -> None:
        x = put(random(2, 6, 16))
        assert described(x, x, x) is None

    def test_only_where_it_can_matter(
        self, cuda: Backend, present: None, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = put(random(2, 6, 16))
        problem = described(x, x, x)
        assert problem is not None
        monkeypatch.setattr(attention_cudnn, "_LEAST_OPERATIONS", problem.num_operations + 1)
        assert described(x, x, x) is None


# --- which is chosen --------------------------------------------------------------------------------------------------
def ours(*arrays: DeviceArray) -> None:
    attention._attention(*arrays, None, True, 0.25)


def changed(y: float = 1.0, logsumexp: float = 0.0, rows: slice = slice(None)) -> Run:
    """Ours, with rows of y multiplied and of logsumexp shifted."""

    def run(*arrays: DeviceArray) -> None:
        ours(*arrays)
        result = torch.from_numpy(storage.to_cpu(arrays[0])).view(torch.bfloat16)
        result[..., rows, :] *= y
        sums = torch.from_numpy(storage.to_cpu(arrays[1]))
        sums[..., rows] += logsumexp
        cuda = backends.get("cuda")
        storage.copy_into(arrays[0], cuda.from_cpu(result.view(torch.uint16).numpy(), arrays[0].dtype))
        storage.copy_into(arrays[1], cuda.from_cpu(sums.numpy(), arrays[1].dtype))

    return run


def fill(y: DeviceArray, logsumexp: DeviceArray, *operands: DeviceArray) -> None:
    storage.copy_into(y, 7)
    storage.copy_into(logsumexp, 3)


def refuses(*arrays: DeviceArray) -> None:
    raise KernelError("not here")


def has_no_room(*arrays: DeviceArray) -> None:
    raise OutOfMemoryError("no room")


def writes_nothing(*arrays: DeviceArray) -> None:
    pass


WRONG = {
    "values": changed(1.03),
    "one row": changed(1.03, rows=slice(4, 5)),
    "natural logarithms": changed(logsumexp=0.001),
    "one logarithm": changed(logsumexp=0.001, rows=slice(4, 5)),
    "nothing": writes_nothing,
    "refused": refuses,
}


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestChoice:
    def choose(
        self, put: Put, monkeypatch: pytest.MonkeyPatch, run: Run | None, milliseconds: float = 1.0
    ) -> tuple[Entry, Run | None]:
        """What is decided if cuDNN does it by run, in so many milliseconds, and ours in two."""
        arrays = qkv(put, 2, 5, 8)
        problem = Problem(0, arrays[0].dtype, *[((1, 2, 5, 8), (80, 40, 8, 1))] * 3, True, 0.25)

        def timed(ways: list[Callable[[], None]], device: int) -> list[float]:
            for way in ways:
                way()
            return [2.0, milliseconds][: len(ways)]

        way = None if run is None else Way("attention/cudnn/eng1", run, 16)
        monkeypatch.setattr(attention_cudnn, "suggested", lambda asked: way)
        monkeypatch.setattr(timing, "milliseconds", timed)
        return attention_cudnn.decide(ours, problem, *arrays)

    def test_the_fastest(self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        run = changed(logsumexp=1e-5)
        assert self.choose(put, monkeypatch, run) == (Entry("attention/cudnn/eng1", 1e3, 0.0, 16), run)
        assert self.choose(put, monkeypatch, run, 3.0) == (Entry("attention/triton", 2e3, 0.0, 0), None)
        assert self.choose(put, monkeypatch, None) == (Entry("attention/triton", 2e3, 0.0, 0), None)

    @pytest.mark.parametrize("wrong", WRONG)
    def test_a_wrong_result_is_not_believed(
        self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
    ) -> None:
        with override(debug=1):
            assert self.choose(put, monkeypatch, WRONG[wrong])[1] is None
        assert "genesis: attention/cudnn/eng1: " in capsys.readouterr().err

    def test_how_far_it_is(self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        entry, _ = self.choose(put, monkeypatch, changed(1.01))
        assert 0.005 < entry.error < 2.0**-6


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestMemory:
    """What is asked once, and what is done when it fails."""

    @pytest.fixture
    def asked(self, present: None, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
        """The problems that are decided, each in favour of a way that fills."""
        problems: list[Problem] = []

        def decide(ours: Run, problem: Problem, *operands: DeviceArray) -> tuple[Entry, Run]:
            problems.append(problem)
            return Entry("attention/cudnn/eng3_k2=1", 5.0, 0.0, 0), fill

        monkeypatch.setattr(attention_cudnn, "decide", decide)
        return problems

    def takes_cudnn(self, cuda: Backend, *operands: DeviceArray, is_causal: bool = False, scale: float = 1.0) -> bool:
        y, saved = cuda.attention(*operands, None, is_causal, scale)
        filled = 7 in storage.to_cpu(storage.cast(y, dtypes.float32))
        assert filled == (3 in storage.to_cpu(saved))
        return filled

    def test_each_problem_is_decided_once(
        self, cuda: Backend, put: Put, asked: list[Problem], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention_cudnn, "_MOST_PROBLEMS", 3)
        for _ in range(2):
            for length in (4, 6):
                assert self.takes_cudnn(cuda, *qkv(put, 2, length, 8))
        assert self.takes_cudnn(cuda, *qkv(put, 1, 2, 4, 8))  # (2, 4, 8) in other words
        assert self.takes_cudnn(cuda, *qkv(put, 2, 4, 8), is_causal=True)
        assert len(asked) == len(set(asked)) == 3
        assert not self.takes_cudnn(cuda, *qkv(put, 2, 8, 8))  # one too many
        assert len(asked) == 3

    def test_only_in_16_bits_without_a_mask_and_with_a_positive_scale(
        self, cuda: Backend, put: Put, get: Get, asked: list[Problem]
    ) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            assert self.takes_cudnn(cuda, *qkv(put, 2, 5, 8, dtype=dtype))
        assert not self.takes_cudnn(cuda, *qkv(put, 2, 5, 8, dtype=torch.float32))
        for scale in (0.0, -1.0, float("nan")):
            assert not self.takes_cudnn(cuda, *qkv(put, 2, 5, 8), scale=scale)
        mask = put(torch.ones(2, 5, 5, dtype=torch.bool))
        assert 7 not in get(cuda.attention(*qkv(put, 2, 5, 8), mask, False, 1.0)[0])
        assert len(asked) == 2

    def test_nothing_is_decided_in_a_capture(
        self, cuda: Backend, put: Put, asked: list[Problem], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as capture:
            capture.setattr(driver.get(), "is_capturing", lambda device, stream: True)
            assert not self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        assert not asked
        assert self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        with monkeypatch.context() as capture:
            capture.setattr(driver.get(), "is_capturing", lambda device, stream: True)
            assert self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        assert len(asked) == 1

    @pytest.mark.parametrize("fails", [refuses, has_no_room])
    def test_what_fails_later_is_ours_from_then_on(
        self, cuda: Backend, put: Put, get: Get, present: None, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str], fails: Run,
    ) -> None:  # fmt: skip
        calls = []

        def run(*arrays: DeviceArray) -> None:
            calls.append(arrays)
            fails(*arrays)

        monkeypatch.setattr(attention_cudnn, "decide", lambda *args: (Entry("attention/cudnn/eng0", 5.0, 0.0, 0), run))
        operands = qkv(put, 2, 5, 8)
        expected = attention_cudnn._results(operands[0], operands[2])
        attention._attention(*expected, *operands, None, True, 0.25)
        with override(debug=1):
            for _ in range(2):
                for result, wanted in zip(cuda.attention(*operands, None, True, 0.25), expected, strict=True):
                    assert torch.equal(get(result), get(wanted))
        assert len(calls) == 1
        assert "genesis: attention: ours from now on, no" in capsys.readouterr().err

    def test_no_memory_to_find_out(
        self, cuda: Backend, put: Put, present: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention_cudnn, "decide", lambda *args: has_no_room())
        assert not self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        assert not platform.store(0).all()  # another process may have room

    def test_the_next_process_builds_the_plan_at_once(
        self, cuda: Backend, put: Put, asked: list[Problem], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built = []

        def restored(problem: Problem, name: str) -> Run | None:
            built.append(name)
            return fill if len(built) == 1 else None

        monkeypatch.setattr(attention_cudnn, "restored", restored)
        for decided in (1, 1, 2):  # the second time it is restored, the third time it is no longer to be had
            forget(monkeypatch)
            assert self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
            assert len(asked) == decided
        assert built == ["eng3_k2=1"] * 2

    def test_the_next_process_knows_that_ours_is_faster(
        self, cuda: Backend, put: Put, asked: list[Problem], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        (problem,) = asked
        platform.store(0).put(problem.in_store, Entry("attention/triton", 4.0, 0.0, 0))
        forget(monkeypatch)
        assert not self.takes_cudnn(cuda, *qkv(put, 2, 5, 8))
        assert len(asked) == 1


class Graph:
    """A graph with three plans, of which the first cannot be built."""

    def plan_names(self, plain: bool, deterministic: bool) -> list[str]:
        return ["a", "b", "c"]

    def plan_named(self, name: str) -> bool:
        return name == "z"

    def build(self, index: int) -> None:
        self.built = index
        if self.plan_names(False, True)[index] == "a":
            raise KernelError("deselected")

    def workspace(self, index: int) -> int:
        return 16 * index

    def runner(self, index: int) -> None:
        assert index == self.built


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> Problem:
    monkeypatch.setattr(attention_cudnn, "_graph", lambda asked: Graph())
    return Problem(0, dtypes.bfloat16, *[((1, 2, 5, 8), (80, 40, 8, 1))] * 3, True, 0.25)


def test_the_first_plan_that_can_be_built(problem: Problem) -> None:
    found = attention_cudnn.suggested(problem)
    assert found is not None
    assert (found.name, found.workspace) == ("attention/cudnn/b", 16)


def test_no_plan(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as refusing:
        refusing.setattr(Graph, "build", refuses)
        assert attention_cudnn.suggested(problem) is None
    monkeypatch.setattr(attention_cudnn, "_graph", refuses)
    assert attention_cudnn.suggested(problem) is None
    assert attention_cudnn.restored(problem, "z") is None


def test_a_plan_by_its_name(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_cudnn.restored(problem, "y") is None
    assert attention_cudnn.restored(problem, "z") is None  # it cannot be built
    monkeypatch.setattr(Graph, "plan_names", lambda *ignored: ["z"])
    assert attention_cudnn.restored(problem, "z") is not None


def test_a_frontend_that_knows_other_arguments(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    monkeypatch.undo()

    def make(*ignored: Any) -> Any:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(cudnn, "Graph", make)
    with pytest.raises(KernelError, match="cuDNN: unexpected keyword argument"):
        attention_cudnn._graph(problem)


# --- what it gives ----------------------------------------------------------------------------------------------------
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {  # of query, of key and value
    "whole blocks": ((2, 2, 256, 128), (2, 2, 256, 128)),
    "heads of 64": ((2, 2, 192, 64), (2, 2, 192, 64)),
    "odd lengths": ((1, 3, 261, 128),) * 2,
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
def test_cudnn_gives_the_same(
    cuda: Backend, put: Put, get: Get, layout: str, dtype: torch.dtype, is_causal: bool, side_by_side: bool
) -> None:
    needs_cudnn()
    (query_shape, key_shape), host = LAYOUTS[layout], []
    for seed, (batch, heads, length, size) in enumerate((query_shape, key_shape, key_shape)):
        x = random(batch, length, heads, size, dtype=dtype, seed=seed).transpose(1, 2)
        x = x if side_by_side else x.contiguous()
        host.append(x.expand(*query_shape[:2], length, size))
    arrays = [put(x) for x in host]
    problem = attention_cudnn.describe(*arrays, is_causal, 0.2)
    assert problem is not None
    way = attention_cudnn.suggested(problem)
    assert way is not None
    wide = [x.double().contiguous() for x in host]
    cpu = backends.get("cpu")
    expected, probabilities = cpu.attention(*wide, None, is_causal, 0.2)
    grad = random(*expected.shape, dtype=dtype, seed=4)
    gradients = cpu.attention_backward(grad.double(), *wide, None, expected, probabilities, is_causal, 0.2)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-3

    def close(result: DeviceArray, wanted: torch.Tensor) -> None:
        limit = tolerance * max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(get(result).double(), wanted, rtol=0, atol=limit)

    (y, saved), by_ours = (attention_cudnn._results(arrays[0], arrays[2]) for _ in range(2))
    attention._attention(*by_ours, *arrays, None, is_causal, 0.2)
    assert math.isfinite(attention_cudnn._error(way, (y, saved, *arrays), by_ours))
    way.run(y, saved, *arrays)
    assert driver.get()._devices[0].recent[-1] == "cudnn"
    close(y, expected)
    for result, gradient in zip(
        cuda.attention_backward(put(grad), *arrays, None, y, saved, is_causal, 0.2), gradients, strict=True
    ):
        close(result, gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
def test_the_next_process_does_not_decide(cuda: Backend, put: Put, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_cudnn()
    operands = qkv(put, 2, 8, 1024, 128)
    y, _ = cuda.attention(*operands, None, False, 0.1)
    (entry,) = platform.store(0).all().values()
    forget(monkeypatch)
    monkeypatch.setattr(attention_cudnn, "decide", refuses)
    again, _ = cuda.attention(*operands, None, False, 0.1)
    assert torch.equal(get(again), get(y))
    assert (driver.get()._devices[0].recent[-1] == "cudnn") is entry.candidate.startswith("attention/cudnn/")


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
def test_a_graph_captures_what_was_decided_before(cuda: Backend, put: Put, get: Get) -> None:
    needs_cudnn()
    operands = qkv(put, 2, 8, 1024, 128)
    wanted, _ = expected = attention_cudnn._results(*operands[:2])
    attention._attention(*expected, *operands, None, True, 0.1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream), streams.use(streams.Stream(0, handle=stream.cuda_stream)):
        for decided in (False, True):
            if decided:
                cuda.attention(*operands, None, True, 0.1)
            pooled = [attention_cudnn._results(*operands[:2]) for _ in range(3)]
            del pooled  # nothing is taken from the driver meanwhile
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="relaxed")
            y, _ = cuda.attention(*operands, None, True, 0.1)
            graph.capture_end()
            assert len(platform.store(0).all()) == decided
            storage.copy_into(y, 0)
            graph.replay()
            stream.synchronize()
            assert (get(y).double() - get(wanted).double()).norm() <= 2.0**-6 * get(wanted).double().norm()
