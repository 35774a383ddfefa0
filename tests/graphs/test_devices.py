"""Where a compiled function computes: on its arguments' device, or, without any, on that of what it has in reach."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import Tensor, backends, nn, optim


class Loop:
    """All that a training loop has; the step takes no arguments."""

    def __init__(self, device: str, returns: str) -> None:
        self.settings = (torch.device(device), torch.float32, torch.channels_last)  # values, which nothing changes
        genesis.manual_seed(0)
        self.model = nn.Linear(3, 2).to(device)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.batch = genesis.zeros(4, 3, device=device)
        self.returns = returns

    def step(self) -> object:
        assert self.settings[1] is torch.float32
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return {"nothing": None, "loss": loss.detach(), "parts": {"loss": loss.detach(), "twice": [loss.detach() * 2]}}[
            self.returns
        ]


def numbers(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: numbers(value) for key, value in found.items()}
    return [numbers(part) for part in found] if isinstance(found, list) else getattr(found, "tolist", lambda: found)()


@pytest.mark.parametrize("returns", ["nothing", "loss", "parts"])
def test_a_step_without_arguments_is_replayed(device: str, returns: str) -> None:
    ours, theirs = Loop(device, returns), Loop(device, returns)
    compiled = genesis.compile(ours.step)
    for number in range(6):
        batch = genesis.full((4, 3), float(number), device=device)
        for loop in (ours, theirs):
            loop.batch.copy_(batch)
        assert numbers(compiled()) == numbers(theirs.step())
        assert numbers(list(ours.model.parameters())) == numbers(list(theirs.model.parameters()))
    assert compiled.num_replays == 3, "two calls to see the device and the code, one to record"


@pytest.mark.usefixtures("cuda")
def test_no_call_traces_what_ops_do() -> None:
    """A backend compiles kernels when an op is first called: a minute for ResNet-50, several while it is traced."""
    traces: list[object] = []

    def around(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            traces.append(sys.getprofile())
            return function(*args, **kwargs)

        return run

    loop = Loop("cuda", "loss")
    compiled = genesis.compile(loop.step)
    with backends.use("cuda", backends.get("cuda").wrapped(around)):
        for _ in range(3):
            compiled()
    assert set(traces) == {None}


class Drawn(nn.Module):
    """A module whose input is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = nn.Linear(3, 2), nn.Parameter(genesis.ones(4, 3))

    def forward(self) -> Tensor:
        return self.layer(self.start)


def test_a_module_without_arguments_is_replayed(device: str) -> None:
    module = Drawn().to(device).eval()
    compiled = genesis.compile(module)
    with genesis.no_grad():
        expected = copy.deepcopy(module)().tolist()
        assert [compiled().tolist() for _ in range(5)] == [expected] * 5
    assert compiled.num_replays > 0


def test_what_a_function_on_the_cpu_does_on_a_gpu_is_not_dropped(cuda: str) -> None:
    count = genesis.zeros(2, device="cuda")

    def counted(x: Tensor) -> Tensor:
        count.add_(1)
        return x + 1

    compiled = genesis.compile(counted)
    with pytest.warns(RuntimeWarning, match="runs eagerly: it computes on a GPU, but its arguments are on the CPU"):
        assert [compiled(genesis.ones(1)).item() for _ in range(5)] == [2] * 5
    assert count.tolist() == [5, 5]


def test_without_tensors_in_reach_it_computes_on_the_cpu(cuda: str) -> None:
    compiled = genesis.compile(lambda: genesis.ones(2, device="cuda") * 2)
    with pytest.warns(RuntimeWarning, match="it computes on a GPU, but its arguments are on the CPU"):
        assert [compiled().tolist() for _ in range(5)] == [[2.0, 2.0]] * 5
    assert genesis.compile(list)() == []
