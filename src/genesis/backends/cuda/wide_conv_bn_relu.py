"""conv_bn_relu in training where a 1×1 convolution has at least as many outputs as inputs, in bfloat16.

The convolution's output is never written: kernels/wide_conv_bn_relu.py says how.
"""

from __future__ import annotations

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
    block_c = max(tiles.power_of_2(num_inputs), 16)

    parts = _num_parts(num_rows, _GRAM_PARTS, 1, (num_inputs + 1) * num_inputs, device)
    partial = array.empty((parts, num_inputs + 1, num_inputs), dtypes.float32, device)
    launch(kernels._gram_kernel, (parts,), partial, x, num_rows, num_inputs, BLOCK_C=block_c, **_GRAM)
    gram = _join(partial)
    state = array.empty((1 + num_outputs, num_inputs), dtypes.float32, device)
    mean, inverse_std = (array.empty((num_outputs,), dtypes.float32, device) for _ in range(2))
    launch(
        kernels._wide_statistics_kernel, (-(-num_outputs // 16),), mean, inverse_std, running_mean, running_var,
        state, gram, x, weight, bias, *sizes, float(momentum), float(eps),
        PRECISION=tiles.DOT_PRECISION[dtypes.float32], BLOCK_K=16, BLOCK_C=block_c,
    )  # fmt: skip

    shape = (num_images, num_outputs, *size)
    channel_stride_one = (num_outputs * size[0] * size[1], 1, num_outputs * size[1], num_outputs)
    y = array.empty(shape, x.dtype, device, channel_stride_one)
    passed = None
    if activation is not None:
        passed = array.empty((num_rows, -(-num_outputs // 8)), dtypes.uint8, device)
    tile = _fitted(_FORWARD, num_rows, num_outputs)
    blocks = -(-num_outputs // tile["BLOCK_K"])
    walks = min(-(-num_rows // tile["BLOCK_M"]), max(1, _FORWARD_PROGRAMS * _num_multiprocessors(device) // blocks))
    launch(
        kernels._wide_forward_kernel, (walks * blocks,), y, passed, x, weight, residual, state, inverse_std, gamma,
        beta, *sizes, RELU=activation == "relu", BLOCK_C=block_c, **tile,
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
    block_c = max(tiles.power_of_2(num_inputs), 16)

    grad_residual = like(grad) if needs_residual else None
    tile = _fitted(_PRODUCTS, num_rows, num_outputs)
    blocks = -(-num_outputs // tile["BLOCK_K"])
    parts = _num_parts(num_rows, _PRODUCTS_PROGRAMS, blocks, (num_inputs + 1) * num_outputs, device)
    partial = array.empty((parts, num_inputs + 1, num_outputs), dtypes.float32, device)
    launch(
        kernels._wide_products_kernel, (parts, blocks), partial, grad_residual, grad, passed, x, state, *sizes,
        BLOCK_C=block_c, **tile,
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
    launch(
        kernels._wide_parameter_grads_kernel, (-(-num_outputs // 16),), grad_weight, grad_gamma, grad_beta, grad_bias,
        scaled, slope, average, products, state, matrix, inverse_std, gamma, *sizes, BLOCK_K=16, BLOCK_C=block_c,
    )  # fmt: skip
    grad_input = None
    if needs_input:
        projection = array.empty((num_inputs, num_inputs), x.dtype, device)
        constant = array.empty((num_inputs,), dtypes.float32, device)
        launch(
            kernels._projection_kernel, (-(-num_inputs // 16),), projection, constant, matrix, slope, average,
            num_inputs, num_outputs, BLOCK_K=128, BLOCK_I=16, BLOCK_C=block_c,
        )  # fmt: skip
        grad_input = like(x)
        tile = _fitted(_INPUT_GRAD, num_rows, num_outputs)
        launch(
            kernels._wide_input_grad_kernel, (-(-num_rows // tile["BLOCK_M"]),), grad_input, grad, passed, x, state,
            scaled, projection, constant, *sizes, BLOCK_C=block_c, **tile,
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


def _num_parts(num_rows: int, per_multiprocessor: int, num_blocks: int, sums_per_part: int, device: int) -> int:
    """So many that the multiprocessors are busy, each with enough rows, in bounded memory."""
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
