"""Convolution and activation as one op: ReLU in the convolution's epilogue, others in a pass over its result.

The backward goes once through the activation, with the bias' gradient by the way, and then the convolution's own ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused
from genesis.backends.cuda.ops.conv.launch import (
    conv_forward,
    conv_forward_folded,
    conv_input_grad_added,
    conv_weight_grad,
)
from genesis.backends.cuda.ops.conv.statistics import STAGES, Joining, Sums, rows_and_channels
from genesis.backends.cuda.ops.conv_act import kernels
from genesis.backends.cuda.ops.storage.launch import copy_into
from genesis.backends.cuda.ops.storage.rows import channels_last, fresh, statistics_dtype
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.records import ConvGeometry

_BiasGradient = Callable[[DeviceArray, DeviceArray], tuple[DeviceArray, DeviceArray]]
_plans: dict[tuple[Any, ...], _BiasGradient] = {}
driver.forget_on_switch(_plans.clear)


def conv_act(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, geometry: ConvGeometry, activation: str,
    keeps: str | None,
) -> tuple[DeviceArray, DeviceArray | None]:  # fmt: skip
    if keeps != "input":
        y = conv_forward_folded(input, weight, bias, None, activation, geometry)
        return y, y if keeps else None
    x = conv_forward(input, weight, bias, geometry)
    return fused.activated(x, activation), x


def conv_act_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, kept: DeviceArray, geometry: ConvGeometry,
    activation: str, needs: tuple[bool, ...], addend: DeviceArray | None = None,
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    needs_input, needs_weight, needs_bias = needs
    grad, kept = channels_last(grad), channels_last(kept)
    grad_bias = None
    if needs_bias:
        key = (grad.layout, kept.layout, activation)
        run = _plans.get(key)
        if run is None:
            run = _plans[key] = _plan_with_bias(*key)
        grad, grad_bias = run(grad, kept)
    elif needs_input or needs_weight:
        grad = fused.through(grad, kept, activation)
    grad_input = conv_input_grad_added(grad, weight, addend, input.shape, geometry) if needs_input else None
    grad_weight = conv_weight_grad(grad, input, weight.shape, geometry) if needs_weight else None
    return grad_input, grad_weight, grad_bias


def _plan_with_bias(grad: Layout, kept: Layout, activation: str) -> _BiasGradient:
    """The gradients of the convolution's output and of its bias."""
    device, (num_rows, num_channels) = kept.device_index, rows_and_channels(kept)
    grad_x, grad_bias = fresh(kept), layout_of((num_channels,), kept.dtype, device)
    if kept.size == 0:

        def nothing(grad: DeviceArray, kept: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
            out_bias = grad_bias.new(streams.current_handle(device))
            copy_into(out_bias, 0)
            return grad, out_bias

        return nothing
    sums = Sums.over(kept)
    partial = layout_of((sums.number, num_channels), statistics_dtype(kept.dtype), device)
    joining = Joining.of(sums.number, num_channels)
    pass_through = prepare_raw(
        kernels._act_backward_kernel, device, sums.grid, (partial, grad_x, grad, kept), num_rows, num_channels,
        STAGES=STAGES, **fused.backward_from_kept(activation, kept.dtype), **sums.constants,
    )  # fmt: skip
    join = prepare_raw(
        kernels._bias_grad_kernel, device, joining.grid, (grad_bias, partial), sums.number, num_channels,
        **joining.constants,
    )  # fmt: skip

    def run(grad: DeviceArray, kept: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        stream = streams.current_handle(device)
        parts, out_x, out_bias = partial.new(stream), grad_x.new(stream), grad_bias.new(stream)
        pass_through(stream, parts.data_pointer, out_x.data_pointer, grad.data_pointer, kept.data_pointer)
        join(stream, out_bias.data_pointer, parts.data_pointer)
        return out_x, out_bias

    return run
