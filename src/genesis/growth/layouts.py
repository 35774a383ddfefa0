"""Track which dimensions of a run's values show channels, and what that implies for parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from genesis.growth import axes
from genesis.growth.axes import Axis
from genesis.recording import Value

Layout = tuple[Axis | None, ...]  # for each dimension, its channels; None where there are none


class Use(NamedTuple):
    """How a dimension of a parameter or buffer shows channels."""

    axis: Axis
    splits: bool  # whether copies of a channel share its value here (a consumer's weight), or each has it
    fresh: str  # what channels without an original begin with: "normal", "zero" or "mean"


class Layouts:
    """The layouts of values. Rules (see rules.py) ask for those of operands and set those of results.

    Args:
        names: of the parameters and buffers, by the numbers of their values.

    Attributes:
        uses: by the same numbers, and dimension.
        macs: multiplications (with an addition each) of convolutions and linear layers.
    """

    def __init__(self, names: Mapping[int, tuple[str, ...]]) -> None:
        self.names = names
        self.uses: dict[int, dict[int, Use]] = {}
        self.macs = 0
        self._same_as: dict[int, int] = {}  # casts and copies of parameters
        self._opaque: dict[int, str] = {}  # parameters that were used in a way that is not understood
        self._layouts: dict[int, Layout] = {}

    def of(self, value: object) -> Layout:
        """The layout of a value's channels; () for what is no array."""
        if not isinstance(value, Value):
            return ()
        owner = self.owner(value)
        if owner is not None:
            uses = self.uses.get(owner, {})
            return tuple(uses[dim].axis if dim in uses else None for dim in range(value.ndim))
        return self._layouts.get(value.number, (None,) * value.ndim)

    def set(self, value: Value, layout: Layout) -> None:
        assert len(layout) == value.ndim or not any(layout)
        if any(axis is not None for axis in layout):
            self._layouts[value.number] = layout

    def owner(self, value: Value) -> int | None:
        """The number of the parameter or buffer that value is (or is a cast of), or None."""
        number = self._same_as.get(value.number, value.number)
        return number if number in self.names else None

    def set_same(self, value: Value, original: Value) -> None:
        """value is a cast or a copy of a parameter: it is used as the parameter is."""
        owner = self.owner(original)
        if owner is not None:
            self._same_as[value.number] = owner

    def use(self, value: Value | None, dim: int, axis: Axis, splits: bool = False, fresh: str = "mean") -> None:
        """Dimension dim of this parameter or buffer (or None) shows axis."""
        if value is None:
            return
        owner = self.owner(value)
        if owner is None:
            axes.fix(axis, "it meets a tensor that is no parameter of the network")
            return
        if owner in self._opaque:
            axes.fix(axis, self._opaque[owner])
        known = self.uses.setdefault(owner, {}).get(dim)
        if known is None:
            self.uses[owner][dim] = Use(axis, splits, fresh)
            return
        axes.unify(known.axis, axis, "a parameter is used for two axes that are made differently")
        if known.splits != splits:
            axes.fix(axis, "a parameter is used both to make these channels and to take them")

    def with_parameters(self, value: object) -> Layout:
        """of(value), where each dimension of a parameter that was not seen before is given a group of its own."""
        if isinstance(value, Value) and self.owner(value) is not None:
            for dim, (axis, size) in enumerate(zip(self.of(value), value.shape, strict=True)):
                if axis is None and size > 1:
                    self.use(value, dim, axes.new_axis(size))
        return self.of(value)

    def fix(self, value: object, reason: str) -> None:
        """Nothing in value can grow: an op (or the world outside) takes it in a way that is not understood."""
        if isinstance(value, Value):
            owner = self.owner(value)
            if owner is not None:
                self._opaque.setdefault(owner, reason)
            for axis in self.of(value):
                axes.fix(axis, reason)
