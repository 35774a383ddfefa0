"""Width: more channels for a layer and all that share them, or fewer."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt

from genesis.errors import GrowthError, describe
from genesis.growth.channel_map import ChannelGroup, ChannelMap, Part
from genesis.growth.edits import Edits, Selections, change
from genesis.growth.elements import NEW, Choice
from genesis.growth.history import Operation, Step
from genesis.growth.places import name_of
from genesis.growth.settings import adjust_settings
from genesis.growth.transaction import Options, Transaction, joined, twice_at_most
from genesis.nn.module import Module

Where = str | Module


def grow_width(
    model: Module, where: Where | Sequence[Where] | None = None, channels: int | None = None,
    factor: float | None = None, *, new: str = "copy", noise: float = 0.0, **transaction: Unpack[Options],
) -> Step:  # fmt: skip
    """Give a layer more output channels, and everything that uses them; the network keeps its function.

    All that shares the layer's channels grows with it: its bias, norms with their running statistics, depthwise and
    grouped convolutions, the other ends of residual sums, and the weights of every consumer, through concatenations,
    flattening and pooling. `channel_map()` shows which these are.

    Args:
        model: the network.
        where: the layer (or several), a module or its dotted name; None for every layer that can grow.
        channels: the new number of channels.
        factor: the factor of the number of channels, instead (rounded, at least one more).
        new: "copy": new channels are copies of old ones, and consumers split the weights unevenly between the copies,
            so that these learn different things (Net2Wider). "zero": new channels have random weights, and consumers
            begin with zeros; everything that was there before learns as if nothing had changed.
        noise: for copies, standard deviation of the noise on their weights, relative to that of the weights; changes
            the function.
        transaction: arguments of transaction() such as `optimizer` and `example`, where none is open.
    Returns: the step in history(model).
    Raises: GrowthError: nothing has changed; the message says why: the layer's channels are an output of the network,
        or flow through an op that growth does not know, or the number does not fit.
    Source: Chen, Goodfellow & Shlens 2016, arXiv:1511.05641 (Net2WiderNet).

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> growth.grow_width(net, "0", channels=6, example=genesis.zeros(2, 1, 8, 8))
        step 0: grow_width 0 to 6 (122 → 182 parameters)
    """
    op = "grow_width"
    _check_sizes(op, channels, factor, (1, math.inf))
    if new not in ("copy", "zero"):
        raise GrowthError(describe(op, "new", '"copy" or "zero"', repr(new)))
    if noise < 0:
        raise GrowthError(describe(op, "noise", "a number >= 0", noise))

    def attempt(carries: bool) -> Step:
        with joined(model, **transaction) as opened:
            opened.carries = carries and opened.is_single and not noise
            for name, mapped, part, group, more_follows in _layers(opened, op, where):
                units = _units(op, name, part, group, channels, factor)
                _require_growable(op, name, part, group, units, new)
                opened.require_room(op, name, _elements_after(opened, mapped, group, units))
                choice = _grown(group.units, units, new, opened.generator)
                operation: Operation = {
                    "operation": op, "where": name, "channels": units * part.width, "new": new, "noise": noise,
                }  # fmt: skip
                change = functools.partial(_resize, opened, mapped, group, choice, noise)
                resized = functools.partial(mapped.resized, group.index, units)
                opened.run(operation, change, keeps_function=not noise, more_follows=more_follows, resized=resized)
        return opened.step

    return twice_at_most(model, attempt)


def _require_growable(op: str, name: str, part: Part, group: ChannelGroup, units: int, new: str) -> None:
    """Raise unless the layer's channels can grow to this number of units."""
    if units <= group.units:
        raise GrowthError(describe(op, "channels", f"more than the {part.size} of {name}", units * part.width))
    if group.fixed:
        reasons = "; ".join(group.fixed)
        raise GrowthError(f"{op}: the channels of {name or 'the root'} cannot grow: {reasons}")
    if group.uniform and (units % group.units or new == "zero"):
        raise GrowthError(
            f"{op}: the channels of {name} can only grow to a multiple of {part.size}, as copies: {group.uniform[0]}"
        )


def prune_width(
    model: Module, where: Where | Sequence[Where] | None = None, channels: int | None = None,
    factor: float | None = None, *, by: str = "magnitude", **transaction: Unpack[Options],
) -> Step:  # fmt: skip
    """Remove the least important of a layer's output channels, wherever they are used. The function changes.

    Args:
        model: the network.
        where, channels, transaction: see grow_width.
        factor: the factor of the number of channels, below 1 (rounded, at least one less, and one remains; with
            where=None, layers of a single channel are skipped).
        by: "magnitude" removes the channels with the smallest weights, "norm" those that batch (or group) norms scale
            least (Liu et al. 2017, arXiv:1708.06519).
    Returns: the step in history(model).
    Raises: GrowthError: nothing has changed; the message says why.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> growth.prune_width(net, "0", channels=5, example=genesis.zeros(1, 3))
        step 0: prune_width 0 to 5 (50 → 32 parameters)
    """
    op = "prune_width"
    _check_sizes(op, channels, factor, (0, 1))
    if by not in ("magnitude", "norm"):
        raise GrowthError(describe(op, "by", '"magnitude" or "norm"', repr(by)))
    with joined(model, **transaction) as opened:
        for name, mapped, part, group, more_follows in _layers(opened, op, where):
            if group.units == 1:
                if where is None:
                    continue
                held = f"{name} with {part.size} in one block" if part.size > 1 else f"{name} with one"
                raise GrowthError(describe(op, "where", "a layer with channels to spare", held))
            units = _units(op, name, part, group, channels, factor)
            if not 1 <= units < group.units:
                limits = f"from {part.width} to {part.size - part.width}, as {name} has {part.size}"
                raise GrowthError(describe(op, "channels", limits, units * part.width))
            if group.fixed:
                raise GrowthError(f"{op}: channels of {name} cannot go: {'; '.join(group.fixed)}")
            scores = _scores(opened, mapped, op, name, group, by)
            kept = sorted(np.argsort(-scores, kind="stable")[:units].tolist())
            operation: Operation = {"operation": op, "where": name, "channels": units * part.width, "by": by}
            change = functools.partial(_resize, opened, mapped, group, Choice(kept, [1.0] * units))
            opened.run(operation, change, keeps_function=False, more_follows=more_follows)
    return opened.step


def _check_sizes(op: str, channels: int | None, factor: float | None, limits: tuple[float, float]) -> None:
    """One of the two is given; factor lies between the limits."""
    if (channels is None) == (factor is None):
        given = "neither" if channels is None else "both"
        raise GrowthError(describe(op, "channels", "a number, or factor instead", given))
    if channels is not None and (isinstance(channels, bool) or not hasattr(channels, "__index__")):
        raise GrowthError(describe(op, "channels", "an int", repr(channels)))
    if factor is not None and not (isinstance(factor, int | float) and limits[0] < factor < limits[1]):
        wanted = f"a number above {limits[0]:g}" + ("" if math.isinf(limits[1]) else f" and below {limits[1]:g}")
        raise GrowthError(describe(op, "factor", wanted, repr(factor)))


def _layers(
    opened: Transaction, op: str, where: Where | Sequence[Where] | None
) -> Iterator[tuple[str, ChannelMap, Part, ChannelGroup, bool]]:
    """The layers that are meant, of one group only the first: each with its channels as the map shows them then, and
    whether others may follow."""
    unreached = opened.map.unreached
    if unreached:
        warnings.warn(
            f"{op}: the example does not run {_named(unreached)}: where these share the channels that change, they do "
            "not follow, and will not fit; give an example that runs them",
            stacklevel=2,
        )
    if where is None:
        names = [
            next(site.names[0].rpartition(".")[0] for site in makers)
            for group in opened.map.growable()
            if (makers := [s for s in opened.map.sites_of(group.index) if s.fresh == "normal" and not s.splits])
        ]
    else:
        listed = [where] if isinstance(where, str | Module) or not isinstance(where, Iterable) else list(where)
        if not listed:
            raise GrowthError(describe(op, "where", "at least one layer, or None for all", "none"))
        names = [name_of(op, opened.model, place) for place in listed]
    done: set[tuple[Sequence[str], int]] = set()
    for number, name in enumerate(names, 1):
        mapped = opened.map
        part, group = mapped.made_by(name)
        sites = mapped.sites_of(group.index)
        if not sites:
            raise GrowthError(describe(op, "where", "a layer whose channels are made by parameters", name))
        first = (sites[0].names, sites[0].dim)  # the numbers of groups may change from step to step
        if first not in done:
            done.add(first)
            yield name, mapped, part, group, number < len(names)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _units(op: str, name: str, part: Part, group: ChannelGroup, channels: int | None, factor: float | None) -> int:
    """How many units the group is to have."""
    if factor is not None:
        rounded = round(group.units * factor)
        return max(rounded, group.units + 1) if factor > 1 else max(min(rounded, group.units - 1), 1)
    assert channels is not None
    channels = operator.index(channels)
    if channels % part.width:
        expected = f"a multiple of {part.width}: the channels of {name} come in blocks of that size"
        raise GrowthError(describe(op, "channels", expected, channels))
    return channels // part.width


def _elements_after(opened: Transaction, mapped: ChannelMap, group: ChannelGroup, units: int) -> int:
    """How many elements all that shows the group will have, at least."""
    tensors = [opened.twins(site.names[0])[0] for site in mapped.sites_of(group.index)]
    return sum(math.prod(tensor.shape) for tensor in tensors) * units // group.units


def _grown(before: int, after: int, new: str, generator: np.random.Generator) -> Choice:
    """The originals of the units of a wider group, and how copies share their original's output."""
    old = list(range(before))
    if new == "zero":
        return Choice(old + [NEW] * (after - before), [1.0] * before + [0.0] * (after - before))
    sources = list(old)
    while len(sources) < after:  # each is copied once before any is copied again
        sources += generator.permutation(before)[: after - len(sources)].tolist()
    weights = generator.uniform(0.5, 1.5, after)  # uneven, so that copies do not learn the same for ever
    weights[np.bincount(sources)[sources] == 1] = 1.0
    sums = np.bincount(sources, weights)
    return Choice(sources, (weights / sums[sources]).tolist())


def _resize(
    opened: Transaction, mapped: ChannelMap, group: ChannelGroup, choice: Choice, noise: float = 0.0
) -> None:  # fmt: skip
    """Change every tensor that shows the group, and the settings of their layers."""
    edits = Edits(group.index, choice)
    sites = mapped.sites_of(group.index)
    while sites:  # once, unless a tensor shows the group twice: its second dimension follows when the first is done
        first = list({site.names: site for site in reversed(sites)}.values())[::-1]
        selections = Selections()
        for site in first:
            tensors = opened.twins(site.names[0])
            change(tensors, edits.of(site), opened.optimizers, noise, opened.generator, selections)
        selections.make()
        sites = [site for site in sites if not any(site is done for done in first)]
    for model in (opened.model, *opened.averages):
        adjust_settings(model, mapped, group.index, len(choice.sources))


def _scores(
    opened: Transaction, mapped: ChannelMap, op: str, name: str, group: ChannelGroup, by: str
) -> npt.NDArray[np.float64]:  # fmt: skip
    """How much each unit of a group matters."""
    learned = {name for name, _ in opened.model.named_parameters(remove_duplicate=False)}
    wanted = "normal" if by == "magnitude" else "mean"
    total = np.zeros(group.units)
    found = False
    for site in mapped.sites_of(group.index):
        if site.splits or site.fresh != wanted or site.names[0] not in learned:
            continue
        found = True
        values = opened.twins(site.names[0])[0].array.numpy_values().astype(np.float64)
        squares = np.square(np.moveaxis(values, site.dim, 0).reshape(values.shape[site.dim], -1)).sum(1)
        start = 0
        for part in site.parts:
            if part.group == group.index:
                total += squares[start : start + part.size].reshape(group.units, part.width).sum(1)
            start += part.size
    if not found:
        raise GrowthError(describe(op, "by", f"what the channels of {name} have", f"'{by}'; they have no such weights"))
    return np.sqrt(total)
