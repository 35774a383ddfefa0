"""Activations inside fused kernels, where the value before them is at hand; and one over a result that is there.

A kernel takes FORWARD and NUMBER, or BACKWARD and NUMBER, as constants: of() gives them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from genesis import activations
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation.kernels import activation as kernels
from genesis.backends.cuda.ops.activation.kernels import fused as fused_kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

# y = f(x) or f(x, number), and grad · f′(x), each of values in registers.
_KERNELS: dict[str, tuple[JITFunction, JITFunction]] = {
    "relu": (kernels._relu_kernel, fused_kernels._through_relu_kernel),
    "relu6": (fused_kernels._relu6_kernel, fused_kernels._through_relu6_kernel),
    "leaky_relu": (kernels._leaky_relu_kernel, kernels._leaky_relu_backward_kernel),
    "elu": (kernels._elu_kernel, kernels._elu_backward_kernel),
    "silu": (kernels._silu_kernel, kernels._silu_backward_kernel),
    "mish": (fused_kernels._mish_kernel, fused_kernels._through_mish_kernel),
    "gelu": (kernels._gelu_kernel, kernels._gelu_backward_kernel),
    "gelu_tanh": (kernels._gelu_tanh_kernel, kernels._gelu_tanh_backward_kernel),
    "hardswish": (kernels._hardswish_kernel, kernels._hardswish_backward_kernel),
    "hardsigmoid": (kernels._hardsigmoid_kernel, kernels._hardsigmoid_backward_kernel),
    "sigmoid": (kernels._logistic, fused_kernels._through_sigmoid_kernel),
    "tanh": (fused_kernels._tanh_kernel, fused_kernels._through_tanh_kernel),
}
# grad · f′(x) by y, of those whose derivative by x would be another.
_BY_RESULT = {"sigmoid": kernels._sigmoid_backward_kernel, "tanh": kernels._tanh_backward_kernel}
# Of results of 16 bits: right to 2e-6, by few instructions, as there are kernels that would wait for more.
_16_BIT: dict[str, tuple[JITFunction, JITFunction]] = {
    "elu": (kernels._elu_16_bit_kernel, kernels._elu_16_bit_backward_kernel),
    "silu": (kernels._silu_16_bit_kernel, kernels._silu_16_bit_backward_kernel),
    "mish": (fused_kernels._mish_16_bit_kernel, fused_kernels._through_mish_16_bit_kernel),
    "gelu": (kernels._gelu_16_bit_kernel, kernels._gelu_16_bit_backward_kernel),
    "gelu_tanh": (kernels._gelu_tanh_16_bit_kernel, kernels._gelu_tanh_16_bit_backward_kernel),
    "hardsigmoid": (kernels._hardsigmoid_16_bit_kernel, kernels._hardsigmoid_backward_kernel),
    "sigmoid": (kernels._logistic_16_bit, fused_kernels._through_sigmoid_16_bit_kernel),
}
_BLOCK = 1024
_plans: dict[tuple[Layout, str], Callable[[int, int, int], None]] = {}
driver.forget_on_switch(_plans.clear)


@functools.cache
def forward(activation: str | None, dtype: DType) -> dict[str, JITFunction | float | None]:
    """The constants FORWARD and NUMBER of a kernel that activates, on arrays of this dtype."""
    functions, number = _find(activation, dtype)
    return {"FORWARD": functions[0], "NUMBER": number}


@functools.cache
def backward(activation: str | None, dtype: DType) -> dict[str, JITFunction | float | None]:
    """The constants BACKWARD and NUMBER."""
    functions, number = _find(activation, dtype)
    return {"BACKWARD": functions[1], "NUMBER": number}


@functools.cache
def backward_from_kept(activation: str | None, dtype: DType) -> dict[str, JITFunction | float | None]:
    """backward() for what conv_act keeps: y of sigmoid and tanh, of the others x, or y if that says the same."""
    found = backward(activation, dtype)
    by_result = None if activation is None else _BY_RESULT.get(activations.parse(activation).name)
    return found if by_result is None else {**found, "BACKWARD": by_result}


def _find(activation: str | None, dtype: DType) -> tuple[tuple[JITFunction | None, JITFunction | None], float | None]:
    if activation is None:
        return (None, None), None
    name, number = activations.parse(activation)
    short = _16_BIT.get(name) if dtype.itemsize == 2 else None
    return short or _KERNELS[name], number


def activate(y: DeviceArray, activation: str) -> DeviceArray:
    """y = activation(y), in place, of a dense array that nobody else has."""
    return _run(y, y, activation)


def activated(x: DeviceArray, activation: str) -> DeviceArray:
    """activation(x) of a dense array, in new memory."""
    layout = x.layout
    out = layout_of(layout.shape, layout.dtype, layout.device_index, layout.strides)
    return _run(out.new(streams.current_handle(x.device_index)), x, activation)


def _run(y: DeviceArray, x: DeviceArray, activation: str) -> DeviceArray:
    key = (x.layout, activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = activation_pass(*key)
    run(streams.current_handle(y.device_index), y.data_pointer, x.data_pointer)
    return y


def activation_pass(layout: Layout, activation: str) -> Callable[[int, int, int], None]:
    """run(stream, y, x): activate the values of a dense array, at its own address or at another's of its layout."""
    grid = (max(1, -(-layout.size // _BLOCK)),)
    return prepare_raw(
        fused_kernels._activate_kernel, layout.device_index, grid, (layout, layout), layout.size,
        **forward(activation, layout.dtype), COMPUTE=COMPUTE[layout.dtype], BLOCK=_BLOCK,
    )  # fmt: skip
