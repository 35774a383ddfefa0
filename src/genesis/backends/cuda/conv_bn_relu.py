"""Convolution, batch norm, residual and ReLU as one op: convolution, statistics, and one pass for the rest."""

from __future__ import annotations

from typing import Any

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import array, driver, tiles
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import conv_forward, conv_input_grad, conv_weight_grad
from genesis.backends.cuda.kernels import conv_bn_relu as kernels
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import launch
from genesis.backends.cuda.storage import copy, copy_into
from genesis.dtypes import DType
from genesis.shapes import channels_last_strides, equivalent

_CHANNELS = 128  # per program of a per-channel kernel
_SUMMED, _PASSED = 4096, 2048  # elements that a program of a sum, of an element-wise pass holds


def conv_bn_relu(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
    residual: DeviceArray | None, training: bool, momentum: float, eps: float,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, activation: str | None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    x = conv_forward(input, weight, bias, stride, padding, dilation, groups)
    gamma, beta = _dense(gamma), _dense(beta)
    running = (running_mean, running_var)
    running_mean, running_var = (_dense(statistic) for statistic in running)
    num_channels, device = x.shape[1], x.device_index
    mean = array.empty((num_channels,), _wide(x.dtype), device)
    inverse_std = array.empty((num_channels,), _wide(x.dtype), device)
    per_channel = (-(-num_channels // _CHANNELS),)
    if training:
        chunks = _Chunks(x)
        partial = array.empty((2, chunks.number, num_channels), mean.dtype, device)
        launch(kernels._statistics_kernel, chunks.grid, partial, x, *chunks.sizes, **chunks.constants)
        launch(
            kernels._training_statistics_kernel, per_channel, mean, inverse_std, running_mean, running_var, partial,
            *chunks.sizes, float(momentum), float(eps), BLOCK=_CHANNELS,
        )  # fmt: skip
        for statistic, changed in zip(running, (running_mean, running_var), strict=True):
            if statistic is not None and statistic is not changed:
                copy_into(statistic, changed)
    else:
        launch(
            kernels._running_statistics_kernel, per_channel, mean, inverse_std, running_mean, running_var,
            num_channels, float(eps), BLOCK=_CHANNELS,
        )  # fmt: skip
    y = array.empty(x.shape, x.dtype, device, x.strides)
    launch(
        kernels._normalize_kernel, _pass_grid(x), y, x, _channels_last(residual), mean, inverse_std, gamma, beta,
        x.size // max(num_channels, 1), num_channels, RELU=activation == "relu", **_pass_constants(x),
    )  # fmt: skip
    return y, x, mean, inverse_std


def conv_bn_relu_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, gamma: DeviceArray | None, conv_output: DeviceArray,
    mean: DeviceArray, inverse_std: DeviceArray, y: DeviceArray, training: bool, stride: Pair, padding: Pair,
    dilation: Pair, groups: int, activation: str | None, needs: tuple[bool, ...],
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    needs_input, needs_weight, needs_bias, needs_gamma, needs_beta, needs_residual = needs
    x, grad, gamma = _channels_last(conv_output), _channels_last(grad), _dense(gamma)
    activated = _channels_last(y) if activation == "relu" else None
    num_channels, device = x.shape[1], x.device_index
    needs_x = needs_input or needs_weight

    def like(wanted: bool, other: DeviceArray | None) -> DeviceArray | None:
        return array.empty(other.shape, other.dtype, device, other.strides) if wanted and other is not None else None

    sums = array.empty((2, num_channels), mean.dtype, device)
    grad_gamma = like(needs_gamma, gamma)
    grad_beta = array.empty((num_channels,), x.dtype if gamma is None else gamma.dtype, device) if needs_beta else None
    grad_bias = array.empty((num_channels,), weight.dtype, device) if needs_bias else None
    if needs_bias or needs_gamma or needs_beta or (training and needs_x):
        chunks = _Chunks(x)
        partial = array.empty((2, chunks.number, num_channels), mean.dtype, device)
        launch(
            kernels._backward_sums_kernel, chunks.grid, partial, grad, activated, x, mean,
            *chunks.sizes, **chunks.constants,
        )  # fmt: skip
        launch(
            kernels._parameter_grads_kernel, (-(-num_channels // _CHANNELS),), sums, grad_gamma, grad_beta, grad_bias,
            partial, inverse_std, gamma, chunks.number, num_channels, TRAINING=training, BLOCK=_CHANNELS,
        )  # fmt: skip
    grad_x, grad_residual = like(needs_x, x), like(needs_residual, x)
    if needs_x or needs_residual:
        launch(
            kernels._backward_kernel, _pass_grid(x), grad_x, grad_residual, grad, activated, x, mean, inverse_std,
            gamma, sums, x.size // max(num_channels, 1), num_channels, TRAINING=training, **_pass_constants(x),
        )  # fmt: skip
    geometry = (stride, padding, dilation, groups)
    grad_input = grad_weight = None
    if grad_x is not None and needs_input:
        grad_input = conv_input_grad(grad_x, weight, input.shape, *geometry)
    if grad_x is not None and needs_weight:
        grad_weight = conv_weight_grad(grad_x, input, weight.shape, *geometry)
    return grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_residual


class _Chunks:
    """How sums over the rows of an NHWC array are shared out: chunks × blocks of channels."""

    def __init__(self, x: DeviceArray) -> None:
        num_channels = x.shape[1]
        num_rows = x.size // max(num_channels, 1)
        block_n = min(tiles.power_of_2(num_channels), 64)
        block_m = min(tiles.power_of_2(num_rows), _SUMMED // block_n)
        channel_blocks = -(-num_channels // block_n)
        wanted = 4 * driver.get().properties(x.device_index).multiprocessor_count // max(channel_blocks, 1)
        blocks = -(-num_rows // block_m)
        rows_per_chunk = -(-blocks // max(1, min(wanted, blocks))) * block_m
        self.number = max(1, -(-num_rows // rows_per_chunk))
        self.grid = (self.number, channel_blocks)
        self.sizes = (num_rows, rows_per_chunk, self.number, num_channels)
        self.constants: dict[str, Any] = {"COMPUTE": COMPUTE[x.dtype], "BLOCK_M": block_m, "BLOCK_N": block_n}


def _pass_constants(x: DeviceArray) -> dict[str, Any]:
    """The blocks of an element-wise pass over x."""
    block_n = min(tiles.power_of_2(x.shape[1]), 128)
    block_m = min(tiles.power_of_2(x.size // max(x.shape[1], 1)), _PASSED // block_n)
    return {"COMPUTE": COMPUTE[x.dtype], "BLOCK_M": block_m, "BLOCK_N": block_n}


def _pass_grid(x: DeviceArray) -> tuple[int, int]:
    blocks = _pass_constants(x)
    num_channels = x.shape[1]
    return -(-x.size // max(num_channels, 1) // blocks["BLOCK_M"]), -(-num_channels // blocks["BLOCK_N"])


def _wide(dtype: DType) -> DType:
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _dense(x: Any) -> Any:
    """A vector, or a copy of it without gaps; None stays None."""
    return x if x is None or x.strides == (1,) else copy(x, (1,))


def _channels_last(x: Any) -> Any:
    """x, or a copy of it in NHWC; None stays None."""
    if x is None:
        return None
    strides = channels_last_strides(x.shape)
    return x if equivalent(x.shape, x.strides, strides) else copy(x, strides)
