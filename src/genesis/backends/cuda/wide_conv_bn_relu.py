"""conv_bn_relu in training where a 1×1 convolution has at least as many outputs as inputs, in bfloat16.

The convolution's output is never written: kernels/wide_conv_bn_relu.py says how.
"""

from __future__ import annotations

from typing import Any

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import array, driver, tiles
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.kernels import wide_conv_bn_relu as kernels
from genesis.backends.cuda.launch import launch
from genesis.backends.cuda.rows import channels_last, like
from genesis.backends.cuda.storage import copy
from genesis.dtypes import DType
from genesis.shapes import Shape, contiguous_strides

_MOST_INPUTS = 512
_PARTIAL_BYTES = 16 << 20  # of partial sums, which are written and read again
_PART_ROWS = 512  # at least, for each part of a sum


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
    residual: DeviceArray | None, momentum: float, eps: float, activation: str | None,
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    """As conv_bn_relu; in the convolution's output's place: the input's mean, and the weight times its covariance."""
    x, weight, residual = channels_last(input), _matrix(weight), channels_last(residual)
    num_images, num_inputs, *size = x.shape
    num_outputs, device = weight.shape[0], x.device_index
    num_rows = x.size // num_inputs
    sizes = (num_rows, num_inputs, num_outputs)
    block_c = min(max(tiles.power_of_2(num_inputs), 16), 128)
    blocks_c = -(-num_inputs // block_c)

    parts = _num_parts(num_rows, blocks_c * blocks_c, (num_inputs + 1) * num_inputs, device)
    partial = array.empty((parts, num_inputs + 1, num_inputs), dtypes.float32, device)
    launch(
        kernels._gram_kernel, (parts, blocks_c, blocks_c), partial, x, num_rows, num_inputs,
        BLOCK_M=128, BLOCK_C=block_c, num_warps=8 if block_c == 128 else 4, num_stages=3,
    )  # fmt: skip
    gram = _join(partial)

    block_c = min(block_c, 64)
    blocks_c = -(-num_inputs // block_c)
    state = array.empty((1 + num_outputs, num_inputs), dtypes.float32, device)
    spread = array.empty((2, blocks_c, num_outputs), dtypes.float32, device)
    launch(
        kernels._spread_kernel, (-(-num_outputs // 32), blocks_c), state, spread, gram, x, weight, *sizes,
        PRECISION=tiles.DOT_PRECISION[dtypes.float32], BLOCK_K=32, BLOCK_C=block_c,
    )  # fmt: skip
    mean, inverse_std = (array.empty((num_outputs,), dtypes.float32, device) for _ in range(2))
    launch(
        kernels._wide_statistics_kernel, (-(-num_outputs // 32),), mean, inverse_std, running_mean, running_var,
        spread, bias, num_rows, blocks_c, num_outputs, float(momentum), float(eps), BLOCK=32, num_warps=1,
    )  # fmt: skip

    shape = (num_images, num_outputs, *size)
    channel_stride_one = (num_outputs * size[0] * size[1], 1, num_outputs * size[1], num_outputs)
    y = array.empty(shape, x.dtype, device, channel_stride_one)
    passed = None
    if activation is not None:
        passed = array.empty((num_rows, -(-num_outputs // 8)), dtypes.uint8, device)
    tile = _tile(num_rows, num_outputs)
    launch(
        kernels._wide_forward_kernel, (-(-num_rows // tile["BLOCK_M"]) * -(-num_outputs // tile["BLOCK_K"]),),
        y, passed, x, weight, bias, residual, mean, inverse_std, gamma, beta, *sizes,
        RELU=activation == "relu", BLOCK_C=block_c, **tile,
    )  # fmt: skip
    return y, mean, inverse_std, state, passed


def backward(
    grad: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, gamma: DeviceArray | None,
    beta: DeviceArray | None, inverse_std: DeviceArray, state: DeviceArray, passed: DeviceArray | None,
    needs: tuple[bool, ...],
) -> tuple[DeviceArray | None, ...]:  # fmt: skip
    needs_input, needs_weight, needs_bias, needs_gamma, needs_beta, needs_residual = needs
    x, matrix = channels_last(input), _matrix(weight)
    num_inputs, num_outputs, device = x.shape[1], matrix.shape[0], x.device_index
    num_rows = x.size // num_inputs
    sizes = (num_rows, num_inputs, num_outputs)
    block_c = min(max(tiles.power_of_2(num_inputs), 16), 128)
    blocks_c = -(-num_inputs // block_c)
    tile = _tile(num_rows, num_outputs)

    grad_residual = like(grad) if needs_residual else None
    blocks_k = -(-num_outputs // tile["BLOCK_K"])
    parts = _num_parts(num_rows, blocks_k * blocks_c, (num_inputs + 1) * num_outputs, device)
    partial = array.empty((parts, num_inputs + 1, num_outputs), dtypes.float32, device)
    launch(
        kernels._wide_products_kernel, (parts, blocks_k, blocks_c), partial, grad_residual, grad, passed, x, state,
        *sizes, BLOCK_C=block_c, **{**tile, "BLOCK_M": min(tile["BLOCK_M"], 64)},
    )  # fmt: skip
    if grad_residual is not None:  # it is the gradient before the activation
        grad, passed = grad_residual, None
    products = _join(partial)

    scaled = like(matrix)
    slope, average = (array.empty((num_outputs,), dtypes.float32, device) for _ in range(2))
    grad_weight = array.empty(weight.shape, weight.dtype, device) if needs_weight else None
    grad_bias = like(bias) if needs_bias else None
    grad_gamma = like(gamma) if needs_gamma else None
    grad_beta = like(beta) if needs_beta else None
    small = {"BLOCK_K": 16, "BLOCK_C": min(block_c, 64)}
    launch(
        kernels._wide_parameter_grads_kernel, (-(-num_outputs // 16),), grad_weight, grad_gamma, grad_beta, grad_bias,
        scaled, slope, average, products, state, matrix, inverse_std, gamma, *sizes, **small,
    )  # fmt: skip
    grad_input = None
    if needs_input:
        block_i = small["BLOCK_C"]
        blocks_i = -(-num_inputs // block_i)
        projection = array.empty((num_inputs, num_inputs), x.dtype, device)
        constant = array.empty((num_inputs,), dtypes.float32, device)
        launch(
            kernels._projection_kernel, (blocks_i, blocks_i), projection, constant, matrix, slope, average,
            num_inputs, num_outputs, BLOCK_K=64, BLOCK_C=block_i,
        )  # fmt: skip
        grad_input = like(x)
        launch(
            kernels._wide_input_grad_kernel, (-(-num_rows // tile["BLOCK_M"]) * blocks_c,), grad_input, grad, passed, x,
            state, scaled, projection, constant, *sizes,
            **{**tile, "BLOCK_K": 64}, BLOCK_C=block_c, BLOCK_I=block_i,
        )  # fmt: skip
    return grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_residual


def _join(partial: DeviceArray) -> DeviceArray:
    """The sum over the first dimension."""
    num_parts, *shape = partial.shape
    out = array.empty(tuple(shape), partial.dtype, partial.device_index)
    launch(
        kernels._join_parts_kernel, (-(-out.size // 32),), out, partial, num_parts, out.size,
        PARTS=tiles.power_of_2(num_parts), BLOCK=32,
    )  # fmt: skip
    return out


def _num_parts(num_rows: int, num_blocks: int, sums_per_part: int, device: int) -> int:
    """So many that the multiprocessors are busy, each with enough rows, in bounded memory."""
    wanted = 2 * driver.get().properties(device).multiprocessor_count // num_blocks
    return max(1, min(wanted, num_rows // _PART_ROWS, _PARTIAL_BYTES // (4 * sums_per_part)))


def _tile(num_rows: int, num_outputs: int) -> dict[str, Any]:
    block_k = min(max(tiles.power_of_2(num_outputs), 16), 128)
    block_m = min(max(tiles.power_of_2(num_rows), 16), 128)
    return {"BLOCK_M": block_m, "BLOCK_K": block_k, "num_warps": 8 if block_m * block_k == 128 * 128 else 4}


def _matrix(weight: DeviceArray) -> DeviceArray:
    """(K, C, 1, 1) as (K, C), row-major."""
    if weight.strides[:2] != (weight.shape[1], 1):
        weight = copy(weight, contiguous_strides(weight.shape))
    return weight.view(weight.shape[:2], (weight.shape[1], 1), weight.offset)
