"""Gradients of gradients: for each op, its backward written on tensors, so that autograd can record it.

Most ops are linear where their gradient is constant: their rule is to apply the op's own backward as a linear map,
whose gradient is the forward again. A rule takes the recorded call and the gradients of its outputs. Formulas, where
the gradient has the operands in it, are in second_order_formulas.py, layers and losses in second_order_layers.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.autograd.recorded_walk import RULES, Recorded, Rule
from genesis.autograd.views import AsStrided, CopySlices, Overwrite
from genesis.functional import activation as act
from genesis.functional import (
    antialias,
    conversion,
    elementwise,
    extremes,
    folding,
    indexing,
    interpolation,
    joining,
    padding,
    pooling,
    random,
    reduction,
    selection,
    shape,
    sorting,
    tables,
    unary,
)
from genesis.functional.shape import reshape
from genesis.functional.windows import as_planes, from_planes
from genesis.ndarray import NDArray, ops

Gradients = tuple[Tensor | None, ...]
Arrays = NDArray | tuple[NDArray | None, ...]
LinearMap = Callable[[Sequence[NDArray]], Arrays]


class Linear(ArrayFunction):
    """A linear map of the gradients, and its transpose, which is the gradient of the map."""

    @staticmethod
    def forward(ctx: Context, *grads: NDArray, forth: LinearMap, back: LinearMap) -> tuple[NDArray, ...]:
        ctx.maps = forth, back
        return _arrays(forth(grads))

    @staticmethod
    def backward(ctx: Context, *grads: NDArray) -> Arrays:
        results: Arrays = ctx.maps[1](grads)
        return results


def _arrays(results: Arrays) -> tuple[NDArray, ...]:
    return tuple([each for each in results if each is not None]) if isinstance(results, tuple) else (results,)


RULES[Linear] = lambda call, *grads: applied(call.ctx.maps[1], call.ctx.maps[0], grads)


def applied(forth: LinearMap, back: LinearMap, grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """The results of a linear map of gradients, with None where it gives none.

    Args:
        forth: the map, of arrays.
        back: its transpose, from the results that are not None.
        grads: tensors.
    Returns: a tensor or None for each result.
    """
    found: list[bool] = []

    def noted(arrays: Sequence[NDArray]) -> Arrays:
        results = forth(arrays)
        found[:] = [each is not None for each in (results if isinstance(results, tuple) else (results,))]
        return results

    made = iter(Linear.apply(*grads, forth=noted, back=back))
    return tuple([next(made) if there else None for there in found])


def own_backward(call: Recorded) -> LinearMap:
    """The backward of the call's own function, on arrays; it may not overwrite the gradient.

    Args:
        call: the recorded one.
    Returns: a linear map of the outputs' gradients.
    """
    ctx, function, num_outputs = call.ctx, call.function, len(call.node.outputs)

    def backward(grads: Sequence[NDArray]) -> Arrays:
        ctx.owns_grad, ctx.addend = False, None
        results: Arrays = function.backward(ctx, *grads, *[None] * (num_outputs - len(grads)))
        return results

    return backward


def linear(call: Recorded, *grads: Tensor) -> Gradients:
    """The rule of a linear op of one tensor: its backward, transposed by its forward."""
    function = cast("type[ArrayFunction]", call.function)
    return applied(own_backward(call), lambda arrays: function.forward(Context(), *arrays, **call.kwargs), grads)


def diagonal(call: Recorded, grad: Tensor) -> Gradients:
    """The rule of an element-wise op that is linear between steps: its backward is its own transpose."""
    backward = own_backward(call)

    def back(arrays: Sequence[NDArray]) -> NDArray:
        results = [backward((array,)) for array in arrays]
        parts = results[0] if isinstance(results[0], tuple) else (results[0],)
        places = [place for place, part in enumerate(parts) if part is not None]
        total: NDArray | None = None
        for result, place in zip(results, places, strict=True):
            part = result[place] if isinstance(result, tuple) else result
            assert part is not None
            total = part if total is None else total.add(part)
        assert total is not None
        return total

    return applied(backward, back, (grad,))


def linear_by(back: Callable[[Recorded, NDArray], NDArray]) -> Rule:
    """The rule of an op whose backward is linear, with this transpose of the call and one array.

    Args:
        back: the derivative of the op in the direction of an array.
    Returns: the rule.
    """
    return lambda call, grad, *_: applied(own_backward(call), lambda arrays: back(call, arrays[0]), (grad,))


for function in (
    conversion.Cast, conversion.ToDevice, conversion.Clone, conversion.Contiguous, shape.Reshape, shape.Unsqueeze,
    shape.Permute, shape.Diagonal, shape.Flip, shape.Roll, shape.Expand, shape.Repeat, shape.Triangle, joining.Split,
    joining.Unbind, joining.Narrow, indexing.GetItem, selection.IndexSelect, selection.Gather, reduction.Sum,
    reduction.Mean, reduction.CumSum, interpolation.Interpolate, interpolation.InterpolateVolumeArea,
    antialias.Antialiased, interpolation.PixelShuffle, interpolation.PixelUnshuffle, folding.Unfold, folding.Fold,
    pooling.AvgPool2d, pooling.AdaptiveAvgPool2d,
):  # fmt: skip
    RULES[function] = linear
for stepwise in (
    act.ReLU, act.LeakyReLU, act.Hardtanh, act.Hardsigmoid, unary.Abs, elementwise.Clamp, elementwise.ClampBetween,
    elementwise.Maximum, elementwise.Minimum, elementwise.Where, selection.MaskedFill, random.Dropout, unary.Sign,
    unary.Floor, unary.Ceil, unary.Round, elementwise.FloorDivide, elementwise.TruncDivide, elementwise.Remainder,
):  # fmt: skip
    RULES[stepwise] = diagonal


def _pad_back(call: Recorded, array: NDArray) -> NDArray:
    return ops.pad(array, call.ctx.pads, call.ctx.mode, 0)


def _ordered_back(call: Recorded, array: NDArray) -> NDArray:
    (indices,) = call.saved
    return ops.gather(array, call.ctx.dim, indices)


def _extreme_back(call: Recorded, array: NDArray) -> NDArray:
    (indices,) = call.saved
    values = ops.gather(array, call.ctx.dim, indices)
    return values if call.ctx.keepdim or not array.ndim else values.squeeze((call.ctx.dim,))


def _embedding_back(call: Recorded, array: NDArray) -> NDArray:
    (index,) = call.saved
    num_rows, padding_idx, by_frequency = call.ctx.options
    rows = ops.index_select(array, 0, index.reshape((index.numel,))).reshape((*index.shape, array.shape[1]))
    keep = index.ne(padding_idx).to(array.dtype)
    if by_frequency:
        flat = index.reshape((index.numel,))
        ones = array.full_like(1, flat.shape)
        counts = ops.index_add(array.full_like(0, (num_rows,)), 0, flat, ones)
        keep = keep.div(ops.index_select(counts, 0, flat).reshape(index.shape))
    return rows.mul(keep.unsqueeze(index.ndim))


def _max_pool_back(call: Recorded, array: NDArray) -> NDArray:
    """The elements at the windows' maxima. The places are the backend's own, but its backward puts numbers there.

    Windows that overlap take turns, as two of them may have found the same element.
    """
    ctx, windows = call.ctx, call.ctx.windows
    planes = as_planes(array, ctx.spatial)
    (n, channels), inside = planes.shape[:2], planes.shape[2] * planes.shape[3]
    shape_out = call.node.outputs[0][0]
    height, width = (1 if ctx.spatial == 1 else shape_out[-2]), shape_out[-1]
    turns = [
        -(-((kernel - 1) * dilation + 1) // stride)
        for kernel, dilation, stride in zip(windows.kernel_size, windows.dilation, windows.stride, strict=True)
    ]
    device, values = array.device, planes.reshape((n, channels, inside))
    numbers = NDArray.arange(1, 1, height * width, dtypes.int64, device).reshape((1, 1, height, width))
    rows = NDArray.arange(0, 1, height, dtypes.int64, device).reshape((1, 1, height, 1))
    columns = NDArray.arange(0, 1, width, dtypes.int64, device).reshape((1, 1, 1, width))
    total = array.full_like(0, (n, channels, height * width + 1))
    for turn in itertools.product(*map(range, turns)):
        mine = rows.remainder(turns[0]).eq(turn[0]).logical_and(columns.remainder(turns[1]).eq(turn[1]))
        marks = mine.where(numbers, 0).to(dtypes.float64).expand((n, channels, height, width))
        found = ops.max_pool2d_backward(marks, ctx.planes_shape, call.saved[0], windows)
        index = found.to(dtypes.int64).reshape((n, channels, inside))
        total = ops.scatter_add(total, 2, index, index.gt(0).where(values, 0.0))  # those that none has found go to 0
    pooled = total.narrow(2, 1, height * width).reshape((n, channels, height, width))
    return from_planes(pooled, ctx.spatial, ctx.ndim)


def _adaptive_max_pool_back(call: Recorded, array: NDArray) -> NDArray:
    planes, (_, indices) = as_planes(array, 2), call.saved
    places = as_planes(indices, 2)
    n, channels, height, width = places.shape
    flat = planes.reshape((n, channels, planes.shape[2] * planes.shape[3]))
    chosen = ops.gather(flat, 2, places.reshape((n, channels, height * width)))
    return from_planes(chosen.reshape(places.shape), 2, array.ndim)


RULES[padding.Pad] = linear_by(_pad_back)
RULES[pooling.MaxPool2d] = linear_by(_max_pool_back)
RULES[pooling.AdaptiveMaxPool2d] = linear_by(_adaptive_max_pool_back)
RULES[sorting.Sort] = RULES[sorting.TopK] = RULES[sorting.CumMax] = linear_by(_ordered_back)
RULES[extremes.ExtremeOfDim] = linear_by(_extreme_back)
RULES[tables.Embedding] = linear_by(_embedding_back)


# --- joining, writing and adding at indices ---------------------------------------------------------------------------


def _cat(call: Recorded, grad: Tensor) -> Gradients:
    grads, start, dim = [], 0, call.ctx.dim
    for size, needed in zip(call.ctx.shapes, call.needs, strict=True):
        length = 0 if size == (0,) else size[dim]
        grads.append(reshape(joining.narrow(grad, dim, start, length), size) if needed else None)
        start += length
    return tuple(grads)


def _set_item(call: Recorded, grad: Tensor) -> Gradients:
    index = call.kwargs["index"]
    grad_value = indexing.GetItem.apply(grad, index=index) if call.needs[1] else None
    if not call.needs[0] or call.ctx.accumulate:
        return grad, grad_value
    return indexing.SetItem.apply(grad, 0, index=index, accumulate=False), grad_value


def _index_add(call: Recorded, grad: Tensor) -> Gradients:
    selected = selection.IndexSelect.apply(grad, dim=call.ctx.dim, index=call.saved[0])
    return grad, reshape(selected, call.ctx.source_shape) * call.ctx.alpha


def _scatter(call: Recorded, grad: Tensor) -> Gradients:
    index, dim = call.saved[0], call.ctx.dim
    rest = selection.Scatter.apply(grad, 0.0, dim=dim, index=index) if call.needs[0] else None
    return rest, _gathered(call, grad) if call.needs[1] else None


def _gathered(call: Recorded, grad: Tensor) -> Tensor:
    def forth(arrays: Sequence[NDArray]) -> NDArray:
        return selection._gathered(call.ctx, arrays[0])

    def back(arrays: Sequence[NDArray]) -> NDArray:
        index = call.saved[0]
        (part,) = arrays
        for dim, size in enumerate(index.shape):
            part = part.narrow(dim, 0, size)
        return ops.scatter_add(part.full_like(0, grad.shape), call.ctx.dim, index, part)

    (result,) = applied(forth, back, (grad,))
    assert result is not None
    return result


RULES[joining.Cat] = _cat
RULES[indexing.SetItem] = _set_item
RULES[selection.IndexAdd] = _index_add
RULES[selection.Scatter] = _scatter
RULES[selection.ScatterAdd] = lambda call, grad: (grad, _gathered(call, grad) if call.needs[1] else None)

# --- views that changed in place --------------------------------------------------------------------------------------


def _as_strided_back(call: Recorded, array: NDArray) -> NDArray:
    whole = call.ctx.region.zeros(array)
    whole.copy_into(array)
    return call.ctx.region.seen(whole).clone()


def _copy_slices(call: Recorded, grad: Tensor) -> Gradients:
    (region,), (needs_base, needs_values) = call.saved, call.needs

    def back(arrays: Sequence[NDArray]) -> NDArray:
        whole = region.zeros(arrays[0])
        if needs_base:
            whole.copy_into(arrays[0])
        region.seen(whole).copy_into(arrays[-1] if needs_values else 0)
        return whole

    return applied(own_backward(call), back, (grad,))


RULES[AsStrided] = linear_by(_as_strided_back)
RULES[CopySlices] = _copy_slices


def _overwrite(call: Recorded, grad: Tensor) -> Gradients:
    zeros = [call.constant(grad.array.full_like(0, shape)) for shape in call.ctx.shapes]
    return (zeros[0], grad) if call.ctx.passes else tuple(zeros)


RULES[Overwrite] = _overwrite
