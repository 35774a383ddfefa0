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
from genesis.backends.cuda.driver import RawLaunch
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
    all_new,
    channels_last,
    fresh,
    layout,
    layouts,
    new,
    saved_layouts,
)
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState, SavedConvNorm
from genesis.shapes import Shape, contiguous_strides

_MOST_INPUTS = 64  # a program holds all of them; with more, writing the convolution's output was faster

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
_Backward = Callable[[DeviceArray, _Results, DeviceArray | None], _Results]  # grad, what is saved, addend
_forwards: dict[_Key, _Forward] = {}
_statistics: dict[_Key, _Statistics] = {}
_finishes: dict[_Key, _Finish] = {}
_backwards: dict[_Key, _Backward] = {}
for _plans in (_forwards, _statistics, _finishes, _backwards):
    driver.forget_on_switch(_plans.clear)


def supports(dtype: DType, weight_shape: Shape, geometry: ConvGeometry) -> bool:
    """float16 is left out: the products of gradients and weights could leave its range."""
    stride, padding, _, groups = geometry
    num_outputs, num_inputs, *taps = weight_shape
    return (
        dtype is dtypes.bfloat16
        and taps == [1, 1]
        and (stride, padding, groups) == ((1, 1), (0, 0), 1)
        and 16 <= num_inputs <= min(num_outputs, _MOST_INPUTS)
    )


def state_shape(num_inputs: int, num_outputs: int) -> Shape:
    """What is saved in the place of the convolution's output, in float32: see kernels._wide_statistics_kernel."""
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
    x, matrix, residual = channels_last(input), _matrix(weight), channels_last(residual)
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
    x, matrix, eps = channels_last(input), _matrix(weight), float(options.eps)
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
    x, matrix, (gamma, beta) = channels_last(input), _matrix(weight), affine
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
            EVEN=num_rows % cut.GRAM["BLOCK_M"] == 0, VECTOR=math.gcd(num_inputs, 8), **cut.GRAM,
        )  # fmt: skip
        gram, join = _joining(partial)
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


def backward(
    grad: DeviceArray, saved: SavedConvNorm[DeviceArray], activation: str | None, needs: tuple[bool, ...],
    addend: DeviceArray | None,
) -> _Results:  # fmt: skip
    input, weight, _, gamma, beta, _, inverse_std, state, passed = saved
    x, matrix = channels_last(input), _matrix(weight)
    addend = channels_last(addend) if needs[0] else None
    key = (*layouts(grad, x, matrix, *saved[2:], addend), activation, *needs)
    run = _backwards.get(key)
    if run is None:
        of_saved = saved_layouts(saved)._replace(input=x.layout, weight=matrix.layout)
        run = _backwards[key] = _plan_backward(grad.layout, of_saved, activation, layout(addend), needs)
    return run(grad, (x, matrix, gamma, beta, inverse_std, state, passed), addend)


def _plan_backward(
    grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, addend: Layout | None, needs: tuple[bool, ...]
) -> _Backward:
    gradients, scratch, launch = BackwardLaunches.of(grad, saved, activation, addend, needs)
    device = scratch[0].device_index  # type: ignore[union-attr]

    def run(grad: DeviceArray, saved: _Results, addend: DeviceArray | None) -> _Results:
        stream = streams.current_handle(device)
        outputs, room = all_new(gradients, stream), all_new(scratch, stream)
        launch(
            stream, addresses(outputs), addresses(room), grad.data_pointer, addresses(saved), address(addend)
        )  # fmt: skip
        return outputs

    return run


class BackwardLaunches(NamedTuple):
    """The backward, on addresses; None for what nobody wants."""

    gradients: tuple[Layout | None, ...]  # of input, weight, bias, gamma, beta, residual
    scratch: tuple[Layout | None, ...]
    # stream; addresses: gradients, scratch, grad, (x, weight, gamma, beta, inverse deviation, state, passed), addend
    launch: Callable[[int, _Addresses, _Addresses, int, _Addresses, int], None]

    @classmethod
    def of(
        cls, grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, addend: Layout | None,
        needs: tuple[bool, ...],
    ) -> BackwardLaunches:  # fmt: skip
        """saved: with the weight as a matrix."""
        gradients = _gradients(grad, saved, needs)
        grad_input, grad_residual = gradients[0], gradients[-1]
        partial, multiply = _multiplying(grad, saved, activation, grad_residual)
        products, join = _joining(partial)
        x, matrix = saved.input, saved.weight
        num_inputs = x.shape[1]
        scaled, projection, constant = fresh(matrix), None, None
        if grad_input is not None:
            projection = layout_of((num_inputs, num_inputs), x.dtype, x.device_index)
            constant = layout_of((num_inputs,), dtypes.float32, x.device_index)
        taps = (scaled, projection, constant)
        find_parameter_grads = _finding_parameter_grads(saved, gradients, taps, products)
        if grad_input is not None:
            # The residual's gradient is the gradient before the activation.
            sources, left = (
                ((grad, saved.passed), activation) if grad_residual is None else ((grad_residual, None), None)
            )
            find_input_grad = _finding_input_grad(grad, sources, saved, left, taps, addend)

        def launch(
            stream: int, out: _Addresses, scratch: _Addresses, grad: int, saved: _Addresses, addend: int
        ) -> None:
            out_input, out_weight, out_bias, out_gamma, out_beta, out_residual = out
            pieces, sums, *taps = scratch
            x, matrix, gamma, beta, inverse_std, state, passed = saved
            norm = (state, inverse_std, gamma, beta)
            multiply(stream, pieces, out_residual, grad, passed, x, matrix, *norm)
            join(stream, sums, pieces)
            find_parameter_grads(
                stream, out_weight, out_gamma, out_beta, out_bias, *taps, sums, state, matrix, inverse_std, gamma
            )  # fmt: skip
            if grad_input is not None:
                find_input_grad(stream, out_input, addend, out_residual or grad, passed, x, matrix, *norm, *taps)

        return cls(gradients, (partial, products, *taps), launch)


def _gradients(grad: Layout, saved: SavedConvNorm[Layout], needs: tuple[bool, ...]) -> tuple[Layout | None, ...]:
    """Layouts of the gradients of input, weight, bias, gamma, beta, residual, where they are needed."""
    matrix, device = saved.weight, saved.weight.device_index
    weight = layout_of((*matrix.shape, 1, 1), matrix.dtype, device)
    vectors = [None if like is None else layout_of(like.shape, like.dtype, device) for like in saved[2:5]]
    whole = (fresh(saved.input), weight, *vectors, fresh(grad))
    return tuple([layout if needed else None for layout, needed in zip(whole, needs, strict=True)])


def _sizes(saved: SavedConvNorm[Layout]) -> tuple[int, int, int]:
    """Numbers of rows, inputs and outputs."""
    num_outputs, num_inputs = saved.weight.shape
    return saved.input.size // num_inputs, num_inputs, num_outputs


def _multiplying(
    grad: Layout, saved: SavedConvNorm[Layout], activation: str | None, grad_residual: Layout | None
) -> tuple[Layout, wide_hopper.Products]:
    """Layout of the products' partial sums, and run(stream, these, residual's gradient, grad, passed, x, weight, norm):
    state, inverse deviation, gamma, beta."""
    x, device = saved.input, saved.input.device_index
    num_rows, num_inputs, num_outputs = _sizes(saved)
    tile = cut.fitted(cut.PRODUCTS, num_rows, num_inputs, num_outputs)
    blocks = -(-num_outputs // tile["BLOCK_K"])
    parts = cut.num_parts(num_rows, cut.PRODUCTS_PROGRAMS, blocks, (num_inputs + 1) * num_outputs, device)
    in_hopper = None
    if activation in (None, "relu"):
        in_hopper = wide_hopper.products(grad, x, saved.weight.shape)
    if in_hopper is not None:
        parts = 2 * wide_hopper.num_programs(num_rows, num_outputs, device)
    partial = layout_of((parts, num_inputs + 1, num_outputs), dtypes.float32, device)
    multiply = in_hopper or prepare_raw(
        kernels._wide_products_kernel, device, (parts, blocks),
        (partial, grad_residual, grad, saved.passed, x, saved.weight, *_norm(saved)), num_rows, num_inputs, num_outputs,
        **activations.backward(activation, x.dtype), **tile,
    )  # fmt: skip
    return partial, multiply


def _finding_parameter_grads(
    saved: SavedConvNorm[Layout], gradients: tuple[Layout | None, ...], taps: tuple[Layout | None, ...],
    products: Layout,
) -> RawLaunch:  # fmt: skip
    """run(stream, gradients of weight, gamma, beta, bias, taps, products, state, weight, inverse deviation, gamma)"""
    grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, _ = gradients
    num_rows, num_inputs, num_outputs = _sizes(saved)
    programs = -(-num_outputs // 16) + (-(-num_inputs // 16) if grad_input is not None else 0)
    return prepare_raw(
        kernels._wide_parameter_grads_kernel, saved.input.device_index, (programs,),
        (grad_weight, grad_gamma, grad_beta, grad_bias, *taps, products, saved.kept, saved.weight, saved.inverse_std,
         saved.gamma), num_rows, num_inputs, num_outputs, BLOCK_K=16, BLOCK_C=cut.block_c(num_inputs), BLOCK_I=16,
        BLOCK_L=64,
    )  # fmt: skip


def _finding_input_grad(
    grad: Layout, sources: tuple[Layout | None, ...], saved: SavedConvNorm[Layout], activation: str | None,
    taps: tuple[Layout | None, ...], addend: Layout | None,
) -> wide_hopper.InputGrad:  # fmt: skip
    """run(stream, input's gradient, addend, sources, x, weight, norm, taps). sources: the gradient, and what passed."""
    x = saved.input
    num_rows, num_inputs, num_outputs = _sizes(saved)
    tile = cut.fitted(cut.INPUT_GRAD, num_rows, num_inputs, num_outputs)
    in_hopper = None
    if activation in (None, "relu"):
        in_hopper = wide_hopper.input_grad(grad, x, saved.weight.shape, addend)
    return in_hopper or prepare_raw(
        kernels._wide_input_grad_kernel, x.device_index, (-(-num_rows // tile["BLOCK_M"]),),
        (fresh(x), addend, *sources, x, saved.weight, *_norm(saved), *taps), num_rows, num_inputs, num_outputs,
        **activations.backward(activation, x.dtype), **tile,
    )  # fmt: skip


def _norm(saved: SavedConvNorm[Layout]) -> tuple[Layout | None, ...]:
    return saved.kept, saved.inverse_std, saved.gamma, saved.beta


def _joining(partial: Layout) -> tuple[Layout, Callable[[int, int, int], None]]:
    """The layout of the sum over the first dimension, and what computes it: (stream, its address, partial's)."""
    num_parts, *shape = partial.shape
    out = layout_of(tuple(shape), partial.dtype, partial.device_index)
    join = prepare_raw(
        kernels._join_parts_kernel, partial.device_index, (-(-out.size // 32),), (out, partial), num_parts, out.size,
        PARTS=tiles.power_of_2(num_parts), BLOCK=32,
    )  # fmt: skip
    return out, join


def _matrix(weight: DeviceArray) -> DeviceArray:
    """(K, C, 1, 1) as (K, C), row-major."""
    if weight.strides[:2] != (weight.shape[1], 1):
        weight = copy(weight, contiguous_strides(weight.shape))
    return weight.view(weight.shape[:2], (weight.shape[1], 1), weight.offset)
