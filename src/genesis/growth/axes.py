"""Channel groups, and how the axes of tensors are made of them.

An axis (one dimension of a tensor) is a row of segments; a segment shows the units of one group, each as a block of
`width` neighbouring elements. A convolution's output is one segment of width 1; a concatenation has several; what was
flattened has a width of H·W.

Where two axes meet in an op, their groups become one (`unify`): they can only grow together. Where an op takes
channels by the block (grouped convolution, group norm), their groups become coarser (`regroup`): units are whole blocks
from then on, and nothing ever grows by a part of one. What cannot grow is fixed, with the reason.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Group:
    """Units (channels, or blocks of channels) that are added and removed as wholes, wherever they are used."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.fixed: list[str] = []  # why it cannot grow
        self.uniform: list[str] = []  # why every unit must be multiplied by the same number
        self._parent: Group | None = None
        self._ratio = 1  # how many of these units one of the parent's is

    def root(self) -> tuple[Group, int]:
        """The group that this one is part of now, and how many of these units one of its is."""
        if self._parent is None:
            return self, 1
        root, ratio = self._parent.root()
        self._parent, self._ratio = root, ratio * self._ratio
        return root, self._ratio

    def join(self, root: Group, ratio: int = 1) -> None:
        """Become part of root, whose units are each ratio of these."""
        root.fixed += [reason for reason in self.fixed if reason not in root.fixed]
        root.uniform += [reason for reason in self.uniform if reason not in root.uniform]
        self._parent, self._ratio = root, ratio


class Segment(NamedTuple):
    """size elements of an axis: units of group, width elements each; elements of no group cannot change."""

    group: Group | None
    width: int
    size: int

    def resolved(self) -> Segment:
        """The same elements by the units of the root group."""
        if self.group is None:
            return self
        root, ratio = self.group.root()
        return Segment(root, self.width * ratio, self.size)


Axis = tuple[Segment, ...]


def new_axis(size: int) -> Axis:
    """An axis of a group of its own."""
    return (Segment(Group(size), 1, size),)


def constant(size: int) -> Axis:
    return (Segment(None, size, size),)


def resolve(axis: Axis) -> Axis:
    return tuple(segment.resolved() for segment in axis)


def groups_of(axis: Axis) -> list[Group]:
    return [segment.group for segment in resolve(axis) if segment.group is not None]


def fix(axis: Axis | None, reason: str) -> None:
    """Nothing on this axis can grow."""
    for group in groups_of(axis or ()):
        if reason not in group.fixed:
            group.fixed.append(reason)


def unify(one: Axis, other: Axis, reason: str) -> None:
    """The axes are the same from now on; reason says what happened to those that cannot be."""
    if [segment.size for segment in one] != [segment.size for segment in other]:
        fix(one, reason)
        fix(other, reason)
        return
    for mine, its in zip(one, other, strict=True):
        if mine.group is None or its.group is None:
            fix((mine, its), reason)
        else:
            _merge(mine, its, reason)


def _merge(one: Segment, other: Segment, reason: str) -> None:
    """Segments of one size whose elements correspond."""
    block = math.lcm(one.resolved().width, other.resolved().width)
    _coarsen(one, block)
    _coarsen(other, block)
    (a, width), (b, other_width) = one.resolved()[:2], other.resolved()[:2]
    assert a is not None
    assert b is not None
    if width != other_width:  # one group meets itself in blocks of different sizes
        fix((one, other), reason)
    elif a is not b:
        a.join(b)


def _coarsen(segment: Segment, block: int) -> None:
    """Make the units of the segment's group so large that each is a multiple of block elements here."""
    group, width, _ = segment.resolved()
    assert group is not None
    factor = math.lcm(width, block) // width
    if factor > 1:
        group.join(Group(group.units // factor), factor)


def regroup(axis: Axis, taken: int, given: int, reason: str) -> Axis | None:
    """The axis after an op that makes given elements of each block of taken; None (and fixed) where blocks straddle."""
    if any(segment.size % taken for segment in axis):
        fix(axis, reason)
        return None
    for segment in axis:
        if segment.group is not None:
            _coarsen(segment, taken)
    return tuple(
        Segment(segment.group, segment.width // taken * given, segment.size // taken * given)
        for segment in resolve(axis)
    )


def cut(axis: Axis, start: int, length: int, reason: str) -> Axis | None:
    """The part [start, start + length) of an axis; None (and fixed) if a segment is cut in two."""
    kept: list[Segment] = []
    end = 0
    for segment in axis:
        begin, end = end, end + segment.size
        if start <= begin and end <= start + length:
            kept.append(segment)
        elif begin < start + length and start < end:
            fix(axis, reason)
            return None
    return tuple(kept)
