"""genesis.torch.compile: loops as people write them, beside the same loops with the plain model."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import compile_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.errors import DTypeError
from genesis.torch import captured_graphs, capturing, compiling, outstanding, recordings
from tests.torch.loops import (
    LOOPS,
    Net,
    Steps,
    TwoHeads,
    agree,
    batch,
    evaluation_that_forgot_no_grad,
    one_of_two_heads,
    outcome,
    plain,
    tolerance,
    two_epochs,
    two_forwards,
)
from tests.torch.replayed import Replayed


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    torch._dynamo.reset()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda graph, *_, **__: Replayed(graph))
    monkeypatch.setattr(captured_graphs, "is_captured", lambda how: True)
    monkeypatch.setattr(captured_graphs, "_open_handles", lambda: None)
    monkeypatch.setattr(capturing, "available", lambda compiler, _: compiler)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # nothing that Inductor compiled elsewhere
        yield


KEPT = (two_forwards, evaluation_that_forgot_no_grad)  # results that wait for backward, which Replayed overwrites


@pytest.mark.parametrize("loop", KEPT, ids=lambda loop: loop.__name__)
def test_forward_passes_in_a_row(loop: Callable[[nn.Module], Steps]) -> None:
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager")
    agree(outcome(loop, compiled), outcome(loop, model))


@pytest.mark.parametrize("loop", [each for each in LOOPS if each not in KEPT], ids=lambda loop: loop.__name__)
@pytest.mark.usefixtures("replays")
def test_a_loop_runs_unmodified(loop: Callable[[nn.Module], Steps]) -> None:
    """What it holds is looked at when it is over: replays have not overwritten it."""
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(loop, compiled), outcome(loop, model), tolerance(loop))
    assert all(graph.captured for graph in genesis.torch.report(compiled).graphs)


def test_a_head_without_a_loss() -> None:
    """By Inductor; the second compilation finds both graphs in AOTAutograd's cache."""
    model = TwoHeads()
    expected = outcome(one_of_two_heads, copy.deepcopy(model))
    for _ in range(2):
        torch._dynamo.reset()
        agree(outcome(one_of_two_heads, genesis.torch.compile(copy.deepcopy(model))), expected)


@pytest.mark.usefixtures("replays")
def test_gradients_that_are_held() -> None:
    def grads(model: nn.Module) -> Steps:
        for _ in plain(model):
            yield from [x.grad for x in model.parameters()]

    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(grads, compiled), outcome(grads, model))


class Manager:
    """Stands for PyTorch's, which takes the next call after a backward for a new step."""

    running_forwards_with_pending_backwards = False


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, replays: None) -> Manager:
    one = Manager()
    monkeypatch.setattr(outstanding, "_managers", lambda: [one])
    return one


def test_pytorch_is_told_of_passes_whose_backward_is_to_come(manager: Manager) -> None:
    first, second = genesis.torch.compile(Net()), genesis.torch.compile(Net())
    x = batch(0)[0]
    waiting = first(x).sum()
    second(x).sum().backward()
    assert manager.running_forwards_with_pending_backwards
    manager.running_forwards_with_pending_backwards = False  # as that backward leaves it
    with torch.no_grad():
        second(x)
    assert manager.running_forwards_with_pending_backwards
    waiting.backward()
    manager.running_forwards_with_pending_backwards = False
    first(x)  # whose result is dropped
    first(x).sum().backward()
    assert not manager.running_forwards_with_pending_backwards


@pytest.mark.parametrize("fails", [False, True])
def test_a_pass_waits_for_the_end_of_its_backward(manager: Manager, fails: bool) -> None:
    """A hook may run another graph before all graphs of a model in several ones have had their backward."""
    model, other = Net(), genesis.torch.compile(Net())
    told: list[bool] = []

    def run(_: torch.Tensor) -> None:
        manager.running_forwards_with_pending_backwards = False  # as the backward of another graph leaves it
        with torch.no_grad():
            other(batch(0)[0])
        told.append(manager.running_forwards_with_pending_backwards)
        if fails:
            raise ValueError("as somebody interrupts it")

    next(model.parameters()).register_hook(run)
    loss = genesis.torch.compile(model)(batch(0)[0]).sum()
    with pytest.raises(ValueError, match="interrupts") if fails else contextlib.nullcontext():
        loss.backward()
    assert told == [True]
    assert not outstanding.any_waits(), "though the autograd graph is alive"
    manager.running_forwards_with_pending_backwards = False
    other(batch(0)[0])
    assert not manager.running_forwards_with_pending_backwards


@pytest.mark.usefixtures("manager")
@torch._functorch.config.patch(donated_buffer=False)  # else AOTAutograd refuses the first
def test_a_second_backward_after_another_step_is_an_error() -> None:
    model = genesis.torch.compile(Net())
    loss = model(batch(0)[0]).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    model(batch(1)[0])
    with pytest.raises(RuntimeError, match="backward through Net again, after another step"):
        loss.backward()


@pytest.mark.usefixtures("replays")
def test_a_result_twice_is_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Net):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            return {"logits": y, "again": y, "none": None}

    result = genesis.torch.compile(Twice())(batch(0)[0])
    assert result["logits"] is result["again"]
    assert result["none"] is None


@pytest.mark.usefixtures("replays")
def test_forward_passes_without_backward_are_not_all_captured() -> None:
    compiled, limit = genesis.torch.compile(Net()), capturing._MAX_WAITING
    for _ in range(4 * limit - 1):
        compiled(batch(0)[0])
    calls = genesis.torch.report(compiled).eager_calls
    assert list(calls.values()) == [2 * limit - 1]
    assert "wait for their backward" in next(iter(calls))
    for _ in range(2 * limit):
        compiled(batch(0)[0]).sum().backward()
    assert list(calls.values()) == [2 * limit]


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ for the CPU")
@pytest.mark.filterwarnings("ignore")
def test_by_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(captured_graphs, "is_captured", lambda how: True)
    monkeypatch.setattr(
        captured_graphs, "_open_handles", lambda: None
    )  # results are copied out of Inductor's graphs too
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    agree(outcome(plain, compiled), outcome(plain, model))
    (graph,) = genesis.torch.report(compiled).graphs
    assert (graph.compiler, graph.captured, graph.obstacle) == ("inductor", True, "")


# --- the model stays what it is ---
def test_state_copies_and_pickles_are_the_plain_models() -> None:
    model = Net()
    keys = list(model.state_dict())
    assert genesis.torch.compile(model, compiler="aot_eager") is model
    model(batch(0)[0])
    assert list(model.state_dict()) == keys
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for each in copies:
        assert type(each) is Net
        assert recordings.compiled_of(each) is None
        agree({"y": each.eval()(batch(1)[0])}, {"y": model.eval()(batch(1)[0])})
    genesis.torch.compile(copies[0], compiler="aot_eager")(batch(0)[0])
    assert genesis.torch.report(copies[0]).graphs


def test_models_that_say_themselves_what_a_pickle_holds() -> None:
    class Holds(Net):
        def __getstate__(self) -> dict[str, Any]:
            return self.__dict__.copy()

    model = genesis.torch.compile(Holds(), compiler="aot_eager")
    assert recordings.compiled_of(copy.deepcopy(model)) is None


def test_unfuse_gives_the_plain_model() -> None:
    model = Net()
    parameters, attributes = list(model.parameters()), set(model.__dict__)
    genesis.torch.compile(genesis.torch.fuse(model), compiler="aot_eager")(batch(0)[0])
    assert genesis.torch.unfuse(model) is model
    assert set(model.__dict__) == attributes
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_a_part_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, compiled = Net(), Net()
    genesis.torch.compile(compiled.stem, compiler="aot_eager")
    agree(outcome(plain, compiled), outcome(plain, model))
    assert genesis.torch.report(compiled.stem).fused == [("0", "1", "2")]


def test_inside_another_compilation() -> None:
    inner = genesis.torch.compile(Net(), compiler="aot_eager")
    outer = torch.compile(nn.Sequential(inner, nn.ReLU()), backend="aot_eager", fullgraph=True)
    agree({"y": outer(batch(0)[0])}, {"y": Net()(batch(0)[0]).relu()})


# --- what runs eagerly, and the report ---
def test_a_batch_that_comes_once_is_not_recorded() -> None:
    model = genesis.torch.compile(Net(), compiler="aot_eager")
    for size in (4, 4, 3, 4, 4, 3, 4):
        model(batch(0, size)[0])
    report = genesis.torch.report(model)
    assert len(report.graphs) == 1
    assert dict(report.eager_calls) == {"inputs of a new kind, recorded if they come again": 2}
    for _ in range(2):
        model(batch(0, 3)[0])
    assert len(report.graphs) == 2


def test_two_passes_of_a_new_kind_for_one_backward() -> None:
    def loop(model: nn.Module) -> Steps:
        yield from plain(model)
        for _ in range(3):
            loss = (model(batch(1, 3)[0]) - model(batch(2, 3)[0])).square().mean()
            loss.backward()
            yield loss

    model = Net()
    agree(outcome(loop, genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager")), outcome(loop, model))


@pytest.mark.parametrize(("reentrant", "graphs"), [(False, 1), (True, 2)])
def test_a_checkpoint_computes_again_what_ran_eagerly(reentrant: bool, graphs: int) -> None:
    """A batch of a new kind comes twice in a row then, and the second time must not be recorded."""

    def loop(model: nn.Module) -> Steps:
        for size in (4, 3, 4, 2):
            x, y = batch(size, size)
            F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=reentrant), y).backward()
            yield from [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager")
    agree(outcome(loop, compiled), outcome(loop, model))
    assert len(genesis.torch.report(compiled).graphs) == graphs


@pytest.mark.parametrize("part", ["", "stem.1"])
def test_hooks_that_are_registered_later(part: str) -> None:
    def loop(model: nn.Module) -> Steps:
        module = model.get_submodule(part)
        yield from plain(model)
        hooks = [
            module.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
            module.register_forward_hook(lambda module, args, output: output * 3),
        ]
        yield from plain(model)
        for hook in hooks:
            hook.remove()
        yield from plain(model)

    model = Net()
    agree(outcome(loop, genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager")), outcome(loop, model))


def test_inputs_that_come_often_are_recorded_though_never_in_a_row() -> None:
    model = genesis.torch.compile(Net(), compiler="eager")
    for _ in range(compiling._WORTH_IT):
        for size in (4, 3):
            model(batch(0, size)[0])
    assert len(genesis.torch.report(model).graphs) == 2


def test_dynamic_shapes_are_recorded_at_once() -> None:
    model = genesis.torch.compile(Net(), compiler="eager", dynamic=True)
    for size in (4, 3, 5):
        model(batch(0, size)[0])
    assert not genesis.torch.report(model).eager_calls


def test_dynamic_shapes_of_a_step() -> None:
    """PyTorch 2.13 takes the numbers of a norm for symbols at first, and begins anew where they cannot be."""
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager", dynamic=True)
    agree(outcome(two_epochs, compiled), outcome(two_epochs, model))
    graphs = genesis.torch.report(compiled).graphs
    assert not any(graph.obstacle for graph in graphs), str(graphs)
    assert all(graph.fusion.fused for graph in graphs)


class Breaks(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        torch._dynamo.graph_break()
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_the_report() -> None:
    model = Breaks()
    compiled = genesis.torch.compile(copy.deepcopy(model), compiler="aot_eager")
    agree(outcome(plain, compiled), outcome(plain, model))
    report = genesis.torch.report(compiled)
    assert report.fused[0] == ("stem.0", "stem.1", "stem.2")
    ((place, reason),) = report.breaks
    line = Breaks.forward.__code__.co_firstlineno + 2
    assert place == f"{__file__}:{line}"
    assert "graph_break" in reason
    text = str(report)
    assert text.startswith("Breaks: 2 graphs\n  with gradients, by aot_eager, ")
    assert f"ends at {__file__}:{line}: " in text


def test_what_does_not_compile_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such kernel\nmore")

    monkeypatch.setattr(compile_fx, "compile_fx", fails)
    monkeypatch.setattr(capturing, "available", lambda compiler, _: compiler)
    model = Net()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    with pytest.warns(UserWarning, match="a part of Net runs eagerly: ValueError: no such kernel$"):
        ours = outcome(plain, compiled)
    agree(ours, outcome(plain, model))
    assert "eagerly, as ValueError: no such kernel" in str(genesis.torch.report(compiled))


def test_without_a_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder, exc

    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    capturing._has_cpp_compiler.cache_clear()
    compiled = genesis.torch.compile(Net())
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        compiled(batch(0)[0])
    assert [graph.compiler for graph in genesis.torch.report(compiled).graphs] == ["aot_eager"]
    capturing._has_cpp_compiler.cache_clear()


# --- around it ---
@pytest.mark.filterwarnings("ignore")  # of torch.distributed itself
def test_distributed_data_parallel(small_buckets: float) -> None:
    """Dynamo ends graphs where the gradients' buckets end, except on CUDA: here are two."""
    compiled = genesis.torch.compile(Net(), compiler="aot_eager")
    ours, theirs = (nn.parallel.DistributedDataParallel(x, bucket_cap_mb=small_buckets) for x in (compiled, Net()))
    agree(outcome(plain, ours), outcome(plain, theirs))
    assert len(genesis.torch.report(compiled).graphs) == 2


# --- functions ---
def test_a_whole_step() -> None:
    def run(wrap: Callable[[Any], Any]) -> dict[str, Tensor]:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, y: Tensor) -> Tensor:
            """One step."""
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(step)
        assert step.__doc__ == "One step."
        losses = [step(*batch(index)) for index in range(4)]
        return {f"loss {i}": loss for i, loss in enumerate(losses)} | model.state_dict()

    agree(run(genesis.torch.compile(compiler="aot_eager")), run(lambda step: step))


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_as_before_once_a_target_is_compiled(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    compile_graph = capturing.Backend.__call__

    def compiling_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(gc.isenabled())
        return compile_graph(self, *args, **kwargs)

    monkeypatch.setattr(capturing.Backend, "__call__", compiling_graph)
    torch._dynamo.reset()
    step: Any = genesis.torch.compile(lambda x: x + 1, compiler="eager")
    if not enabled:
        gc.disable()
    try:
        step(torch.ones(2))
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_report_of_a_function() -> None:
    @genesis.torch.compile(compiler="eager")
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert double(torch.ones(2)).tolist() == [2, 2]
    assert len(double.report().graphs) == 1


# --- arguments ---
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target": 3}, DTypeError, "argument 'target': expected a torch.nn.Module or a function, got int"),
        ({"tune": -1}, ValueError, "argument 'tune': expected a number of seconds from 0 on, got -1"),
        ({"tune": "5"}, ValueError, "argument 'tune': expected a number of seconds from 0 on, got '5'"),
        ({"mode": "fast"}, ValueError, "argument 'mode': expected one of default, .*, got 'fast'"),
        ({"compiler": "gcc"}, ValueError, "argument 'compiler': expected one of .*, got 'gcc'"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        genesis.torch.compile(**{"target": Net(), **arguments})


def test_tuning_has_nothing_to_measure_on_the_cpu() -> None:
    model = genesis.torch.compile(Net(), tune=5, compiler="eager")
    model(batch(0)[0])
    assert genesis.torch.report(model).notes == ["not tuned: the inputs are not on CUDA"]
