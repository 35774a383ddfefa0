"""Linear layers and products with matrices in full float32: the op, and the calls in graphs that it replaces."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.library import opcheck
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.backends.cuda.ops.matmul import launch
from genesis.settings import override
from genesis.torch import bridge, graph_linears, linears
from genesis.torch.graph_mends import mend

Program = Callable[..., Tensor]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def distances(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(found, exact, strict=True)
    ]


# --- the op ---
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (2, 1, 3, 12), (1, 12), (0, 12)], ids=str)
def test_the_op_agrees_with_pytorch(shape: tuple[int, ...], dtype: torch.dtype, has_bias: bool) -> None:
    given = [drawn(*shape, dtype=dtype), drawn(8, 12, dtype=dtype), *([drawn(8, dtype=dtype)] if has_bias else [])]
    wide = [each.detach().double().requires_grad_() for each in given]
    y, exact = torch.ops.genesis.linear(*given, *([] if has_bias else [None])), F.linear(*wide)
    assert y.is_contiguous()
    grad = torch.randn(exact.shape, dtype=torch.float64)
    found = [y, *torch.autograd.grad(y, given, grad.to(dtype))]
    expected = [exact, *torch.autograd.grad(exact, wide, grad)]
    assert [each.shape for each in found] == [each.shape for each in expected]
    if 0 not in shape:
        assert max(distances(found, expected)) < 4 * torch.finfo(dtype).eps


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_operands_in_any_order_of_memory(order: str) -> None:
    x, weight = drawn(12, 6).detach().t(), drawn(12, 8).detach().t()
    if order == "columns":
        x, weight = drawn(6, 3, 12).detach()[:, 1], drawn(16, 12).detach()[::2]
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y, theirs = torch.ops.genesis.linear(x, weight, None), F.linear(x, weight)
    torch.testing.assert_close(y, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(y, (x, weight), y.detach()), torch.autograd.grad(theirs, (x, weight), y.detach())
    )


@pytest.mark.usefixtures("kernels")
def test_compilers_know_its_results() -> None:
    opcheck(torch.ops.genesis.linear.default, (drawn(2, 3, 12), drawn(8, 12), drawn(8)))
    opcheck(torch.ops.genesis.linear.default, (drawn(6, 12).t(), drawn(6, 8).t(), None))


@pytest.mark.usefixtures("kernels")
def test_second_derivatives() -> None:
    given = drawn(5, 6, dtype=torch.float64), drawn(4, 6, dtype=torch.float64), drawn(4, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(torch.ops.genesis.linear, given)


def test_a_lower_precision_of_genesis_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def call(op: str, x: Tensor, *args: object) -> object:
        asked.append(genesis.get_float32_precision())
        return bridge.call(op, x, *args)

    monkeypatch.setattr(linears, "call", call)
    with genesis.float32_precision("high"):
        torch.ops.genesis.linear(drawn(2, 4), drawn(3, 4), None)
    assert asked == ["highest"]


# --- in graphs ---
@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are worth it, on tensors in host memory."""
    torch._dynamo.reset()
    monkeypatch.setattr(bridge, "multiplies", lambda x: x.dtype is torch.float32)
    monkeypatch.setattr(graph_linears, "_LEAST_FLOPS", 0)


def mended(program: Program, *inputs: Tensor) -> int:
    """How many calls of a program's graphs are replaced; results and gradients stay what they were."""
    numbers = []

    def backend(graph: fx.GraphModule, _: object) -> fx.GraphModule:
        numbers.append(mend(graph))
        graph.graph.lint()
        return graph

    expected = program(*inputs)
    found = torch.compile(program, backend=backend)(*inputs)
    wanted = [each for each in inputs if each.requires_grad]
    grads = [torch.autograd.grad(each.double().square().sum(), wanted) for each in (found, expected)]
    assert found.stride() == expected.stride()
    torch.testing.assert_close((found, *grads[0]), (expected, *grads[1]), rtol=2e-4, atol=2e-4)
    return sum(numbers)


REPLACED: dict[str, Program] = {
    "a layer": lambda x, w, b: F.linear(x, w, b),
    "no bias": lambda x, w, b: F.linear(x, w) + b[:1],
    "by keywords": lambda x, w, b: F.linear(x, weight=w, bias=b),
    "matmul": lambda x, w, b: torch.matmul(x, w) + b,
    "an operator": lambda x, w, b: x @ w + b,
    "mm": lambda x, w, b: torch.mm(x.flatten(0, -2), w) + b,
    "addmm": lambda x, w, b: torch.addmm(b, x.flatten(0, -2), w),
    "a view of the input": lambda x, w, b: F.linear(x.transpose(0, 1), w.t(), b),
    "in a checkpoint": lambda x, w, b: checkpoint(F.linear, x, w, b, use_reentrant=False),
}


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("name", list(REPLACED))
def test_products_with_a_matrix_are_replaced(name: str) -> None:
    assert mended(REPLACED[name], drawn(2, 3, 64), drawn(64, 64), drawn(64)) == 1


LEFT: dict[str, tuple[Program, list[Tensor]]] = {
    "doubles": (F.linear, [drawn(4, 64, dtype=torch.float64), drawn(64, 64, dtype=torch.float64)]),
    "few terms": (F.linear, [drawn(4, 32), drawn(64, 32)]),
    "few outputs": (F.linear, [drawn(4, 64), drawn(12, 64)]),
    "odd outputs": (F.linear, [drawn(4, 64), drawn(70, 64)]),
    "odd terms": (F.linear, [drawn(4, 65), drawn(64, 65)]),
    "a vector": (F.linear, [drawn(64), drawn(64, 64)]),
    "a result without the last dimension": (F.linear, [drawn(4, 64), drawn(64)]),
    "a bias for all": (F.linear, [drawn(4, 64), drawn(64, 64), drawn(1)]),
    "scaled": (lambda b, x, w: torch.addmm(b, x, w, alpha=2), [drawn(64), drawn(4, 64), drawn(64, 64)]),
    "a bias per row": (torch.addmm, [drawn(4, 1), drawn(4, 64), drawn(64, 64)]),
    "many matrices": (torch.matmul, [drawn(2, 4, 64), drawn(2, 64, 64)]),
}


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("name", list(LEFT))
def test_others_are_left(name: str) -> None:
    program, inputs = LEFT[name]
    assert mended(program, *inputs) == 0


@pytest.mark.usefixtures("in_parts")
def test_autocast_is_left() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, weight).float()

    assert mended(program, drawn(4, 64), drawn(64, 64)) == 0


@pytest.mark.usefixtures("in_parts")
def test_weights_with_tensors_inside_are_left() -> None:
    """As quantized weights are, whose class has a product of its own."""
    weight = drawn(64, 64).detach()
    pair: Any = TwoTensor(weight, weight.clone()).requires_grad_()
    numbers = []

    def backend(graph: fx.GraphModule, _: object) -> fx.GraphModule:
        numbers.append(mend(graph))
        return graph

    torch.compile(lambda x, pair: F.linear(x, pair).a, backend=backend)(drawn(4, 64), pair)
    assert numbers == [0]


@pytest.mark.usefixtures("in_parts")
def test_small_products_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_linears, "_LEAST_FLOPS", 2 * 64 * 64 * 64)
    assert mended(F.linear, drawn(63, 64), drawn(64, 64)) == 0
    assert mended(F.linear, drawn(4, 16, 64), drawn(64, 64)) == 1


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_model_trains_as_before(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    theirs = copy.deepcopy(model)
    compiled = genesis.torch.compile(model, compiler="aot_eager", dynamic=dynamic)
    for rows in (6, 6, 9):
        x = torch.randn(rows, 64)
        for each in (compiled, theirs):
            each(x).square().mean().backward()
    for p, q in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


# --- where ---
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("splits", [True, False])
def test_where_all_bits_count(splits: bool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "splits_float32", lambda device: splits)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        with FakeTensorMode():
            assert bridge.multiplies(torch.empty(2, device="cuda")) == (splits and precision != "tf32")
            assert not bridge.multiplies(torch.empty(2))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("deterministic", [True, False])
def test_where_pytorch_is_to_be_deterministic(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "splits_float32", lambda device: True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with override(deterministic=deterministic), FakeTensorMode():
        assert bridge.multiplies(torch.empty(2, device="cuda")) == deterministic
