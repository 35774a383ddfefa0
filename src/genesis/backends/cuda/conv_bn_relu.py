"""Convolution, batch norm, residual and ReLU as one op: convolution, statistics, and one pass for the rest.

What operands of the same layouts share (how the work is cut, the packed launches, where results go) is a plan, made
once and found by a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import driver, streams, tiles, wide_conv_bn_relu
from genesis.backends.cuda.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.conv import conv_forward, conv_input_grad, conv_weight_grad
from genesis.backends.cuda.kernels import conv_bn_relu as kernels
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import prepare_raw
from genesis.backends.cuda.rows import address, channels_last, dense, fresh, layouts, new, statistics_dtype
from genesis.backends.cuda.storage import copy_into

_MOST_PARTS, _LEAST_BLOCKS = 256, 6  # of a sum, each of so many blocks of rows; one program puts them together
_CHANNELS = 8  # of which it does so
_STAGES = 4  # blocks of a sum on their way at a time


class _Tile(NamedTuple):
    """What a program holds at a time: so many channels at most, elements in all; and its warps."""

    channels: int
    elements: int
    warps: int

    def constants(self, num_rows: int, num_channels: int) -> dict[str, Any]:
        block_n = min(max(tiles.power_of_2(num_channels), 8), self.channels)
        return {
            "BLOCK_M": min(tiles.power_of_2(num_rows), self.elements // block_n),
            "BLOCK_N": block_n,
            "num_warps": self.warps,
        }


_SUM, _PASS = _Tile(64, 2048, 4), _Tile(128, 4096, 4)  # as measured on an H200

_Results = tuple[DeviceArray | None, ...]
_plans: dict[tuple[Any, ...], Callable[..., _Results]] = {}
driver.forget_on_switch(_plans.clear)


def conv_bn_relu(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
    residual: DeviceArray | None, training: bool, momentum: float, eps: float,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, activation: str | None,
    count: DeviceArray | None = None,
) -> _Results:  # fmt: skip
    gamma, beta = dense(gamma), dense(beta)
    mean, var = dense(running_mean), dense(running_var)
    vectors = (gamma, beta, mean, var, count if training else None)
    if training and wide_conv_bn_relu.supports(input.dtype, weight.shape, stride, padding, groups):
        result = wide_conv_bn_relu.forward(input, weight, bias, *vectors, residual, momentum, eps, activation)
    else:
        x = conv_forward(input, weight, bias, stride, padding, dilation, groups)
        result = _normalize(x, *vectors, residual, training, momentum, eps, activation)
    if training:
        for statistic, changed in ((running_mean, mean), (running_var, var)):
            if statistic is not changed:
                copy_into(statistic, changed)  # type: ignore[arg-type]
    return result


def _normalize(
    x: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, count: DeviceArray | None, residual: DeviceArray | None, training: bool,
    momentum: float, eps: float, activation: str | None,
) -> _Results:  # fmt: skip
    arrays = (x, gamma, beta, running_mean, running_var, count, channels_last(residual))
    key: tuple[Any, ...] = (*layouts(*arrays), training, float(eps), activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_forward(*key)
    return run(*arrays, momentum)


def _plan_forward(
    x: Layout, gamma: Layout | None, beta: Layout | None, running_mean: Layout | None, running_var: Layout | None,
    count: Layout | None, residual: Layout | None, training: bool, eps: float, activation: str | None,
) -> Callable[..., _Results]:  # fmt: skip
    num_channels, device = x.shape[1], x.device_index
    num_rows = x.size // max(num_channels, 1)
    statistic = layout_of((num_channels,), statistics_dtype(x.dtype), device)
    parts = _Parts.of(x)
    partial = layout_of((2, parts.number, num_channels), statistic.dtype, device)
    y, bits = fresh(x), None
    if activation is not None and residual is not None:
        bits = layout_of((num_rows, -(-num_channels // 8)), dtypes.uint8, device)
    vectors = (statistic, statistic, running_mean, running_var)
    if training:
        sum_up = prepare_raw(
            kernels._statistics_kernel, device, parts.grid, (partial, x), num_rows, num_channels, STAGES=_STAGES,
            **parts.constants,
        )  # fmt: skip
        join = prepare_raw(
            kernels._training_statistics_kernel, device, parts.joining_grid, (*vectors, count, partial, x, 0.0),
            num_rows, parts.number, num_channels, eps, BLOCK_M=parts.constants["BLOCK_M"], **parts.joining,
        )  # fmt: skip
    blocks = _Pass.over(x)
    statistics = (statistic, statistic, None, None) if training else vectors
    normalize = prepare_raw(
        kernels._normalize_kernel, device, blocks.grid, (y, bits, x, residual, *statistics, gamma, beta),
        num_rows, num_channels, eps, RELU=activation == "relu", **blocks.constants,
    )  # fmt: skip

    def run(
        x: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, running_mean: DeviceArray | None,
        running_var: DeviceArray | None, count: DeviceArray | None, residual: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        mean, inverse_std = statistic.new(stream), statistic.new(stream)
        places = (mean.data_pointer, inverse_std.data_pointer, address(running_mean), address(running_var))
        if training:
            sums = partial.new(stream)
            sum_up(stream, sums.data_pointer, x.data_pointer)
            join(stream, *places, address(count), sums.data_pointer, x.data_pointer, momentum)
        result, passed = y.new(stream), new(bits, stream)
        normalize(
            stream, result.data_pointer, address(passed), x.data_pointer, address(residual), *places,
            address(gamma), address(beta),
        )  # fmt: skip
        return result, mean, inverse_std, x, passed

    return run


def conv_bn_relu_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray, conv_output: DeviceArray,
    passed: DeviceArray | None, training: bool, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    activation: str | None, needs: tuple[bool, ...], may_overwrite: bool = False,
) -> _Results:  # fmt: skip
    grad, gamma, beta = channels_last(grad), dense(gamma), dense(beta)
    if conv_output.shape != grad.shape:  # what the wide form keeps in its place
        return wide_conv_bn_relu.backward(
            grad, input, weight, bias, gamma, beta, inverse_std, conv_output, passed, needs
        )
    needs_input, needs_weight, *rest = needs
    arrays = (grad, channels_last(conv_output), bias, gamma, beta, dense(mean), inverse_std, passed)
    key: tuple[Any, ...] = (*layouts(*arrays), training, activation, needs_input or needs_weight, *rest)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_backward(*key)
    grad_x, *others = run(*arrays)
    grad_input = grad_weight = None
    if grad_x is not None and needs_input:
        grad_input = conv_input_grad(grad_x, weight, input.shape, stride, padding, dilation, groups)
    if grad_x is not None and needs_weight:
        grad_weight = conv_weight_grad(grad_x, input, weight.shape, stride, padding, dilation, groups)
    return grad_input, grad_weight, *others


def _plan_backward(
    grad: Layout, x: Layout, bias: Layout | None, gamma: Layout | None, beta: Layout | None, mean: Layout,
    inverse_std: Layout, passed: Layout | None, training: bool, activation: str | None, needs_x: bool,
    needs_bias: bool, needs_gamma: bool, needs_beta: bool, needs_residual: bool,
) -> Callable[..., _Results]:  # fmt: skip
    """Gradients of the convolution's output, its bias, gamma, beta, residual."""
    num_channels, device = x.shape[1], x.device_index
    num_rows = x.size // max(num_channels, 1)
    relu = activation == "relu"
    vectors = (mean, inverse_std, gamma, beta)
    grad_x, grad_residual = (fresh(x) if wanted else None for wanted in (needs_x, needs_residual))
    grad_bias, grad_gamma, grad_beta = (
        layout_of(like.shape, like.dtype, device) if wanted and like is not None else None
        for like, wanted in ((bias, needs_bias), (gamma, needs_gamma), (beta, needs_beta))
    )
    sums = layout_of((2, num_channels), statistics_dtype(x.dtype), device)
    parts, blocks = _Parts.of(x), _Pass.over(x)
    sums_wanted = needs_bias or needs_gamma or needs_beta or (training and needs_x)
    scratch = sums
    if sums_wanted:  # one piece of memory: the sums, and after them those of the parts
        scratch = layout_of((1 + parts.number, 2, num_channels), sums.dtype, device)
        aligned = sums.num_bytes % 16 == 0
        partial = layout_of((2, parts.number, num_channels), sums.dtype, device, aligned=aligned)
        sum_up = prepare_raw(
            kernels._backward_sums_kernel, device, parts.grid, (partial, grad_residual, grad, passed, x, *vectors),
            num_rows, num_channels, RELU=relu, STAGES=_STAGES, **parts.constants,
        )  # fmt: skip
        join = prepare_raw(
            kernels._parameter_grads_kernel, device, parts.joining_grid,
            (sums, grad_gamma, grad_beta, grad_bias, partial, inverse_std, gamma), parts.number, num_channels,
            TRAINING=training, **parts.joining,
        )  # fmt: skip
    # With the sums came the residual's gradient, which is the gradient before the activation, and so without that.
    before_relu = sums_wanted and grad_residual is not None
    residual_left = None if sums_wanted else grad_residual
    last_pass = grad_x is not None or residual_left is not None
    if last_pass:
        sources = (grad_residual, None) if before_relu else (grad, passed)
        to_conv = prepare_raw(
            kernels._backward_kernel, device, blocks.grid, (grad_x, residual_left, *sources, x, *vectors, sums),
            num_rows, num_channels, RELU=relu and not before_relu, TRAINING=training, **blocks.constants,
        )  # fmt: skip

    def run(
        grad: DeviceArray, x: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
        beta: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray, passed: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        outputs = new(grad_x, stream), new(grad_bias, stream), new(grad_gamma, stream), new(grad_beta, stream)
        out_residual, room = new(grad_residual, stream), scratch.new(stream)
        out_x, out_bias, out_gamma, out_beta = map(address, outputs)
        source, here, both = grad.data_pointer, x.data_pointer, room.data_pointer
        scales = (mean.data_pointer, inverse_std.data_pointer, address(gamma), address(beta))
        if sums_wanted:
            pieces = both + sums.num_bytes
            sum_up(stream, pieces, address(out_residual), source, address(passed), here, *scales)
            join(stream, both, out_gamma, out_beta, out_bias, pieces, scales[1], scales[2])
        if last_pass:
            source = address(out_residual) if before_relu else source
            to_conv(stream, out_x, address(out_residual), source, address(passed), here, *scales, both)
        return *outputs, out_residual

    return run


class _Parts(NamedTuple):
    """How sums over the rows of an NHWC array are shared out: programs × blocks of channels; and put together."""

    number: int
    grid: tuple[int, int]
    constants: dict[str, Any]
    joining_grid: tuple[int]
    joining: dict[str, Any]

    @classmethod
    def of(cls, x: Layout) -> _Parts:
        num_channels = x.shape[1]
        num_rows = x.size // max(num_channels, 1)
        constants = {"COMPUTE": COMPUTE[x.dtype], **_SUM.constants(num_rows, num_channels)}
        channel_blocks = -(-num_channels // constants["BLOCK_N"])
        wanted = 4 * driver.get().properties(x.device_index).multiprocessor_count // max(channel_blocks, 1)
        number = max(1, min(wanted, -(-num_rows // (constants["BLOCK_M"] * _LEAST_BLOCKS)), _MOST_PARTS))
        joining = {"PARTS": tiles.power_of_2(number), "BLOCK": _CHANNELS}
        return cls(number, (number, channel_blocks), constants, (-(-num_channels // _CHANNELS),), joining)


class _Pass(NamedTuple):
    """The programs of an element-wise pass."""

    grid: tuple[int, int]
    constants: dict[str, Any]

    @classmethod
    def over(cls, x: Layout) -> _Pass:
        num_channels = x.shape[1]
        num_rows = x.size // max(num_channels, 1)
        constants = {"COMPUTE": COMPUTE[x.dtype], **_PASS.constants(num_rows, num_channels)}
        return cls((-(-num_rows // constants["BLOCK_M"]), -(-num_channels // constants["BLOCK_N"])), constants)
