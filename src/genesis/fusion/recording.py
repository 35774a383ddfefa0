"""Record how modules use their layers in a forward: calls of children, sums, ReLUs, by the values they pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genesis import backends, nn, no_grad, recording
from genesis.backends.contract import TRAITS
from genesis.fusion.chains import ADD
from genesis.recording import Kind, Region, Value, regions_in
from genesis.tensor import Tensor

RELU = "ReLU"
_OPS = {"add": ADD, "relu": RELU}


class Call(NamedTuple):
    """A child's name, ADD or RELU; the numbers of the operands and of the result. The module's input is number 0."""

    name: str
    operands: tuple[int, ...]
    result: int


class Recorded(NamedTuple):
    """The calls of one module in order, the number of what it returns, and why they cannot be replayed."""

    calls: list[Call]
    output: int
    obstacle: str = ""


def record(model: nn.Module, modules: Sequence[nn.Module], example: Tensor) -> dict[nn.Module, Recorded]:
    """Run the model on the example, in eval mode, and record what each of the modules does.

    It runs twice: the second time the modules themselves (not their layers) are told that they are training.
    """
    modes = [(module, module.training) for module in model.modules()]
    found: list[dict[nn.Module, Recorded]] = []
    try:
        for mode in (False, True):
            for module, _ in modes:
                module.__dict__["training"] = mode and module in modules
            found.append(_run(model, modules, example))
    finally:
        for module, training in modes:
            module.__dict__["training"] = training
    return {
        module: seen if seen == found[1].get(module) else Recorded([], -1, "it does something else in training")
        for module, seen in found[0].items()
    }


def _run(model: nn.Module, modules: Sequence[nn.Module], example: Tensor) -> dict[nn.Module, Recorded]:
    recorder = recording.Recorder()
    recorder.declare(Kind.INPUT, example.array.handle)
    device = example.device.type
    children = dict.fromkeys(child for module in modules for child in module.children())
    with (
        no_grad(), backends.use(device, recorder.tap(backends.get(device))),
        recorder.regions(modules, with_hooks=False), recorder.regions(children),
    ):  # fmt: skip
        model(example)
    found: dict[nn.Module, Recorded] = {}
    for region in regions_in(recorder.calls):
        if not region.with_hooks:
            is_first = region.module not in found
            found[region.module] = _recorded(region) if is_first else Recorded([], -1, "it is called several times")
    return found


class _ObstacleError(Exception):
    """Why a module's calls cannot be replayed."""


def _recorded(region: Region) -> Recorded:
    """The record of a forward that only called its module's layers, added, and applied ReLU; else None."""
    names = {child: name for name, child in region.module.named_children()}
    calls: list[Call] = []
    numbers: dict[tuple[int, int], int] = {}  # of values, by their contents
    try:
        given = _one_value(region.args, region.kwargs, "it takes something else than one tensor")
        numbers[given.contents] = 0
        for each in region.calls:
            if isinstance(each, Region):
                name, operands = _layer(each, names)
            elif TRAITS[each.op].query:
                continue
            else:
                name, operands = _sum_or_relu(each)
            places = tuple([_number(numbers, operand) for operand in operands])
            result = _one_value((each.results,), {}, f"{name} takes or gives something else than one tensor")
            calls.append(Call(name, places, numbers.setdefault(result.contents, len(numbers))))
        output = _one_value((region.results,), {}, "it returns something else than one tensor")
        return Recorded(calls, _number(numbers, output))
    except _ObstacleError as obstacle:
        return Recorded([], -1, str(obstacle))


def _layer(region: Region, names: Mapping[nn.Module, str]) -> tuple[str, Sequence[Value]]:
    if region.module not in names:
        raise _ObstacleError("it calls a layer of another module")
    name = names[region.module]
    return name, [_one_value(region.args, region.kwargs, f"{name} takes or gives something else than one tensor")]


def _sum_or_relu(call: recording.Call) -> tuple[str, Sequence[Value]]:
    operands = [arg for arg in call.args if isinstance(arg, Value)]
    if call.op not in _OPS or len(operands) < len(call.args):
        raise _ObstacleError(f"it computes {call.op} beside its layers")
    return _OPS[call.op], operands


def _one_value(places: Sequence[object], options: Mapping[str, object], obstacle: str) -> Value:
    if len(places) == 1 and not options and isinstance(places[0], Value):
        return places[0]
    raise _ObstacleError(obstacle)


def _number(numbers: Mapping[tuple[int, int], int], value: Value) -> int:
    if value.contents not in numbers:
        raise _ObstacleError("it uses values that are no results of its layers")
    return numbers[value.contents]
