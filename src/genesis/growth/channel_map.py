"""The channel map of a network: its channel groups, and the dimensions that show each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from genesis.errors import GrowthError, describe
from genesis.growth import axes
from genesis.growth.axes import Axis, Group
from genesis.growth.follower import Follower
from genesis.growth.passes import in_mode, without_traces
from genesis.growth.rules import apply_rule
from genesis.nn.module import Module
from genesis.tensor import Tensor


class Part(NamedTuple):
    """size neighbouring elements of a dimension: units of a group (None: of no group), width elements each."""

    group: int | None
    width: int
    size: int


Layout = tuple[tuple[Part, ...] | None, ...]  # for each dimension, what it is made of; None: no channels


class Site(NamedTuple):
    """A dimension of a parameter or buffer that shows channels."""

    names: tuple[str, ...]  # a shared parameter has several
    dim: int
    parts: tuple[Part, ...]
    splits: bool  # copies of a channel share its value (a consumer's weight), or each has it
    fresh: str  # what channels without an original begin with: "normal", "zero" or "mean"


@dataclasses.dataclass
class ChannelGroup:
    """Channels that come and go together.

    Attributes:
        units: how many there are; a unit is a channel, or a block of channels that an op takes as a whole.
        fixed: why it cannot grow; empty if it can.
        uniform: why it can only grow to a multiple, each unit copied equally often; empty if it need not.
    """

    index: int
    units: int
    fixed: tuple[str, ...]
    uniform: tuple[str, ...]


class Passage(NamedTuple):
    """Shapes and layouts of a module's input and output."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    input_layout: Layout
    output_layout: Layout


@dataclasses.dataclass(eq=False)
class ChannelMap:
    """A map of the channels that parameters share, from a recorded forward pass; print() shows a table. Made by
    `genesis.growth.channel_map`.

    Attributes:
        groups: all channel groups, also those that cannot grow.
        sites: the dimensions of parameters and buffers that show them.
        passages: shapes and layouts of each module's input and output, by name.
        outputs: the network's outputs in eval mode on the example.
        macs: multiply-adds of one pass over the example; None in a resized map.
        unreached: parameters that no pass used; whether they share channels is unknown.
    """

    groups: list[ChannelGroup]
    sites: list[Site]
    passages: dict[str, Passage]
    outputs: list[Tensor]
    macs: int | None
    unreached: tuple[str, ...] = ()

    def giving(self, outputs: list[Tensor]) -> ChannelMap:
        """The same map with other outputs. See `genesis.growth.channel_map`."""
        return dataclasses.replace(self, outputs=outputs)

    def resized(self, group: int, units: int) -> ChannelMap | None:
        """The map after group has been resized to so many units; None if that takes a new pass.

        It does where there is a single unit: a dimension of one element may show it, or be broadcast over it.

        Args:
            group: its index.
            units: how many it has then.
        Returns: the new map, without outputs, or None.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
            >>> growth.channel_map(net, genesis.zeros(1, 2)).resized(0, 6).groups[0].units
            6
        """
        if min(units, self.groups[group].units) < 2:
            return None

        def parts(before: tuple[Part, ...]) -> tuple[Part, ...]:
            return tuple([part._replace(size=part.width * units) if part.group == group else part for part in before])

        def sizes(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
            return tuple([
                size if axis is None else self.size_of(axis, group, units)
                for size, axis in zip(shape, layout, strict=True)
            ])  # fmt: skip

        def passage(taken: tuple[int, ...], given: tuple[int, ...], *layouts: Layout) -> Passage:
            after = [tuple([None if axis is None else parts(axis) for axis in layout]) for layout in layouts]
            return Passage(sizes(taken, layouts[0]), sizes(given, layouts[1]), *after)

        return ChannelMap(
            [dataclasses.replace(its, units=units) if its.index == group else its for its in self.groups],
            [site._replace(parts=parts(site.parts)) if _shows(site, group) else site for site in self.sites],
            {name: passage(*before) for name, before in self.passages.items()},
            outputs=[],
            macs=None,
            unreached=self.unreached,
        )

    @staticmethod
    def size_of(parts: Sequence[Part], group: int, units: int) -> int:
        """The size of a dimension of these parts once group has so many units.

        Args:
            parts: what a dimension is made of.
            group: its index.
            units: how many it has then.

        Example:
            >>> from genesis.growth.channel_map import ChannelMap, Part
            >>> ChannelMap.size_of([Part(group=0, width=9, size=36), Part(None, 1, 5)], group=0, units=6)
            59
        """
        return sum(part.width * units if part.group == group else part.size for part in parts)

    def made_by(self, name: str) -> tuple[Part, ChannelGroup]:
        """The output channels of a module, and their group.

        Args:
            name: dotted.
        Returns: what the channels' dimension is made of, and the group.
        Raises: GrowthError: it has none, or concatenates those of several layers.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
            >>> growth.channel_map(net, genesis.zeros(1, 2)).made_by("0")[1].units
            4
        """
        made = [
            site
            for site in self.sites
            if not site.splits and site.fresh == "normal" and any(n.rpartition(".")[0] == name for n in site.names)
        ]
        if made:
            parts = made[0].parts
        else:
            passage = self.passages.get(name)
            found = [] if passage is None else [axis for axis in passage.output_layout if axis is not None]
            if len(found) != 1:
                raise GrowthError(
                    describe("growth", "where", "a layer that gives channels, and runs in the example's pass", name)
                )
            parts = found[0]
        if len(parts) != 1 or parts[0].group is None:
            raise GrowthError(
                describe("growth", "where", "a layer with channels of its own", f"{name}, which joins those of others")
            )
        return parts[0], self.groups[parts[0].group]

    def growable(self) -> list[ChannelGroup]:
        """The groups that can grow.

        Returns: in the order of their index.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
            >>> [group.units for group in growth.channel_map(net, genesis.zeros(1, 2)).growable()]
            [4]
        """
        return [group for group in self.groups if not group.fixed and self.sites_of(group.index)]

    def sites_of(self, group: int) -> list[Site]:
        """The dimensions that show a group.

        Args:
            group: its index.
        Returns: sites, in the order of the parameters.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
            >>> [(site.names[0], site.dim) for site in growth.channel_map(net, genesis.zeros(1, 2)).sites_of(0)]
            [('0.weight', 0), ('0.bias', 0), ('1.weight', 1)]
        """
        return [site for site in self.sites if _shows(site, group)]

    def __str__(self) -> str:
        """A table with a row per group and site: size, whether it can grow, elements."""
        rows = [("group", "units", "grows", "parameter", "dim", "elements")]
        for group in self.groups:
            grows = group.fixed[0] if group.fixed else "by whole multiples" if group.uniform else "yes"
            head = (str(group.index), str(group.units), "no: " + grows if group.fixed else grows)
            for site in self.sites_of(group.index):
                rows.append((*head, " = ".join(site.names), str(site.dim), _elements(site, group.index)))
                head = ("", "", "")
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


def channel_map(model: Module, example: Tensor | tuple[object, ...]) -> ChannelMap:
    """Map a network's channels: which parameters share which, and which groups can grow.

    Runs the model on the example in eval mode, without side effects. If that leaves parameters unused (auxiliary
    heads), a second pass runs in training mode.

    Args:
        model: any network; it is run.
        example: a tensor of the shape and dtype of an input, or a tuple of inputs; two samples are enough.
    Returns: the map.
    Raises: GrowthError: the example has no tensor, or an empty one.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
        >>> print(growth.channel_map(net, genesis.zeros(2, 1, 8, 8)))
        group  units  grows                               parameter  dim  elements
        0      4      yes                                 0.weight   0    0:4
                                                          0.bias     0    0:4
                                                          3.weight   1    0:144 (36 each)
        1      10     no: it is an output of the network  3.weight   0    0:10
                                                          3.bias     0    0:10
    """
    args = example if isinstance(example, tuple) else (example,)
    if not any(isinstance(arg, Tensor) for arg in args):
        given = ", ".join(type(arg).__name__ for arg in args)
        raise GrowthError(describe("growth", "example", "a Tensor that the network takes, or a tuple of inputs", given))
    empty = [arg.shape for arg in args if isinstance(arg, Tensor) and not arg.numel()]
    if empty:
        raise GrowthError(describe("growth", "example", "at least one sample, two are enough", f"shape {empty[0]}"))
    follower = Follower(model, apply_rule)
    with in_mode(model, training=False):
        outputs = follower.run(args)
        macs = follower.layouts.macs
    if follower.unreached():
        with without_traces(model), in_mode(model, training=True):
            follower.run(args)
    numbering = _Numbering()
    sites = [
        Site(names, dim, numbering.parts(use.axis), use.splits, use.fresh)
        for number, names in follower.layouts.names.items()
        for dim, use in sorted(follower.layouts.uses.get(number, {}).items())
    ]
    passages = {
        name: Passage(*its[:2], numbering.layout(its.input_layout), numbering.layout(its.output_layout))
        for name, its in follower.passages.items()
    }
    return ChannelMap(numbering.groups, sites, passages, outputs, macs, follower.unreached())


class _Numbering:
    """Numbers the groups of a pass in the order of their first use."""

    def __init__(self) -> None:
        self.groups: list[ChannelGroup] = []
        self._numbers: dict[Group, int] = {}
        self._parts: dict[Axis, tuple[Part, ...]] = {}

    def layout(self, layout: Sequence[Axis | None]) -> Layout:
        return tuple([None if axis is None else self.parts(axis) for axis in layout])

    def parts(self, axis: Axis) -> tuple[Part, ...]:
        """An axis in terms of group numbers."""
        if axis not in self._parts:  # a convolution's axis is its norm's too, and their statistics'
            self._parts[axis] = tuple(
                Part(None if segment.group is None else self._number(segment.group), segment.width, segment.size)
                for segment in axes.resolve(axis)
            )
        return self._parts[axis]

    def _number(self, root: Group) -> int:
        if root not in self._numbers:
            self._numbers[root] = len(self.groups)
            self.groups.append(ChannelGroup(len(self.groups), root.units, tuple(root.fixed), tuple(root.uniform)))
        return self._numbers[root]


def _shows(site: Site, group: int) -> bool:
    return group in [part.group for part in site.parts]


def _elements(site: Site, group: int) -> str:
    spans, start = [], 0
    for part in site.parts:
        if part.group == group:
            each = f" ({part.width} each)" if part.width > 1 else ""
            spans.append(f"{start}:{start + part.size}{each}")
        start += part.size
    return ", ".join(spans)
