"""Steps of captured graphs without what PyTorch does around a replay, on simulated trees of CUDA graphs."""

from __future__ import annotations

import copy
import gc
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.settings import override
from genesis.torch import compiling, graph_trees, outstanding, replaying, step_plans
from genesis.torch.replaying import Output
from tests.torch.loops import (
    LOOPS,
    Halves,
    Net,
    Steps,
    TwoHeads,
    a_later_part_freezes,
    adversarial,
    agree,
    batch,
    evaluation_that_forgot_no_grad,
    one_of_two_heads,
    outcome,
    plain,
    tolerance,
    two_forwards,
)
from tests.torch.trees import Manager
from tests.torch.trees import steps as steps
from tests.torch.trees import trees as trees

pytestmark = pytest.mark.usefixtures("trees")


def thrice(loop: Callable[[nn.Module], Steps]) -> Callable[[nn.Module], Steps]:
    """A loop until its steps are short ones."""

    def run(model: nn.Module) -> Steps:
        for _ in range(3):
            yield from loop(model)

    return run


# Passes that wait for others go PyTorch's way. So do those that hooks of checkpoints look into, half of that loop.
ORDINARY = {evaluation_that_forgot_no_grad, two_forwards}


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_runs_unmodified(loop: Callable[[nn.Module], Steps], steps: Counter[str]) -> None:
    """What it holds is looked at when it is over, and replays overwrite all that the trees may."""
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(thrice(loop), compiled), outcome(thrice(loop), model), tolerance(loop))
    assert steps["forward"] == steps["backward"]
    assert (steps["forward"] > 3) is (loop not in ORDINARY)


def agree_with_two_graphs(loop: Callable[[nn.Module], Steps]) -> None:
    """A student and a teacher, compiled by themselves, beside the plain ones."""
    model = nn.Module()
    model.student, model.teacher = Net(), Net()
    compiled: Any = copy.deepcopy(model)
    genesis.torch.compile(compiled.student)
    genesis.torch.compile(compiled.teacher)
    agree(outcome(loop, compiled), outcome(loop, model))


def test_other_graphs_between_forward_and_backward(trees: Manager, steps: Counter[str]) -> None:
    """A short forward, another model, and the backward: the trees record it anew, after that graph."""

    def loop(model: nn.Module) -> Steps:
        halves: Any = model
        yield from plain(halves.student)
        for index in range(4):
            result = halves.student(batch(index)[0])
            with torch.no_grad():
                yield halves.teacher(batch(index)[0])
            other = halves.teacher(batch(index + 9)[0]).square().sum()
            result.square().sum().backward()
            other.backward()
            yield result
            yield from [x.grad.clone() for x in model.parameters() if x.grad is not None]

    agree_with_two_graphs(loop)
    assert steps["forward"] > steps["backward"] > 0


def distillation(model: nn.Module) -> Steps:
    """A teacher's pass before each step."""
    halves: Any = model
    optimizer = torch.optim.SGD(halves.student.parameters(), lr=0.1)
    for index in range(8):
        x = batch(index)[0]
        with torch.no_grad():
            target = halves.teacher(x)
        optimizer.zero_grad()
        (halves.student(x) - target).square().mean().backward()
        optimizer.step()
        yield target
        yield grads(halves.student)[0]


def in_turns(model: nn.Module) -> Steps:
    """Two models, neither of which waits for the other."""
    for _, two in zip(range(8), zip(*(repeated(half) for half in model.children()), strict=True), strict=False):
        yield from two


def repeated(model: nn.Module) -> Steps:
    while True:
        yield from plain(model)


@pytest.mark.parametrize(("loop", "number"), [(distillation, 5), (in_turns, 10)], ids=["distillation", "in turns"])
def test_another_graph_before_each_step(loop: Callable[[nn.Module], Steps], number: int, steps: Counter[str]) -> None:
    """Where nothing waits for it, the trees are done with it, and the step is a short one."""
    agree_with_two_graphs(loop)
    assert (steps["forward"], steps["backward"]) == (number, number)


@pytest.mark.parametrize(
    ("state", "child", "ends", "begins"),
    [
        ("EXECUTION", None, True, True),
        ("EXECUTION", "other", True, True),
        ("EXECUTION", "ours", True, False),  # this graph has been recorded after the one that ran
        ("EXECUTION", None, False, False),  # something of it is alive, and a backward may come
        ("RECORDING", None, True, False),
        ("WARMUP", None, True, False),
    ],
)
def test_what_the_trees_replay_next(
    state: str, child: str | None, ends: bool, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        trees.current_node = None if ends else trees.current_node

    nodes: list[Any] = [
        SimpleNamespace(**dict.fromkeys(graph_trees._MORE_FIELDS) | {"children": {child: [None]}}) for _ in range(2)
    ]
    nodes[1].wrapped_function = SimpleNamespace(id="ours")
    trees: Any = SimpleNamespace(
        current_node=nodes[0], path_state=SimpleNamespace(name=state), try_end_curr_execution=end
    )
    monkeypatch.setattr(graph_trees, "manager", lambda device: trees)
    assert graph_trees.begins(0, nodes[1]) is begins
    assert (trees.current_node is None) is begins
    trees.current_node = None
    assert graph_trees.begins(0, nodes[1])
    monkeypatch.setattr(graph_trees, "manager", lambda device: None)
    assert not graph_trees.begins(0, nodes[1])


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("loop", [adversarial, a_later_part_freezes], ids=lambda loop: loop.__name__)
def test_two_models_in_one_step(loop: Callable[[nn.Module], Steps], is_short: bool) -> None:
    model = Halves()
    compiled: Any = copy.deepcopy(model)
    genesis.torch.compile(compiled.generator)
    genesis.torch.compile(compiled.discriminator)
    with override(short_steps=is_short):
        agree(outcome(thrice(loop), compiled), outcome(thrice(loop), model))


@pytest.mark.parametrize("is_short", [False, True])
def test_a_head_without_a_loss(is_short: bool, steps: Counter[str]) -> None:
    model = TwoHeads(with_constant=not is_short)
    compiled = genesis.torch.compile(copy.deepcopy(model))
    with override(short_steps=is_short):
        agree(outcome(thrice(one_of_two_heads), compiled), outcome(thrice(one_of_two_heads), model))
    assert (steps["backward"] > 20) is is_short


def test_a_part_of_an_output_is_found_in_it() -> None:
    """As where the backward reads the second half of an output's channels, which Inductor's code takes itself."""
    whole = torch.randn(2, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    other = torch.randn(5)
    results = [whole, whole[:, 4:], whole[:, :4], other[1:4], other.view(torch.int32), torch.randn(4), whole[:0], None]
    outputs: Any = SimpleNamespace(cached_tensor_outputs=[None, whole, other, torch.empty(0)])
    found = step_plans.outputs_of(outputs, results)
    strides = whole.stride()
    assert found[:4] == [
        Output(1), Output(1, ((2, 4, 3, 3), strides, 4)), Output(1, ((2, 4, 3, 3), strides, 0)),
        Output(2, ((3,), (1,), 1)),
    ]  # fmt: skip
    assert found[4:] == [None] * 4
    taken = replaying.pick_outputs([x for x in found if x is not None])(outputs.cached_tensor_outputs)
    assert all(torch.equal(x, y) for x, y in zip(taken, results[:4], strict=True))


class Flattened(nn.Module):
    """Its result is a view of a convolution's, as in DLA."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).mean((2, 3), keepdim=True)).flatten(1)


def changes_its_results(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for index in range(12):
        optimizer.zero_grad()
        result = model(batch(index)[0])
        result.mul_(2)
        result.square().mean().backward()
        optimizer.step()
        yield result.detach()


@pytest.mark.parametrize("loop", [thrice(plain), changes_its_results], ids=["plain", "changes"])
def test_a_result_that_is_a_view(loop: Callable[[nn.Module], Steps], steps: Counter[str]) -> None:
    model = Flattened().to(memory_format=torch.channels_last)
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(loop, compiled), outcome(loop, model))
    assert steps["forward"] == steps["backward"] > 3


@pytest.fixture
def short() -> nn.Module:
    """A model whose next step is a short one."""
    model = genesis.torch.compile(Net())
    list(plain(model))
    return model


def grads(model: nn.Module) -> list[Tensor]:
    return [x.grad.clone() for x in model.parameters() if x.grad is not None]


def test_gradients_that_are_held_and_accumulated(short: nn.Module, steps: Counter[str]) -> None:
    x = batch(3)[0]
    short.zero_grad()
    short(x).sum().backward()
    held = [p.grad for p in short.parameters()]
    once = grads(short)
    short.zero_grad()
    short(x).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(held, once, strict=True) if a is not None)
    assert all(torch.equal(a, b) for a, b in zip(grads(short), once, strict=True))
    short(x).sum().backward()
    assert all(torch.allclose(a, 2 * b) for a, b in zip(grads(short), once, strict=True))
    assert steps == {"forward": 3, "backward": 3}


def test_hooks_see_gradients(short: nn.Module, steps: Counter[str]) -> None:
    seen: list[str] = []
    parameter = next(short.parameters())
    parameter.register_hook(lambda grad: seen.append("tensor"))
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    loss = short(batch(0)[0]).sum()
    loss.backward()
    assert seen == ["tensor", "accumulated"]
    assert steps == {"forward": 1, "backward": 1}


def test_a_backward_twice(short: nn.Module, steps: Counter[str]) -> None:
    loss = short(batch(0)[0]).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss = short(batch(0)[0]).sum()
    with pytest.raises(RuntimeError, match="retain_graph=False"):
        loss.backward(retain_graph=True)


def test_parameters_that_change_before_the_backward(short: nn.Module, steps: Counter[str]) -> None:
    weight: Any = next(short.parameters())
    loss = short(batch(0)[0]).sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_that_move_before_the_backward(short: nn.Module, steps: Counter[str]) -> None:
    weight: Any = next(short.parameters())
    loss = short(batch(0)[0]).sum()
    weight.data = weight.data.clone()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_that_move(short: nn.Module, steps: Counter[str]) -> None:
    """Other memory is captured anew, and becomes short in its turn."""
    model = copy.deepcopy(short)
    x = batch(0)[0]
    for each in (short, model):
        for parameter in each.parameters():
            parameter.data = parameter.data.clone()
        each.zero_grad()
        for _ in range(4):
            each(x).sum().backward()
    agree({str(i): x for i, x in enumerate(grads(short))}, {str(i): x for i, x in enumerate(grads(model))})
    assert steps == {"forward": 2, "backward": 2}


def test_expanded_gradients_after_another_graph(short: nn.Module, steps: Counter[str]) -> None:
    """The backward goes PyTorch's way in the middle of a step; Inductor's code asserts the strides of what it reads."""
    model, other, x = copy.deepcopy(short), genesis.torch.compile(Net()), batch(0)[0]
    for _ in range(2):
        with torch.no_grad():
            other(x)
        for _ in range(2):  # after which the trees are where they were
            short(x).sum().backward()
    steps.clear()
    for each in (short, model):
        each.zero_grad()
        loss = each(x).sum()
        with torch.no_grad():
            other(x)
        loss.backward()
    torch.testing.assert_close(grads(short), grads(model))
    assert (steps["forward"], steps["backward"]) == (1, 0)


def test_a_step_that_is_given_up_is_not_held() -> None:
    """Its arguments are another captured graph's results, whose backward would be waited for from then on."""
    model = Halves()
    genesis.torch.compile(model.generator)
    genesis.torch.compile(model.discriminator)
    for _ in range(3):
        model.discriminator(model.generator(batch(0)[0]))
        gc.collect()
        assert not outstanding.any_waits()


@pytest.mark.parametrize("every", [False, True])
def test_a_thread_of_the_program(every: bool, monkeypatch: pytest.MonkeyPatch, steps: Counter[str]) -> None:
    """Where it has no trees, its calls run eagerly; the gradients are right in any case."""

    def loop(model: nn.Module) -> Steps:
        for index in range(6):
            if index == 4:
                thread = threading.Thread(target=loss_and_backward, args=(model, index))
                thread.start()
                thread.join()
            else:
                loss_and_backward(model, index)
            yield grads(model)

    def loss_and_backward(model: nn.Module, index: int) -> None:
        model.zero_grad()
        model(batch(index)[0]).square().sum().backward()

    monkeypatch.setattr(graph_trees, "_EVERY_THREAD", every)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    for ours, theirs in zip(loop(compiled), loop(model), strict=True):
        torch.testing.assert_close(ours, theirs)
    report: Any = genesis.torch.report(compiled)
    assert report.eager_calls == (
        {} if every else {"in a thread of the program's, where PyTorch captures from 2.13 on": 1}
    )


def test_second_derivatives_are_an_error(short: nn.Module) -> None:
    x = batch(0)[0]
    loss = F.cross_entropy(short(x), batch(0)[1])
    with pytest.raises(RuntimeError, match="retain_graph=False"):
        torch.autograd.grad(loss, list(short.parameters()), create_graph=True)


def test_threads_of_autograd_and_grad_of_some(short: nn.Module, steps: Counter[str]) -> None:
    x = batch(0)[0]
    some = list(short.parameters())[:2]
    model = copy.deepcopy(short)
    ours = torch.autograd.grad(short(x).square().sum(), some)
    theirs = torch.autograd.grad(model(x).square().sum(), list(model.parameters())[:2])
    torch.testing.assert_close(ours, theirs)
    assert steps == {"forward": 1, "backward": 1}


# --- DistributedDataParallel around it ---
@pytest.mark.filterwarnings("ignore")  # of torch.distributed itself
@pytest.mark.parametrize(("splits", "wraps_first"), [(True, False), (False, False), (False, True)])
def test_data_parallel(
    small_buckets: float, splits: bool, wraps_first: bool, steps: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs end where buckets end if the user says so; on CUDA True, which is PyTorch's default, is no such wish."""
    monkeypatch.setattr(compiling, "_is_on_cuda", lambda model: True)
    models = Net(), Net()
    if not wraps_first:
        genesis.torch.compile(models[0])
    ours, theirs = (nn.parallel.DistributedDataParallel(x, bucket_cap_mb=small_buckets) for x in models)
    if wraps_first:
        genesis.torch.compile(ours)
    with torch._dynamo.config.patch(optimize_ddp="ddp_optimizer" if splits else True):
        agree(outcome(thrice(plain), ours), outcome(thrice(plain), theirs))
    graphs = genesis.torch.report(ours if wraps_first else models[0]).graphs
    assert len(graphs) == (2 if splits else 1), graphs
    assert all(graph.captured for graph in graphs)
    assert (steps["forward"] > 3) is not splits  # a graph after another goes PyTorch's way


@pytest.mark.filterwarnings("ignore")  # of torch.distributed itself
@pytest.mark.parametrize("splits", [True, False])
def test_data_parallel_in_a_function(small_buckets: float, splits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_is_on_cuda", lambda model: True)
    wrapped = [nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=small_buckets) for _ in range(2)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    compiled = genesis.torch.compile(loss)
    with torch._dynamo.config.patch(optimize_ddp="ddp_optimizer" if splits else True):
        for index in range(6):
            found = [compute(model, *batch(index)) for compute, model in zip((compiled, loss), wrapped, strict=True)]
            for each in found:
                each.backward()
            torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(*([x.grad for x in model.parameters()] for model in wrapped))
    captured = [graph for graph in compiled.report().graphs if graph.captured]
    assert len(captured) == (2 if splits else 1) + 1, captured  # the loss is one of its own
