"""Rules of ops without weights: element by element, joining, taking apart, reshaping, reducing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis.growth import axes
from genesis.growth.axes import Axis
from genesis.growth.layouts import Layout, Layouts
from genesis.recording import Call, Value

# --- element by element -----------------------------------------------------------------------------------------------


def elementwise(layouts: Layouts, call: Call) -> None:
    """Rule of element-wise ops: operands are aligned at their last dimension, and channels that meet are one group.

    See `genesis.growth.register_rule` for its use.

    Args:
        layouts: what is known of every value so far; results are added.
        call: the recorded call.
    """
    given = [(arg.shape, layouts.with_parameters(arg)) for arg in call.args if isinstance(arg, Value)]
    if all(axis is None for _, layout in given for axis in layout):
        return
    shape = call.outputs[0].shape
    result: list[Axis | None] = [None] * len(shape)
    for dim in range(1, len(shape) + 1):  # counted from the end
        size = shape[-dim]
        present = [(sizes[-dim], layout[-dim]) for sizes, layout in given if len(sizes) >= dim]
        whole = [axis for its_size, axis in present if its_size == size]
        for its_size, axis in present:
            if its_size != size:
                axes.fix(axis, "it is broadcast over other channels")
        known = [axis for axis in whole if axis is not None]
        if not known:
            continue
        for axis in known[1:]:
            axes.unify(known[0], axis, "channels of different makes meet in one op")
        if len(known) < len(whole) and size > 1:
            axes.fix(known[0], "it meets a tensor of fixed size")
        result[-dim] = known[0]
    for output in call.outputs:
        layouts.set(output, tuple(result))


def same_size(layouts: Layouts, call: Call) -> None:
    """Rule of pooling and filters: dimensions of the first argument that keep their size keep their channels.

    Args:
        layouts, call: as in `genesis.growth.elementwise`.

    Example:
        >>> from genesis import growth
        >>> class Blur(genesis.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return F.avg_pool2d(x, 3, 1, 1)
        >>> growth.register_rule(Blur, growth.same_size)
        >>> class Blurred(nn.Conv2d):
        ...     def forward(self, input):
        ...         return Blur.apply(super().forward(input))
        >>> net = nn.Sequential(Blurred(1, 4, 3), nn.Conv2d(4, 1, 3))
        >>> growth.grow_width(net, "0", channels=6, example=genesis.ones(1, 1, 8, 8))
        step 0: grow_width 0 to 6 (77 → 115 parameters)
    """
    layout = layouts.with_parameters(call.args[0])
    for output in call.outputs:
        if len(layout) == output.ndim:
            kept = []
            for axis, before, after in zip(layout, call.args[0].shape, output.shape, strict=True):
                if before != after:
                    axes.fix(axis, "an op changes the number of elements along the channels")
                kept.append(axis if before == after else None)
            layouts.set(output, tuple(kept))
        else:
            layouts.fix(call.args[0], "an op changes the number of dimensions")


def copied(layouts: Layouts, call: Call) -> None:
    """The same values in another dtype, memory or place; a copy of a parameter is used as the parameter is."""
    layouts.set_same(call.outputs[0], call.args[0])
    layouts.set(call.outputs[0], layouts.of(call.args[0]))


# --- joining, taking apart, reshaping ---------------------------------------------------------------------------------


def cat(layouts: Layouts, call: Call) -> None:
    dim = call.kwargs["dim"]
    given = [(arg.shape[dim], layouts.with_parameters(arg)) for arg in call.args if arg.ndim == call.outputs[0].ndim]
    result: list[Axis | None] = [None] * call.outputs[0].ndim
    if any(layout[dim] is not None for _, layout in given):
        parts = [axes.constant(size) if layout[dim] is None else layout[dim] for size, layout in given if size]
        result[dim] = tuple(segment for part in parts for segment in part or ())
    for place in range(len(result)):
        if place != dim:
            known = [layout[place] for _, layout in given]
            present = [axis for axis in known if axis is not None]
            for axis in present[1:]:
                axes.unify(present[0], axis, "channels of different makes are joined side by side")
            if len(present) < len(known):
                for axis in present:
                    axes.fix(axis, "it is joined with a tensor of fixed size")
            result[place] = present[0] if present else None
    layouts.set(call.outputs[0], tuple(result))


def split(layouts: Layouts, call: Call) -> None:
    """Parts one after the other (split, chunk); parts of one layer's channels are not told apart."""
    dim, layout = call.kwargs["dim"], layouts.with_parameters(call.args[0])
    starts = [0]
    for output in call.outputs:
        starts.append(starts[-1] + output.shape[dim])
    for start, output in zip(starts, call.outputs, strict=False):
        layouts.set(output, _part(layout, dim, start, output.shape[dim]))


def narrow(layouts: Layouts, call: Call) -> None:
    layout = layouts.with_parameters(call.args[0])
    layouts.set(call.outputs[0], _part(layout, call.kwargs["dim"], call.kwargs["start"], call.kwargs["length"]))


def _part(layout: Layout, dim: int, start: int, length: int) -> Layout:
    axis = layout[dim]
    if axis is not None:
        axis = axes.cut(axis, start, length, "a part of a layer's channels is taken by itself")
    return (*layout[:dim], axis, *layout[dim + 1 :])


def getitem(layouts: Layouts, call: Call) -> None:
    plan, arrays = call.kwargs["index"]
    layout = layouts.with_parameters(call.args[0])
    reason = "channels are chosen by an index"
    if arrays:
        layouts.fix(call.args[0], reason)
        return
    result: list[Axis | None] = []
    dim = 0
    for item in plan:
        if item is None:
            result.append(None)
            continue
        axis = layout[dim]
        if isinstance(item, int):
            axes.fix(axis, reason)
        elif axis is not None and item.step == 1:
            result.append(axes.cut(axis, item.start, item.length, reason))
        else:
            axes.fix(axis, reason)
            result.append(None)
        dim += 1
    layouts.set(call.outputs[0], tuple(result))


def reshape(layouts: Layouts, call: Call) -> None:
    """Dimensions in runs of equal size; channels may only stand first in theirs: each then is a block of elements."""
    layout, before, after = layouts.with_parameters(call.args[0]), call.args[0].shape, call.outputs[0].shape
    result: list[Axis | None] = [None] * len(after)
    for olds, news in _runs(before, after):
        channels = [dim for dim in olds if layout[dim] is not None]
        if not channels:
            continue
        wide_olds = [dim for dim in olds if before[dim] > 1 or dim in channels]
        wide_news = [dim for dim in news if after[dim] > 1] or news[:1]
        axis = layout[channels[0]]
        assert axis is not None
        reason = "a reshape mixes channels with other dimensions"
        if channels != wide_olds[:1]:
            for dim in channels:
                axes.fix(layout[dim], reason)
            continue
        old, new = _product(before, wide_olds[1:]), _product(after, wide_news[1:])  # elements beside each channel
        both = math.lcm(old, new)
        result[wide_news[0]] = axes.regroup(axis, both // old, both // new, reason)
    layouts.set(call.outputs[0], tuple(result))


def _runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Neighbouring dimensions of both shapes that have the same number of elements, as short as possible."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        olds, news = [i], [j]
        while _product(before, olds) != _product(after, news):
            if _product(before, olds) < _product(after, news):
                olds.append(olds[-1] + 1)
            else:
                news.append(news[-1] + 1)
        runs.append((olds, news))
        i, j = olds[-1] + 1, news[-1] + 1
    rest_old, rest_new = list(range(i, len(before))), list(range(j, len(after)))  # all of size 1
    if runs:
        runs[-1] = (runs[-1][0] + rest_old, runs[-1][1] + rest_new)
    return runs


def _product(shape: Sequence[int], dims: Sequence[int]) -> int:
    result = 1
    for dim in dims:
        result *= shape[dim]
    return result


def permute(layouts: Layouts, call: Call) -> None:
    layout = layouts.with_parameters(call.args[0])
    layouts.set(call.outputs[0], tuple(layout[dim] for dim in call.kwargs["dims"]))


def unsqueeze(layouts: Layouts, call: Call) -> None:
    layout = list(layouts.with_parameters(call.args[0]))
    layout.insert(call.kwargs["dim"], None)
    layouts.set(call.outputs[0], tuple(layout))


def reduced(layouts: Layouts, call: Call) -> None:
    """Sums, means, extremes: over planes they leave the channels alone, over channels they count them."""
    layout = layouts.with_parameters(call.args[0])
    dims = _dims(call, len(layout))
    for dim in dims:
        axes.fix(layout[dim], "it is reduced over the channels")
    kept = [None if dim in dims else axis for dim, axis in enumerate(layout)]
    if not call.kwargs.get("keepdim", True):
        kept = [axis for dim, axis in enumerate(kept) if dim not in dims]
    for output in call.outputs:
        layouts.set(output, tuple(kept))


def mixed(layouts: Layouts, call: Call) -> None:
    """Softmax and the like: the elements along one dimension depend on each other."""
    layout = layouts.with_parameters(call.args[0])
    for dim in _dims(call, len(layout)):
        axes.fix(layout[dim], "an op mixes the channels with each other")
    for output in call.outputs:
        layouts.set(output, layout)


def _dims(call: Call, ndim: int) -> list[int]:
    """The dimensions that an op goes over; without any, all."""
    dims = call.kwargs["dims"] if "dims" in call.kwargs else call.kwargs["dim"]
    listed = range(ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return [dim % ndim for dim in listed]


def pixel_shuffle(layouts: Layouts, call: Call) -> None:
    """Pixel shuffle: r² neighbouring channels become one."""
    _shuffled(layouts, call.args[0], call.outputs[0], call.kwargs["factor"] ** 2, 1)


def pixel_unshuffle(layouts: Layouts, call: Call) -> None:
    _shuffled(layouts, call.args[0], call.outputs[0], 1, call.kwargs["factor"] ** 2)


def _shuffled(layouts: Layouts, x: Value, output: Value, taken: int, given: int) -> None:
    layout = list(layouts.with_parameters(x))
    axis = layout[-3]
    if axis is not None:
        layout[-3] = axes.regroup(axis, taken, given, "the blocks of a pixel shuffle straddle a concatenation")
    layouts.set(output, tuple(layout))
