"""The input's gradient of a first layer: all residues of a pixel's position in one convolution of the gradient.

With a stride s, position i · s + residue meets the gradient's pixels around i, with every s-th tap. The gradient of the
few channels at all s² residues are the channels of one pixel i: a convolution with stride 1, to s² times as many
channels, whose pixels are then taken apart (Shi et al. 2016, arXiv:1609.05158). cuDNN or Hopper's kernels compute it;
by itself each residue would be a product with three columns.

The window has the taps of all residues, zeros where one of them has none. Zero times infinity is not zero: where full
precision of float32 is asked for, only windows without zeros will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.cudnn import CudnnFamily
from genesis.backends.cuda.ops.conv.candidates.sub_pixel_dgrad.kernels import (
    _gather_weight_kernel,
    _shuffle_pixels_kernel,
)
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import WgmmaFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.shapes import numel

_MOST_CHANNELS = 8
_MOST_WIDE = 64  # channels of all residues
_BLOCK = 1024
_CUDNN = CudnnFamily()  # of a stem's windows on an H200, its first guess was faster than all of ours
_INNER: tuple[tuple[Family[ConvProblem], int], ...] = ((_CUDNN, 3), (WgmmaFamily(), 3))  # and how many of them


_Choice = Callable[[Family[ConvProblem], ConvProblem], Iterable[Candidate[ConvProblem]]]


class SubPixelDgradFamily(Family[ConvProblem]):
    prefix = "sub_pixel_dgrad"

    def variants(self, problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
        # No guess takes cuDNN where all bits of float32 count: as in families.py.
        exact = problem.is_exact
        return _around(problem, lambda family, wide: () if exact and family is _CUDNN else family.variants(wide))

    def trials(self, problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
        return _around(problem, lambda family, wide: family.trials(wide))

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        inner = name.partition("/")[2]
        family = next((each for each, _ in _INNER if each.prefix == inner.partition("/")[0]), None)
        if family is None or not _is_supported(problem):
            return None
        wide = _as_forward(problem)
        candidate = family.named(wide, inner)
        return SubPixelDgrad(candidate) if candidate is not None and admissible(candidate, wide) else None


def _around(problem: ConvProblem, inner: _Choice) -> Iterator[Candidate[ConvProblem]]:
    """inner(family, wide): its candidates for the wide forward."""
    if not _is_supported(problem):
        return
    wide = _as_forward(problem)
    for family, most in _INNER:
        choice = (candidate for candidate in inner(family, wide) if admissible(candidate, wide))
        yield from map(SubPixelDgrad, itertools.islice(choice, most))


class SubPixelDgrad(Candidate[ConvProblem]):
    """One of the candidates for the forward, between a copy of the weight and one of its result."""

    def __init__(self, inner: Candidate[ConvProblem]) -> None:
        self._inner, self.name = inner, f"{SubPixelDgradFamily.prefix}/{inner.name}"
        self.arithmetic, self.deterministic = inner.arithmetic, inner.deterministic
        self.builds_slowly = inner.builds_slowly

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem) and self._inner.supports(_as_forward(problem))

    def workspace(self, problem: ConvProblem) -> int:
        wide = _as_forward(problem)
        arrays = (
            _padded(numel(wide.result_shape) * wide.dtype.itemsize) + numel(wide.weight_shape) * wide.dtype.itemsize
        )
        return _padded(self._inner.workspace(wide)) + arrays

    def prepare(self, problem: ConvProblem) -> Launch:
        p, wide, window = problem, _as_forward(problem), _windows(problem)
        compute = self._inner.prepare(wide)
        result_place = _padded(self._inner.workspace(wide))
        weight_place = result_place + _padded(numel(wide.result_shape) * p.dtype.itemsize)
        outputs, inputs, *taps = p.weight_shape
        num_wide, _, *wide_taps = wide.weight_shape
        starts = tuple(p.padding[i] + window[i].before * p.stride[i] for i in range(2))
        gather = bind(
            _gather_weight_kernel, p.device, (num_wide * wide_taps[0] * wide_taps[1],), Pointer(p.dtype),
            Pointer(p.dtype, p.alignment), inputs, outputs, tuple(taps), p.stride, starts, tuple(wide_taps),
            BLOCK=min(power_of_2(outputs), _BLOCK),
        )  # fmt: skip
        images, _, *size = p.input_shape
        shuffle = bind(
            _shuffle_pixels_kernel, p.device, (images * size[0],), Pointer(p.dtype, p.alignment), Pointer(p.dtype),
            tuple(size), inputs, tuple(wide.result_shape[2:]), num_wide, p.stride, tuple(each.first for each in window),
            BLOCK=min(power_of_2(size[1] * inputs), _BLOCK),
        )  # fmt: skip

        def run(stream: int, out: int, grad: int, weight: int, _: int, __: int, workspace: int) -> None:
            result, wide_weight = workspace + result_place, workspace + weight_place
            gather(stream, wide_weight, weight)
            compute(stream, result, grad, wide_weight, 0, 0, workspace)
            shuffle(stream, out, result)

        return run


class _Window(NamedTuple):
    """Along one axis: which of the gradient's pixels the positions i · stride + residue meet, of all residues."""

    before: int  # pixels before i; negative: the first is that far behind it
    size: int
    padding: int  # of the convolution, on both sides
    first: int  # position of i = 0 in its result


def _windows(problem: ConvProblem) -> tuple[_Window, _Window]:
    p = problem
    along = zip(p.input_shape[2:], p.output_shape[2:], p.weight_shape[2:], p.stride, p.padding, strict=True)
    rows, columns = (_window(*each) for each in along)
    return rows, columns


def _window(size: int, out_size: int, taps: int, stride: int, padding: int) -> _Window:
    """Position h = p · stride − padding + r, so that p − i = (residue + padding − r) / stride.

    >>> _window(224, 112, 7, 2, 3)
    _Window(before=1, size=4, padding=2, first=1)
    """
    before = (taps - 1 - padding) // stride  # of residue 0 or the next, and the last tap
    window = (stride - 1 + padding) // stride + before + 1  # up to the last residue's first tap
    positions = -(-size // stride)
    enough = max(0, before, positions - before - out_size + window - 1)
    return _Window(before, window, enough, enough - before)


def _as_forward(problem: ConvProblem) -> ConvProblem:
    """The convolution of the gradient whose result has, at pixel i, the channels of all residues."""
    p, (rows, columns) = problem, _windows(problem)
    num_wide = -(-p.input_shape[1] * p.stride[0] * p.stride[1] // 8) * 8
    return ConvProblem(
        FORWARD, p.output_shape, (num_wide, p.weight_shape[0], rows.size, columns.size), (1, 1),
        (rows.padding, columns.padding), dtype=p.dtype, alignment=p.alignment, precision=p.precision,
        deterministic=p.deterministic, device=p.device,
    )  # fmt: skip


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    few = p.input_shape[1] <= _MOST_CHANNELS and p.input_shape[1] * p.stride[0] * p.stride[1] <= _MOST_WIDE
    known = p.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
    if not (p.direction == INPUT_GRAD and few and known and p.groups == 1 and p.dilation == (1, 1)):
        return False
    if p.epilogue.parts or numel(p.result_shape) == 0 or numel(p.output_shape) == 0:
        return False
    sizes = zip(_windows(p), p.weight_shape[2:], p.stride, strict=True)
    is_full = all(window.size * stride == taps for window, taps, stride in sizes)
    return is_full or not p.is_exact


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256
