"""How arrays lie in memory, and how several are walked through together."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.shapes import Shape


def is_dense(x: DeviceArray | Layout) -> bool:
    """Do the elements fill their stretch of memory, each place once, in whatever order of the dimensions?"""
    step = 1
    for stride, size in sorted(zip(x.strides, x.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def collapse(shape: Shape, walks: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """The same walk through memory with as few dimensions as possible, outermost first.

    Dimensions go in the order of the first walk's strides; neighbours that every walk steps through evenly become one.

    Example:
        >>> collapse((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
        ((2, 12), [(12, 1), (0, 1)])
    """
    order = sorted((i for i in range(len(shape)) if shape[i] != 1), key=lambda i: (-walks[0][i], i))
    sizes: list[int] = []
    steps: list[list[int]] = []  # per dimension, one step per walk
    for i in order:
        step = [walk[i] for walk in walks]
        if sizes and all(outer == inner * shape[i] for outer, inner in zip(steps[-1], step, strict=True)):
            sizes[-1] *= shape[i]
            steps[-1] = step
        else:
            sizes.append(shape[i])
            steps.append(step)
    if not sizes:
        return (1,), [(1,) for _ in walks]
    return tuple(sizes), [tuple(step[k] for step in steps) for k in range(len(walks))]


def reach(sizes: Shape, walk: Shape) -> int:
    return sum((size - 1) * abs(step) for size, step in zip(sizes, walk, strict=True))
