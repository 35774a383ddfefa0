"""The guard of what a model's parameters and buffers are, which stands in for those that PyTorch has for each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.torch import native_steps
from genesis.torch.parameter_guards import Kinds, guard_kinds


def _replace_data(x: Tensor, data: Tensor) -> None:
    x.data = data


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "frozen": lambda x: x.requires_grad_(False),
    "dtype": lambda x: _replace_data(x, x.data.double()),
    "shape": lambda x: _replace_data(x, x.data[:2]),
    "as many elements": lambda x: _replace_data(x, x.data.reshape(3, 4)),
    "strides": lambda x: _replace_data(x, x.data.t().contiguous().t()),
}
KEPT: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda x: None,
    "values": lambda x: x.data.zero_(),
    "other data": lambda x: _replace_data(x, x.data.clone()),
    "gradient": lambda x: setattr(x, "grad", torch.ones_like(x)),
}


@pytest.fixture(params=["Python", "C++", "C++ later"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Is the module in C++ there, from the first look on or from the second?"""
    if request.param == "Python":
        monkeypatch.setattr(native_steps, "_kinds", None)
    elif not native_steps.wait():
        pytest.skip("no C++ compiler, or no headers of Python")
    return str(request.param)


def _known(tensors: list[Tensor], way: str) -> Kinds:
    kinds = Kinds(tensors)
    if way == "C++ later":
        with pytest.MonkeyPatch.context() as without:
            without.setattr(native_steps, "_kinds", None)
            assert kinds.hold()
    assert kinds.hold()
    assert kinds.hold()
    return kinds


@pytest.mark.parametrize("change", [*CHANGES, *KEPT])
def test_kinds(way: str, change: str) -> None:
    tensors = [nn.Parameter(torch.ones(4, 3)) for _ in range(3)]
    kinds = _known(tensors, way)
    ({**CHANGES, **KEPT})[change](tensors[1])
    assert kinds.hold() == (change in KEPT)
    assert kinds.hold() == (change in KEPT)


def test_tensors_are_not_kept_alive(way: str) -> None:
    """What is gone does not count; the others do."""
    tensors = [nn.Parameter(torch.ones(4, 3)) for _ in range(3)]
    kinds = _known(tensors, way)
    gone = weakref.ref(tensors.pop(1))
    assert gone() is None
    assert kinds.hold()
    tensors[1].requires_grad_(False)
    assert not kinds.hold()


def test_what_a_graph_is_called_with_later_is_known_too(way: str) -> None:
    """A replaced parameter, and those of the next block with the same code, of other shapes if need be."""
    first, second = ([nn.Parameter(torch.ones(size, 3)) for _ in range(2)] for size in (4, 5))
    images = torch.ones(1)
    kinds = _known([images, *first], way)
    seen: list[object] = []
    call = kinds.follow(lambda *inputs: seen.extend(inputs))
    for tensors in (first, second, first):
        call(images, *tensors)
        assert kinds.hold()
    assert len(seen) == 9
    for tensor in (first[0], second[1]):
        tensor.requires_grad_(False)
        assert not kinds.hold()
        tensor.requires_grad_(True)
        assert kinds.hold()
    images.requires_grad_(True)  # no module's: guarded by Dynamo
    assert kinds.hold()


def test_a_tensor_in_the_place_of_one_that_is_gone(way: str) -> None:
    """It may have the same id, and be of another kind."""
    tensors = [nn.Parameter(torch.ones(4, 3)) for _ in range(3)]
    kinds = _known(tensors, way)
    call = kinds.follow(lambda *inputs: None)
    for size in (5, 6, 7):
        tensors[1] = nn.Parameter(torch.ones(size, 3))
        assert kinds.hold()
        call(*tensors)
        assert kinds.hold()
        tensors[1].requires_grad_(False)
        assert not kinds.hold()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Blocks(nn.Module):
    """Two parts that Dynamo compiles once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_parameters_that_are_unfrozen_get_gradients(which: str, is_replaced: bool) -> None:
    """Of a block that shares its code with another, and new ones while the old ones live."""
    torch._dynamo.reset()
    model = Blocks().requires_grad_(False)
    compiled = genesis.torch.compile(model, compiler="aot_eager")
    x = torch.ones(2, 3)
    for _ in range(3):
        compiled(x)
    layer = getattr(model, which).layer
    old = layer.weight
    if is_replaced:
        layer.weight = nn.Parameter(old.detach().clone(), requires_grad=False)
        for _ in range(3):
            compiled(x)
    layer.weight.requires_grad_(True)
    compiled(x).sum().backward()
    assert layer.weight.grad is not None
    assert old is layer.weight or old.grad is None
    torch._dynamo.reset()


@pytest.mark.parametrize("answer", [True, False])
def test_compiled_code_is_guarded(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    """By the parameters and buffers of modules, not by what is handed in."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    num_compiled: list[int] = []
    guarded: list[int] = []
    answers: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        assert guard_kinds(inputs)
        num_compiled.append(len(inputs))
        answers.append(True)
        return graph.forward

    hold = Kinds.hold

    def watched(kinds: Kinds, frame: object = None) -> bool:
        guarded.append(len(kinds._known))
        return hold(kinds) and answers[-1]

    torch._dynamo.reset()
    monkeypatch.setattr(Kinds, "hold", watched)
    compiled = torch.compile(model, backend=backend)
    compiled(torch.ones(2, 4))
    answers.append(answer)
    guarded.clear()
    compiled(torch.ones(2, 4))
    assert guarded[0] == len(list(model.parameters())) + len(list(model.buffers()))
    assert len(num_compiled) == (1 if answer else 2)
    torch._dynamo.reset()


def test_without_dynamo_nothing_is_guarded() -> None:
    assert guard_kinds([nn.Parameter(torch.ones(1))]) is None


def test_an_unknown_interior_of_pytorch_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its own guards look at each tensor."""
    found: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        with monkeypatch.context() as other:
            other.delattr("torch._dynamo.source.GlobalStateSource")
            found.append(guard_kinds(inputs) is not None)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(nn.Linear(2, 2), backend=backend)(torch.ones(1, 2))
    assert found == [False]
