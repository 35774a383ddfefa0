"""Passes of a network that are made to look at it: in either mode, and without traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import genesis
from genesis import dtypes
from genesis.autograd import enable_grad, no_grad
from genesis.autograd.modes import without_autocast, without_dropout, without_folding
from genesis.errors import GraphError
from genesis.growth.snapshot import Tables, copies_of
from genesis.interrupts import Whole, at_once
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.tensor import Tensor

# Of the least change of a weight that rounding makes; float32 with the few bits of TF32, which devices may compute in.
_ROUNDING = {dtypes.float64: 2.0**-50, dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}
_ROUNDING_FLOAT32 = {"cpu": 2.0**-22, "cuda": 2.0**-11}


def tensors_in(value: object) -> list[Tensor]:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def outputs_of(model: Module, args: tuple[object, ...]) -> list[Tensor]:
    """The model's outputs in eval mode."""
    with in_mode(model, training=False):
        return _outputs(model, args)


class Trained(NamedTuple):
    """A network's outputs in training mode.

    Attributes:
        drawn: the states of the random generators afterwards: equal where as many numbers were drawn.
        error: why there are no outputs.
    """

    outputs: list[Tensor]
    drawn: tuple[object, ...]
    error: Exception | None = None


def trained_outputs_of(model: Module, args: tuple[object, ...]) -> Trained:
    """The model's outputs in training mode without dropout, from the same random numbers each time."""
    with without_traces(model), in_mode(model, training=True), without_dropout():
        for seed in (genesis.manual_seed, random.seed, np.random.seed):
            seed(0)
        try:
            outputs = [output.detach().clone() for output in _outputs(model, args)]  # of buffers, which are put back
        except Exception as error:
            return Trained([], (), error)
        return Trained(outputs, RandomStates(model).states)


def rounding_of(model: Module, args: tuple[object, ...]) -> list[Tensor]:
    """The outputs in training mode if each weight were rounded another way: how far they move is the network's own."""
    generator = np.random.default_rng(0)
    parameters = [parameter for parameter in model.parameters() if parameter.dtype.is_floating_point]
    kept = [(setattr, parameter, "array", parameter.array) for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.array = _rounded_otherwise(parameter.array, generator)
        return trained_outputs_of(model, args).outputs
    finally:
        at_once(kept)


def _rounded_otherwise(array: NDArray, generator: np.random.Generator) -> NDArray:
    step = _ROUNDING.get(array.dtype, _ROUNDING_FLOAT32.get(array.device.type, 0.0))
    factors = genesis.tensor(1 + step * generator.choice((-1.0, 1.0), array.shape))
    return array.mul(factors.to(array.dtype).to(array.device).array)


def _outputs(model: Module, args: tuple[object, ...]) -> list[Tensor]:
    with without_folding(), without_autocast():
        try:
            with no_grad():
                return tensors_in(model(*args))
        except GraphError:  # it differentiates on the way
            with enable_grad():
                return [output.detach() for output in tensors_in(model(*args))]


class undone_after(Whole[None]):  # noqa: N801  (a with block, as held is)
    """Call undo() at the end, whatever is raised and wherever an interrupt comes; again if one came in between.

    No generator: one that an interrupt left would call it when it is collected, long after others have put more back.

    Args:
        begin: called at the beginning.
    """

    def __init__(self, undo: Callable[[], None], begin: Callable[[], object] = lambda: None) -> None:
        self._undo, self._begin = undo, begin

    def begin(self) -> None:
        self._begin()

    def commit(self) -> None:
        self._undo()

    def undo(self, error: BaseException) -> None:
        self._undo()


def in_mode(model: Module, training: bool) -> undone_after:
    """Put the whole model into one mode; afterwards, each module returns to its own."""
    before = [(module, module.training) for module in model.modules()]

    def undo() -> None:
        mode = before[0][1]
        model.train(mode)
        for module, its in before:
            if its is not mode:
                module.training = its

    return undone_after(undo, lambda: model.train(training))


def without_traces(model: Module) -> undone_after:
    """Undo what a pass in training mode leaves behind: statistics, attributes, random numbers drawn."""
    attributes = Tables(vars(module) for module in model.modules())
    buffers = copies_of(buffer.array for buffer in model.buffers())
    random_states = RandomStates(model)

    def undo() -> None:
        attributes.restore()
        buffers.restore()
        random_states.restore()

    return undone_after(undo)


class RandomStates:
    """The states of the random generators that a network may draw from: Genesis', Python's and NumPy's."""

    def __init__(self, model: Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        self._devices = sorted({tensor.device for tensor in tensors} | {genesis.device("cpu")}, key=str)
        own = [genesis.get_rng_state(device).numpy().tobytes() for device in self._devices]
        name, keys, *place = np.random.get_state(legacy=True)
        self._own, self._python, self._numpy = own, random.getstate(), (name, np.asarray(keys).tobytes(), *place)

    @property
    def states(self) -> tuple[object, ...]:
        """Values that are equal where the generators are in equal states."""
        return (*self._own, self._python, self._numpy)

    def restore(self) -> None:
        for device, state in zip(self._devices, self._own, strict=True):
            genesis.set_rng_state(genesis.tensor(np.frombuffer(state, np.uint8), device="cpu"), device)
        random.setstate(self._python)
        name, keys, *place = self._numpy
        np.random.set_state((name, np.frombuffer(keys, np.uint32), *place))
