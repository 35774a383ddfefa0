"""conv_bn_relu in training where a 1×1 convolution has at least as many outputs as inputs, in bfloat16.

The convolution's output is never written: kernels/expand_1x1.py says how. Its large passes are others on Hopper:
expand_1x1_hopper.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.activation import fused as activations
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper as wide_hopper
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_tiles as cut
from genesis.backends.cuda.ops.conv_bn_relu.kernels import expand_1x1 as kernels
from genesis.backends.cuda.ops.conv_bn_relu.launches import passed_layout
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.ops.storage.rows import (
    address,
    addresses,
    channels_last,
    layout,
    layouts,
    new,
)
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState
from genesis.shapes import Shape, contiguous_strides

_MOST_INPUTS = 64  # a program holds all of them; with more, writing the convolution's output was faster
LEAST_ROWS = 1 << 15  # with fewer, the output stays in the cache; on an H200 the separate passes were faster with 25088

_Results = tuple[DeviceArray | None, ...]
_Affine = tuple[DeviceArray | None, DeviceArray | None]  # gamma, beta
_Found = tuple[DeviceArray, DeviceArray, DeviceArray]  # mean, inverse deviation, what stands for the output
_Addresses = tuple[int, ...]
_Key = tuple[object, ...]
# What plans are called with: x, weight as a matrix, and the rest.
_Statistics = Callable[[DeviceArray, DeviceArray, DeviceArray | None, NormState[DeviceArray], float], _Found]
_Finish = Callable[[DeviceArray, DeviceArray, _Affine, _Found, DeviceArray | None], _Results]
_Forward = Callable[
    [DeviceArray, DeviceArray, DeviceArray | None, NormState[DeviceArray], DeviceArray | None, float], _Results
]
_forwards: dict[_Key, _Forward] = {}
_statistics: dict[_Key, _Statistics] = {}
_finishes: dict[_Key, _Finish] = {}
for _plans in (_forwards, _statistics, _finishes):
    driver.forget_on_switch(_plans.clear)


def supports(dtype: DType, shape: Shape, weight_shape: Shape, geometry: ConvGeometry) -> bool:
    """Is this the faster way for images of this shape?

    float16 is left out: the products of gradients and weights could leave its range.
    """
    stride, padding, _, groups = geometry
    num_outputs, num_inputs, *taps = weight_shape
    return (
        dtype is dtypes.bfloat16
        and taps == [1, 1]
        and (stride, padding, groups) == ((1, 1), (0, 0), 1)
        and 16 <= num_inputs <= min(num_outputs, _MOST_INPUTS)
        and (num_inputs % 8, num_outputs % 8) == (0, 0)
        and math.prod(shape) >= LEAST_ROWS * num_inputs
    )


def state_shape(num_inputs: int, num_outputs: int) -> Shape:
    """The shape of what is saved in the place of the output, in float32: see kernels._wide_statistics_kernel."""
    return (1 + num_outputs + -(-num_outputs // num_inputs), num_inputs)


def writes_passed(num_outputs: int, activation: str | None, has_residual: bool) -> bool:
    """Is the value before the activation, or of ReLU's its sign, written for the backward? It computes it again else.

    The kernels for Hopper read the signs.
    """
    return activation is not None and (has_residual or (activation == "relu" and wide_hopper.has_tiles(num_outputs)))


def forward(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray],
    residual: DeviceArray | None, options: NormOptions, activation: str | None,
) -> _Results:  # fmt: skip
    """Compute conv_bn_relu; in place of the convolution's output: the input's mean, the weight times its covariance."""
    x, matrix, residual = channels_last(input), as_matrix(weight), channels_last(residual)
    eps = float(options.eps)
    key = (*layouts(x, matrix, bias, *norm, residual), eps, activation)
    run = _forwards.get(key)
    if run is None:
        state = NormState(*layouts(*norm))
        run = _forwards[key] = _plan_forward(
            x.layout, matrix.layout, layout(bias), state, layout(residual), eps, activation
        )
    return run(x, matrix, bias, norm, residual, options.momentum)


def _plan_forward(
    x: Layout, weight: Layout, bias: Layout | None, norm: NormState[Layout], residual: Layout | None, eps: float,
    activation: str | None,
) -> _Forward:  # fmt: skip
    find = _plan_statistics(x, weight, bias, norm, eps)
    finish = _plan_finish(x, weight, norm.gamma, norm.beta, residual, activation)

    def run(
        x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray],
        residual: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        found = find(x, weight, bias, norm, momentum)
        return finish(x, weight, (norm.gamma, norm.beta), found, residual)

    return run


def statistics(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray],
    options: NormOptions,
) -> _Found:  # fmt: skip
    """Mean and inverse deviation of the output, and what stands for it."""
    x, matrix, eps = channels_last(input), as_matrix(weight), float(options.eps)
    key = (*layouts(x, matrix, bias, *norm[2:]), eps)
    run = _statistics.get(key)
    if run is None:
        state = NormState(*layouts(*norm))
        run = _statistics[key] = _plan_statistics(x.layout, matrix.layout, layout(bias), state, eps)
    return run(x, matrix, bias, norm, options.momentum)


def finish(
    input: DeviceArray, weight: DeviceArray, affine: _Affine, begun: BegunConvNorm[DeviceArray],
    residual: DeviceArray | None, activation: str | None,
) -> _Results:  # fmt: skip
    """The rest of forward, of what statistics() gave. affine: gamma and beta."""
    mean, inverse_std, kept, _ = begun
    assert mean is not None
    assert inverse_std is not None
    x, matrix, (gamma, beta) = channels_last(input), as_matrix(weight), affine
    key = (*layouts(x, matrix, gamma, beta, residual), activation)
    run = _finishes.get(key)
    if run is None:
        run = _finishes[key] = _plan_finish(
            x.layout, matrix.layout, layout(gamma), layout(beta), layout(residual), activation
        )
    return run(x, matrix, affine, (mean, inverse_std, kept), residual)


def _plan_statistics(
    x: Layout, weight: Layout, bias: Layout | None, norm: NormState[Layout], eps: float
) -> _Statistics:
    partial, gram, state, statistic, launch = StatisticsLaunches.of(x, weight, bias, norm, eps)
    device = partial.device_index

    def run(
        x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray], momentum: float
    ) -> _Found:
        stream = streams.current_handle(device)
        pieces, products = partial.new(stream), gram.new(stream)
        mean, inverse_std, kept = statistic.new(stream), statistic.new(stream), state.new(stream)
        launch(
            stream, (mean.data_pointer, inverse_std.data_pointer, kept.data_pointer), addresses(norm[2:]),
            (pieces.data_pointer, products.data_pointer), (x.data_pointer, weight.data_pointer, address(bias)),
            momentum,
        )  # fmt: skip
        return mean, inverse_std, kept

    return run


class StatisticsLaunches(NamedTuple):
    """Launches that find mean, inverse deviation and state, on addresses."""

    partial: Layout  # scratch, as is gram
    gram: Layout
    state: Layout
    statistic: Layout
    # stream; addresses: (mean, inverse deviation, state), (running mean, running variance, count), (partial, gram),
    # (x, weight, bias); momentum
    launch: Callable[[int, _Addresses, _Addresses, _Addresses, _Addresses, float], None]

    @classmethod
    def of(
        cls, x: Layout, weight: Layout, bias: Layout | None, norm: NormState[Layout], eps: float
    ) -> StatisticsLaunches:
        num_inputs, num_outputs, device = x.shape[1], weight.shape[0], x.device_index
        num_rows = x.size // num_inputs
        parts = cut.num_parts(num_rows, cut.GRAM_PARTS, 1, (num_inputs + 1) * num_inputs, device)
        in_hopper = wide_hopper.gram(x)
        if in_hopper is not None:
            parts = wide_hopper.num_programs(num_rows, 0, device)
        partial = layout_of((parts, num_inputs + 1, num_inputs), dtypes.float32, device)
        block_c = cut.block_c(num_inputs)
        add_gram = in_hopper or prepare_raw(
            kernels._gram_kernel, device, (parts,), (partial, x), num_rows, num_inputs, BLOCK_C=block_c,
            EVEN=num_rows % cut.GRAM["BLOCK_M"] == 0, **cut.GRAM,
        )  # fmt: skip
        gram, join = joining(partial)
        state = layout_of(state_shape(num_inputs, num_outputs), dtypes.float32, device)
        statistic = layout_of((num_outputs,), dtypes.float32, device)
        find_statistics = prepare_raw(
            kernels._wide_statistics_kernel, device, (-(-num_outputs // 16),),
            (statistic, statistic, *norm[2:], state, gram, x, weight, bias, 0.0),
            num_rows, num_inputs, num_outputs, eps, PRECISION=tiles.DOT_PRECISION[dtypes.float32], BLOCK_K=16,
            BLOCK_C=block_c,
        )  # fmt: skip

        def launch(
            stream: int, found: _Addresses, running: _Addresses, scratch: _Addresses, operands: _Addresses,
            momentum: float,
        ) -> None:  # fmt: skip
            (mean, inverse_std, state), (pieces, products) = found, scratch
            add_gram(stream, pieces, operands[0])
            join(stream, products, pieces)
            find_statistics(stream, mean, inverse_std, *running, state, products, *operands, momentum)

        return cls(partial, gram, state, statistic, launch)


def _plan_finish(
    x: Layout, weight: Layout, gamma: Layout | None, beta: Layout | None, residual: Layout | None,
    activation: str | None,
) -> _Finish:  # fmt: skip
    y, written, normalize = FinishLaunch.of(x, weight, gamma, beta, residual, activation)
    device = y.device_index

    def run(
        x: DeviceArray, weight: DeviceArray, affine: _Affine, found: _Found, residual: DeviceArray | None
    ) -> _Results:
        mean, inverse_std, kept = found
        stream = streams.current_handle(device)
        result, passed = y.new(stream), new(written, stream)
        normalize(
            stream, result.data_pointer, address(passed), x.data_pointer, weight.data_pointer, address(residual),
            kept.data_pointer, inverse_std.data_pointer, *addresses(affine),
        )  # fmt: skip
        return result, mean, inverse_std, kept, passed

    return run


class FinishLaunch(NamedTuple):
    """The pass that convolves, normalizes, adds and activates, on addresses."""

    y: Layout
    passed: Layout | None  # passed_layout() where it is written
    normalize: wide_hopper.Forward  # of stream and addresses, as wide_hopper.forward() names them

    @classmethod
    def of(
        cls, x: Layout, weight: Layout, gamma: Layout | None, beta: Layout | None, residual: Layout | None,
        activation: str | None,
    ) -> FinishLaunch:  # fmt: skip
        num_images, num_inputs, *size = x.shape
        num_outputs, device = weight.shape[0], x.device_index
        num_rows = x.size // num_inputs
        state = layout_of(state_shape(num_inputs, num_outputs), dtypes.float32, device)
        statistic = layout_of((num_outputs,), dtypes.float32, device)
        shape = (num_images, num_outputs, *size)
        channel_stride_one = (num_outputs * size[0] * size[1], 1, num_outputs * size[1], num_outputs)
        y = layout_of(shape, x.dtype, device, channel_stride_one)
        writes = writes_passed(num_outputs, activation, residual is not None)
        passed = passed_layout(y, activation) if writes else None
        tile = cut.fitted(cut.FORWARD, num_rows, num_inputs, num_outputs)
        blocks = -(-num_outputs // tile["BLOCK_K"])
        walks = min(
            -(-num_rows // tile["BLOCK_M"]), max(1, cut.FORWARD_PROGRAMS * cut.num_multiprocessors(device) // blocks)
        )
        in_hopper = None
        if activation in (None, "relu"):
            in_hopper = wide_hopper.forward(x, weight, residual, gamma, beta, activation == "relu")
        normalize = in_hopper or prepare_raw(
            kernels._wide_forward_kernel, device, (walks * blocks,),
            (y, passed, x, weight, residual, state, statistic, gamma, beta), num_rows, num_inputs, num_outputs,
            **activations.forward(activation, x.dtype), **tile,
        )  # fmt: skip
        return cls(y, passed, normalize)


def joining(partial: Layout) -> tuple[Layout, Callable[[int, int, int], None]]:
    """The layout of the sum over the first dimension, and what computes it: (stream, its address, partial's)."""
    num_parts, *shape = partial.shape
    out = layout_of(tuple(shape), partial.dtype, partial.device_index)
    join = prepare_raw(
        kernels._join_parts_kernel, partial.device_index, (-(-out.size // 32),), (out, partial), num_parts, out.size,
        PARTS=tiles.power_of_2(num_parts), BLOCK=32,
    )  # fmt: skip
    return out, join


def as_matrix(weight: DeviceArray) -> DeviceArray:
    """(K, C, 1, 1) as (K, C), row-major."""
    if weight.strides[:2] != (weight.shape[1], 1):
        weight = copy(weight, contiguous_strides(weight.shape))
    return weight.view(weight.shape[:2], (weight.shape[1], 1), weight.offset)
