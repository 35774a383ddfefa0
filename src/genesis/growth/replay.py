"""Checkpoints of networks that have grown: the log is kept with them, and grows a fresh network to the same shape."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import genesis
from genesis import checkpoint, dtypes
from genesis.errors import CheckpointError, GrowthError
from genesis.growth.history import history
from genesis.growth.log import OPERATIONS, checked, is_recorded_input
from genesis.growth.room import Room, shapes_in
from genesis.growth.snapshot import HasState, Restoring, Snapshot
from genesis.growth.transaction import current, transaction
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

T = TypeVar("T")


def replay(
    model: Module, log: Mapping[str, object], optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (), shapes: Iterable[Sequence[int]] | None = None,
) -> None:  # fmt: skip
    """Repeat the growth of another network on a freshly built one, so that the other's state_dict fits it.

    Shapes, names, and the order of the optimizer's parameters become those of the other network; load the values then.
    (Non-persistent buffers are in no state_dict; save() keeps those too.)

    Args:
        model: freshly built, as the other was.
        log: `history(other).state_dict()`.
        optimizer, averages: grow with the model, see transaction().
        shapes: shapes of the tensors that are to be loaded. A log that leads far beyond them, as in an untrusted file,
            is refused before memory is allocated.
    Raises: GrowthError: log is not a log, or a step is impossible on this network; nothing has changed.

    Example:
        >>> from genesis import growth
        >>> def build(): return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> first, second = build(), build()
        >>> step = growth.grow_width(first, "0", channels=5, example=genesis.zeros(1, 2))
        >>> growth.replay(second, growth.history(first).state_dict())
        >>> second.load_state_dict(first.state_dict())
        <All keys matched successfully>
    """
    optimizers, copies = _several(optimizer), _several(averages)
    room = Room.of(log, shapes)
    with Restoring(Snapshot([model, *copies], optimizers, lists=[history(model).steps])):
        for step in checked(log):
            example = tuple(_zeros(model, given) for given in step["example"] or ())
            with transaction(model, optimizers, example=example or None, averages=copies, seed=0, keep=False) as done:
                opened = current(model)
                assert opened is not None
                opened.room = room
                for operation in step["operations"]:
                    arguments = {key: value for key, value in operation.items() if key != "operation"}
                    OPERATIONS[operation["operation"]](model, **arguments)
            # Measured on the values that the other network had; a log of 0.1.0 has no second one.
            done.deviation, done.training_deviation = step.get("deviation"), step.get("training_deviation")


def save(
    path: str | os.PathLike[str], model: Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (), **more: object,
) -> None:  # fmt: skip
    """Write a checkpoint of a network, its growth, its optimizer, and further values by name.

    Args:
        path: the file; it is replaced atomically.
        model: the network.
        optimizer, averages: one or several, see transaction().
        more: tensors and plain values, which load() returns.
    Raises: DTypeError: more has other values; OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from genesis import growth
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> net, fresh = [nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2)]
        >>> step = growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
        >>> growth.save(path, net, epoch=7)
        >>> growth.load(path, fresh)["epoch"], fresh[0].out_features
        (7, 5)
    """
    networks = [model, *_several(averages)]
    state: dict[str, object] = {"model": model.state_dict(), "growth": history(model).state_dict(), "more": more}
    state["buffers"] = [{name: tensor.detach() for name, tensor in _unsaved(each)} for each in networks]
    if optimizer is not None:
        state["optimizer"] = [each.state_dict() for each in _several(optimizer)]
    if _several(averages):
        state["averages"] = [each.state_dict() for each in _several(averages)]
    checkpoint.save(state, path)


def load(
    path: str | os.PathLike[str], model: Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (),
) -> dict[str, Any]:  # fmt: skip
    """Repeat the growth of a saved network on a freshly built one, and load its state. See `genesis.growth.save`.

    Args:
        path: a file of save().
        model: freshly built, as the saved one was.
        optimizer, averages: the counterparts of those given to save(), freshly built too; saved ones without a
            counterpart are ignored.
    Returns: the further values that save() was given, by name.
    Raises: CheckpointError: path is not a checkpoint of save(), or does not fit; GrowthError: its log does not.
        Nothing has changed.
    """
    state = checkpoint.load(path)
    optimizers, copies = _several(optimizer), _several(averages)
    needed = {"model", "growth", *(["optimizer"] if optimizers else []), *(["averages"] if copies else [])}
    if not isinstance(state, dict) or not needed <= set(state):
        raise CheckpointError(f"{path}: expected a checkpoint of growth.save with {', '.join(sorted(needed))}")
    pairs: list[tuple[HasState, object]] = []
    counterparts: tuple[tuple[str, Sequence[HasState]], ...] = (("optimizer", optimizers), ("averages", copies))
    for name, given in counterparts:
        kept = _several(state[name]) if given else []
        if len(given) != len(kept):
            raise CheckpointError(f"{path}: argument '{name}': expected {len(kept)}, as were saved, got {len(given)}")
        pairs += zip(given, kept, strict=True)
    if len(history(model)):
        raise CheckpointError(f"{path}: argument 'model': expected a freshly built network, got one that has grown")
    if not isinstance(state["model"], dict):
        raise CheckpointError(f"{path}: expected a state, names and tensors, got {type(state['model']).__name__}")
    networks = [model, *copies]
    try:
        with Restoring(Snapshot(networks, optimizers, lists=[history(model).steps])):
            arrays = [{id(tensor): tensor.array for _, tensor in _unsaved(each)} for each in networks]
            replay(model, state["growth"], optimizers, averages=copies, shapes=shapes_in(state["model"]))
            for each, before, its in zip(networks, arrays, state.get("buffers") or [{}] * len(networks), strict=False):
                _take_grown(path, each, before, its)
            model.load_state_dict(state["model"])
            for other, saved in pairs:
                other.load_state_dict(saved)
    except GrowthError as error:
        raise GrowthError(f"{path}: {error}") from error
    return state["more"]


def _unsaved(network: Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that state_dict() leaves out."""
    for name, tensor in network.named_buffers(remove_duplicate=False):
        path, _, member = name.rpartition(".")
        if member in network.get_submodule(path)._non_persistent_buffers:
            yield name, tensor


def _take_grown(
    path: str | os.PathLike[str], network: Module, before: Mapping[int, NDArray], saved: Mapping[str, Tensor]
) -> None:
    """Give those of them that were grown (or pruned) the saved values: replay() has made up others."""
    for name, tensor in _unsaved(network):
        if before.get(id(tensor)) is tensor.array:
            continue  # as the network was built: not a matter of growth
        if name not in saved:
            text = f"{path}: the values of the buffer {name}, which is not persistent and has grown, are not in it"
            warnings.warn(f"{text}: it was written by Genesis 0.1.0", stacklevel=3)
        elif saved[name].shape != tensor.shape:
            raise CheckpointError(f"{path}: buffer {name}: expected shape {tensor.shape}, got {saved[name].shape}")
        else:
            tensor.array = saved[name].array.to_device(tensor.device).to(tensor.dtype)


def _several(given: T | Sequence[T] | None) -> list[T]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [cast(T, given)]


def _zeros(model: Module, given: object) -> object:
    """An input of the recorded shape; an argument that is not a tensor as it was."""
    if not is_recorded_input(given):
        return given
    shape, dtype = given
    return genesis.zeros(tuple(shape), dtype=dtypes.BY_NAME[dtype], device=next(model.parameters()).device)
