"""The reference of float64 problems: the same sums in extended precision, whose rounding is 2¹¹ times finer.

PyTorch's float64 on a CPU is no reference there: it rounds like what it would judge. Weight gradients are plain chains
of multiply-adds in it too, 0.29 · 2⁻⁵³ · √terms off where there are 2808 terms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem

Extended = NDArray[np.longdouble]


def convolved(problem: ConvProblem, first: torch.Tensor, second: torch.Tensor) -> Extended:
    """The convolution without its epilogue."""
    p = problem
    (images, channels, height, width), (outputs, _, *taps) = p.input_shape, p.weight_shape
    groups, (rows, columns), (top, left) = p.groups, p.output_shape[2:], p.padding
    padded = np.zeros((images, groups, channels // groups, height + 2 * top, width + 2 * left), np.longdouble)
    inside = padded[..., top : top + height, left : left + width]
    per_group = (groups, outputs // groups, channels // groups)
    if p.direction == FORWARD:
        inside[...] = _extended(first, inside.shape)
        weight = _extended(second, (*per_group, *taps))
        y = np.zeros((images, *per_group[:2], rows * columns), np.longdouble)
        for tap, window in _windows(p, padded):
            y += weight[..., *tap] @ window.reshape(*window.shape[:3], -1)
        return y.reshape(p.result_shape)
    grad = _extended(first, (images, *per_group[:2], rows * columns))
    if p.direction == INPUT_GRAD:
        weight = _extended(second, (*per_group, *taps))
        for tap, window in _windows(p, padded):
            window += (weight[..., *tap].swapaxes(1, 2) @ grad).reshape(window.shape)
        return inside.reshape(p.result_shape)
    inside[...] = _extended(second, inside.shape)
    weight = np.zeros((*per_group, *taps), np.longdouble)
    for tap, window in _windows(p, padded):
        weight[..., *tap] = (grad @ window.reshape(*window.shape[:3], -1).swapaxes(2, 3)).sum(0)
    return weight.reshape(p.result_shape)


def _windows(problem: ConvProblem, padded: Extended) -> Iterator[tuple[tuple[int, int], Extended]]:
    """((r, s), the inputs that meet this tap: (N, group, channel, P, Q), in place)."""
    (rows, columns), (down, right) = problem.output_shape[2:], problem.stride
    for r, s in np.ndindex(problem.weight_shape[2:]):
        y, x = r * problem.dilation[0], s * problem.dilation[1]
        yield (r, s), padded[..., y : y + (rows - 1) * down + 1 : down, x : x + (columns - 1) * right + 1 : right]


def _extended(value: torch.Tensor, shape: tuple[int, ...]) -> Extended:
    return value.double().numpy().astype(np.longdouble).reshape(shape)
