"""Chains in inference, called again: whatever happens between the calls of their layers, and sums by operators."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import genesis.torch
from genesis.torch import norm_entries
from tests.torch.chains import Chain, images, pair


@pytest.fixture(params=["cpu", "simulated"], autouse=True)
def device(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch norm in eval mode: did it go the short way?"""
    found: list[bool] = []

    def watched(*args: Any) -> Tensor | None:
        y = infer_norm(*args)
        found.append(y is not None)
        return y

    infer_norm = norm_entries.infer_norm
    monkeypatch.setattr(norm_entries, "infer_norm", watched)
    return found


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Interrupted(Chain):
    """Something happens between the convolution and the norm, and the norm is called within a context."""

    change: Callable[[Interrupted], object] = staticmethod(lambda model: None)
    context: Callable[[], AbstractContextManager[object]] = nullcontext

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x)
        self.change(self)
        with self.context():
            return self.r(self.b(y))


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda model: None,
    "eps": lambda model: setattr(model.b, "eps", 0.5),
    "no momentum": lambda model: setattr(model.b, "momentum", None),
    "weight, uncounted": lambda model: model.b.weight.data.mul_(2),
    "variance": lambda model: model.b.running_var.mul_(3),
    "another mean": lambda model: setattr(model.b, "running_mean", torch.ones(4).double()),
    "no weight": lambda model: setattr(model.b, "weight", None),
    "no statistics": lambda model: model.b.__dict__.update(track_running_stats=False),
    "training": lambda model: model.b.train(),
    "another norm": lambda model: setattr(model, "b", nn.BatchNorm2d(4, eps=0.1, dtype=torch.float64).eval()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_the_layers_count(name: str, went: list[bool]) -> None:
    theirs, ours = pair(Interrupted().eval())
    with torch.no_grad():
        for i in range(5):
            if i == 3:
                theirs.change = ours.change = CHANGES[name]
            x = images()
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))
    assert went[1:3] == [True, True]


@contextmanager
def _without_functions() -> Iterator[None]:
    with torch._C.DisableTorchFunctionSubclass():
        yield


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode, Seen])
def test_modes_between_the_layers_count(context: Any) -> None:
    theirs, ours = pair(Interrupted().eval())
    with torch.no_grad():
        for i in range(5):
            if i == 3:
                theirs.context = ours.context = context
            x = images()
            y, wanted = ours(x), theirs(x)
            torch.testing.assert_close(y, wanted, rtol=1e-8, atol=1e-8)
            assert (y.requires_grad, y.is_inference()) == (wanted.requires_grad, wanted.is_inference())


def test_an_input_that_changes_before_the_norm_is_refused() -> None:
    ours = genesis.torch.fuse(Interrupted().eval())
    x = images()
    with torch.no_grad():
        ours(x), ours(x), ours(x)
        ours.change = lambda model: x.mul_(2)
        with pytest.raises(RuntimeError, match="changed in place before its result was used"):
            ours(x)


# --- sums -------------------------------------------------------------------------------------------------------------
def _in_place(y: Tensor, x: Tensor) -> Tensor:
    y += x
    return y


SUMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "y + x": lambda y, x: y + x,
    "x + y": lambda y, x: x + y,
    "y += x": _in_place,
    "sum": lambda y, x: sum([y, x]),
    "y + 1": lambda y, x: y + 1,
    "1 + y": lambda y, x: 1 + y,
    "another dtype": lambda y, x: x.float() + y,
    "another shape": lambda y, x: x[:1] + y,
    "itself": lambda y, x: y + y,
}


class Adds(Chain):
    sum: Callable[[Tensor, Tensor], Any]

    def forward(self, x: Tensor, residual: Tensor) -> Any:
        return self.r(self.sum(self.b(self.c(x)), residual))


@pytest.mark.parametrize("name", SUMS)
def test_operators_give_the_values_and_order_of_the_layers(name: str) -> None:
    theirs = Adds().eval()
    theirs.sum = SUMS[name]
    theirs, ours = pair(theirs)
    orders = (torch.contiguous_format, torch.channels_last)
    for order, other_order, grad in itertools.product(orders, orders, (False, True)):
        x = images().to(memory_format=order)
        residual = torch.randn(2, 4, 5, 4, dtype=torch.float64).to(memory_format=other_order)
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                y, wanted = ours(x, residual), theirs(x, residual)
                torch.testing.assert_close(y, wanted, rtol=1e-8, atol=1e-8, check_stride=True)


def test_modes_and_disabled_functions_see_the_operators() -> None:
    model = copy.deepcopy(Adds().eval())
    c, b = model.c, model.b
    genesis.torch.fuse(model)
    x, residual = images(), torch.randn(2, 4, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        wanted = torch.nn.functional.batch_norm(
            torch.conv2d(x, c.weight, c.bias, padding=1), b.running_mean, b.running_var, b.weight, b.bias
        )
        for operator in (Tensor.__add__, Tensor.__iadd__, Tensor.__radd__):
            y = b(c(x))
            with Seen() as seen:
                y = getattr(y, operator.__name__)(residual) if operator is not Tensor.__radd__ else residual + y
            assert any("add" in name for name in seen.names)
            torch.testing.assert_close(y + 0, wanted + residual)
            y = b(c(x))
            with _without_functions():
                y = residual + y if operator is Tensor.__radd__ else getattr(y, operator.__name__)(residual)
            torch.testing.assert_close(y + 0, wanted + residual)
