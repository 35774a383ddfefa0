"""cuDNN's attention beside ours: what it is asked, how one of both is chosen, and on a GPU what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from genesis import backends
from genesis.backends.backend import Backend
from genesis.backends.cuda import array, attention, attention_cudnn, driver, storage, tuning
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.attention_cudnn import Problem, Run
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.errors import OutOfMemoryError

Put = Callable[[Any], Any]
Get = Callable[[Any], Tensor]


@pytest.fixture(autouse=True)
def _whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cudnn, "_LEAST_OPERATIONS", 0)
    for cache in ("_decided", "_calls"):
        monkeypatch.setattr(attention_cudnn, cache, {})


@pytest.fixture
def present(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN were there."""
    monkeypatch.setattr(cudnn, "is_available", lambda: True)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
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


def refuses(*arrays: DeviceArray) -> None:
    raise KernelError("not here")


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
    def choose(self, put: Put, monkeypatch: pytest.MonkeyPatch, ways: list[Run]) -> tuple[Run | None, int]:
        """What is decided if the last is the fastest, and how many were timed."""
        arrays = qkv(put, 2, 5, 8)
        problem = Problem(0, arrays[0].dtype, *[((1, 2, 5, 8), (80, 40, 8, 1))] * 3, True, 0.25)
        counts = []

        def last(timed: list[Callable[[], None]], device: int) -> int:
            for way in timed:
                way()
            counts.append(len(timed))
            return len(timed) - 1

        monkeypatch.setattr(attention_cudnn, "ways", lambda asked: ways)
        monkeypatch.setattr(tuning, "fastest", last)
        return attention_cudnn.decide(ours, problem, *arrays), *counts

    def test_the_fastest(self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = changed(), changed(1.0, 1e-5)
        assert self.choose(put, monkeypatch, [first, second]) == (second, 3)
        assert self.choose(put, monkeypatch, []) == (None, 1)

    @pytest.mark.parametrize("wrong", WRONG)
    def test_a_wrong_result_is_not_believed(
        self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        right = changed()
        assert self.choose(put, monkeypatch, [right, WRONG[wrong]]) == (right, 2)

    def test_ours_where_there_is_no_memory_to_find_out(
        self, cuda: Backend, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nothing(*ignored: Any) -> DeviceArray:
            raise OutOfMemoryError("no room")

        arrays = qkv(put, 2, 5, 8)
        problem = Problem(0, arrays[0].dtype, *[((1, 2, 5, 8), (80, 40, 8, 1))] * 3, True, 0.25)
        monkeypatch.setattr(array, "empty", nothing)
        assert attention_cudnn.decide(ours, problem, *arrays) is None

    def test_each_problem_is_decided_once(
        self, cuda: Backend, present: None, put: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Problem] = []

        def decide(ours: Run, problem: Problem, *operands: DeviceArray) -> Run:
            asked.append(problem)
            return refuses

        monkeypatch.setattr(attention_cudnn, "decide", decide)
        monkeypatch.setattr(attention_cudnn, "_MOST_PROBLEMS", 3)
        for _ in range(2):
            for length in (4, 6):
                assert attention_cudnn.faster(ours, *qkv(put, 2, length, 8), True, 0.25) is refuses
        x = qkv(put, 1, 2, 4, 8)  # (2, 4, 8) in other words
        assert attention_cudnn.faster(ours, *x, True, 0.25) is refuses
        assert attention_cudnn.faster(ours, *x, False, 0.25) is refuses
        assert len(asked) == len(set(asked)) == 3
        assert attention_cudnn.faster(ours, *qkv(put, 2, 8, 8), True, 0.25) is None  # one too many
        assert len(asked) == 3

    def test_only_in_16_bits_and_without_a_mask(
        self, cuda: Backend, present: None, put: Put, get: Get, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fill(y: DeviceArray, logsumexp: DeviceArray, *operands: DeviceArray) -> None:
            storage.copy_into(y, 7)
            storage.copy_into(logsumexp, 3)

        monkeypatch.setattr(attention_cudnn, "decide", lambda *ignored: fill)
        for dtype in (torch.bfloat16, torch.float16):
            y, saved = cuda.attention(*qkv(put, 2, 5, 8, dtype=dtype), None, False, 1.0)
            assert get(y).unique().tolist() == [7]
            assert get(saved).unique().tolist() == [3]
        mask = put(torch.ones(2, 5, 5, dtype=torch.bool))
        assert 7 not in get(cuda.attention(*qkv(put, 2, 5, 8), mask, False, 1.0)[0])
        assert 7 not in get(cuda.attention(*qkv(put, 2, 5, 8, dtype=torch.float32), None, False, 1.0)[0])


class Graph:
    """A graph with three plans, of which one cannot be built."""

    def __init__(self) -> None:
        self.built: list[int] = []

    def build(self, index: int) -> None:
        if index == 1:
            raise KernelError("deselected")
        self.built.append(index)


def test_each_plan_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cudnn, "_planned", lambda asked: (Graph(), ["a", "b", "a", "c"]))
    monkeypatch.setattr(attention_cudnn, "_way", lambda asked, graph, index: (graph.built, index))
    monkeypatch.setattr(attention_cudnn, "_NUM_TRIED", 3)
    assert attention_cudnn.ways(None) == [([0], 0), ([3], 3)]


def test_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cudnn, "_planned", refuses)
    assert attention_cudnn.ways(None) == []


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


@pytest.mark.gpu
@pytest.mark.parametrize("cuda", ["auto"], indirect=True)
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cudnn_gives_the_same(
    cuda: Backend, put: Put, get: Get, layout: str, dtype: torch.dtype, is_causal: bool, side_by_side: bool
) -> None:
    if not cudnn.is_available():
        pytest.skip("cuDNN is not installed")
    query_shape, key_shape = LAYOUTS[layout]
    host = []
    for seed, (batch, heads, length, size) in enumerate((query_shape, key_shape, key_shape)):
        x = random(batch, length, heads, size, dtype=dtype, seed=seed).transpose(1, 2)
        x = x if side_by_side else x.contiguous()
        host.append(x.expand(*query_shape[:2], length, size))
    arrays = [put(x) for x in host]
    problem = attention_cudnn.describe(*arrays, is_causal, 0.2)
    assert problem is not None
    attention_cudnn._planned(problem)  # says why if there are none
    ways = attention_cudnn.ways(problem)
    assert ways
    wide = [x.double().contiguous() for x in host]
    cpu = backends.get("cpu")
    expected, probabilities = cpu.attention(*wide, None, is_causal, 0.2)
    grad = random(*expected.shape, dtype=dtype, seed=4)
    gradients = cpu.attention_backward(grad.double(), *wide, None, expected, probabilities, is_causal, 0.2)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-3

    def close(result: DeviceArray, wanted: Tensor) -> None:
        limit = tolerance * max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(get(result).double(), wanted, rtol=0, atol=limit)

    (y, saved), by_ours = (attention_cudnn._results(arrays[0], arrays[2]) for _ in range(2))
    attention._attention(*by_ours, *arrays, None, is_causal, 0.2)
    for way in ways:
        assert attention_cudnn._gives(way, (y, saved, *arrays), by_ours)
        assert driver.get()._devices[0].recent[-1] == "cudnn"
        close(y, expected)
        for result, gradient in zip(
            cuda.attention_backward(put(grad), *arrays, None, y, saved, is_causal, 0.2), gradients, strict=True
        ):
            close(result, gradient)
