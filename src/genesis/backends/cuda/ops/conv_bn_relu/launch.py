"""Convolution, batch norm, residual and ReLU as one op: convolution with statistics, and one pass for the rest.

What operands of the same layouts share (how the work is cut, the packed launches, where results go) is a plan, made
once and found by a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.launch import (
    Moments,
    conv_forward,
    conv_forward_with_moments,
    conv_input_grad_added,
    conv_weight_grad,
)
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1 as wide_conv_bn_relu
from genesis.backends.cuda.ops.conv_bn_relu.launches import BackwardLaunches, FinishLaunch, StatisticsLaunches
from genesis.backends.cuda.ops.storage.launch import copy_into
from genesis.backends.cuda.ops.storage.rows import address, channels_last, dense, layouts, new, statistics_dtype
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of

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
        geometry, moments = (stride, padding, dilation, groups), None
        if training:
            x, moments = conv_forward_with_moments(input, weight, bias, *geometry)
        else:
            x = conv_forward(input, weight, bias, *geometry)
        result = _normalize(x, moments, *vectors, residual, training, momentum, eps, activation)
    if training:
        for statistic, changed in ((running_mean, mean), (running_var, var)):
            if statistic is not changed:
                copy_into(statistic, changed)  # type: ignore[arg-type]
    return result


def conv_bn_begin(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None, training: bool,
    momentum: float, eps: float, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    count: DeviceArray | None = None,
) -> _Results:  # fmt: skip
    geometry = (stride, padding, dilation, groups)
    if not training:
        return None, None, conv_forward(input, weight, bias, *geometry), None
    mean, var = dense(running_mean), dense(running_var)
    if wide_conv_bn_relu.supports(input.dtype, weight.shape, stride, padding, groups):
        found = wide_conv_bn_relu.statistics(input, weight, bias, mean, var, count, momentum, eps)
    else:
        x, moments = conv_forward_with_moments(input, weight, bias, *geometry)
        found = _statistics(x, moments, mean, var, count, momentum, eps)
    for statistic, changed in ((running_mean, mean), (running_var, var)):
        if statistic is not changed:
            copy_into(statistic, changed)  # type: ignore[arg-type]
    return *found, None


def conv_bn_finish(
    input: DeviceArray, weight: DeviceArray | None, gamma: DeviceArray | None, beta: DeviceArray | None,
    running_mean: DeviceArray | None, running_var: DeviceArray | None, mean: DeviceArray | None,
    inverse_std: DeviceArray | None, kept: DeviceArray, normalized: DeviceArray | None, residual: DeviceArray | None,
    eps: float, activation: str | None,
) -> _Results:  # fmt: skip
    gamma, beta, residual = dense(gamma), dense(beta), channels_last(residual)
    if len(kept.shape) != 4:  # what the wide form keeps in place of the convolution's output
        assert weight is not None
        assert mean is not None
        assert inverse_std is not None
        return wide_conv_bn_relu.finish(input, weight, gamma, beta, mean, inverse_std, kept, residual, activation)
    statistics = (mean, inverse_std) if mean is not None else (dense(running_mean), dense(running_var))
    arrays = (kept, gamma, beta, *statistics, residual)
    key: tuple[Any, ...] = ("finish", *layouts(*arrays), mean is not None, float(eps), activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_finish(*key[1:])
    return run(*arrays)


def _statistics(
    x: DeviceArray, moments: Moments | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
    count: DeviceArray | None, momentum: float, eps: float,
) -> _Results:  # fmt: skip
    partial, rows = (None, 0) if moments is None else moments
    arrays = (x, partial, running_mean, running_var, count)
    key: tuple[Any, ...] = ("statistics", *layouts(*arrays), rows, float(eps))
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_statistics(*key[1:])
    return (*run(*arrays, momentum), x)


def _normalize(
    x: DeviceArray, moments: Moments | None, gamma: DeviceArray | None, beta: DeviceArray | None,
    running_mean: DeviceArray | None, running_var: DeviceArray | None, count: DeviceArray | None,
    residual: DeviceArray | None, training: bool, momentum: float, eps: float, activation: str | None,
) -> _Results:  # fmt: skip
    partial, rows = (None, 0) if moments is None else moments
    arrays = (x, partial, gamma, beta, running_mean, running_var, count, channels_last(residual))
    key: tuple[Any, ...] = (*layouts(*arrays), rows, training, float(eps), activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_forward(*key)
    return run(*arrays, momentum)


def _plan_forward(
    x: Layout, given: Layout | None, gamma: Layout | None, beta: Layout | None, running_mean: Layout | None,
    running_var: Layout | None, count: Layout | None, residual: Layout | None, block_rows: int, training: bool,
    eps: float, activation: str | None,
) -> Callable[..., _Results]:  # fmt: skip
    """given: the statistics in parts, of blocks of so many rows, where they came with x."""
    if not training:
        normalize = _plan_finish(x, gamma, beta, running_mean, running_var, residual, False, eps, activation)
        return lambda x, parts, gamma, beta, mean, var, count, residual, momentum: normalize(
            x, gamma, beta, mean, var, residual
        )
    find = _plan_statistics(x, given, running_mean, running_var, count, block_rows, eps)
    statistic = layout_of((x.shape[1],), statistics_dtype(x.dtype), x.device_index)
    finish = _plan_finish(x, gamma, beta, statistic, statistic, residual, True, eps, activation)

    def run(
        x: DeviceArray, parts: DeviceArray | None, gamma: DeviceArray | None, beta: DeviceArray | None,
        running_mean: DeviceArray | None, running_var: DeviceArray | None, count: DeviceArray | None,
        residual: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        mean, inverse_std = find(x, parts, running_mean, running_var, count, momentum)
        return finish(x, gamma, beta, mean, inverse_std, residual)

    return run


def _plan_statistics(
    x: Layout, given: Layout | None, running_mean: Layout | None, running_var: Layout | None, count: Layout | None,
    block_rows: int, eps: float,
) -> Callable[..., _Results]:  # fmt: skip
    """Mean and inverse deviation in training."""
    launches = StatisticsLaunches.of(x, given, running_mean, running_var, count, block_rows, eps)
    partial, statistic, sum_up, join = launches
    device = x.device_index

    def run(
        x: DeviceArray, parts: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
        count: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        mean, inverse_std = statistic.new(stream), statistic.new(stream)
        if sum_up is not None:
            parts = partial.new(stream)
            sum_up(stream, parts.data_pointer, x.data_pointer)
        places = (mean.data_pointer, inverse_std.data_pointer, address(running_mean), address(running_var))
        join(stream, *places, address(count), address(parts), momentum)
        return mean, inverse_std

    return run


def _plan_finish(
    x: Layout, gamma: Layout | None, beta: Layout | None, mean: Layout | None, var: Layout | None,
    residual: Layout | None, found: bool, eps: float, activation: str | None,
) -> Callable[..., _Results]:  # fmt: skip
    """The pass that normalizes, adds and activates. found: these are mean and inverse deviation, not running ones."""
    running = () if found else (mean, var)
    y, bits, statistic, normalize = FinishLaunch.of(x, gamma, beta, residual, eps, activation, *running)
    device = x.device_index

    def run(
        x: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, mean: DeviceArray, var: DeviceArray,
        residual: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        running = (0, 0)
        if not found:
            running, mean, var = (mean.data_pointer, var.data_pointer), statistic.new(stream), statistic.new(stream)
        result, passed = y.new(stream), new(bits, stream)
        normalize(
            stream, result.data_pointer, address(passed), x.data_pointer, address(residual), mean.data_pointer,
            var.data_pointer, *running, address(gamma), address(beta),
        )  # fmt: skip
        return result, mean, var, x, passed

    return run


def conv_bn_relu_backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray, conv_output: DeviceArray,
    passed: DeviceArray | None, training: bool, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    activation: str | None, needs: tuple[bool, ...], may_overwrite: bool = False,
    addend: DeviceArray | None = None,
) -> _Results:  # fmt: skip
    grad, gamma, beta = channels_last(grad), dense(gamma), dense(beta)
    if conv_output.shape != grad.shape:  # what the wide form keeps in its place
        return wide_conv_bn_relu.backward(
            grad, input, weight, bias, gamma, beta, inverse_std, conv_output, passed, needs, addend
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
        geometry = (stride, padding, dilation, groups)
        grad_input = conv_input_grad_added(grad_x, weight, addend, input.shape, *geometry)
    if grad_x is not None and needs_weight:
        grad_weight = conv_weight_grad(grad_x, input, weight.shape, stride, padding, dilation, groups)
    return grad_input, grad_weight, *others


def _plan_backward(*key: Any) -> Callable[..., _Results]:
    """Gradients of the convolution's output, its bias, gamma, beta, residual."""
    launches = BackwardLaunches.of(*key)
    grad_x, grad_bias, grad_gamma, grad_beta, grad_residual, scratch, launch = launches
    device = scratch.device_index

    def run(
        grad: DeviceArray, x: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
        beta: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray, passed: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        outputs = (
            new(grad_x, stream), new(grad_bias, stream), new(grad_gamma, stream), new(grad_beta, stream),
            new(grad_residual, stream),
        )  # fmt: skip
        room = scratch.new(stream)
        launch(
            stream, *map(address, outputs), room.data_pointer, grad.data_pointer, address(passed),
            x.data_pointer, mean.data_pointer, inverse_std.data_pointer, address(gamma), address(beta),
        )  # fmt: skip
        return outputs

    return run
