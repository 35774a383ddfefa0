"""Convolution, batch norm, residual and activation as one op: convolution with statistics, and one pass for the rest.

What operands of the same layouts share (how the work is cut, the packed launches, where results go) is a plan, made
once and found by a look-up.
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.launch import (
    Moments,
    conv_forward,
    conv_forward_with_moments,
    conv_input_grad_added,
    conv_weight_grad,
)
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1 as wide_conv_bn_relu
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_backward
from genesis.backends.cuda.ops.conv_bn_relu.launches import BackwardLaunches, FinishLaunch, Given, StatisticsLaunches
from genesis.backends.cuda.ops.storage.launch import add_into, copy_into
from genesis.backends.cuda.ops.storage.rows import (
    address,
    addresses,
    all_new,
    channels_last,
    dense,
    layout,
    layouts,
    new,
    saved_layouts,
)
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState, SavedConvNorm, is_output, record

_Results = tuple[DeviceArray | None, ...]
_Key = tuple[object, ...]
_MaybeArray = DeviceArray | None
# What plans are called with. x, statistics in parts where they came with x, norm, residual, momentum:
_Forward = Callable[[DeviceArray, _MaybeArray, NormState[DeviceArray], _MaybeArray, float], _Results]
_FindStatistics = Callable[[DeviceArray, _MaybeArray, NormState[DeviceArray], float], tuple[DeviceArray, DeviceArray]]
# x, gamma, beta, mean, inverse deviation or variance, residual:
_Finish = Callable[[DeviceArray, _MaybeArray, _MaybeArray, DeviceArray, DeviceArray, _MaybeArray], _Results]
# grad, bias, gamma, beta, mean, inverse deviation, what was kept, what passed:
_Backward = Callable[
    [
        DeviceArray, _MaybeArray, _MaybeArray, _MaybeArray, DeviceArray, DeviceArray, DeviceArray, _MaybeArray,
    ],
    _Results,
]  # fmt: skip
_forwards: dict[_Key, _Forward] = {}
_statistics_plans: dict[_Key, _FindStatistics] = {}
_finishes: dict[_Key, _Finish] = {}
_backwards: dict[_Key, _Backward] = {}
for _plans in (_forwards, _statistics_plans, _finishes, _backwards):
    driver.forget_on_switch(_plans.clear)


def conv_bn_relu(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray],
    residual: DeviceArray | None, options: NormOptions, geometry: ConvGeometry, activation: str | None,
) -> _Results:  # fmt: skip
    state = _dense(norm)
    training = options.training
    if training and wide_conv_bn_relu.supports(input.dtype, input.shape, weight.shape, geometry):
        result = wide_conv_bn_relu.forward(input, weight, bias, state, residual, options, activation)
    else:
        moments = None
        if training:
            x, moments = conv_forward_with_moments(input, weight, bias, geometry)
        else:
            x = conv_forward(input, weight, bias, geometry)
        result = _normalize(x, moments, state, residual, options, activation)
    if training:
        _write_back(norm, state)
    return result


def conv_bn_begin(
    input: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None, norm: NormState[DeviceArray],
    options: NormOptions, geometry: ConvGeometry,
) -> BegunConvNorm[DeviceArray]:  # fmt: skip
    if not options.training:
        x = channels_last(input) if weight is None else conv_forward(input, weight, bias, geometry)
        return BegunConvNorm(None, None, x, None)
    state = _dense(norm)
    found: tuple[DeviceArray | None, DeviceArray | None, DeviceArray]
    if weight is None:
        x = channels_last(input)
        found = (*_statistics(x, None, state, options), x)
    elif wide_conv_bn_relu.supports(input.dtype, input.shape, weight.shape, geometry):
        found = wide_conv_bn_relu.statistics(input, weight, bias, state, options)
    else:
        x, moments = conv_forward_with_moments(input, weight, bias, geometry)
        found = (*_statistics(x, moments, state, options), x)
    _write_back(norm, state)
    return BegunConvNorm(*found, None)


def conv_bn_finish(
    input: DeviceArray, weight: DeviceArray | None, norm: NormState[DeviceArray], begun: BegunConvNorm[DeviceArray],
    residual: DeviceArray | None, eps: float, activation: str | None,
) -> _Results:  # fmt: skip
    gamma, beta, running_mean, running_var, _ = norm
    mean, inverse_std, kept, _ = begun
    gamma, beta, residual = dense(gamma), dense(beta), channels_last(residual)
    if not is_output(kept):
        assert weight is not None
        return wide_conv_bn_relu.finish(input, weight, (gamma, beta), begun, residual, activation)
    has_found = mean is not None
    if not has_found:
        mean, inverse_std = dense(running_mean), dense(running_var)
    assert mean is not None
    assert inverse_std is not None
    key = (*layouts(kept, gamma, beta, mean, inverse_std, residual), has_found, float(eps), activation)
    run = _finishes.get(key)
    if run is None:
        running = (None, None) if has_found else (mean.layout, inverse_std.layout)
        state = NormState(layout(gamma), layout(beta), *running)
        run = _finishes[key] = _plan_finish(kept.layout, state, layout(residual), float(eps), activation)
    return run(kept, gamma, beta, mean, inverse_std, residual)


def _dense(norm: NormState[DeviceArray]) -> NormState[DeviceArray]:
    gamma, beta, mean, var, count = norm
    return record(NormState, (dense(gamma), dense(beta), dense(mean), dense(var), count))


def _write_back(norm: NormState[DeviceArray], state: NormState[DeviceArray]) -> None:
    """Into norm: the running statistics that have changed in state, where _dense() made copies of them."""
    if norm.running_mean is not state.running_mean:
        copy_into(norm.running_mean, state.running_mean)  # type: ignore[arg-type]
    if norm.running_var is not state.running_var:
        copy_into(norm.running_var, state.running_var)  # type: ignore[arg-type]


def _statistics(
    x: DeviceArray, moments: Moments | None, norm: NormState[DeviceArray], options: NormOptions
) -> tuple[DeviceArray, DeviceArray]:
    partial, parts = moments or (None, None)
    key = (*layouts(x, partial, *norm[2:]), parts, float(options.eps))
    run = _statistics_plans.get(key)
    if run is None:
        given, state = _given(moments), NormState(*layouts(*norm))
        run = _statistics_plans[key] = _plan_statistics(x.layout, given, state, float(options.eps))
    return run(x, partial, norm, options.momentum)


def _normalize(
    x: DeviceArray, moments: Moments | None, norm: NormState[DeviceArray], residual: DeviceArray | None,
    options: NormOptions, activation: str | None,
) -> _Results:  # fmt: skip
    partial, parts = moments or (None, None)
    residual = channels_last(residual)
    training, momentum, eps = options
    key = (*layouts(x, partial, *norm, residual), parts, training, float(eps), activation)
    run = _forwards.get(key)
    if run is None:
        given, state = _given(moments), NormState(*layouts(*norm))
        plan = _plan_forward if training else _plan_inference
        run = _forwards[key] = plan(x.layout, given, state, layout(residual), float(eps), activation)
    return run(x, partial, norm, residual, momentum)


def _given(moments: Moments | None) -> Given | None:
    return None if moments is None else (moments.partial.layout, moments.parts)


def _plan_forward(
    x: Layout, given: Given | None, norm: NormState[Layout], residual: Layout | None, eps: float, activation: str | None
) -> _Forward:
    find = _plan_statistics(x, given, norm, eps)
    finish = _plan_finish(x, NormState(norm.gamma, norm.beta, None, None), residual, eps, activation)

    def run(
        x: DeviceArray, parts: DeviceArray | None, norm: NormState[DeviceArray], residual: DeviceArray | None,
        momentum: float,
    ) -> _Results:  # fmt: skip
        mean, inverse_std = find(x, parts, norm, momentum)
        return finish(x, norm.gamma, norm.beta, mean, inverse_std, residual)

    return run


def _plan_inference(
    x: Layout, given: Given | None, norm: NormState[Layout], residual: Layout | None, eps: float, activation: str | None
) -> _Forward:
    normalize = _plan_finish(x, norm, residual, eps, activation)

    def run(
        x: DeviceArray, parts: _MaybeArray, norm: NormState[DeviceArray], residual: _MaybeArray, momentum: float
    ) -> _Results:
        gamma, beta, mean, var, _ = norm
        assert mean is not None
        assert var is not None
        return normalize(x, gamma, beta, mean, var, residual)

    return run


def _plan_statistics(x: Layout, given: Given | None, norm: NormState[Layout], eps: float) -> _FindStatistics:
    """Mean and inverse deviation in training."""
    partial, statistic, sum_up, join = StatisticsLaunches.of(x, given, norm, eps)
    device = x.device_index

    def run(
        x: DeviceArray, parts: DeviceArray | None, norm: NormState[DeviceArray], momentum: float
    ) -> tuple[DeviceArray, DeviceArray]:
        stream = streams.current_handle(device)
        mean, inverse_std = statistic.new(stream), statistic.new(stream)
        if sum_up is not None:
            parts = partial.new(stream)
            sum_up(stream, parts.data_pointer, x.data_pointer)
        join(stream, mean.data_pointer, inverse_std.data_pointer, *addresses(norm[2:]), address(parts), momentum)
        return mean, inverse_std

    return run


def _plan_finish(
    x: Layout, norm: NormState[Layout], residual: Layout | None, eps: float, activation: str | None
) -> _Finish:
    """The pass that normalizes, adds and activates. norm: without running statistics where others have been found."""
    y, written, statistic, normalize = FinishLaunch.of(x, norm, residual, eps, activation)
    device, has_found = x.device_index, norm.running_mean is None

    def run(
        x: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, mean: DeviceArray, var: DeviceArray,
        residual: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        running = (0, 0)
        if not has_found:
            running, mean, var = (mean.data_pointer, var.data_pointer), statistic.new(stream), statistic.new(stream)
        result, passed = y.new(stream), new(written, stream)
        normalize(
            stream, result.data_pointer, address(passed), x.data_pointer, address(residual), mean.data_pointer,
            var.data_pointer, *running, address(gamma), address(beta),
        )  # fmt: skip
        return result, mean, var, x, passed

    return run


def conv_bn_relu_backward(
    grad: DeviceArray, saved: SavedConvNorm[DeviceArray], training: bool, geometry: ConvGeometry,
    activation: str | None, needs: tuple[bool, ...], may_overwrite: bool = False, addend: DeviceArray | None = None,
) -> _Results:  # fmt: skip
    input, weight, bias, gamma, beta, mean, inverse_std, kept, passed = saved
    if passed is not None and is_output(passed):
        passed = channels_last(passed)
    grad, gamma, beta = channels_last(grad), dense(gamma), dense(beta)
    if not is_output(kept):
        if gamma is not saved[3] or beta is not saved[4] or passed is not saved[8]:  # else saved is as it should be
            saved = SavedConvNorm(input, weight, bias, gamma, beta, mean, inverse_std, kept, passed)
        return expand_1x1_backward.backward(grad, saved, activation, needs, addend)
    needs_input, needs_weight, *rest = needs
    arrays = (grad, bias, gamma, beta, dense(mean), inverse_std, channels_last(kept), passed)
    key = (*layouts(*arrays), training, activation, needs_input or needs_weight, *rest)
    run = _backwards.get(key)
    if run is None:
        known = saved_layouts(SavedConvNorm(input, weight, *arrays[1:]))
        run = _backwards[key] = _plan_backward(grad.layout, known, training, activation, needs)
    grad_x, *others = run(*arrays)
    grad_input = grad_weight = None
    if weight is None:
        grad_input = grad_x
        if grad_input is not None and addend is not None:
            add_into(grad_input, addend)
    elif grad_x is not None and needs_input:
        grad_input = conv_input_grad_added(grad_x, weight, addend, input.shape, geometry)
    if weight is not None and grad_x is not None and needs_weight:
        grad_weight = conv_weight_grad(grad_x, input, weight.shape, geometry)
    return grad_input, grad_weight, *others


def _plan_backward(
    grad: Layout, saved: SavedConvNorm[Layout], training: bool, activation: str | None, needs: tuple[bool, ...]
) -> _Backward:
    """Gradients of the convolution's output, its bias, gamma, beta, residual."""
    launches = BackwardLaunches.of(grad, saved, training, activation, needs)
    device, scratch, launch = launches.scratch.device_index, launches.scratch, launches.launch
    gradients = launches.gradients

    def run(
        grad: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None, beta: DeviceArray | None,
        mean: DeviceArray, inverse_std: DeviceArray, kept: DeviceArray, passed: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        outputs = all_new(gradients, stream)
        room = scratch.new(stream)
        vectors = (mean.data_pointer, inverse_std.data_pointer, address(gamma), address(beta))
        launch(
            stream, address(outputs[0]), addresses(outputs[1:]), room.data_pointer, grad.data_pointer,
            address(passed), kept.data_pointer, vectors,
        )  # fmt: skip
        return outputs

    return run
