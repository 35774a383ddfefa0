"""The recorder: numbers, memories, versions, regions."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

import genesis
from genesis import backends, nn
from genesis import functional as F
from genesis.autograd.modes import enable_grad, without_folding
from genesis.recording import Call, Kind, Recorder, Region, regions_in


def tapped(recorder: Recorder) -> Any:
    return backends.use("cpu", recorder.tap(backends.get("cpu")))


def ops(calls: list[Call | Region]) -> list[Call]:
    return [call for call in calls if isinstance(call, Call)]


def recorded_ops(run: Any, *inputs: genesis.Tensor) -> tuple[Recorder, list[Call]]:
    recorder = Recorder()
    for tensor in inputs:
        recorder.declare(Kind.INPUT, tensor.array.handle)
    with tapped(recorder), genesis.no_grad():
        run(*inputs)
    return recorder, ops(recorder.calls)


def test_a_call_says_what_it_took_and_gave() -> None:
    _, (mul, cat) = recorded_ops(lambda x: F.cat([x * 2, x], 1), genesis.ones(2, 3))
    assert (mul.op, cat.op) == ("mul", "cat")
    x, two = mul.args
    assert x == mul.operands[0]
    assert two == 2.0
    assert x.memory.kind is Kind.INPUT  # type: ignore[attr-defined]
    (product,) = mul.outputs
    assert cat.args == ([product, x], 1)
    assert (product.number, product.shape, product.memory.kind) == (1, (2, 3), Kind.INTERMEDIATE)
    assert cat.outputs[0].shape == (2, 6)
    assert cat.line.startswith(__file__)


def test_views_show_one_memory() -> None:
    recorder, (view, relu) = recorded_ops(lambda x: x.permute(1, 0).relu(), genesis.ones(2, 3))
    (base,), (shown,) = view.operands, view.outputs
    assert shown.memory is base.memory
    assert shown.number != base.number
    assert relu.operands == [shown]
    assert relu.outputs[0].memory is not base.memory
    assert relu.outputs[0].memory.number == relu.outputs[0].number
    assert recorder.given == {}


def test_changes_in_place_make_new_versions_of_all_that_show_the_memory() -> None:
    def run(x: genesis.Tensor) -> None:
        row = x[0]
        row.add_(1)
        x.sum()
        row.sum()

    _, calls = recorded_ops(run, genesis.ones(2, 3))
    view, add, copy, whole, part = calls
    assert [call.op for call in calls] == ["view", "add", "copy_into", "sum", "sum"]
    (row,) = view.outputs
    assert add.operands == [row]
    assert copy.changed == (row,)
    assert [value.contents for value in copy.operands] == [(row.number, 0), (add.outputs[0].number, 0)]
    assert [value.contents for value in (*whole.operands, *part.operands)] == [(0, 1), (row.number, 1)]


@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_change_in_training(training: bool) -> None:
    recorder, norm = Recorder(), nn.BatchNorm2d(2).train(training)
    for tensor in (norm.running_mean, norm.running_var):
        recorder.declare(Kind.BUFFER, tensor.array.handle)
    with tapped(recorder), without_folding():
        norm(genesis.ones(2, 2, 3, 3))
    (call,) = [call for call in ops(recorder.calls) if call.op == "batch_norm"]
    assert [value.number for value in call.changed] == [0, 1] * training
    assert all(value.memory.kind is Kind.BUFFER for value in call.changed)


def test_arrays_that_nobody_declared_are_constants_and_are_kept() -> None:
    other = genesis.ones(3)
    recorder, (add,) = recorded_ops(lambda x: x + other, genesis.ones(2, 3))
    _, constant = add.operands
    assert constant.memory.kind is Kind.CONSTANT
    assert recorder.given == {constant.number: other.array.handle}


def test_results_are_not_kept_and_their_numbers_are_not_given_to_others() -> None:
    held = []

    def run(x: genesis.Tensor) -> None:
        for _ in range(20):
            x = x + 1  # each may lie where the one before the last did
            held.append(weakref.ref(x.array.handle))

    recorder, calls = recorded_ops(run, genesis.ones(2))
    assert [ref() for ref in held] == [None] * 20
    assert [(call.operands[0].number, call.outputs[0].number) for call in calls] == [(i, i + 1) for i in range(20)]
    assert recorder.given == {}


def test_calls_can_be_left_out_and_noted_by_hand() -> None:
    x, recorder = genesis.ones(2), Recorder()
    value = recorder.declare(Kind.INPUT, x.array.handle)
    with tapped(recorder), recorder.paused():
        x.neg()
    call = recorder.note("update", print, ([x.array.handle],), {}, changed=[[x.array.handle]])
    assert recorder.calls == [call]
    assert (call.args, call.changed, call.outputs) == (([value],), (value,), [])
    found = recorder.value_of(x)
    assert found is not None
    assert found.contents == (0, 1)


def test_functions_are_followed_through_changes_in_place() -> None:
    model, recorder = nn.Linear(2, 3), Recorder()
    recorder.declare_state(model)
    assert recorder.names == {0: ("weight",), 1: ("bias",)}
    with enable_grad(), recorder.functions():
        y = model(genesis.ones(1, 2))
        y.relu_()
        y.reshape(3)
    linear, relu, reshape = [call for call in ops(recorder.calls) if call.op in ("Linear", "ReLU", "Reshape")]
    assert [value.memory.kind for value in linear.operands] == [Kind.CONSTANT, Kind.PARAMETER, Kind.PARAMETER]
    assert relu.operands == linear.outputs
    assert reshape.operands == relu.outputs
    assert reshape.outputs[0].number != reshape.operands[0].number


def test_shared_parameters_have_all_their_names() -> None:
    first = nn.Linear(2, 2)
    model = nn.Sequential(first, nn.BatchNorm1d(2), first)
    recorder = Recorder()
    recorder.declare_state(model)
    assert list(recorder.names.values()) == [
        ("0.weight", "2.weight"), ("0.bias", "2.bias"), ("1.weight",), ("1.bias",),
        ("1.running_mean",), ("1.running_var",), ("1.num_batches_tracked",),
    ]  # fmt: skip
    assert [type(tensor) for tensor in recorder.given.values()] == [nn.Parameter] * 4 + [genesis.Tensor] * 3


def test_regions_nest() -> None:
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Sigmoid())
    x, recorder = genesis.ones(2), Recorder()
    recorder.declare(Kind.INPUT, x.array.handle)
    with tapped(recorder), recorder.regions(model.modules()), genesis.no_grad():
        model(x).exp()
    outer, exp = recorder.calls
    assert isinstance(outer, Region)
    assert isinstance(exp, Call)
    assert [region.module for region in regions_in(recorder.calls)] == list(model.modules())
    inner, sigmoid = outer.calls
    assert isinstance(inner, Region)
    assert isinstance(sigmoid, Region)
    assert sigmoid.args == (inner.results,)
    assert exp.args == (outer.results,)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_regions_with_and_without_the_hooks_of_users() -> None:
    model, x = nn.ReLU(), genesis.ones(2)
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.register_forward_hook(lambda module, args, output: output + 1)
    recorder = Recorder()
    recorder.declare(Kind.INPUT, x.array.handle)
    with (
        tapped(recorder), genesis.no_grad(), recorder.regions([model], with_hooks=False), recorder.regions([model]),
    ):  # fmt: skip
        model(x)
    (outer,) = recorder.calls
    assert isinstance(outer, Region)
    mul, inner, add = outer.calls
    assert isinstance(mul, Call)
    assert isinstance(inner, Region)
    assert isinstance(add, Call)
    assert (mul.op, [call.op for call in ops(inner.calls)], add.op) == ("mul", ["relu"], "add")
    assert inner.args == (mul.results,)
    assert add.args[0] == inner.results
    assert (outer.args, outer.results) == (mul.args[:1], add.results)


def test_a_module_that_raises_leaves_the_others_their_regions() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(5, 1), nn.ReLU()

        def forward(self, x: Any) -> Any:
            with pytest.raises(ValueError, match="linear"):
                self.bad(x)
            return self.good(x)

    model, recorder = Careful(), Recorder()
    with recorder.regions(model.modules()), recorder.functions():
        result = model(genesis.ones(2))
    (outer,) = recorder.calls
    assert isinstance(outer, Region)
    assert outer.results == recorder.value_of(result)
    assert [region.results is None for region in regions_in([outer])] == [False, True, False]
