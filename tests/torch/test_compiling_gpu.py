"""genesis.torch.compile on a GPU: graphs are captured, and loops give what they give with the plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch
from genesis.torch import capturing
from tests.models.torch_resnet import Bottleneck, ResNet
from tests.torch import loops
from tests.torch.loops import (
    LOOPS,
    Halves,
    Net,
    Steps,
    TwoHeads,
    a_later_part_freezes,
    adversarial,
    agree,
    distance,
    one_of_two_heads,
    outcome,
    plain,
)
from tests.torch.trees import short_steps

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::Warning:torch")]


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(loops, "device", "cuda")
    with torch.backends.cudnn.flags(
        enabled=True, allow_tf32=False
    ):  # PyTorch's own test helpers forbid setting the attribute
        yield


def captured(model: nn.Module) -> None:
    """All of it was captured."""
    report = genesis.torch.report(model)
    assert report.graphs
    assert all(graph.captured and not graph.obstacle for graph in report.graphs), str(report)
    assert not report.notes, str(report)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_runs_unmodified(loop: Callable[[nn.Module], Steps]) -> None:
    model = Net().cuda()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    if loop is loops.autocast_and_scaler:  # rounding to bfloat16 grows from step to step, in either
        exact = outcome(loop, copy.deepcopy(model).double())
        ours, theirs = distance(outcome(loop, compiled), exact), distance(outcome(loop, model), exact)
        assert ours <= 2 * theirs
    else:
        agree(outcome(loop, compiled), outcome(loop, model), 1e-3)
    captured(compiled)


@pytest.mark.parametrize("loop", [adversarial, a_later_part_freezes], ids=lambda loop: loop.__name__)
def test_two_models_in_one_step(loop: Callable[[nn.Module], Steps]) -> None:
    model = Halves().cuda()
    compiled = copy.deepcopy(model)
    genesis.torch.compile(compiled.generator)
    genesis.torch.compile(compiled.discriminator)
    agree(outcome(loop, compiled), outcome(loop, model), 1e-3)
    captured(compiled.generator)
    captured(compiled.discriminator)


@pytest.mark.parametrize("is_short", [False, True])
def test_a_head_without_a_loss(is_short: bool) -> None:
    model = TwoHeads(with_constant=not is_short).cuda()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(one_of_two_heads, compiled), outcome(one_of_two_heads, model), 1e-3)
    captured(compiled)


def test_gradients_that_are_held() -> None:
    def grads(model: nn.Module) -> Steps:
        for _ in plain(model):
            yield from [x.grad for x in model.parameters()]

    model = Net().cuda()
    agree(outcome(grads, genesis.torch.compile(copy.deepcopy(model))), outcome(grads, model), 1e-3)


def test_a_network_under_autocast() -> None:
    """As close to float64 as eager PyTorch, in 12 steps of which most are replays; the memory stays what it is."""
    torch.manual_seed(0)
    model = ResNet(Bottleneck, (1, 2, 1, 1), 5).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    y = torch.arange(8, device="cuda") % 5

    def losses(model: nn.Module) -> tuple[torch.Tensor, list[int]]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        found, memory = [], []
        for _ in range(12):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=next(model.parameters()).dtype is torch.float32):
                loss = nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach().cpu())
            memory.append(torch.cuda.memory_allocated())
        return torch.stack(found).double(), memory

    exact, _ = losses(copy.deepcopy(model).double())
    theirs, _ = losses(copy.deepcopy(model))
    compiled = genesis.torch.compile(copy.deepcopy(model))
    ours, memory = losses(compiled)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + 1e-2
    assert len(set(memory[-6:])) == 1
    captured(compiled)


def test_steps_are_replayed() -> None:
    """The device runs graphs, and no kernel of the network by itself."""
    model = genesis.torch.compile(Net().cuda())
    x = loops.batch(0)[0]
    for _ in range(4):
        model(x).sum().backward()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:  # of CPU and CUDA
        model(x).sum().backward()
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert any("cudaGraphLaunch" in name for name in names)
    assert not any("genesis::conv_bn_relu" in name for name in names)


def test_evaluation_that_forgot_no_grad_keeps_its_memory() -> None:
    model = genesis.torch.compile(Net().cuda())
    x, memory = loops.batch(0)[0], []
    for _ in range(6 * capturing._MAX_WAITING):
        output: Any = model(x)
        memory.append(torch.cuda.memory_reserved())
    assert output.requires_grad
    assert len(set(memory[-2 * capturing._MAX_WAITING :])) == 1


class Parts(nn.Module):
    """Layers that read halves of the channels of others' results, as in YOLOv8, ShuffleNet and Res2Net."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.first(x).chunk(2, 1)
        result: torch.Tensor = self.last(torch.cat([left, right, self.second(right)], 1).mean((2, 3)))
        return result


def test_calls_without_gradients_are_short() -> None:
    model = Parts().cuda().to(memory_format=torch.channels_last).eval()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    images = [torch.randn(4, 3, 9, 8, device="cuda") for _ in range(8)]
    with short_steps() as steps, torch.no_grad():
        found = [compiled(x) for x in images]
        for x, y in zip(images, found, strict=True):
            assert (y - model(x)).norm() <= 1e-3 * y.norm()
    assert steps == {"call": 5}
    captured(compiled)


def test_steps_are_short_where_the_backward_reads_a_part_of_a_result() -> None:
    model = Parts().cuda().to(memory_format=torch.channels_last)
    compiled = genesis.torch.compile(copy.deepcopy(model))

    def thrice(model: nn.Module) -> Steps:
        for _ in range(3):
            yield from plain(model)

    with short_steps() as steps:
        agree(outcome(thrice, compiled), outcome(thrice, model), 1e-3)
    assert steps["forward"] == steps["backward"] > 3
    captured(compiled)
