"""Depth and branches: layers that come and go as wholes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

from genesis import nn
from genesis.errors import GrowthError, describe
from genesis.growth.channel_map import Passage
from genesis.growth.edits import rescale
from genesis.growth.history import Operation, Step
from genesis.growth.layers import Place, branch, channel_dim, identity_block
from genesis.growth.places import insert_after, name_of, put, unused
from genesis.growth.transaction import Options, Transaction, joined
from genesis.nn.module import Module
from genesis.nn.parameter import Parameter

AnyModule = TypeVar("AnyModule", bound=Module)


def grow_depth(
    model: Module,
    where: str | Module,
    channels: int | None = None,
    kernel_size: int = 3,
    **transaction: Unpack[Options],
) -> Step:  # fmt: skip
    """Add a block x + B·relu(norm(A·x)) after a module. It begins as the identity, and all its weights learn at once.

    The block goes to the end of `where` if that is a Sequential, else after `where` in the Sequential that contains it,
    else `where` and the block become a Sequential in its place.

    Args:
        model: the network.
        where: the module, or its dotted name.
        channels: channels inside the block, rounded up to an even number; by default those of the output of `where`.
        kernel_size: kernel size of A, where it is a convolution; odd.
        transaction: see grow_width.
    Returns: the step in history(model).
    Raises: GrowthError: nothing has changed; the message says why.
    Source: after Chen, Goodfellow & Shlens 2016, arXiv:1511.05641 (Net2DeeperNet).

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> step = growth.grow_depth(net, "1", example=genesis.zeros(1, 2))
        >>> list(dict(net.named_children()))
        ['0', '1', '1_deeper1', '2']
    """
    op = "grow_depth"
    with joined(model, **transaction) as opened:
        name, module, passage = _place(opened, op, where)
        opened.require_room(op, name, _elements(passage, channels, kernel_size))
        blocks = _twins(opened, name, lambda place: identity_block(op, passage, channels, kernel_size, place))

        def change() -> None:
            for network, block in zip((opened.model, *opened.averages), blocks, strict=True):
                _add_after(network, name, block)
            opened.adopt(blocks[0].parameters(), _neighbour(module))

        operation: Operation = {"operation": op, "where": name, "channels": channels, "kernel_size": kernel_size}
        opened.run(operation, change, keeps_function=True, new=blocks[0])
    return opened.step


def grow_branches(
    model: Module,
    where: str | Module,
    channels: int | None = None,
    kernel_size: int = 3,
    **transaction: Unpack[Options],
) -> Step:  # fmt: skip
    """Add a branch in parallel to a module: a convolution with batch norm and ReLU, or a linear layer with ReLU.

    The module becomes the main path of an `nn.MultiBranch` (unless it is one already). The branch's gate starts at 0,
    which keeps the function; the gate learns at once, and with it the branch.

    Args:
        model: the network.
        where: the module, or its dotted name.
        channels: channels of the branch; by default those of the module's output. Where they differ, a learned 1×1
            projection follows that begins as the identity.
        kernel_size: kernel size of the convolution; in parallel to a convolution, the branch takes its settings.
        transaction: see grow_width.
    Returns: the step in history(model).
    Raises: GrowthError: nothing has changed; the message says why.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> step = growth.grow_branches(net, "0", channels=3, example=genesis.zeros(1, 2))
        >>> type(net[0]).__name__, net[0].branches[0].projection.weight.shape
        ('MultiBranch', (4, 3))
    """
    op = "grow_branches"
    with joined(model, **transaction) as opened:
        name, module, passage = _place(opened, op, where)
        beside = module.main if isinstance(module, nn.MultiBranch) else module
        opened.require_room(op, name, _elements(passage, channels, kernel_size))
        branches = _twins(opened, name, lambda place: branch(op, beside, passage, channels, kernel_size, place))

        def change() -> None:
            for network, new in zip((opened.model, *opened.averages), branches, strict=True):
                block = network.get_submodule(name)
                if not isinstance(block, nn.MultiBranch):
                    block = nn.MultiBranch(block).train(block.training)
                    put(network, name, block)
                _weigh(opened, block, len(block.branches) + 1)
                block.branches.append(new)
            opened.adopt(branches[0].parameters(), _neighbour(module))

        operation: Operation = {"operation": op, "where": name, "channels": channels, "kernel_size": kernel_size}
        opened.run(operation, change, keeps_function=True, new=branches[0])
    return opened.step


def prune_branches(
    model: Module,
    where: str | Module,
    count: int = 1,
    *,
    which: Sequence[int] | None = None,
    **transaction: Unpack[Options],
) -> Step:  # fmt: skip
    """Remove the branches with the smallest gates; the others' contributions do not change.

    When the last branch is removed, the main path replaces the MultiBranch.

    Args:
        model: the network.
        where: an nn.MultiBranch, or its dotted name.
        count: number of branches to remove.
        which: indices of the branches to remove, instead of count.
        transaction: see grow_width.
    Returns: the step in history(model).
    Raises: GrowthError: nothing has changed; the message says why.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> step = growth.grow_branches(net, "0", example=genesis.zeros(1, 2))
        >>> step = growth.prune_branches(net, "0", example=genesis.zeros(1, 2))
        >>> type(net[0]).__name__
        'Linear'
    """
    op = "prune_branches"
    with joined(model, **transaction) as opened:
        name, block, _ = _place(opened, op, where)
        if not isinstance(block, nn.MultiBranch):
            raise GrowthError(describe(op, "where", "an nn.MultiBranch", f"{name}, a {type(block).__name__}"))
        present = range(len(block.branches))
        if which is None:
            if not 1 <= count <= len(present):
                raise GrowthError(describe(op, "count", f"from 1 to the {len(present)} branches", count))
            strength = [abs(part.gate.item()) if isinstance(part, nn.Branch) else 1.0 for part in block.branches]
            which = sorted(present, key=strength.__getitem__)[:count]
        elif not which or len(set(which)) < len(which) or not set(which) <= set(present):
            raise GrowthError(describe(op, "which", f"different indices below {len(present)}", which))
        going = sorted(which, reverse=True)

        def change() -> None:
            for network in (opened.model, *opened.averages):
                its = network.get_submodule(name)
                assert isinstance(its, nn.MultiBranch)
                gone = [its.branches.pop(index) for index in going]
                if len(its.branches):
                    _weigh(opened, its, len(its.branches), before=len(its.branches) + len(gone))
                else:
                    put(network, name, its.main)
                for part in gone:
                    opened.abandon(part)

        opened.run({"operation": op, "where": name, "which": going}, change, keeps_function=False)
    return opened.step


def _place(opened: Transaction, op: str, where: str | Module) -> tuple[str, Module, Passage]:
    name = name_of(op, opened.model, where)
    passage = opened.map.passages.get(name)
    if not name or passage is None:
        expected = "a module below the network's root that is called with a tensor and gives one"
        raise GrowthError(describe(op, "where", expected, name or "the root"))
    return name, opened.model.get_submodule(name), passage


def _twins(opened: Transaction, name: str, build: Callable[[Place], AnyModule]) -> list[AnyModule]:
    """The new module for the model, and equal ones for its averages; dtype, device and mode are those beside."""
    beside = opened.model.get_submodule(name)
    parameter = _neighbour(beside)
    like = next(opened.model.parameters()) if parameter is None else parameter
    place: Place = {"device": like.device, "dtype": like.dtype}
    with opened.random():
        new = [build(place).train(beside.training) for _ in (opened.model, *opened.averages)]
    for network, twin in zip(opened.averages, new[1:], strict=True):
        twin.load_state_dict(new[0].state_dict())
        its = network.get_submodule(name)
        twin.train(its.training)
        if not any(parameter.requires_grad for parameter in network.parameters()):  # an average that never learns
            twin.requires_grad_(False)
    return new


def _elements(passage: Passage, channels: int | None, kernel_size: int) -> int:
    """How many elements a block of so many channels has there, about."""
    shape = passage.output_shape
    outer = shape[channel_dim(passage)]
    return outer * (outer if channels is None else channels) * kernel_size ** max(len(shape) - 2, 0)


def _neighbour(module: Module) -> Parameter | None:
    return next((parameter for parameter in module.parameters() if parameter.dtype.is_floating_point), None)


def _add_after(network: Module, name: str, block: Module) -> None:
    module = network.get_submodule(name)
    container = network.get_submodule(name.rpartition(".")[0])
    if _is_plain_sequence(module):
        module.add_module(unused(module, "deeper"), block)
    elif _is_plain_sequence(container):
        insert_after(container, name.rpartition(".")[2], block)
    else:
        put(network, name, nn.Sequential({"main": module, "deeper1": block}).train(module.training))


def _is_plain_sequence(module: Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _weigh(opened: Transaction, block: nn.MultiBranch, after: int, before: int | None = None) -> None:
    """Keep what each branch adds when the mean goes over `after` of them."""
    before = len(block.branches) if before is None else before
    for index, part in enumerate(block.branches):
        if not isinstance(part, nn.Branch):
            neighbour = _neighbour(part)
            like = next(opened.model.parameters()) if neighbour is None else neighbour
            part = nn.Branch(part, gate=1.0, device=like.device, dtype=like.dtype).train(part.training)
            block.branches[index] = part
            if any(module is block for module in opened.model.modules()):
                opened.adopt([part.gate], neighbour)
        rescale(part.gate, after / before, opened.optimizers)
