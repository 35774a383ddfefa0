"""The first layer: an image with a few channels, forward and the weight's gradient, on Hopper.

A step of the matrix product takes 64 terms, of which three channels would fill three. So the taps of a row and their
channels are summed as one dimension: the input is copied with zeros around it, and a "pixel" is then the window of all
taps of a row, which overlaps with the next one. The copy engine reads that without another copy; wgmma.py and
wgmma_weight_grad.py compute it. The weight has such rows too: a wider copy in the forward, cut out of a wider gradient.

Where the rows have a stride, as many of them are folded into one row of the copy, so that a window is of that many rows
of taps: seven rows take four steps. In the forward the eighth has zeros as its taps, and zero times infinity is not
zero: full precision does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, Parts
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.small_c.kernels import _narrow_kernel, _widen_kernel
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.candidates.wgmma.forward import Wgmma, WgmmaFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma.weight_grad import WgmmaWeightGrad
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import Shape

_MOST_CHANNELS = 8
_LEAST_TERMS, _MOST_TERMS = 16, 64  # of a window
_BLOCK = 1024


class SmallCFamily(Family[ConvProblem]):
    prefix = "small_c"
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        if not _is_supported(problem):
            return []
        inner = WgmmaFamily().variants(_as_windows(problem))
        choice = [candidate for candidate in inner if isinstance(candidate, Wgmma | WgmmaWeightGrad)]
        if problem.direction == FORWARD and problem.dtype.itemsize == 2:
            # There are few steps, and much to wait for: the more warpgroups the better, and one alone was last.
            choice.sort(key=lambda candidate: -candidate.shape.consumers)
        return [SmallC(candidate) for candidate in choice]


class SmallC(Candidate[ConvProblem]):
    """One of the Hopper kernels on windows."""

    def __init__(self, inner: Wgmma | WgmmaWeightGrad) -> None:
        self._inner, self.arithmetic = inner, inner.arithmetic
        self.name = f"{SmallCFamily.prefix}/{inner.name.partition('/')[2]}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return self._inner.fuses(_as_windows(problem))

    def workspace(self, problem: ConvProblem) -> int:
        return self._inner_workspace(problem) + sum(_sizes(problem))

    def _inner_workspace(self, problem: ConvProblem) -> int:
        return -(-self._inner.workspace(_as_windows(problem)) // 256) * 256

    def parts(self, problem: ConvProblem) -> Parts:
        return self._inner.parts(_as_windows(problem))

    def prepare(self, problem: ConvProblem) -> Launch:
        p, windows = problem, _as_windows(problem)
        height, pixel = windows.input_shape[2], _fold(p) * _channels(p)
        width = _width(p)
        view = hopper.View(p.weight_shape[3] * pixel, (height * width * pixel, width * pixel, p.stride[1] * pixel))
        compute = self._inner.prepare_view(windows, view)
        widen_input = _input_widener(p)
        input_place = self._inner_workspace(p)
        weight_place = input_place + _sizes(p)[0]
        if p.direction == WEIGHT_GRAD:
            narrow = _narrower(p)

            def run_gradient(stream: int, out: int, grad: int, input: int, _: int, __: int, workspace: int) -> None:
                wide_input, wide_weight = workspace + input_place, workspace + weight_place
                widen_input(stream, wide_input, input)
                compute(stream, wide_weight, grad, wide_input, 0, 0, workspace)
                narrow(stream, out, wide_weight)

            return run_gradient
        widen_weight = _weight_widener(p)

        def run(stream: int, out: int, input: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            wide_input, wide_weight = workspace + input_place, workspace + weight_place
            widen_input(stream, wide_input, input)
            widen_weight(stream, wide_weight, weight)
            compute(stream, out, wide_input, wide_weight, bias, residual, workspace)

        return run


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    return (
        p.direction in (FORWARD, WEIGHT_GRAD)
        and p.groups == 1
        and p.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
        and p.input_shape[1] <= _MOST_CHANNELS
        and p.weight_shape[2] > 1
        and p.dilation[1] == 1
        and hopper.is_accurate(p, p.num_terms)
        and hopper.is_available(p.device)
        and _terms(p) <= _MOST_TERMS
        and any(True for _ in WgmmaFamily().variants(_as_windows(p)))
    )


def _as_windows(problem: ConvProblem) -> ConvProblem:
    """The convolution of the windows: one tap per row of windows, whose channels are the terms of a window."""
    p, fold = problem, _fold(problem)
    images, _, height, _ = p.input_shape
    outputs, _, taps_y, _ = p.weight_shape
    stride, padding = p.stride[0], p.padding[0]
    if fold > 1:  # the padding is in the copy
        taps_y = -(-taps_y // fold)
        height, stride, padding = p.output_shape[2] + taps_y - 1, 1, 0
    return dataclasses.replace(
        p, input_shape=(images, _terms(p), height, p.output_shape[3]), weight_shape=(outputs, _terms(p), taps_y, 1),
        stride=(stride, 1), padding=(padding, 0),
    )  # fmt: skip


def _fold(problem: ConvProblem) -> int:
    """How many rows of the input lie in one row of the copy."""
    p, rows = problem, problem.stride[0]
    terms = p.weight_shape[3] * rows * _channels(p)
    fits = terms <= _MOST_TERMS and terms % 8 == 0 and terms >= _LEAST_TERMS
    is_cut = p.direction == WEIGHT_GRAD or p.weight_shape[2] % rows == 0  # rows of zeros meet no result
    # Of windows a single row would be left: wgmma.py takes those for dense pixels.
    return rows if p.dilation[0] == 1 and fits and (is_cut or not p.is_exact) and p.weight_shape[2] > rows else 1


def _channels(problem: ConvProblem) -> int:
    """Channels of a pixel in the copy: addresses of windows are to be multiples of 16."""
    p = problem
    if p.input_shape[1] <= 4 and 4 * p.stride[1] * p.dtype.itemsize % 16 == 0:
        return 4
    return 8


def _terms(problem: ConvProblem) -> int:
    """Terms of a window, as the weight counts them: whole pixels, at least as many as the kernels ask for."""
    return max(_LEAST_TERMS, -(-problem.weight_shape[3] * _fold(problem) * _channels(problem) // 8) * 8)


def _width(problem: ConvProblem) -> int:
    """Pixels of a row in the copy; even, so that rows begin at multiples of 16 bytes."""
    p = problem
    reached = (p.output_shape[3] - 1) * p.stride[1] + p.weight_shape[3]
    return -(-max(p.padding[1] + p.input_shape[3], reached) // 2) * 2


def _sizes(problem: ConvProblem) -> tuple[int, int]:
    """Bytes of the copies of input and weight, in multiples of 256."""
    p, windows = problem, _as_windows(problem)
    images, _, height, _ = windows.input_shape
    outputs, terms, taps_y, _ = windows.weight_shape
    counts = (images * height * _width(p) * _fold(p) * _channels(p), outputs * taps_y * terms)
    input_size, weight_size = (-(-count * p.dtype.itemsize // 256) * 256 for count in counts)
    return input_size, weight_size


def _input_widener(problem: ConvProblem) -> AddressLaunch:
    """run(stream, wide_input, input)"""
    p = problem
    images, _, height, _ = _as_windows(p).input_shape
    top = p.padding[0] if _fold(p) > 1 else 0
    return _widener(p, images, p.input_shape, (top, p.padding[1]), (height, _width(p)))


def _weight_widener(problem: ConvProblem) -> AddressLaunch:
    """run(stream, wide_weight, weight)"""
    p = problem
    outputs, terms, taps_y, _ = _as_windows(p).weight_shape
    return _widener(p, outputs, p.weight_shape, (0, 0), (taps_y, terms // (_fold(p) * _channels(p))))


def _widener(problem: ConvProblem, count: int, shape: Shape, moved: Pair, sizes: Pair) -> AddressLaunch:
    p, (height, width) = problem, sizes
    block = min(power_of_2(width * _fold(p) * _channels(p)), _BLOCK)
    return bind(
        _widen_kernel, p.device, (count * height,), Pointer(p.dtype), Pointer(p.dtype, p.alignment), *shape[2:],
        p.input_shape[1], *moved, height, width, FOLD=_fold(p), OUT_CHANNELS=_channels(p), BLOCK=block,
    )  # fmt: skip


def _narrower(problem: ConvProblem) -> AddressLaunch:
    """run(stream, weight, wide_weight): the channels and taps that there are."""
    p = problem
    outputs, inputs, taps_y, taps_x = p.weight_shape
    _, terms, rows, _ = _as_windows(p).weight_shape
    return bind(
        _narrow_kernel, p.device, (outputs * taps_y,), Pointer(p.dtype, p.alignment), Pointer(p.dtype), taps_y, taps_x,
        inputs, rows, terms, FOLD=_fold(p), WIDE_CHANNELS=_channels(p), BLOCK=min(power_of_2(taps_x * inputs), _BLOCK),
    )  # fmt: skip
