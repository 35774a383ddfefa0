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
from genesis.growth.snapshot import Snapshot
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
    optimizers = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    copies = [averages] if isinstance(averages, Module) else list(averages)
    snapshot, num_before = Snapshot([model, *copies], optimizers, ()), len(history(model))
    try:
        for step in log["steps"]:
            example = tuple(_zeros(model, given) for given in step["example"] or ())
            with transaction(model, optimizers, example=example or None, averages=copies, seed=0, keep=False) as done:
                for operation in step["operations"]:
                    arguments = {key: value for key, value in operation.items() if key != "operation"}
                    _operation(operation["operation"])(model, **arguments)
            done.deviation = step["deviation"]  # measured on the values that the other network had
    except BaseException:
        snapshot.restore()
        del history(model).steps[num_before:]
        raise


def save(path: str | os.PathLike[str], model: Module, optimizer: Optimizer | None = None, **more: Any) -> None:
    """Write a checkpoint of a network, how it grew, its optimizer, and whatever plain values you name.

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
        state["optimizer"] = optimizer.state_dict()
    checkpoint.save(state, path)


def load(path: str | os.PathLike[str], model: Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Grow a freshly built network as the saved one grew, and take over its state and the optimizer's.

    Returns: what save() was given beside these.
    Raises: CheckpointError: path is no checkpoint of save(), or does not fit; nothing has changed.
    """
    state = checkpoint.load(path)
    needed = {"model", "growth", *(("optimizer",) if optimizer is not None else ())}
    if not isinstance(state, dict) or not needed <= set(state):
        raise CheckpointError(f"{path}: expected a checkpoint of growth.save with {', '.join(sorted(needed))}")
    optimizers = [] if optimizer is None else [optimizer]
    snapshot, num_before = Snapshot([model], optimizers, ()), len(history(model))
    try:
        replay(model, state["growth"], optimizers)
        model.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
    except BaseException:
        snapshot.restore()
        del history(model).steps[num_before:]
        raise
    return state["more"]


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
