"""Which calls of attention have a choice, and how they are described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.driver import cudnn
from genesis.backends.cuda.ops.attention import problem as problems
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.runtime.array import DeviceArray

Put = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_LEAST_OPERATIONS", 0)


@pytest.fixture
def present(simulated: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN were there."""
    monkeypatch.setattr(cudnn, "is_available", lambda: True)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def described(*arrays: DeviceArray) -> AttentionProblem | None:
    return problems.describe(*arrays, True, 0.25)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
class TestDescription:
    def test_heads_side_by_side(self, cuda: Backend, present: None, put: Put) -> None:
        x = put(random(2, 5, 3, 8).transpose(1, 2))
        problem = described(x, x, x)
        assert problem is not None
        assert problem.queries == problem.keys == problem.values == ((2, 3, 5, 8), (120, 8, 24, 1))
        assert (problem.is_causal, problem.scale) == (True, 0.25)
        assert problem.flops == 2 * 2 * 3 * 5 * 5 * 16 // 2

    @pytest.mark.parametrize(
        ("lead", "whole"), [((), (1, 1)), ((3,), (1, 3)), ((2, 3), (2, 3)), ((2, 1, 3), (1, 6))], ids=str
    )
    def test_leading_dimensions(
        self, cuda: Backend, present: None, put: Put, lead: tuple[int, ...], whole: tuple[int, ...]
    ) -> None:
        x = put(random(*lead, 4, 8))
        problem = described(x, x, x)
        assert problem is not None
        assert problem.queries == ((*whole, 4, 8), (whole[1] * 32, 32, 8, 1))

    def test_a_head_that_all_share(self, cuda: Backend, present: None, put: Put) -> None:
        query, shared = put(random(2, 3, 5, 8)), put(random(2, 1, 7, 8).expand(2, 3, 7, 8))
        problem = described(query, shared, put(random(2, 3, 7, 16)))
        assert problem is not None
        assert problem.keys == ((2, 1, 7, 8), (56, 56, 8, 1))
        assert problem.values == ((2, 3, 7, 16), (336, 112, 16, 1))

    def test_groups_of_heads(self, cuda: Backend, present: None, put: Put) -> None:
        x = put(random(2, 3, 1, 6, 16).expand(2, 3, 4, 6, 16))
        problem = described(put(random(2, 3, 4, 6, 16)), x, x)
        assert problem is not None
        assert problem.queries == ((6, 4, 6, 16), (384, 96, 16, 1))
        assert problem.keys == problem.values == ((6, 1, 6, 16), (96, 96, 16, 1))

    def test_one_query(self, cuda: Backend, present: None, put: Put) -> None:
        many = put(random(2, 3, 7, 8))
        one = put(random(2, 3, 7, 8)[:, :, 3:4])
        problem = described(one, many, many)
        assert problem is not None
        assert problem.queries == ((2, 3, 1, 8), (168, 56, 8, 1))

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
        monkeypatch.setattr(problems, "_LEAST_OPERATIONS", problem.flops + 1)
        assert described(x, x, x) is None


SIDE = ((2, 3, 5, 8), (120, 40, 8, 1))
PROBLEMS = [
    AttentionProblem(0, dtypes.bfloat16, SIDE, SIDE, SIDE, True, 0.25),
    AttentionProblem(
        0, dtypes.float16, SIDE, ((2, 1, 7, 8), (56, 56, 8, 1)), ((2, 3, 7, 16), (336, 112, 16, 1)), False, 1e-3
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_keys(problem: AttentionProblem) -> None:
    key = problem.key
    assert AttentionProblem.from_key(key) == problem
    for wrong in ("", "[]", "{}", key[:-1], key.replace("[2, ", "[-2, "), key.replace("16", "17")):
        with pytest.raises(ValueError, match="no key of an attention"):
            AttentionProblem.from_key(wrong)


def test_keys_are_those_of_earlier_stores() -> None:
    side = "[[2, 3, 5, 8], [120, 40, 8, 1]]"
    assert PROBLEMS[0].key == (
        '{"op": "attention", "device": null, "dtype": "bfloat16", '
        f'"query": {side}, "key": {side}, "value": {side}, "is_causal": true, "scale": 0.25}}'
    )


def test_layouts_of_a_shared_head() -> None:
    *_, query, key, value = PROBLEMS[1].layouts
    assert (query.shape, key.shape, value.shape) == ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 16))
    assert (query.strides, key.strides, value.strides) == ((120, 40, 8, 1), (56, 0, 8, 1), (336, 112, 16, 1))
