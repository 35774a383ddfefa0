"""Losses over class indices, and the gradient of an embedding table."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.triton import launch, prepare_raw
from genesis.backends.cuda.ops.loss import kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.ops.storage.rows import address
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.shapes import Shape, contiguous_strides, is_contiguous

_BLOCK = 256


@planned
def nll_loss(
    log_probs: Layout, target: Layout, weight: Layout | None, ignore_index: int
) -> Run[tuple[DeviceArray, DeviceArray]]:
    device, strides = log_probs.device_index, log_probs.strides
    result = layout_of(target.shape, log_probs.dtype, device)
    launch_kernel = prepare_raw(
        kernels._nll_loss_kernel, device, (-(-target.size // _BLOCK),), (result, result, log_probs, target, weight),
        target.size, log_probs.shape[1], ignore_index, _group(target.shape, (strides[0], *strides[2:])),
        _group(target.shape, target.strides), strides[1], 1 if weight is None else weight.strides[0],
        COMPUTE=COMPUTE[log_probs.dtype], RANK=len(target.shape), BLOCK=_BLOCK,
    )  # fmt: skip
    return into_new(launch_kernel, result, result)


@planned
def nll_loss_backward(
    grad: Layout, shape: Shape, target: Layout, weight: Layout | None, ignore_index: int
) -> Run[DeviceArray]:
    device, dtype = grad.device_index, grad.dtype
    launch_kernel = prepare_raw(
        kernels._nll_loss_backward_kernel, device, (-(-target.size // _BLOCK),),
        (layout_of(shape, dtype, device), grad, target, weight), target.size, shape[1], math.prod(shape[2:]),
        ignore_index, _group(target.shape, grad.strides), _group(target.shape, target.strides),
        1 if weight is None else weight.strides[0],
        COMPUTE=COMPUTE[dtype], RANK=len(target.shape), BLOCK=_BLOCK,
    )  # fmt: skip

    def run(grad: DeviceArray, target: DeviceArray, weight: DeviceArray | None) -> DeviceArray:
        grad_input = storage.full(shape, 0.0, dtype, device)
        stream = streams.current_handle(device)
        launch_kernel(stream, grad_input.data_pointer, grad.data_pointer, target.data_pointer, address(weight))
        return grad_input

    return run


def embedding_backward(
    grad: DeviceArray, indices: DeviceArray, num_embeddings: int, padding_idx: int, scale_grad_by_freq: bool
) -> DeviceArray:
    """Repeated indices add up in float32 (float64 for float64), in no fixed order: last bits may differ."""
    grad, indices = _contiguous(grad), _contiguous(indices)
    num_columns, device, wide = grad.shape[-1], grad.device_index, accumulator(grad.dtype)
    grad_weight = storage.full((num_embeddings, num_columns), 0.0, wide, device)
    count = None
    if scale_grad_by_freq:
        count = storage.full((num_embeddings,), 0, dtypes.int32, device)
        launch(
            kernels._count_kernel,
            (-(-indices.size // _BLOCK),),
            count,
            indices,
            indices.size,
            num_embeddings,
            BLOCK=_BLOCK,
        )
    block_columns = min(power_of_2(num_columns), 1024)
    block_rows = min(1024 // block_columns, power_of_2(indices.size))
    grid = -(-indices.size // block_rows) * -(-num_columns // block_columns)
    launch(
        kernels._embedding_backward_kernel,
        (grid,),
        grad_weight,
        grad,
        indices,
        count,
        indices.size,
        num_columns,
        num_embeddings,
        padding_idx,
        COMPUTE=COMPUTE[wide],
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
    )
    return grad_weight if wide is grad.dtype else storage.cast(grad_weight, grad.dtype)


def _group(shape: Shape, strides: Shape) -> tuple[int, ...]:
    """Sizes, then strides, inner dimensions first."""
    return (*shape[::-1], *strides[::-1])


def _contiguous(x: DeviceArray) -> DeviceArray:
    return x if is_contiguous(x.shape, x.strides) else storage.copy(x, contiguous_strides(x.shape))
