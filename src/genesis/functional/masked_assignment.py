"""x[mask] = value of one value: a choice per element, whose cost and shape do not depend on the mask.

By the positions of the mask, as other assignments are, it would have to be read: the host would wait for the device, a
CUDA graph could not hold it, and neither could an ONNX file.
"""

from __future__ import annotations

from genesis import dtypes, shapes
from genesis.autograd import Tensor
from genesis.dtypes import Number
from genesis.functional.choice import where
from genesis.functional.conversion import cast
from genesis.functional.shape import reshape

__all__: list[str] = []
EVERYTHING = slice(None)


def mask_of(input: Tensor, index: object, value: object) -> Tensor | None:
    """The mask of input[mask] = value, to broadcast with input; None if that is another assignment, or an error."""
    if type(index) is slice or type(index) is int:
        return None
    items = index if type(index) is tuple else (index,)
    place = -1
    for i, item in enumerate(items):
        if isinstance(item, Tensor) and item.array.dtype is dtypes.bool_ and item.array.ndim and place < 0:
            place = i
        elif not (item is Ellipsis or (type(item) is slice and item == EVERYTHING)):
            return None
    if place < 0 or (isinstance(value, Tensor) and not _goes_everywhere(value, input)):
        return None
    return _aligned(input, items, place)


def _goes_everywhere(value: Tensor, input: Tensor) -> bool:
    return shapes.numel(value.array.shape) == 1 and value.array.device == input.array.device


def _aligned(input: Tensor, items: tuple[object, ...], place: int) -> Tensor | None:
    mask, shape = items[place], input.array.shape
    assert isinstance(mask, Tensor)
    num_masked, num_dots = mask.array.ndim, sum(item is Ellipsis for item in items)
    free = len(shape) - num_masked - (len(items) - 1 - num_dots)  # what "..." covers
    if num_dots > 1 or free < 0 or mask.array.device != input.array.device:
        return None
    before = sum(free if item is Ellipsis else 1 for item in items[:place])
    if mask.array.shape != shape[before : before + num_masked]:
        return None
    return reshape(mask, (*mask.array.shape, *(1,) * (len(shape) - before - num_masked)))


def fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """value where mask is true, else input, in its dtype."""
    if isinstance(value, Tensor):
        value = cast(reshape(value, ()), input.array.dtype)
    return where(mask, value, input)


fill.__name__ = "setitem"  # as errors call it
