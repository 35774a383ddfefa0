"""Average pooling of a deferred 1×1 convolution: the input is pooled instead, for both are linear and commute.

    mean(w · x + b) = w · mean(x) + b        over any window without padding

The convolution then has as many pixels fewer as a window has, and whatever follows the pooling can run with it. So in
the transitions of DenseNets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor
from torch.nn import functional as F

from genesis.torch import bridge
from genesis.torch.links import NO_NORM, Link
from genesis.torch.pending import HANDLERS, NOT_HERE, NotHere, Pending, can_extend, is_unused_convolution, pending

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry


def _avg_pool2d(
    input: object, kernel_size: object, stride: object = None, padding: object = 0, ceil_mode: object = False,
    count_include_pad: object = True, divisor_override: object = None,
) -> Tensor | NotHere:  # fmt: skip
    window, step = _pair(kernel_size), _pair(kernel_size if stride is None or stride == [] else stride)
    if type(input) is not Pending or window is None or step is None or _pair(padding) != (0, 0):
        return NOT_HERE
    link = input.link
    if (
        ceil_mode is not False
        or type(count_include_pad) is not bool
        or divisor_override is not None
        or not is_unused_convolution(input)
    ):
        return NOT_HERE
    if type(link) is not Link or not bridge.activates(link.input) or not can_extend(input, link):
        return NOT_HERE
    return _pooled(input, link, window, step) if _commutes(link, window, step) else NOT_HERE


def _pair(value: object) -> tuple[int, int] | None:
    if type(value) is int:
        return value, value
    if isinstance(value, tuple | list) and len(value) in (1, 2) and {type(each) for each in value} == {int}:
        return value[0], value[-1]
    return None


def _commutes(link: Link, window: tuple[int, int], step: tuple[int, int]) -> bool:
    """Is it a 1×1 convolution, and are fewer numbers moved if its input is pooled?"""
    stride, padding, _, _ = link.plan.geometry
    weight, x = link.weight, link.input
    if weight is None or weight.shape[2:] != (1, 1) or stride != (1, 1) or padding != (0, 0):
        return False
    if link.inner is not None or x.dtype is not link.dtype or link.plan.fits_both:
        return False
    if min(window) < 1 or any(part < whole for part, whole in zip(step, window, strict=True)):  # pixels read twice
        return False
    rows, columns = ((size - part) // every + 1 for size, part, every in zip(x.shape[2:], window, step, strict=True))
    is_image = min(rows, columns) > 0 and rows * columns > 1  # of one pixel: its strides say little
    return is_image and x.shape[1] < weight.shape[0] * step[0] * step[1]


def _pooled(p: Pending, link: Link, window: tuple[int, int], step: tuple[int, int]) -> Tensor | NotHere:
    entry, known = cast("ConvEntry", link.entry), link.guarded
    assert link.weight is not None
    link.check_convolution()
    x = F.avg_pool2d(link.input, window, step)
    made = entry.link(entry.original(), x, link.weight, link.bias, known.settings)
    entry.guarded = known  # of the input as it was, which the next call has again
    if made is None or made.plan.contiguous is not link.plan.contiguous:
        return NOT_HERE
    made.before = (*link.before, "avg_pool2d")
    link.norm = NO_NORM  # any other use of it is a second one
    return pending(made, 0)


HANDLERS[F.avg_pool2d] = _avg_pool2d
