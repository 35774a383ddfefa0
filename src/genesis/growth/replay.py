"""Checkpoints of networks that have grown: the log is kept with them, and grows a fresh network to the same shape."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import genesis
from genesis import checkpoint, dtypes
from genesis.errors import CheckpointError, GrowthError, describe
from genesis.growth import structure, width
from genesis.growth.history import history
from genesis.growth.snapshot import Restoring, Snapshot
from genesis.growth.transaction import transaction
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer

_OPERATIONS = {
    operation.__name__: operation
    for operation in (
        width.grow_width, width.prune_width, structure.grow_depth, structure.grow_branches, structure.prune_branches,
    )
}  # fmt: skip


def replay(
    model: Module, log: Mapping[str, Any], optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (),
) -> None:  # fmt: skip
    """Grow a freshly built network as the one grew whose `history(...).state_dict()` log is; then its state fits.

    Shapes, names, and the order of the optimizer's parameters become those of the other; values do not: load them.

    Args:
        optimizer, averages: grow along, as in transaction().
    Raises: GrowthError: a step cannot be done on this network; nothing has changed.

    Example:
        >>> from genesis import growth
        >>> def build(): return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> first, second = build(), build()
        >>> step = growth.grow_width(first, "0", channels=5, example=genesis.zeros(1, 2))
        >>> growth.replay(second, growth.history(first).state_dict())
        >>> second.load_state_dict(first.state_dict())
        IncompatibleKeys(missing_keys=[], unexpected_keys=[])
    """
    optimizers, copies = _several(optimizer), _several(averages)
    with Restoring(Snapshot([model, *copies], optimizers, lists=[history(model).steps])):
        for step in log["steps"]:
            example = tuple(_zeros(model, given) for given in step["example"] or ())
            with transaction(model, optimizers, example=example or None, averages=copies, seed=0, keep=False) as done:
                for operation in step["operations"]:
                    arguments = {key: value for key, value in operation.items() if key != "operation"}
                    _operation(operation["operation"])(model, **arguments)
            # Measured on the values that the other network had; a log of 0.1.0 has no second one.
            done.deviation, done.training_deviation = step["deviation"], step.get("training_deviation")


def save(
    path: str | os.PathLike[str], model: Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (), **more: Any,
) -> None:  # fmt: skip
    """Write a checkpoint of a network, how it grew, its optimizer, and whatever plain values you name.

    Args:
        optimizer, averages: one or several, as in transaction().
        more: comes back from load().
    Raises: DTypeError: more has something else than tensors and plain values; OSError: the file cannot be written.
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
    state: dict[str, Any] = {"model": model.state_dict(), "growth": history(model).state_dict(), "more": more}
    if optimizer is not None:
        state["optimizer"] = [each.state_dict() for each in _several(optimizer)]
    if _several(averages):
        state["averages"] = [each.state_dict() for each in _several(averages)]
    checkpoint.save(state, path)


def load(
    path: str | os.PathLike[str], model: Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *,
    averages: Module | Sequence[Module] = (),
) -> dict[str, Any]:  # fmt: skip
    """Grow a freshly built network as the saved one grew, and take over its state and that of what went along.

    Args:
        optimizer, averages: as save() was given them, freshly built too; what is not given here is left in the file.
    Returns: what save() was given beside these.
    Raises: CheckpointError: path is no checkpoint of save(), or does not fit; nothing has changed.
    """
    state = checkpoint.load(path)
    optimizers, copies = _several(optimizer), _several(averages)
    needed = {"model", "growth", *(["optimizer"] if optimizers else []), *(["averages"] if copies else [])}
    if not isinstance(state, dict) or not needed <= set(state):
        raise CheckpointError(f"{path}: expected a checkpoint of growth.save with {', '.join(sorted(needed))}")
    pairs: list[tuple[Any, Any]] = []
    for name, given in (("optimizer", optimizers), ("averages", copies)):
        kept = _several(state[name]) if given else []
        if len(given) != len(kept):
            raise CheckpointError(f"{path}: argument '{name}': expected {len(kept)}, as were saved, got {len(given)}")
        pairs += zip(given, kept, strict=True)
    if len(history(model)):
        raise CheckpointError(f"{path}: argument 'model': expected a freshly built network, got one that has grown")
    with Restoring(Snapshot([model, *copies], optimizers, lists=[history(model).steps])):
        replay(model, state["growth"], optimizers, averages=copies)
        model.load_state_dict(state["model"])
        for each, its in pairs:
            each.load_state_dict(its)
    return state["more"]


def _several(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _zeros(model: Module, given: Any) -> Any:
    """An input of the recorded shape; what was no tensor is as it was."""
    if not (isinstance(given, list | tuple) and len(given) == 2 and given[1] in dtypes.BY_NAME):
        return given
    shape, dtype = given
    return genesis.zeros(tuple(shape), dtype=dtypes.BY_NAME[dtype], device=next(model.parameters()).device)


def _operation(name: str) -> Any:
    if name not in _OPERATIONS:
        raise GrowthError(describe("replay", "log", f"operations among {', '.join(_OPERATIONS)}", name))
    return _OPERATIONS[name]
