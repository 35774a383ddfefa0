"""What PyTorch's samples leave out: gradients by differences in float64, of one operand at a time, of strided ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import functional as F

INDEX = genesis.tensor([[0, 2], [1, 0], [2, 2]])
MASK = genesis.tensor([[True, False, True, False]])

# name → (call, shapes of its operands)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "sum": (lambda x: F.sum(x, (0, 2)), [(2, 3, 2)]),
    "mean": (lambda x: F.mean(x, 1, keepdim=True), [(2, 3)]),
    "prod": (lambda x: F.prod(x, 1), [(2, 3)]),
    "prod of a zero": (lambda x: F.prod(x * genesis.tensor([1.0, 0.0, 1.0]), 1), [(2, 3)]),
    "prod of zeros": (lambda x: F.prod(x * genesis.tensor([0.0, 0.0, 1.0]), 1), [(2, 3)]),
    "amax": (lambda x: F.amax(x, (0, 1)), [(2, 3)]),
    "max": (lambda x: F.max(x, 1)[0], [(3, 4)]),
    "min of two": (F.min, [(3, 4), (4,)]),
    "var": (lambda x: F.var(x, 0), [(3, 2)]),
    "std": (lambda x: F.std(x, correction=0), [(3, 2)]),
    "logsumexp": (lambda x: F.logsumexp(x, 1), [(2, 3)]),
    "cumsum": (lambda x: F.cumsum(x, 1), [(2, 3)]),
    "norm": (lambda x: F.norm(x, dim=1), [(2, 3)]),
    "norm 3": (lambda x: F.norm(x, 3, 0), [(2, 3)]),
    "norm 1": (lambda x: F.norm(x, 1), [(2, 3)]),
    "norm inf": (lambda x: F.norm(x, float("inf"), 1), [(2, 3)]),
    "norm 0.5": (lambda x: F.norm(x, 0.5, 1), [(2, 3)]),
    "matmul": (F.matmul, [(2, 3), (3, 4)]),
    "matmul of a vector": (F.matmul, [(3,), (2, 3, 2)]),
    "matmul by a vector": (F.matmul, [(2, 2, 3), (3,)]),
    "matmul of vectors": (F.matmul, [(3,), (3,)]),
    "matmul, batched by one": (F.matmul, [(2, 2, 3), (3, 2)]),
    "matmul, one by batched": (F.matmul, [(1, 2, 3), (2, 2, 3, 2)]),
    "matmul, broadcast": (F.matmul, [(2, 1, 2, 3), (3, 3, 1)]),
    "matmul, empty inside": (F.matmul, [(2, 0), (0, 3)]),
    "bmm": (F.bmm, [(2, 2, 3), (2, 3, 1)]),
    "outer": (F.outer, [(2,), (3,)]),
    "einsum of three": (lambda x, y, z: F.einsum("ij,jk,k->i", x, y, z), [(2, 3), (3, 2), (2,)]),
    "einsum, diagonal": (lambda x: F.einsum("...ii->...i", x), [(2, 3, 3)]),
    "einsum, implicit": (lambda x, y: F.einsum("ba,cb", x, y), [(2, 3), (2, 2)]),
    "einsum, sizes of one": (lambda x, y: F.einsum("...ij,...jk->...ik", x, y), [(1, 2, 3), (2, 3, 2)]),
    "cat": (lambda x, y: F.cat([x, y, x], 1), [(2, 1), (2, 3)]),
    "stack": (lambda x, y: F.stack([x, y], -1), [(2, 3), (2, 3)]),
    "split": (lambda x: F.split(x, 2, 1)[1], [(2, 3)]),
    "unbind": (lambda x: F.unbind(x, 1)[0] * F.unbind(x, 1)[2], [(2, 3)]),
    "expand": (lambda x: F.expand(x, (2, 3, 2)), [(3, 1)]),
    "repeat": (lambda x: F.repeat(x, (2, 1, 2)), [(3, 2)]),
    "roll": (lambda x: F.roll(x, (1, -1), (0, 1)), [(2, 3)]),
    "flip": (lambda x: F.flip(x, (0, 1)), [(2, 3)]),
    "permute": (lambda x: F.permute(x, (2, 0, 1)), [(2, 3, 2)]),
    "diagonal": (lambda x: F.diagonal(x, 1), [(3, 3)]),
    "tril": (lambda x: F.tril(x, -1), [(3, 3)]),
    "getitem, repeated": (lambda x: x[genesis.tensor([0, 0, 2])], [(3, 2)]),
    "index_put": (lambda x, v: F.index_put(x, (genesis.tensor([0, 2]),), v), [(3, 2), (2, 2)]),
    "index_select": (lambda x: F.index_select(x, 1, genesis.tensor([1, 1])), [(2, 3)]),
    "index_add": (lambda x, s: F.index_add(x, 0, genesis.tensor([1, 1]), s, alpha=2), [(2, 3), (2, 3)]),
    "gather": (lambda x: F.gather(x, 1, INDEX), [(3, 4)]),
    "scatter": (lambda x, s: F.scatter(x, 1, INDEX[:, :1], s), [(3, 4), (3, 2)]),
    "scatter_add": (lambda x, s: F.scatter_add(x, 1, INDEX, s), [(3, 4), (3, 2)]),
    "masked_fill": (lambda x: F.masked_fill(x, MASK, 2.0), [(3, 4)]),
    "masked_fill by a tensor": (lambda x, v: F.masked_fill(x, MASK, v), [(3, 4), ()]),
    "masked_select": (lambda x: F.masked_select(x, MASK), [(3, 4)]),
    "sort": (lambda x: F.sort(x, 0, descending=True)[0], [(3, 2)]),
    "topk": (lambda x: F.topk(x, 2)[0], [(2, 4)]),
    "where": (lambda x, y: F.where(MASK, x, y), [(3, 4), (4,)]),
    "maximum": (F.maximum, [(3, 1), (4,)]),
    "div": (F.div, [(3, 1), (4,)]),
}


def operands(shapes: list[tuple[int, ...]], strided: bool) -> list[Any]:
    """Random operands in float64, away from ties and zero; strided: every other element of a larger, turned array."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for shape in shapes:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        values += values.sign()
        if strided and shape:
            wide = torch.zeros([2 * size for size in reversed(shape)], dtype=torch.float64)
            window = wide[tuple(slice(None, None, 2) for _ in shape)].permute(*reversed(range(len(shape))))
            values = window.copy_(values)
        made.append(genesis.from_torch(values))
    return made


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_by_differences(name: str, strided: bool) -> None:
    call, shapes = CASES[name]
    inputs = [x.requires_grad_() for x in operands(shapes, strided)]
    assert genesis.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("name", [name for name, (_, shapes) in CASES.items() if len(shapes) > 1])
def test_gradients_of_one_operand_at_a_time(name: str) -> None:
    call, shapes = CASES[name]
    for chosen in range(len(shapes)):
        inputs = operands(shapes, strided=False)
        inputs[chosen].requires_grad_()
        assert genesis.autograd.gradcheck(call, inputs)
        result = call(*inputs)
        result.backward(genesis.ones_like(result))
        assert [x.grad is not None for x in inputs] == [i == chosen for i in range(len(shapes))]


@pytest.mark.parametrize("name", CASES)
def test_operands_are_left_as_they_were(name: str) -> None:
    call, shapes = CASES[name]
    inputs = operands(shapes, strided=False)
    before = [x.tolist() for x in inputs]
    call(*inputs)
    assert [x.tolist() for x in inputs] == before


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: F.sum(genesis.zeros(0, 3), 0), [0, 0, 0]),
        (lambda: F.prod(genesis.zeros(0)), 1),
        (lambda: F.all(genesis.zeros(0)), True),
        (lambda: F.any(genesis.zeros(0)), False),
        (lambda: F.cumsum(genesis.tensor(3.0), 0), 3),
        (lambda: F.max(genesis.tensor(3.0), 0).indices, 0),
        (lambda: F.argmax(genesis.tensor([[1.0, 5.0]]), keepdim=True), [[1]]),
        (lambda: F.argmax(genesis.tensor([False, True])), 1),
        (lambda: F.logsumexp(genesis.tensor(2.0), ()), 2),
        (lambda: F.matmul(genesis.zeros(2, 0), genesis.zeros(0, 2)), [[0, 0], [0, 0]]),
        (lambda: F.cat([genesis.zeros(0), genesis.ones(1, 2)], 1), [[1, 1]]),
        (lambda: F.sum(genesis.tensor([True, True])), 2),
        (lambda: F.any(genesis.tensor([0, 2], dtype=genesis.uint8)), 1),
        (lambda: F.split(genesis.arange(5), [2, 3])[1], [2, 3, 4]),
        (lambda: F.unbind(genesis.zeros(0, 2)), ()),
        (lambda: F.nonzero(genesis.tensor([[0, 1], [2, 0]]), as_tuple=True)[1], [1, 0]),
        (lambda: F.topk(genesis.tensor([1.0, 3.0, 2.0]), 2, largest=False).values, [1, 2]),
        (lambda: F.einsum("i,i->", [genesis.ones(3), genesis.ones(3)]), 3),
        (lambda: F.matmul(genesis.tensor([[1, 2]]), genesis.tensor([[3], [4]])), [[11]]),
    ],
)
def test_corner_cases(call: Callable[[], Any], expected: Any) -> None:
    result = call()
    assert (result.tolist() if isinstance(result, genesis.Tensor) else result) == expected


def test_values_and_indices_have_names() -> None:
    x = genesis.tensor([[3.0, 1.0], [2.0, 5.0]])
    for result in (x.max(1), x.min(dim=0), x.sort(), x.topk(1)):
        values, indices = result
        assert result.values is values
        assert result.indices is indices
        assert indices.dtype is genesis.int64
