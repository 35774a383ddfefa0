"""Convolution, batch norm, residual and ReLU as one op: convolution, statistics, and one pass for the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import array, driver, tiles, wide_conv_bn_relu
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import conv_forward, conv_input_grad, conv_weight_grad
from genesis.backends.cuda.kernels import conv_bn_relu as kernels
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import launch
from genesis.backends.cuda.rows import channels_last, dense, like, statistics_dtype
from genesis.backends.cuda.storage import copy_into

_MOST_PARTS = 512  # of a sum; one program puts them together
_CHANNELS = 16  # of which it does so
_STAGES = 4  # blocks of a sum on their way at a time
_SUMMED, _PASSED = 2048, 4096  # elements that a program of a sum holds at a time, of an element-wise pass


def conv_bn_relu(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
    residual: DeviceArray | None, training: bool, momentum: float, eps: float,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, activation: str | None,
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    gamma, beta = dense(gamma), dense(beta)
    running = (running_mean, running_var)
    running_mean, running_var = (dense(statistic) for statistic in running)
    vectors = (gamma, beta, running_mean, running_var)
    if training and wide_conv_bn_relu.supports(input.dtype, weight.shape, stride, padding, groups):
        result = wide_conv_bn_relu.forward(input, weight, bias, *vectors, residual, momentum, eps, activation)
    else:
        x = conv_forward(input, weight, bias, stride, padding, dilation, groups)
        result = _normalize(x, *vectors, residual, training, momentum, eps, activation)
    for statistic, changed in zip(running, (running_mean, running_var), strict=True):
        if training and statistic is not None and statistic is not changed:
            copy_into(statistic, changed)
    return result


def _normalize(
    x: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, residual: DeviceArray | None, training: bool, momentum: float, eps: float,
    activation: str | None,
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    num_channels, device = x.shape[1], x.device_index
    num_rows = x.size // max(num_channels, 1)
    mean, inverse_std = (array.empty((num_channels,), statistics_dtype(x.dtype), device) for _ in range(2))
    if training:
        parts = _Parts(x)
        partial = array.empty((2, parts.number, num_channels), mean.dtype, device)
        launch(
            kernels._statistics_kernel, parts.grid, partial, x, num_rows, num_channels, STAGES=_STAGES,
            **parts.constants,
        )  # fmt: skip
        launch(
            kernels._training_statistics_kernel, parts.joining_grid, mean, inverse_std, running_mean, running_var,
            partial, x, num_rows, parts.number, num_channels, float(momentum), float(eps),
            BLOCK_M=parts.constants["BLOCK_M"], **parts.joining,
        )  # fmt: skip
    else:
        launch(
            kernels._running_statistics_kernel, (-(-num_channels // 128),), mean, inverse_std, running_mean,
            running_var, num_channels, float(eps), BLOCK=128,
        )  # fmt: skip
    y, passed = like(x), None
    if activation is not None and residual is not None:
        passed = array.empty((num_rows, -(-num_channels // 8)), dtypes.uint8, device)
    blocks = _Pass.over(x)
    launch(
        kernels._normalize_kernel, blocks.grid, y, passed, x, channels_last(residual), mean, inverse_std, gamma, beta,
        num_rows, num_channels, RELU=activation == "relu", **blocks.constants,
    )  # fmt: skip
    return y, mean, inverse_std, x, passed


def conv_bn_relu_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray, conv_output: DeviceArray,
    passed: DeviceArray | None, training: bool, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    activation: str | None, needs: tuple[bool, ...],
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    grad, gamma, beta = channels_last(grad), dense(gamma), dense(beta)
    if conv_output.shape != grad.shape:  # what the wide form keeps in its place
        return wide_conv_bn_relu.backward(
            grad, input, weight, bias, gamma, beta, inverse_std, conv_output, passed, needs
        )
    needs_input, needs_weight = needs[:2]
    grad_x, *others = _backward_to_conv(
        grad, channels_last(conv_output), bias, gamma, beta, dense(mean), inverse_std, passed, training, activation,
        (needs_input or needs_weight, *needs[2:]),
    )  # fmt: skip
    geometry = (stride, padding, dilation, groups)
    grad_input = grad_weight = None
    if grad_x is not None and needs_input:
        grad_input = conv_input_grad(grad_x, weight, input.shape, *geometry)
    if grad_x is not None and needs_weight:
        grad_weight = conv_weight_grad(grad_x, input, weight.shape, *geometry)
    return grad_input, grad_weight, *others


def _backward_to_conv(
    grad: DeviceArray, x: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None, beta: DeviceArray | None,
    mean: DeviceArray, inverse_std: DeviceArray, passed: DeviceArray | None, training: bool, activation: str | None,
    needs: tuple[bool, ...],
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    """Gradients of the convolution's output, its bias, gamma, beta, residual."""
    needs_x, needs_bias, needs_gamma, needs_beta, needs_residual = needs
    num_channels, device = x.shape[1], x.device_index
    num_rows = x.size // max(num_channels, 1)
    vectors = (mean, inverse_std, gamma, beta)
    relu = activation == "relu"
    grad_x, grad_residual = (like(x) if wanted else None for wanted in (needs_x, needs_residual))
    grad_bias = like(bias) if needs_bias else None
    grad_gamma = like(gamma) if needs_gamma else None
    grad_beta = like(beta) if needs_beta else None
    sums = array.empty((2, num_channels), statistics_dtype(x.dtype), device)
    if needs_bias or needs_gamma or needs_beta or (training and needs_x):
        parts = _Parts(x)
        partial = array.empty((2, parts.number, num_channels), sums.dtype, device)
        launch(
            kernels._backward_sums_kernel, parts.grid, partial, grad_residual, grad, passed, x, *vectors,
            num_rows, num_channels, RELU=relu, STAGES=_STAGES, **parts.constants,
        )  # fmt: skip
        launch(
            kernels._parameter_grads_kernel, parts.joining_grid, sums, grad_gamma, grad_beta, grad_bias, partial,
            inverse_std, gamma, parts.number, num_channels, TRAINING=training, **parts.joining,
        )  # fmt: skip
        if grad_residual is not None:  # it is the gradient before the activation, and so without that
            grad, passed, relu = grad_residual, None, False
        residual_left = None
    else:
        residual_left = grad_residual
    if grad_x is not None or residual_left is not None:
        blocks = _Pass.over(x)
        launch(
            kernels._backward_kernel, blocks.grid, grad_x, residual_left, grad, passed, x, *vectors, sums,
            num_rows, num_channels, RELU=relu, TRAINING=training, **blocks.constants,
        )  # fmt: skip
    return grad_x, grad_bias, grad_gamma, grad_beta, grad_residual


class _Parts:
    """How sums over the rows of an NHWC array are shared out: programs × blocks of channels; and put together."""

    def __init__(self, x: DeviceArray) -> None:
        num_channels = x.shape[1]
        num_rows = x.size // max(num_channels, 1)
        block_n = min(max(tiles.power_of_2(num_channels), 8), 64)
        block_m = min(tiles.power_of_2(num_rows), _SUMMED // block_n)
        channel_blocks = -(-num_channels // block_n)
        wanted = 4 * driver.get().properties(x.device_index).multiprocessor_count // max(channel_blocks, 1)
        self.number = max(1, min(wanted, -(-num_rows // block_m), _MOST_PARTS))
        self.grid = (self.number, channel_blocks)
        self.constants: dict[str, Any] = {"COMPUTE": COMPUTE[x.dtype], "BLOCK_M": block_m, "BLOCK_N": block_n}
        self.joining_grid = (-(-num_channels // _CHANNELS),)
        self.joining: dict[str, Any] = {"PARTS": tiles.power_of_2(self.number), "BLOCK": _CHANNELS}


class _Pass(NamedTuple):
    """The programs of an element-wise pass."""

    grid: tuple[int, int]
    constants: dict[str, Any]

    @classmethod
    def over(cls, x: DeviceArray) -> _Pass:
        num_channels = x.shape[1]
        num_rows = x.size // max(num_channels, 1)
        block_n = min(max(tiles.power_of_2(num_channels), 8), 128)
        block_m = min(tiles.power_of_2(num_rows), _PASSED // block_n)
        grid = (-(-num_rows // block_m), -(-num_channels // block_n))
        return cls(grid, {"COMPUTE": COMPUTE[x.dtype], "BLOCK_M": block_m, "BLOCK_N": block_n})
