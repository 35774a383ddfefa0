"""Taps as channels: a convolution whose windows do not overlap, as one with fewer taps.

In NHWC the pixels of a row of such a window lie side by side, and so do their weights in KRSC. The same memory is an
image with so many times the channels: patches of 16×16 pixels become rows of 16 taps, and a window that is the whole
image, as of a classifier's first layer, one pixel and a plain matrix product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, Parts, admissible
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem

PREFIX = "folded"


def fold(problem: ConvProblem) -> ConvProblem | None:
    """The same problem with fewer taps and more channels; None: there is none.

    Example:
        >>> patches = ConvProblem("forward", (8, 3, 224, 224), (768, 3, 16, 16), (16, 16), dtype=genesis.float32)
        >>> fold(patches).input_shape, fold(patches).weight_shape, fold(patches).stride
        ((8, 48, 224, 14), (768, 48, 16, 1), (16, 1))
        >>> whole = ConvProblem("forward", (8, 512, 7, 7), (4096, 512, 7, 7), dtype=genesis.float32)
        >>> fold(whole).input_shape, fold(whole).weight_shape
        ((8, 25088, 1, 1), (4096, 25088, 1, 1))
    """
    p = problem
    if p.groups > 1 or p.dilation != (1, 1) or (p.bias and p.direction == INPUT_GRAD) or not _is_tiled(p, 1):
        return None
    is_one_pixel = p.output_shape[3] == 1 and _is_tiled(p, 0)  # a row: then the next one follows
    rows, columns = p.weight_shape[2] if is_one_pixel else 1, p.weight_shape[3]
    if rows * columns == 1:
        return None
    images, channels, height, width = p.input_shape
    channels *= rows * columns
    return dataclasses.replace(
        p, input_shape=(images, channels, height // rows, width // columns),
        weight_shape=(p.weight_shape[0], channels, p.weight_shape[2] // rows, 1),
        stride=(1 if is_one_pixel else p.stride[0], 1),
    )  # fmt: skip


def _is_tiled(problem: ConvProblem, axis: int) -> bool:
    """Are the windows along an axis all of the image, one after the other?"""
    p, taps = problem, problem.weight_shape[2 + axis]
    windows = p.output_shape[2 + axis]
    follow = windows == 1 or p.stride[axis] == taps
    return p.padding[axis] == 0 and follow and windows * taps == p.input_shape[2 + axis]


class FoldedFamily(Family[ConvProblem]):
    """The candidates of a family for the folded problem."""

    def __init__(self, inner: Family[ConvProblem]) -> None:
        self._inner = inner
        self.prefix, self.per_turn = f"{PREFIX}/{inner.prefix}", inner.per_turn

    def variants(self, problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
        return self._around(problem, self._inner.variants)

    def trials(self, problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
        return self._around(problem, self._inner.trials)

    def _around(
        self, problem: ConvProblem, choice: Callable[[ConvProblem], Iterable[Candidate[ConvProblem]]]
    ) -> Iterator[Candidate[ConvProblem]]:
        folded = fold(problem)
        if folded is not None:
            yield from (Folded(each) for each in choice(folded) if admissible(each, folded))

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        folded = fold(problem)
        inner = None if folded is None else self._inner.named(folded, name.removeprefix(f"{PREFIX}/"))
        return None if inner is None else Folded(inner)


class Folded(Candidate[ConvProblem]):
    """A candidate for the folded problem: the memory is the same, and so is the launch."""

    def __init__(self, inner: Candidate[ConvProblem]) -> None:
        self._inner, self.name = inner, f"{PREFIX}/{inner.name}"
        self.arithmetic, self.deterministic = inner.arithmetic, inner.deterministic
        self.builds_slowly, self.is_ready_made = inner.builds_slowly, inner.is_ready_made

    def supports(self, problem: ConvProblem) -> bool:
        folded = fold(problem)
        return folded is not None and admissible(self._inner, folded)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return self._inner.fuses(_folded(problem))

    def workspace(self, problem: ConvProblem) -> int:
        return self._inner.workspace(_folded(problem))

    def parts(self, problem: ConvProblem) -> Parts:
        return self._inner.parts(_folded(problem))

    def prepare(self, problem: ConvProblem) -> Launch:
        return self._inner.prepare(_folded(problem))


def _folded(problem: ConvProblem) -> ConvProblem:
    found = fold(problem)
    assert found is not None
    return found
