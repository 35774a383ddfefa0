"""Transactions: growth steps that happen whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypedDict, TypeVar, Unpack

import numpy as np

import genesis
from genesis.distributed.group import is_initialized, require
from genesis.errors import GrowthError, describe
from genesis.growth.channel_map import ChannelMap, channel_map
from genesis.growth.history import Operation, Step, history
from genesis.growth.known import KnownMap, Look
from genesis.growth.passes import RandomStates, Trained, outputs_of, trained_outputs_of, undone_after
from genesis.growth.places import tensors_of
from genesis.growth.preserved import checked, checked_in_training
from genesis.growth.snapshot import HasState, Snapshot, thread_modes
from genesis.interrupts import Whole, at_once
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter
from genesis.optim.optimizer import Optimizer
from genesis.optim.options import Group
from genesis.tensor import Tensor

log = logging.getLogger("genesis.growth")
T = TypeVar("T")


class Options(TypedDict, total=False):
    """The arguments of transaction() that each operation takes where no transaction is open."""

    optimizer: Optimizer | Sequence[Optimizer] | None
    example: object
    averages: Module | Sequence[Module]
    also: HasState | Sequence[HasState]
    seed: int | None
    keep: bool


class _Room(Protocol):
    """A limit of what a network may grow to."""

    def check(self, op: str, where: str, elements: int) -> None:
        """Raise if a change here creates tensors of too many elements."""


class Transaction:
    """The model that operations change, and everything that must change with it."""

    is_single = False  # opened by one operation, for itself: nobody else changes anything until it has ended
    carries = False  # such an operation, which knows what it does to the map: begins with that of the growth before it
    room: _Room | None = None  # replay()'s limit
    has_carried = False  # and did so: no pass of this transaction has shown that it still is right

    def __init__(
        self, model: Module, optimizers: Sequence[Optimizer], example: object, averages: Sequence[Module],
        seed: int | None,
    ) -> None:  # fmt: skip
        self.model, self.optimizers, self.averages = model, optimizers, averages
        self.example = example if example is None or isinstance(example, tuple) else (example,)
        self.generator = np.random.default_rng(_common_seed() if seed is None else seed)
        self.step = Step(len(history(model)), count(model))
        self._map: ChannelMap | None = None
        self._trained: Trained | None = None  # what the network of this map gives in training mode
        self._has_changed = False
        self.unfinished = ""  # the operation that has begun to change the network, and has not ended
        self._mark: tuple[list[NDArray], list[int]] = [], []
        self.known_before = KnownMap()

    @property
    def map(self) -> ChannelMap:
        """The channel map of the model as it is now, with its outputs on the example."""
        arrays = [] if self.is_single else [tensor.array for tensor in tensors_of(self.model.modules())]
        counts = [array.changes.count for array in arrays]
        known, known_counts = self._mark  # the very arrays: ids alone could have been given to new ones
        if self._map is None or counts != known_counts or not all(map(operator.is_, arrays, known)):
            if self.example is None:
                raise GrowthError(
                    describe("growth", "example", "an input of the network, to see how its channels flow", None)
                )
            try:
                self._map, self._mark, self._trained = self._new_map(), (arrays, counts), None
            except Exception as error:
                if self._has_changed or isinstance(error, GrowthError):
                    raise
                reason = f"the network does not run on it: {type(error).__name__}: {error}"
                raise GrowthError(f"growth: argument 'example': {reason}") from error
        return self._map

    def _new_map(self) -> ChannelMap:
        assert self.example is not None
        if not self.carries or self._has_changed:
            return channel_map(self.model, self.example)
        look = Look(self.model, self.example)
        known = history(self.model).known.of(look)
        self.has_carried = known is not None
        if known is None:
            made = channel_map(self.model, self.example)
        else:
            made = known.giving(outputs_of(self.model, self.example))
        self.known_before = KnownMap(made, look)
        return made

    def known_now(self) -> KnownMap:
        """The map that the next growth can begin with."""
        if not self.carries or self._map is None:
            return KnownMap()
        assert self.example is not None
        return KnownMap(self._map, Look(self.model, self.example))

    def run(
        self, operation: Operation, change: Callable[[], None], keeps_function: bool, more_follows: bool = False,
        resized: Callable[[], ChannelMap | None] = lambda: None, new: Module | None = None,
    ) -> None:  # fmt: skip
        """Do an operation, run the network again, and compare: if outputs have moved, it is undone.

        Args:
            operation: its name and arguments, for the log.
            change: does it.
            keeps_function: whether the outputs must stay the same.
            more_follows: the caller has more to do and needs the next map.
            resized: derives the map afterwards from the one before, where possible, for operations that carry maps.
            new: a module that is in the network afterwards, and must be called.
        """
        before = self.map.outputs
        trained = self._trained_before(operation["operation"]) if keeps_function else None
        place = self.unfinished = f"{operation['operation']} of {operation['where']}"
        change()
        self._map, self._has_changed = resized() if self.carries else None, True
        with _noting_calls(new) as calls:
            after = self._outputs_after(place, more_follows)
            assert self.example is not None
            self._trained = None if trained is None else trained_outputs_of(self.model, self.example)
        if new is not None and not calls:
            raise GrowthError(
                f"{place}: the network does not call what was put there: it holds the old module elsewhere"
            )
        if keeps_function:
            deviation = checked(operation, before, after)
            self.step.deviation = max(deviation, self.step.deviation or 0.0)
        if trained is not None and self._trained is not None:
            deviation = checked_in_training(operation, trained, self._trained, self.model, self.example)
            self.step.training_deviation = max(deviation, self.step.training_deviation or 0.0)
        self.step.example = [(arg.shape, arg.dtype.name) if isinstance(arg, Tensor) else arg for arg in self.example]
        self.step.operations.append(operation)
        self.unfinished = ""

    def _outputs_after(self, place: str, more_follows: bool) -> list[Tensor]:
        """The outputs in eval mode after an operation."""
        assert self.example is not None
        try:
            if self._map is not None:
                after = outputs_of(self.model, self.example)
                self._map, self.has_carried = self._map.giving(after), self.has_carried or more_follows
                return after
            return self.map.outputs if more_follows or not self.is_single else outputs_of(self.model, self.example)
        except Exception as error:
            raise GrowthError(f"{place}: the network does not run any more: {type(error).__name__}: {error}") from error

    def _trained_before(self, op: str) -> Trained | None:
        """The network's outputs in training mode, if it runs on the example there."""
        if self._trained is None:
            assert self.example is not None
            self._trained = trained_outputs_of(self.model, self.example)
        error = self._trained.error
        if error is None:
            return self._trained
        warnings.warn(
            f"{op}: the network does not run on the example in training mode, so that what it computes there is not "
            f"compared (two samples are enough for batch norm): {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None

    def require_room(self, op: str, where: str, elements: int) -> None:
        """Before tensors are made of so many elements."""
        if self.room is not None:
            self.room.check(op, where, elements)

    def twins(self, name: str) -> list[Tensor]:
        """The parameter or buffer of this name in the model, then in its averages."""
        path, _, member = name.rpartition(".")
        found: list[Tensor] = []
        for network in (self.model, *self.averages):
            try:
                part = network.get_submodule(path)
                tensor = part._parameters[member] if member in part._parameters else part._buffers[member]
            except (AttributeError, KeyError):
                message = describe("growth", "averages", "copies of the network", f"one without '{name}'")
                raise GrowthError(message) from None
            assert tensor is not None
            found.append(tensor)
        return found

    def random(self) -> undone_after:
        """Draw from this transaction's generator what layers draw when they are made; Genesis' own is left alone."""
        seed = int(self.generator.integers(2**31))
        return undone_after(RandomStates(self.model).restore, lambda: genesis.manual_seed(seed))

    def adopt(self, parameters: Iterable[Parameter], neighbour: Parameter | None) -> None:
        """Have the optimizer that learns neighbour learn these parameters too, with the same options."""
        group = self._group_of(neighbour)
        if group is not None:
            group["params"].extend(parameters)

    def abandon(self, module: Module) -> None:
        """Take module's parameters from the optimizers, unless the model has them elsewhere too."""
        kept = {id(parameter) for parameter in self.model.parameters()}
        gone = {id(parameter): parameter for parameter in module.parameters() if id(parameter) not in kept}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]
            for parameter in gone.values():
                optimizer.state.pop(parameter, None)

    def _group_of(self, parameter: Parameter | None) -> Group | None:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group in groups:
            if any(member is parameter for member in group["params"]):
                return group
        return groups[0] if groups else None


@contextlib.contextmanager
def _noting_calls(module: Module | None) -> Iterator[list[Module]]:
    calls: list[Module] = []
    hook = None if module is None else module.register_forward_hook(lambda module, args, output: calls.append(module))
    try:
        yield calls
    finally:
        if hook is not None:
            hook.remove()


_active = threading.local()


def _open() -> dict[int, Transaction]:
    """The transactions that are open in this thread, by the ids of their models."""
    table: dict[int, Transaction] = vars(_active).setdefault("open", {})
    return table


def current(model: Module) -> Transaction | None:
    """The transaction of this model that is open in this thread."""
    return _open().get(id(model))


class _Block(Whole[T]):
    """The with block of a transaction; `names` is what `as` gives: the step, or the transaction."""

    def __init__(self, opened: Transaction, others: Sequence[HasState], keep: bool, names: T) -> None:
        self.opened, self._others, self._keep, self._names = opened, others, keep, names
        self._past, self._modes = history(opened.model), thread_modes()
        self._snapshot: Snapshot | None = None
        self._failures: list[str] = []  # with this one, once it is undone

    def begin(self) -> T:
        opened = self.opened
        if current(opened.model) is not None:
            raise GrowthError("transaction: one of this model is open already; operations inside it are part of it")
        models = [opened.model, *opened.averages]
        self._snapshot = Snapshot(models, opened.optimizers, self._others, [self._past.steps])
        _open()[id(opened.model)] = opened
        return self._names

    def commit(self) -> None:
        opened, step = self.opened, self.opened.step
        if opened.unfinished:
            raise GrowthError(f"transaction: {opened.unfinished} failed half way, and its error was caught inside")
        step.parameters = (step.parameters[0], count(opened.model))
        step.snapshot, step.history = self._snapshot if self._keep else None, self._past
        step.known_before = opened.known_before
        at_once([
            (self._past.steps.append, step),
            (setattr, self._past, "known", opened.known_now()),
            (_open().pop, id(opened.model), None),
        ])  # fmt: skip

    def undo(self, error: BaseException) -> None:
        past = self._past
        if self._snapshot is None or any(step is self.opened.step for step in past.steps):
            return  # nothing has begun, or all has ended
        self._modes.restore()
        reason = f"{type(error).__name__}: {error}"
        self._failures = self._failures or [*past.failures, reason]
        known = KnownMap() if self.opened.has_carried else past.known
        self._snapshot.restore(
            (setattr, past, "known", known),
            (setattr, past, "failures", self._failures),
            (_open().pop, id(self.opened.model), None),
        )
        log.warning("growth undone, nothing has changed: %s", reason)


def transaction(
    model: Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *, example: object = None,
    averages: Module | Sequence[Module] = (), also: HasState | Sequence[HasState] = (), seed: int | None = None,
    keep: bool = True,
) -> contextlib.AbstractContextManager[Step]:  # fmt: skip
    """A with block in which a network grows: either everything in it happens, or nothing.

    If anything raises inside, the model, the optimizer and the others are restored bit for bit, and the reason is
    logged (logger "genesis.growth", `history(model).failures`) and raised.

    Args:
        model: the network.
        optimizer: one or several optimizers of the model: their state grows with the parameters, and new parameters
            join the groups of their neighbours. Learning-rate schedulers and gradient scalers continue unchanged.
        example: an input (or a tuple of inputs) on which the network is run before and after each operation, to follow
            its channels and to check that its function is kept; two samples are enough.
        averages: copies of the model (moving averages of its weights) that grow with it.
        also: other objects to restore on failure and by rollback(), such as learning-rate schedulers: anything with
            state_dict and load_state_dict.
        seed: seed of the random choices; by default drawn from Genesis' generator.
        keep: keep the previous state for rollback(); `history(model).forget()` frees the memory.
    Returns: a context manager that gives the step, an entry of history(model) once the block has ended.
    Raises: GrowthError: a transaction of this model is open already; an argument is of another kind, or the optimizer
        belongs to another model, or has one state for all parameters, as LBFGS.

    Example:
        >>> from genesis import growth, optim
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> optimizer = optim.SGD(net.parameters(), lr=0.1)
        >>> with growth.transaction(net, optimizer, example=genesis.zeros(1, 2)) as step:
        ...     step = growth.grow_width(net, "0", factor=2)
        >>> growth.rollback(step)
        >>> net[0].out_features
        3
    """
    opened, others = _checked(model, optimizer, example, averages, also, seed)
    return _Block(opened, others, keep, opened.step)


def _checked(
    model: Module, optimizer: Optimizer | Sequence[Optimizer] | None, example: object,
    averages: Module | Sequence[Module], also: HasState | Sequence[HasState], seed: int | None,
) -> tuple[Transaction, list[HasState]]:  # fmt: skip
    """The transaction that these arguments describe, and the other objects to restore."""
    if not isinstance(model, Module):
        raise GrowthError(describe("transaction", "model", "a Module", type(model).__name__))
    optimizers = _listed("optimizer", optimizer, Optimizer, "an Optimizer")
    copies = _listed("averages", averages, Module, "a Module")
    others = _listed("also", also, HasState, "an object with load_state_dict")  # type: ignore[type-abstract]
    if seed is not None and not (hasattr(seed, "__index__") and seed >= 0):
        raise GrowthError(describe("transaction", "seed", "an integer from 0 on", seed))
    own = {id(parameter) for parameter in model.parameters()}
    for each in optimizers:
        if not any(id(parameter) in own for group in each.param_groups for parameter in group["params"]):
            raise GrowthError(
                describe("transaction", "optimizer", "one that learns this model", "one of another model")
            )
        if not each.by_parameter:
            expected = "one with a state for each parameter (build another after growing)"
            raise GrowthError(describe("transaction", "optimizer", expected, type(each).__name__))
    return Transaction(model, optimizers, example, copies, seed), others


def _listed(argument: str, given: object, kind: type[T], expected: str) -> list[T]:
    """One value, several or None, as a list; each must be of this kind."""
    found: list[T] = []
    for value in [] if given is None else given if isinstance(given, list | tuple) else [given]:
        if not isinstance(value, kind):
            raise GrowthError(describe("transaction", argument, f"{expected}, or a list of them", type(value).__name__))
        found.append(value)
    return found


def joined(model: Module, **options: Unpack[Options]) -> contextlib.AbstractContextManager[Transaction]:
    """The open transaction of this model, or one for this operation alone."""
    opened = current(model)
    if opened is None:
        opened, others = _checked(
            model, options.get("optimizer"), options.get("example"), options.get("averages", ()),
            options.get("also", ()), options.get("seed"),
        )  # fmt: skip
        opened.is_single = True
        return _Block(opened, others, options.get("keep", True), opened)
    given = sorted(name for name, value in options.items() if value not in (None, ()))
    if given:
        raise GrowthError(f"growth: {', '.join(given)} belong to the transaction that is open, not to the operation")
    if opened.unfinished:
        raise GrowthError(f"growth: {opened.unfinished} failed half way: this transaction can only be left")
    return contextlib.nullcontext(opened)


def twice_at_most(model: Module, attempt: Callable[[bool], Step]) -> Step:
    """attempt(True), which may begin with the map of the growth before it; if that was out of date, for a reason that
    cannot be seen from outside, everything has been put back, and attempt(False) goes by a map of its own."""
    known = history(model).known if isinstance(model, Module) else None
    try:
        return attempt(True)
    except GrowthError:
        if known is None or history(model).known is known:
            raise
    history(model).failures.pop()
    return attempt(False)


def count(model: Module) -> int:
    """The number of elements of a model's parameters."""
    return sum([math.prod(parameter.array.shape) for parameter in model.parameters()])


def _common_seed() -> int:
    """A seed from the generator of Genesis; where processes train together, all grow alike by that of rank 0."""
    seed = int(genesis.randint(0, 2**31 - 1, (1,)).item())
    if not is_initialized():
        return seed
    group = require("growth")
    group.agree(group.call("growth", "a step on every rank"))
    return group.share(seed)
