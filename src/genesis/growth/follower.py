"""Runs a network and follows its channels, by the rule of each op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from genesis.autograd import enable_grad
from genesis.autograd.modes import without_autocast
from genesis.growth.layouts import Layout, Layouts
from genesis.growth.passes import tensors_in
from genesis.nn import MultiheadAttention
from genesis.nn.module import Module
from genesis.recording import Call, Recorder, Region, Value
from genesis.shapes import Shape
from genesis.tensor import Tensor


class Passage(NamedTuple):
    """A module's input and output."""

    input_shape: Shape
    output_shape: Shape
    input_layout: Layout
    output_layout: Layout


class Follower:
    """The layouts of a network's values, from one run or several.

    Args:
        apply_rule: called with the layouts and each call.

    Attributes:
        layouts: of all values so far.
        passages: for each module that was called with a tensor, by name.
    """

    def __init__(self, model: Module, apply_rule: Callable[[Layouts, Call], None]) -> None:
        self._model, self._apply_rule = model, apply_rule
        self._recorder = Recorder()
        self._modules = self._recorder.declare_state(model)
        self._parameters = list(model.parameters())
        self.layouts = Layouts(self._recorder.names)
        self.passages: dict[str, Passage] = {}
        self._seen: set[int | None] = set()  # parameters that an op took

    def run(self, args: tuple[object, ...]) -> list[Tensor]:
        """Call the model on args and follow it; gives the tensors of its output.

        In the precision of the model itself, inside of autocast too: what that has cast before would not be seen.
        """
        recorder = self._recorder
        with (
            as_if_trained(self._parameters), without_autocast(), recorder.regions(self._modules), recorder.functions(),
        ):  # fmt: skip
            outputs = tensors_in(self._model(*args))
        self._follow(recorder.calls)
        recorder.calls.clear()
        for output in outputs:
            self.layouts.fix(recorder.value_of(output), "it is an output of the network")
        return [output.detach() for output in outputs]

    def unreached(self) -> tuple[str, ...]:
        """The parameters that the runs did not use."""
        values = map(self._recorder.value_of, self._parameters)
        missed = [value.number for value in values if value is not None and value.number not in self._seen]
        return tuple(self.layouts.names[number][0] for number in dict.fromkeys(missed))

    def _follow(self, calls: Sequence[Call | Region]) -> None:
        for each in calls:
            if isinstance(each, Call):
                self._seen.update(self.layouts.owner(arg) for arg in each.args if isinstance(arg, Value))
                self._apply_rule(self.layouts, each)
                continue
            if isinstance(each.module, MultiheadAttention):
                for value in (*each.args, *each.kwargs.values()):
                    self.layouts.fix(value, "attention splits it into heads")
            self._follow(each.calls)
            given = [arg for arg in each.args if isinstance(arg, Value)]
            if given and isinstance(each.results, Value):
                layouts = self.layouts.of(given[0]), self.layouts.of(each.results)
                self.passages[self._modules[each.module]] = Passage(given[0].shape, each.results.shape, *layouts)


@contextlib.contextmanager
def as_if_trained(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Layers run as they would in training, not folded together; frozen ones too, and part of the graph."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad = parameter.dtype.is_floating_point
        with enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False
