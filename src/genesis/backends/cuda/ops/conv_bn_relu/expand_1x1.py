"""conv_bn_relu in training where a 1×1 convolution has at least as many outputs as inputs, in bfloat16.

The convolution's output is never written: kernels/expand_1x1.py says how. Its large passes are others on Hopper:
wide_hopper.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper as wide_hopper
from genesis.backends.cuda.ops.conv_bn_relu.kernels import expand_1x1 as kernels
from genesis.backends.cuda.ops.storage.launch import copy
from genesis.backends.cuda.ops.storage.rows import address, channels_last, fresh, layouts, new
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.shapes import Shape, contiguous_strides

_MOST_INPUTS = 64  # a program holds all of them; with more, writing the convolution's output was faster
_PARTIAL_BYTES = 24 << 20  # of partial sums, which are written and read again
_PART_ROWS = 256  # at least, for each part of a sum
# As measured on an H200: rows and outputs of a program's block, its warps, blocks on their way at a time, and how many
# programs there are for each multiprocessor.
_GRAM = {"BLOCK_M": 64, "STAGES": 4, "num_warps": 4}
_FORWARD = {"BLOCK_M": 64, "BLOCK_K": 64, "STAGES": 3, "num_warps": 4}
_PRODUCTS = {"BLOCK_M": 64, "BLOCK_K": 64, "STAGES": 3, "num_warps": 4}
_INPUT_GRAD = {"BLOCK_M": 64, "BLOCK_K": 64, "STAGES": 3, "num_warps": 4}
_GRAM_PARTS, _FORWARD_PROGRAMS, _PRODUCTS_PROGRAMS = 4, 8, 6

_Results = tuple[DeviceArray | None, ...]
_plans: dict[tuple[Any, ...], Callable[..., _Results]] = {}
driver.forget_on_switch(_plans.clear)


def supports(dtype: DType, weight_shape: Shape, stride: Pair, padding: Pair, groups: int) -> bool:
    """float16 is left out: the products of gradients and weights could leave its range."""
    num_outputs, num_inputs, *taps = weight_shape
    return (
        dtype is dtypes.bfloat16
        and taps == [1, 1]
        and (stride, padding, groups) == ((1, 1), (0, 0), 1)
        and 16 <= num_inputs <= min(num_outputs, _MOST_INPUTS)
    )


def forward(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
    count: DeviceArray | None, residual: DeviceArray | None, momentum: float, eps: float, activation: str | None,
) -> _Results:  # fmt: skip
    """Compute conv_bn_relu; in place of the convolution's output: the input's mean, the weight times its covariance."""
    arrays = (
        channels_last(input), _matrix(weight), bias, gamma, beta, running_mean, running_var, count,
        channels_last(residual),
    )  # fmt: skip
    key: tuple[Any, ...] = (*layouts(*arrays), float(eps), activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_forward(*key)
    return run(*arrays, momentum)


def _plan_forward(
    x: Layout, weight: Layout, bias: Layout | None, gamma: Layout | None, beta: Layout | None,
    running_mean: Layout | None, running_var: Layout | None, count: Layout | None, residual: Layout | None, eps: float,
    activation: str | None,
) -> Callable[..., _Results]:  # fmt: skip
    find = _plan_statistics(x, weight, bias, running_mean, running_var, count, eps)
    finish = _plan_finish(x, weight, gamma, beta, residual, activation)

    def run(
        x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
        beta: DeviceArray | None, running_mean: DeviceArray | None, running_var: DeviceArray | None,
        count: DeviceArray | None, residual: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        found = find(x, weight, bias, running_mean, running_var, count, momentum)
        return finish(x, weight, gamma, beta, *found, residual)

    return run


def statistics(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, count: DeviceArray | None, momentum: float, eps: float,
) -> _Results:  # fmt: skip
    """Mean and inverse deviation of the output, and what stands for it."""
    arrays = (channels_last(input), _matrix(weight), bias, running_mean, running_var, count)
    key: tuple[Any, ...] = ("statistics", *layouts(*arrays), float(eps))
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_statistics(*key[1:])
    return run(*arrays, momentum)


def finish(
    input: DeviceArray, weight: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None,
    mean: DeviceArray, inverse_std: DeviceArray, kept: DeviceArray, residual: DeviceArray | None,
    activation: str | None,
) -> _Results:  # fmt: skip
    """The rest of forward, of what statistics() gave."""
    arrays = (channels_last(input), _matrix(weight), gamma, beta, residual)
    key: tuple[Any, ...] = ("finish", *layouts(*arrays), activation)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_finish(*key[1:])
    return run(*arrays[:4], mean, inverse_std, kept, residual)


def _plan_statistics(*key: Any) -> Callable[..., _Results]:
    partial, gram, state, statistic, launch = StatisticsLaunches.of(*key)
    device = partial.device_index

    def run(
        x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, running_mean: DeviceArray | None,
        running_var: DeviceArray | None, count: DeviceArray | None, momentum: float,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        pieces, products = partial.new(stream), gram.new(stream)
        mean, inverse_std, kept = statistic.new(stream), statistic.new(stream), state.new(stream)
        launch(
            stream, mean.data_pointer, inverse_std.data_pointer, address(running_mean), address(running_var),
            address(count), kept.data_pointer, pieces.data_pointer, products.data_pointer, x.data_pointer,
            weight.data_pointer, address(bias), momentum,
        )  # fmt: skip
        return mean, inverse_std, kept

    return run


class StatisticsLaunches(NamedTuple):
    """Launches that find mean, inverse deviation and state, on addresses."""

    partial: Layout  # scratch, as is gram
    gram: Layout
    state: Layout
    statistic: Layout
    # stream, mean, inverse deviation, running mean and variance, count, state, partial, gram, x, weight, bias, momentum
    launch: Callable[..., None]

    @classmethod
    def of(
        cls, x: Layout, weight: Layout, bias: Layout | None, running_mean: Layout | None, running_var: Layout | None,
        count: Layout | None, eps: float,
    ) -> StatisticsLaunches:  # fmt: skip
        num_inputs, num_outputs, device = x.shape[1], weight.shape[0], x.device_index
        num_rows = x.size // num_inputs
        parts = _num_parts(num_rows, _GRAM_PARTS, 1, (num_inputs + 1) * num_inputs, device)
        in_hopper = wide_hopper.gram(x)
        if in_hopper is not None:
            parts = wide_hopper.num_programs(num_rows, 0, device)
        partial = layout_of((parts, num_inputs + 1, num_inputs), dtypes.float32, device)
        block_c = max(tiles.power_of_2(num_inputs), 16)
        add_gram = in_hopper or prepare_raw(
            kernels._gram_kernel, device, (parts,), (partial, x), num_rows, num_inputs, BLOCK_C=block_c, **_GRAM
        )
        gram, join = _joining(partial)
        state = layout_of((1 + num_outputs, num_inputs), dtypes.float32, device)
        statistic = layout_of((num_outputs,), dtypes.float32, device)
        find_statistics = prepare_raw(
            kernels._wide_statistics_kernel, device, (-(-num_outputs // 16),),
            (statistic, statistic, running_mean, running_var, count, state, gram, x, weight, bias, 0.0),
            num_rows, num_inputs, num_outputs, eps, PRECISION=tiles.DOT_PRECISION[dtypes.float32], BLOCK_K=16,
            BLOCK_C=block_c,
        )  # fmt: skip

        def launch(
            stream: int, mean: int, inverse_std: int, running_mean: int, running_var: int, count: int, state: int,
            pieces: int, products: int, x: int, weight: int, bias: int, momentum: float,
        ) -> None:  # fmt: skip
            add_gram(stream, pieces, x)
            join(stream, products, pieces)
            find_statistics(
                stream, mean, inverse_std, running_mean, running_var, count, state, products, x, weight, bias, momentum
            )  # fmt: skip

        return cls(partial, gram, state, statistic, launch)


def _plan_finish(*key: Any) -> Callable[..., _Results]:
    y, bits, normalize = FinishLaunch.of(*key)
    device = y.device_index

    def run(
        x: DeviceArray, weight: DeviceArray, gamma: DeviceArray | None, beta: DeviceArray | None, mean: DeviceArray,
        inverse_std: DeviceArray, kept: DeviceArray, residual: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        result, passed = y.new(stream), new(bits, stream)
        normalize(
            stream, result.data_pointer, address(passed), x.data_pointer, weight.data_pointer, address(residual),
            kept.data_pointer, inverse_std.data_pointer, address(gamma), address(beta),
        )  # fmt: skip
        return result, mean, inverse_std, kept, passed

    return run


class FinishLaunch(NamedTuple):
    """The pass that convolves, normalizes, adds and activates, on addresses."""

    y: Layout
    bits: Layout | None  # which results ReLU let through
    normalize: Callable[..., None]  # stream, y, bits, x, weight, residual, state, inverse deviation, gamma, beta

    @classmethod
    def of(
        cls, x: Layout, weight: Layout, gamma: Layout | None, beta: Layout | None, residual: Layout | None,
        activation: str | None,
    ) -> FinishLaunch:  # fmt: skip
        num_images, num_inputs, *size = x.shape
        num_outputs, device = weight.shape[0], x.device_index
        num_rows = x.size // num_inputs
        state = layout_of((1 + num_outputs, num_inputs), dtypes.float32, device)
        statistic = layout_of((num_outputs,), dtypes.float32, device)
        shape = (num_images, num_outputs, *size)
        channel_stride_one = (num_outputs * size[0] * size[1], 1, num_outputs * size[1], num_outputs)
        y, bits = layout_of(shape, x.dtype, device, channel_stride_one), None
        if activation is not None:
            bits = layout_of((num_rows, -(-num_outputs // 8)), dtypes.uint8, device)
        tile = _fitted(_FORWARD, num_rows, num_outputs)
        blocks = -(-num_outputs // tile["BLOCK_K"])
        walks = min(-(-num_rows // tile["BLOCK_M"]), max(1, _FORWARD_PROGRAMS * _num_multiprocessors(device) // blocks))
        normalize = wide_hopper.forward(x, weight, residual, gamma, beta, activation == "relu") or prepare_raw(
            kernels._wide_forward_kernel, device, (walks * blocks,),
            (y, bits, x, weight, residual, state, statistic, gamma, beta), num_rows, num_inputs, num_outputs,
            RELU=activation == "relu", BLOCK_C=max(tiles.power_of_2(num_inputs), 16), **tile,
        )  # fmt: skip
        return cls(y, bits, normalize)


def backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, inverse_std: DeviceArray, state: DeviceArray, passed: DeviceArray | None,
    needs: tuple[bool, ...], addend: DeviceArray | None,
) -> _Results:  # fmt: skip
    arrays = (
        grad, channels_last(input), _matrix(weight), bias, gamma, beta, inverse_std, state, passed,
        channels_last(addend) if needs[0] else None,
    )  # fmt: skip
    key: tuple[Any, ...] = (*layouts(*arrays), weight.shape, *needs)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan_backward(*key)
    return run(*arrays)


def _plan_backward(*key: Any) -> Callable[..., _Results]:
    launches = BackwardLaunches.of(*key)
    device = launches.scratch[0].device_index  # type: ignore[union-attr]

    def run(
        grad: DeviceArray, x: DeviceArray, matrix: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
        beta: DeviceArray | None, inverse_std: DeviceArray, state: DeviceArray, passed: DeviceArray | None,
        addend: DeviceArray | None,
    ) -> _Results:  # fmt: skip
        stream = streams.current_handle(device)
        outputs = tuple([new(layout, stream) for layout in launches.gradients])
        scratch = [new(layout, stream) for layout in launches.scratch]
        launches.launch(
            stream, *map(address, outputs), *map(address, scratch), grad.data_pointer, x.data_pointer,
            matrix.data_pointer, address(gamma), inverse_std.data_pointer, state.data_pointer, address(passed),
            address(addend),
        )  # fmt: skip
        return outputs

    return run


class BackwardLaunches(NamedTuple):
    """The backward, on addresses; None for what nobody wants."""

    gradients: tuple[Layout | None, ...]  # of input, weight, bias, gamma, beta, residual
    scratch: tuple[Layout | None, ...]
    # stream, the gradients, all of scratch, grad, x, weight, gamma, inverse deviation, state, passed, addend
    launch: Callable[..., None]

    @classmethod
    def of(
        cls, grad: Layout, x: Layout, matrix: Layout, bias: Layout | None, gamma: Layout | None, beta: Layout | None,
        inverse_std: Layout, state: Layout, passed: Layout | None, addend: Layout | None, weight_shape: Shape,
        needs_input: bool, needs_weight: bool, needs_bias: bool, needs_gamma: bool, needs_beta: bool,
        needs_residual: bool,
    ) -> BackwardLaunches:  # fmt: skip
        num_inputs, num_outputs, device = x.shape[1], matrix.shape[0], x.device_index
        num_rows = x.size // num_inputs
        sizes = (num_rows, num_inputs, num_outputs)
        block_c = max(tiles.power_of_2(num_inputs), 16)

        grad_residual = fresh(grad) if needs_residual else None
        tile = _fitted(_PRODUCTS, num_rows, num_outputs)
        blocks = -(-num_outputs // tile["BLOCK_K"])
        parts = _num_parts(num_rows, _PRODUCTS_PROGRAMS, blocks, (num_inputs + 1) * num_outputs, device)
        in_hopper = wide_hopper.products(grad, x, matrix.shape)
        if in_hopper is not None:
            parts = 2 * wide_hopper.num_programs(num_rows, num_outputs, device)
        partial = layout_of((parts, num_inputs + 1, num_outputs), dtypes.float32, device)
        multiply = in_hopper or prepare_raw(
            kernels._wide_products_kernel, device, (parts, blocks), (partial, grad_residual, grad, passed, x, state),
            *sizes, BLOCK_C=block_c, **tile,
        )  # fmt: skip
        products, join = _joining(partial)

        grad_weight = layout_of(weight_shape, matrix.dtype, device) if needs_weight else None
        grad_bias, grad_gamma, grad_beta = (
            layout_of(like.shape, like.dtype, device) if wanted and like is not None else None
            for like, wanted in ((bias, needs_bias), (gamma, needs_gamma), (beta, needs_beta))
        )
        scaled, projection, constant = fresh(matrix), None, None
        if needs_input:
            projection = layout_of((num_inputs, num_inputs), x.dtype, device)
            constant = layout_of((num_inputs,), dtypes.float32, device)
        find_parameter_grads = prepare_raw(
            kernels._wide_parameter_grads_kernel, device,
            (-(-num_outputs // 16) + (-(-num_inputs // 16) if needs_input else 0),),
            (grad_weight, grad_gamma, grad_beta, grad_bias, scaled, projection, constant, products, state, matrix,
             inverse_std, gamma), *sizes, BLOCK_K=16, BLOCK_C=block_c, BLOCK_I=16, BLOCK_L=64,
        )  # fmt: skip
        grad_input = fresh(x) if needs_input else None
        if needs_input:
            # The residual's gradient is the gradient before the activation.
            sources = (grad, passed) if grad_residual is None else (grad_residual, None)
            tile = _fitted(_INPUT_GRAD, num_rows, num_outputs)
            find_input_grad = wide_hopper.input_grad(grad, x, matrix.shape, addend) or prepare_raw(
                kernels._wide_input_grad_kernel, device, (-(-num_rows // tile["BLOCK_M"]),),
                (grad_input, addend, *sources, x, state, scaled, projection, constant), *sizes, BLOCK_C=block_c, **tile,
            )  # fmt: skip

        def launch(
            stream: int, out_input: int, out_weight: int, out_bias: int, out_gamma: int, out_beta: int,
            out_residual: int, pieces: int, sums: int, taps: int, through: int, shift: int, grad: int, x: int,
            matrix: int, gamma: int, inverse_std: int, state: int, passed: int, addend: int,
        ) -> None:  # fmt: skip
            multiply(stream, pieces, out_residual, grad, passed, x, state)
            join(stream, sums, pieces)
            find_parameter_grads(
                stream, out_weight, out_gamma, out_beta, out_bias, taps, through, shift, sums, state, matrix,
                inverse_std, gamma,
            )  # fmt: skip
            if needs_input:
                source = out_residual or grad
                find_input_grad(stream, out_input, addend, source, passed, x, state, taps, through, shift)

        gradients = (grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_residual)
        return cls(gradients, (partial, products, scaled, projection, constant), launch)


def _joining(partial: Layout) -> tuple[Layout, Callable[..., None]]:
    """The layout of the sum over the first dimension, and what computes it: (stream, its address, partial's)."""
    num_parts, *shape = partial.shape
    out = layout_of(tuple(shape), partial.dtype, partial.device_index)
    join = prepare_raw(
        kernels._join_parts_kernel, partial.device_index, (-(-out.size // 32),), (out, partial), num_parts, out.size,
        PARTS=tiles.power_of_2(num_parts), BLOCK=32,
    )  # fmt: skip
    return out, join


def _num_parts(num_rows: int, per_multiprocessor: int, num_blocks: int, sums_per_part: int, device: int) -> int:
    """Choose enough parts to keep the multiprocessors busy, each with enough rows, in bounded memory."""
    wanted = per_multiprocessor * _num_multiprocessors(device) // num_blocks
    return max(1, min(wanted, num_rows // _PART_ROWS, _PARTIAL_BYTES // (4 * sums_per_part)))


def _num_multiprocessors(device: int) -> int:
    return driver.get().properties(device).multiprocessor_count


def _fitted(tile: dict[str, int], num_rows: int, num_outputs: int) -> dict[str, int]:
    """No larger than the problem."""
    block_m = min(max(tiles.power_of_2(num_rows), 16), tile["BLOCK_M"])
    block_k = min(max(tiles.power_of_2(num_outputs), 16), tile["BLOCK_K"])
    return {**tile, "BLOCK_M": block_m, "BLOCK_K": block_k}


def _matrix(weight: DeviceArray) -> DeviceArray:
    """(K, C, 1, 1) as (K, C), row-major."""
    if weight.strides[:2] != (weight.shape[1], 1):
        weight = copy(weight, contiguous_strides(weight.shape))
    return weight.view(weight.shape[:2], (weight.shape[1], 1), weight.offset)
