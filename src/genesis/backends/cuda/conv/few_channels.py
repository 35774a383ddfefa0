"""The first layer: an image with a few channels, forward and the weight's gradient, on Hopper.

A step of the matrix product takes 64 terms, of which three channels would fill three. So the taps of a row and their
channels are summed as one dimension: the input is copied with zeros around it, and a "pixel" is then the window of all
taps of a row, which overlaps with the next one. The copy engine reads that without another copy; wgmma.py and
wgmma_weight_grad.py compute it. The weight has such rows too: a wider copy in the forward, cut out of a wider gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from genesis import dtypes
from genesis.backends.cuda.conv import hopper
from genesis.backends.cuda.conv.binding import Pointer, bind
from genesis.backends.cuda.conv.candidate import Candidate, Family, Launch, Parts
from genesis.backends.cuda.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.conv.wgmma import Wgmma, WgmmaFamily
from genesis.backends.cuda.conv.wgmma_weight_grad import WgmmaWeightGrad
from genesis.backends.cuda.kernels.conv_few_channels import _widen_kernel
from genesis.backends.cuda.tiles import power_of_2

_MOST_CHANNELS = 8
_MOST_TERMS = 64  # of a row of taps
_BLOCK = 1024


class FewChannelsFamily(Family):
    prefix = "few_channels"

    def variants(self, problem: ConvProblem) -> Iterable[Candidate]:
        if not _is_supported(problem):
            return []
        inner = WgmmaFamily().variants(_as_windows(problem))
        return [FewChannels(candidate) for candidate in inner if isinstance(candidate, Wgmma | WgmmaWeightGrad)]


class FewChannels(Candidate):
    """One of the Hopper kernels on windows."""

    def __init__(self, inner: Wgmma | WgmmaWeightGrad) -> None:
        self._inner, self.arithmetic = inner, inner.arithmetic
        self.name = f"{FewChannelsFamily.prefix}/{inner.name.partition('/')[2]}"

    def supports(self, problem: ConvProblem) -> bool:
        return _is_supported(problem)

    def workspace(self, problem: ConvProblem) -> int:
        return self._inner_workspace(problem) + sum(_sizes(problem))

    def _inner_workspace(self, problem: ConvProblem) -> int:
        return -(-self._inner.workspace(_as_windows(problem)) // 256) * 256

    def parts(self, problem: ConvProblem) -> Parts:
        return self._inner.parts(_as_windows(problem))

    def prepare(self, problem: ConvProblem) -> Launch:
        p = problem
        channels, width = _channels(p), _width(p)
        height, taps_y, taps_x = p.input_shape[2], *p.weight_shape[2:]
        view = hopper.View(taps_x * channels, (height * width * channels, width * channels, p.stride[1] * channels))
        compute = self._inner.prepare_view(_as_windows(p), view)
        widen_input = _widener(p, p.input_shape[0] * height, p.input_shape[3], p.padding[1], width)
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
        widen_weight = _widener(p, p.weight_shape[0] * taps_y, taps_x, 0, _terms(p) // channels)

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
    """The convolution of the windows: one tap per row of taps, whose channels are the row's taps and channels."""
    p = problem
    images, _, height, _ = p.input_shape
    outputs, _, taps_y, _ = p.weight_shape
    return dataclasses.replace(
        p, input_shape=(images, _terms(p), height, p.output_shape[3]), weight_shape=(outputs, _terms(p), taps_y, 1),
        stride=(p.stride[0], 1), padding=(p.padding[0], 0),
    )  # fmt: skip


def _channels(problem: ConvProblem) -> int:
    """Of a pixel in the copy: addresses of windows are to be multiples of 16."""
    p = problem
    if p.input_shape[1] <= 4 and 4 * p.stride[1] * p.dtype.itemsize % 16 == 0:
        return 4
    return 8


def _terms(problem: ConvProblem) -> int:
    """Of a window, as the weight counts them: whole pixels, at least as many as the kernels ask for."""
    return max(16, -(-problem.weight_shape[3] * _channels(problem) // 8) * 8)


def _width(problem: ConvProblem) -> int:
    """Pixels of a row in the copy; even, so that rows begin at multiples of 16 bytes."""
    p = problem
    reached = (p.output_shape[3] - 1) * p.stride[1] + p.weight_shape[3]
    return -(-max(p.padding[1] + p.input_shape[3], reached) // 2) * 2


def _sizes(problem: ConvProblem) -> tuple[int, int]:
    """Bytes of the copies of input and weight, in multiples of 256."""
    p = problem
    images, _, height, _ = p.input_shape
    counts = (images * height * _width(p) * _channels(p), math.prod(p.weight_shape[::2]) * _terms(p))
    input_size, weight_size = (-(-count * p.dtype.itemsize // 256) * 256 for count in counts)
    return input_size, weight_size


def _widener(problem: ConvProblem, rows: int, width: int, left: int, out_width: int) -> Callable[..., None]:
    """run(stream, out, x)"""
    p = problem
    return bind(
        _widen_kernel, p.device, (rows,), Pointer(p.dtype), Pointer(p.dtype, p.alignment), width, p.input_shape[1],
        left, out_width, OUT_CHANNELS=_channels(p), BLOCK=min(power_of_2(out_width * _channels(p)), _BLOCK),
    )  # fmt: skip


def _narrower(problem: ConvProblem) -> Callable[..., None]:
    """run(stream, weight, wide_weight): the channels and taps that there are."""
    p = problem
    outputs, inputs, taps_y, taps_x = p.weight_shape
    count = _channels(p)
    return bind(
        _widen_kernel, p.device, (outputs * taps_y,), Pointer(p.dtype, p.alignment), Pointer(p.dtype),
        _terms(p) // count, count, 0, taps_x, OUT_CHANNELS=inputs, BLOCK=min(power_of_2(taps_x * inputs), _BLOCK),
    )  # fmt: skip
