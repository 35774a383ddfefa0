"""Inference of convolution, batch norm, residual and ReLU: the norm is folded into the weight at each call.

So the values are always those of now, whoever has changed a parameter and however, inside a CUDA graph too. Folding
moves the weight once through memory; a pass that normalizes would move the result.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.conv.launch import conv_forward_folded
from genesis.backends.cuda.ops.conv_bn_folded import kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.storage.rows import address, dense, layouts, statistics_dtype
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.memory import allocate
from genesis.dtypes import DType
from genesis.records import ConvGeometry, NormState
from genesis.shapes import channels_last_strides


class Fold(Protocol):
    """A prepared fold: folded weight and bias from the weight, and bias, gamma, beta, mean and variance."""

    def __call__(self, weight: DeviceArray, *vectors: DeviceArray | None) -> tuple[DeviceArray, DeviceArray]: ...


_ELEMENTS = 1024  # of the weight for a program at a time
_plans: dict[tuple[object, ...], Fold] = {}
driver.forget_on_switch(_plans.clear)


def conv_bn_relu_inference(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, norm: NormState[DeviceArray],
    residual: DeviceArray | None, eps: float, geometry: ConvGeometry, activation: str | None,
) -> DeviceArray:  # fmt: skip
    gamma, beta, running_mean, running_var, _ = norm
    vectors = (dense(bias), dense(gamma), dense(beta), dense(running_mean), dense(running_var))
    key = (input.dtype, *layouts(weight, *vectors), float(eps))
    fold = _plans.get(key)
    if fold is None:
        bias_layout, gamma_layout, beta_layout, mean, var = layouts(*vectors)
        assert mean is not None
        assert var is not None
        settings = (bias_layout, gamma_layout, beta_layout, mean, var, float(eps))
        fold = _plans[key] = _plan(input.dtype, weight.layout, *settings)
    folded, folded_bias = fold(weight, *vectors)
    return conv_forward_folded(input, folded, folded_bias, residual, activation, geometry)


def _plan(
    dtype: DType, weight: Layout, bias: Layout | None, gamma: Layout | None, beta: Layout | None, mean: Layout,
    var: Layout, eps: float,
) -> Fold:  # fmt: skip
    """Folded weight and bias, in one piece of memory."""
    folded, folded_bias, bias_place, run_fold = FoldLaunch.of(dtype, weight, bias, gamma, beta, mean, var, eps)
    device = weight.device_index

    def run(weight: DeviceArray, *vectors: DeviceArray | None) -> tuple[DeviceArray, DeviceArray]:
        stream = streams.current_handle(device)
        memory = allocate(bias_place + folded_bias.num_bytes, device, stream)
        pointer = memory.pointer
        run_fold(stream, pointer, pointer + bias_place, weight.data_pointer, *map(address, vectors))
        new_bias = DeviceArray(memory, folded_bias.shape, (1,), bias_place // dtype.itemsize, dtype, folded_bias)
        return folded.on(memory), new_bias

    return run


class FoldLaunch(NamedTuple):
    """The launch that folds, on addresses."""

    weight: Layout
    bias: Layout
    bias_place: int  # of the bias, in memory that begins with the weight
    fold: RawLaunch  # stream, folded weight and bias, weight, bias, gamma, beta, mean, var

    @classmethod
    def of(
        cls, dtype: DType, weight: Layout, bias: Layout | None, gamma: Layout | None, beta: Layout | None,
        mean: Layout, var: Layout, eps: float,
    ) -> FoldLaunch:  # fmt: skip
        device, (num_filters, num_channels, _, kernel_width) = weight.device_index, weight.shape
        folded = layout_of(weight.shape, dtype, device, channels_last_strides(weight.shape))
        folded_bias = layout_of((num_filters,), dtype, device)
        num_taps = folded.size // max(num_filters, 1)
        block_n = min(tiles.power_of_2(num_taps), _ELEMENTS)
        block_m = min(tiles.power_of_2(num_filters), _ELEMENTS // block_n)
        grid = (-(-num_filters // block_m), -(-num_taps // block_n))
        fold = prepare_raw(
            kernels._fold_kernel, device, grid, (folded, folded_bias, weight, bias, gamma, beta, mean, var),
            num_filters, num_taps, num_channels, kernel_width, *(weight.strides[axis] for axis in range(4)), eps,
            COMPUTE=COMPUTE[statistics_dtype(dtype)], BLOCK_M=block_m, BLOCK_N=block_n,
        )  # fmt: skip
        return cls(folded, folded_bias, -(-folded.num_bytes // 256) * 256, fold)
