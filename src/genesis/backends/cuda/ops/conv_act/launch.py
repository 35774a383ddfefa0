"""Convolution, sum and activation as one op: sum and ReLU in its epilogue, other activations in a pass over that.

The backward goes once through the activation, with the bias' gradient by the way, and then the convolution's own ways.
"""

from __future__ import annotations

from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.activation import fused
from genesis.backends.cuda.ops.conv.launch import (
    conv_forward_folded,
    conv_input_grad_added,
    conv_weight_grad,
)
from genesis.backends.cuda.ops.conv_act.launches import BackwardLaunches
from genesis.backends.cuda.ops.storage.launch import copy_into
from genesis.backends.cuda.ops.storage.rows import address, channels_last, new
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.records import ConvGeometry
from genesis.shapes import Shape

_plans: dict[tuple[Layout, Layout | None, str | None, bool], BackwardLaunches] = {}
driver.forget_on_switch(_plans.clear)


def conv_act(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, geometry: ConvGeometry,
    activation: str | None, keeps: str | None, residual: DeviceArray | None = None,
) -> tuple[DeviceArray, DeviceArray | None]:  # fmt: skip
    if keeps != "input":
        y = conv_forward_folded(input, weight, bias, residual, activation, geometry)
        return y, y if keeps else None
    assert activation is not None
    x = conv_forward_folded(input, weight, bias, residual, None, geometry)
    return fused.activated(x, activation), x


def conv_act_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, kept: DeviceArray | None,
    geometry: ConvGeometry, activation: str | None, needs: tuple[bool, ...], addend: DeviceArray | None = None,
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    needs_input, needs_weight, needs_bias, needs_residual = needs
    grad, kept = channels_last(grad), None if activation is None else channels_last(kept)
    grad_bias = None
    if grad.size == 0:
        grad_bias = _zeros(weight.shape[:1], grad) if needs_bias else None
    elif needs_bias or (activation is not None and any(needs)):
        key = (grad.layout, None if kept is None else kept.layout, activation, needs_bias)
        launches = _plans.get(key)
        if launches is None:
            launches = _plans[key] = BackwardLaunches.of(*key)
        grad, grad_bias = _run(launches, grad, kept)
    grad_input = conv_input_grad_added(grad, weight, addend, input.shape, geometry) if needs_input else None
    grad_weight = conv_weight_grad(grad, input, weight.shape, geometry) if needs_weight else None
    return grad_input, grad_weight, grad_bias, grad if needs_residual else None


def _run(
    launches: BackwardLaunches, grad: DeviceArray, kept: DeviceArray | None
) -> tuple[DeviceArray, DeviceArray | None]:
    """The gradients of the convolution's output and of its bias."""
    stream = streams.current_handle(grad.device_index)
    out_x, out_bias, parts = (new(each, stream) for each in launches[:3])
    pointers = (address(each) for each in (out_x, out_bias, parts, grad, kept))
    launches.launch(stream, *pointers)
    return grad if out_x is None else out_x, out_bias


def _zeros(shape: Shape, like: DeviceArray) -> DeviceArray:
    out = layout_of(shape, like.dtype, like.device_index).new(streams.current_handle(like.device_index))
    copy_into(out, 0)
    return out
